//! The operator's part.

use std::collections::BTreeMap;
use std::net::IpAddr;

use etcd_client::{DeleteOptions, TxnOp};

use cnimble_leases::cluster::config::Cluster;

use crate::record::{Fence, Owner};
use crate::session::{Session, is, is_absent, parse};
use crate::{BlocksError, Result, keys};

/// A block, or a single address, as the operator sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Claim {
    pub first: IpAddr,
    pub is_single: bool,
    pub node: String,
    /// The time from which on others may claim a released block, in milliseconds since 1970.
    pub free: Option<u64>,
}

/// Sets a network up, once. Nodes refuse to work with an etcd without it.
pub async fn init(cluster: &Cluster) -> Result<()> {
    let mut session = Session::connect(cluster).await?;
    let (id, offset) = session.least_offset().await?;
    let (host_bits, offline) = (cluster.host_bits, cluster.offline_ms());
    let fence = Fence { cluster: id, offset, host_bits, offline, ..Fence::default() };
    session.seal(fence).await.map_err(|err| match err {
        BlocksError::Contended => {
            let why = format!("network {} is set up already", cluster.network);
            BlocksError::Local(cnimble_cni::Error::config(why))
        }
        err => err,
    })
}

pub async fn list(cluster: &Cluster) -> Result<Vec<Claim>> {
    let mut session = Session::begin(cluster, (0, 0)).await?;
    let mut claims = BTreeMap::new();
    for (prefix, is_single) in [(session.keys.blocks(), false), (session.keys.singles(), true)] {
        for kv in session.list(&prefix).await? {
            let Some(first) = keys::ip(&String::from_utf8_lossy(kv.key())) else { continue };
            let owner: Owner = parse(&kv)?;
            claims.insert(first, Claim { first, is_single, node: owner.node, free: owner.free });
        }
    }
    Ok(claims.into_values().collect())
}

/// Releases what all boots of `name` own. Others may claim it when the node's right to give addresses without etcd has
/// ended, plus a tenth of that time, because clocks differ. Returns the number, and until when others wait, in
/// milliseconds since 1970. After a failure another call continues.
pub async fn release(cluster: &Cluster, name: &str) -> Result<(usize, u64)> {
    let mut session = Session::open(cluster, (0, 0)).await?;
    let (node, prefix) = (session.keys.node(name), session.keys.owned_by(name));
    let (host, boots) = (session.keys.host(name), session.keys.boots(name));
    // First: from now on nothing confirms the node, and it claims nothing.
    let known = session.get(&node).await?;
    let has_others = !session.list(&boots).await?.is_empty();
    let all = Some(DeleteOptions::new().with_prefix());
    let gone = vec![TxnOp::delete(node.clone(), None), TxnOp::delete(host, None), TxnOp::delete(boots, all)];
    let condition = known.as_ref().map_or_else(|| is_absent(node.clone()), |kv| is(node.clone(), kv.value()));
    if (known.is_some() || has_others) && !session.commit(vec![condition], gone).await? {
        return Err(BlocksError::Contended);
    }
    let (mut count, mut until) = (0, 0);
    let owned = session.list(&prefix).await?;
    if known.is_none() && !has_others && owned.is_empty() {
        return Err(BlocksError::Identity {
            name: name.to_owned(),
            why: "etcd has nothing of it".to_owned(),
        });
    }
    for kv in owned {
        if let Some(free) = crate::release::release(&mut session, cluster, &kv, 0, None).await? {
            until = until.max(free);
            count += 1;
        }
    }
    Ok((count, until))
}
