//! The agent's part: a spare block is there before an ADD needs it.

use cnimble_leases::cluster::config::Cluster;
use cnimble_leases::cluster::share::Share;

use crate::Result;
use crate::node::{Node, free};

fn has_spares(cluster: &Cluster, share: &Share) -> Result<bool> {
    for n in 0..cluster.base.sets.len() {
        if free(cluster, share, n)? < cluster.half() {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Whether [`Node::tend`] has nothing to ask etcd for: each set has a spare block, and the last confirmation is younger
/// than a third of `offline`. The plugin asks for one after a half.
///
/// # Errors
/// The node's files can't be read.
pub fn is_tended(cluster: &Cluster) -> Result<bool> {
    let Some(share) = Share::read(&cluster.base.store)? else { return Ok(false) };
    let configured = u64::try_from(cluster.offline.as_millis()).unwrap_or(u64::MAX);
    let offline = share.identity.offline.min(configured);
    let is_fresh = share.age()?.is_some_and(|age| age < offline / 3);
    Ok(is_fresh && has_spares(cluster, &share)?)
}

impl Node<'_> {
    /// Claims a spare block for each set that lacks one, and returns what is unused. Returns whether a set lacks one
    /// all the same.
    ///
    /// # Errors
    /// etcd fails.
    pub async fn tend(&mut self) -> Result<bool> {
        for n in 0..self.cluster.base.sets.len() {
            self.more(n, self.cluster.half()).await?;
        }
        self.tidy().await?;
        Ok(!has_spares(self.cluster, &self.share)?)
    }
}
