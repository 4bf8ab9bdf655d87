//! The agent's task: it claims a spare block before an ADD needs it.

use std::collections::BTreeSet;
use std::net::IpAddr;

use serde::Serialize;

use cnimble_leases::cluster::config::{Cluster, Store as Chosen};
use cnimble_leases::cluster::share::{self, Asker, Share, Used};

use crate::node::Node;
use crate::store::Store;
use crate::{BlocksError, Result};

/// Returns whether each usual range set has at least half a block of free addresses.
fn has_spares(cluster: &Cluster, share: &Share) -> Result<bool> {
    for n in 0..cluster.pools.usual {
        if share.free(cluster, n)? < cluster.half() {
            return Ok(false);
        }
    }
    Ok(true)
}

/// The least time between two publications of a node's numbers of addresses and blocks, in milliseconds.
const REPORTS: u64 = 60_000;

/// Returns the numbers of addresses in use and of blocks, if they must be published: the store is Kubernetes, and they
/// have changed or were never published.
fn news(cluster: &Cluster, share: &Share) -> Result<Option<Used>> {
    if !matches!(cluster.store, Chosen::Kubernetes(_)) {
        return Ok(None);
    }
    let used = Used { count: share::leases(cluster)?.len(), blocks: share.owned.len(), at: share::now()? };
    let is_news = share.used.as_ref().is_none_or(|known| {
        let is_other = (known.count, known.blocks) != (used.count, used.blocks);
        is_other && used.at >= known.at + REPORTS
    });
    Ok(is_news.then_some(used))
}

/// The facts that the agent passes to [`Node::tend`].
#[derive(Debug, Default)]
pub struct Asked {
    /// The node's addresses, if others have routes to it.
    pub ips: Vec<IpAddr>,
    /// The names of the cluster's nodes, if an API server lists them.
    pub listed: BTreeSet<String>,
}

/// The state of a node that is tended.
#[derive(Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Tended {
    /// Whether the store was asked. It is false if nothing was to be done.
    pub(crate) asked: bool,
    /// Whether a set lacks a spare block.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub(crate) short: bool,
    /// The number of other boots that use the node's name at the same time.
    #[serde(skip_serializing_if = "is_zero")]
    pub(crate) namesakes: usize,
}

fn is_zero(number: &usize) -> bool {
    *number == 0
}

/// Returns the state if [`Node::tend`] has nothing to do: the store has the node's addresses, each set has a spare
/// block, and no confirmation is due. Otherwise returns `None`.
pub(crate) fn tended(cluster: &Cluster, asked: &Asked) -> Result<Option<Tended>> {
    let Some(share) = Share::read(&cluster.base.store)? else { return Ok(None) };
    let is_news = asked.listed.contains(&share.identity.name) && !share.identity.listed;
    if is_news || !asked.ips.is_empty() && share.announced != asked.ips || news(cluster, &share)?.is_some() {
        return Ok(None);
    }
    let is_fresh = share.is_valid()? && !share.is_due(cluster, Asker::Agent)?;
    let is_tended = is_fresh && has_spares(cluster, &share)?;
    Ok(is_tended.then(|| Tended { namesakes: share.namesakes(), ..Tended::default() }))
}

impl<S: Store> Node<'_, S> {
    /// Publishes the node's addresses, claims missing spare blocks, and returns unused blocks and those of nodes that
    /// have left the cluster.
    pub(crate) async fn tend(&mut self, asked: &Asked) -> Result<Tended> {
        if !asked.ips.is_empty() {
            self.announce(&asked.ips).await?;
        }
        for n in 0..self.cluster.pools.usual {
            self.more(n, self.cluster.half()).await?;
        }
        self.tidy().await?;
        self.return_vanished(&asked.listed).await?;
        if let Some(used) = news(self.cluster, &self.share)? {
            let mut own = self.confirmed_record()?;
            self.session.report(&mut own, used.blocks, used.count).await?;
            self.own = Some(own);
            self.share.used = Some(used);
            self.save()?;
        }
        let short = !has_spares(self.cluster, &self.share)?;
        Ok(Tended { asked: true, short, namesakes: self.share.namesakes() })
    }

    /// Publishes the addresses of this node, if this is its latest boot.
    pub(crate) async fn announce(&mut self, ips: &[IpAddr]) -> Result<()> {
        let mut own = self.confirmed_record()?;
        // Only the latest boot publishes its addresses.
        if !own.is_latest {
            return Ok(());
        }
        if !self.session.announce(&mut own, ips).await? {
            return Err(BlocksError::Contended);
        }
        self.own = Some(own);
        self.share.announced = ips.to_vec();
        self.save()
    }
}
