//! The agent's part: a spare block exists before an ADD needs it.

use std::collections::BTreeSet;
use std::net::IpAddr;

use etcd_client::TxnOp;
use serde::Serialize;

use cnimble_leases::cluster::config::Cluster;
use cnimble_leases::cluster::share::{Asker, Share};

use crate::node::{Node, free};
use crate::record::Host;
use crate::session::{json, parse};
use crate::{BlocksError, Result};

fn has_spares(cluster: &Cluster, share: &Share) -> Result<bool> {
    for n in 0..cluster.pools.usual {
        if free(cluster, share, n)? < cluster.half() {
            return Ok(false);
        }
    }
    Ok(true)
}

/// The agent's part of [`Node::tend`].
#[derive(Debug, Default)]
pub struct Asked {
    /// The node's addresses, if others have routes to it.
    pub ips: Vec<IpAddr>,
    /// The names of the cluster's nodes, if an API server lists them.
    pub listed: BTreeSet<String>,
}

/// The state of a node that is tended.
#[derive(Debug, Default, PartialEq, Eq, Serialize)]
pub struct Tended {
    /// Whether etcd was asked.
    pub asked: bool,
    /// Whether a set lacks a spare block.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub short: bool,
    /// The number of other boots that use the node's name at the same time.
    #[serde(skip_serializing_if = "is_zero")]
    pub namesakes: usize,
}

fn is_zero(number: &usize) -> bool {
    *number == 0
}

/// The state, if [`Node::tend`] has nothing to do: etcd has the node's addresses, each set has a spare block, and no
/// confirmation is due.
pub fn tended(cluster: &Cluster, asked: &Asked) -> Result<Option<Tended>> {
    let Some(share) = Share::read(&cluster.base.store)? else { return Ok(None) };
    let is_news = asked.listed.contains(&share.identity.name) && !share.identity.listed;
    if is_news || !asked.ips.is_empty() && share.announced != asked.ips {
        return Ok(None);
    }
    let is_fresh = share.is_valid()? && !share.is_due(cluster, Asker::Agent)?;
    let is_tended = is_fresh && has_spares(cluster, &share)?;
    Ok(is_tended.then(|| Tended { namesakes: share.namesakes(), ..Tended::default() }))
}

impl Node<'_> {
    /// Publishes the node's addresses, claims missing spare blocks, and returns unused blocks and those of nodes that
    /// have left the cluster.
    pub async fn tend(&mut self, asked: &Asked) -> Result<Tended> {
        if !asked.ips.is_empty() {
            self.tell(&asked.ips).await?;
        }
        for n in 0..self.cluster.pools.usual {
            self.more(n, self.cluster.half()).await?;
        }
        self.tidy().await?;
        self.return_vanished(&asked.listed).await?;
        let short = !has_spares(self.cluster, &self.share)?;
        Ok(Tended { asked: true, short, namesakes: self.share.namesakes() })
    }

    pub(crate) async fn tell(&mut self, ips: &[IpAddr]) -> Result<()> {
        let name = &self.share.identity.name;
        let key = self.session.keys.host(name);
        let wanted = Host { ips: ips.to_vec() };
        // The addresses are those of the latest boot.
        if self.key != self.session.keys.node(name) {
            return Ok(());
        }
        let known = self.session.get(&key).await?;
        if known.and_then(|kv| parse::<Host>(&kv).ok()).as_ref() != Some(&wanted) {
            let put = TxnOp::put(key, json(&wanted)?, None);
            if !self.session.commit(vec![self.is_confirmed()], vec![put]).await? {
                return Err(BlocksError::Contended);
            }
        }
        self.share.announced = wanted.ips;
        self.save()
    }
}
