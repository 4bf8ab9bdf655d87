//! The agent's part: a spare block exists before an ADD needs it.

use std::net::IpAddr;

use etcd_client::TxnOp;

use cnimble_leases::cluster::config::Cluster;
use cnimble_leases::cluster::share::Share;

use crate::node::{Node, free};
use crate::record::Host;
use crate::session::{is, json, parse};
use crate::{BlocksError, Result};

fn has_spares(cluster: &Cluster, share: &Share) -> Result<bool> {
    for n in 0..cluster.base.sets.len() {
        if free(cluster, share, n)? < cluster.half() {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Whether etcd has the node's addresses, each set has a spare block, and the last confirmation is younger than a third
/// of `offline`. The plugin asks for one after a half.
pub fn is_tended(cluster: &Cluster, ips: &[IpAddr]) -> Result<bool> {
    let Some(share) = Share::read(&cluster.base.store)? else { return Ok(false) };
    if !ips.is_empty() && share.announced != ips {
        return Ok(false);
    }
    let configured = u64::try_from(cluster.offline.as_millis()).unwrap_or(u64::MAX);
    let offline = share.identity.offline.min(configured);
    let is_fresh = share.age()?.is_some_and(|age| age < offline / 3);
    Ok(is_fresh && has_spares(cluster, &share)?)
}

impl Node<'_> {
    /// Returns whether a set still lacks a spare block.
    pub async fn tend(&mut self, ips: &[IpAddr]) -> Result<bool> {
        if !ips.is_empty() {
            self.tell(ips).await?;
        }
        for n in 0..self.cluster.base.sets.len() {
            self.more(n, self.cluster.half()).await?;
        }
        self.tidy().await?;
        Ok(!has_spares(self.cluster, &self.share)?)
    }

    async fn tell(&mut self, ips: &[IpAddr]) -> Result<()> {
        let name = &self.share.identity.name;
        let (node, key) = (self.session.keys.node(name), self.session.keys.host(name));
        let wanted = Host { ips: ips.to_vec() };
        let known = self.session.get(&key).await?;
        if known.and_then(|kv| parse::<Host>(&kv).ok()).as_ref() != Some(&wanted) {
            let put = TxnOp::put(key, json(&wanted)?, None);
            if !self.session.commit(vec![is(node, self.record.clone())], vec![put]).await? {
                return Err(BlocksError::Contended);
            }
        }
        self.share.announced = wanted.ips;
        self.save()
    }
}
