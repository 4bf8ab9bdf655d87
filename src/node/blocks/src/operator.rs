//! The operator's tasks: a network is set up, its blocks are listed, and a node is released.

use std::net::IpAddr;

use cnimble_leases::cluster::config::Cluster;

use crate::record::Owner;
use crate::store::Store;
use crate::{BlocksError, Result};

/// Sets a network up, once. Nodes refuse to work with a store without it.
pub(crate) async fn init<S: Store>(cluster: &Cluster) -> Result<()> {
    let mut session = S::connect(cluster).await?;
    if session.init(cluster).await? {
        Ok(())
    } else {
        let why = format!("network {} is set up already", cluster.network);
        Err(BlocksError::Local(cnimble_cni::Error::config(why)))
    }
}

/// Returns the first address of each block, and each single address, with whether it is a single one and its owner.
pub(crate) async fn list<S: Store>(cluster: &Cluster) -> Result<Vec<(IpAddr, bool, Owner)>> {
    let mut all = S::begin(cluster, (0, 0), 0).await?.all_owners().await?;
    all.sort_by_key(|(first, ..)| *first);
    Ok(all)
}

/// Releases what all boots of `name` own. Others may claim it when the node's right to give addresses without the store
/// has ended, plus a tenth of that time, because clocks differ. Returns the number, and until when others wait, in
/// milliseconds since 1970. After a failure another call continues.
pub(crate) async fn release<S: Store>(cluster: &Cluster, name: &str) -> Result<(usize, u64)> {
    let mut session = S::open(cluster, (0, 0), 0).await?;
    let mut records = session.records(name).await?;
    // First: from now on nothing confirms the node, and it claims nothing.
    if !session.banish(name, &mut records).await? {
        return Err(BlocksError::Contended);
    }
    let (mut count, mut until) = (0, 0);
    let owned = session.owned_by(name).await?;
    if records.is_empty() && owned.is_empty() {
        let why = format!("{} has nothing of it", S::NAME);
        return Err(BlocksError::Identity { name: name.to_owned(), why });
    }
    for listed in owned {
        if let Some(free) = session.release(&listed, 0, None).await? {
            until = until.max(free);
            count += 1;
        }
    }
    for record in &records {
        session.forget(record).await?;
    }
    Ok((count, until))
}
