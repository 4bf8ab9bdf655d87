//! Nodes that have left the cluster: an API server does not list them any more, and they confirm nothing.

use std::collections::BTreeSet;

use cnimble_leases::cluster::config::Cluster;
use cnimble_leases::cluster::share::{Identity, Other};

use crate::Result;
use crate::boots::Records;
use crate::node::Node;
use crate::store::Store;

impl<S: Store> Node<'_, S> {
    /// Releases the blocks of nodes that aren't `listed` any more, once they have confirmed nothing for too long. Does
    /// nothing if this node itself is not listed.
    pub(crate) async fn return_vanished(&mut self, listed: &BTreeSet<String>) -> Result<()> {
        // A machine that the API server does not list, or lists under another name, cannot judge others.
        if !listed.contains(&self.share.identity.name) {
            return Ok(());
        }
        if !self.share.identity.listed {
            self.share.identity.listed = true;
            self.confirm().await?;
        }
        let mut all = self.session.identities().await?;
        // Other machines may use the network, too.
        all.retain(|identity| identity.listed);
        let ours = &self.share.identity.instance;
        let (watched, _) =
            expire_unlisted(&mut self.session, ours, &all, listed, &self.share.vanished).await?;
        self.share.vanished = watched;
        self.save()
    }
}

/// The facts that an operator's process passes to [`reclaim`].
#[derive(Debug, Default)]
pub struct Cleared {
    /// The names of the cluster's nodes.
    pub listed: BTreeSet<String>,
    /// What the process knows of silent boots, from the last call.
    pub silent: Vec<Other>,
}

/// Releases the blocks of all nodes that aren't `listed`, once they have confirmed nothing for too long, and blocks
/// that no boot owns. Does nothing if no node of the network is listed. Returns what is known of the silent boots, and
/// the names of the unlisted nodes.
pub(crate) async fn reclaim<S: Store>(
    cluster: &Cluster,
    asked: &Cleared,
) -> Result<(Vec<Other>, BTreeSet<String>)> {
    let mut session = S::open(cluster, (0, 0), 0).await?;
    let all = session.identities().await?;
    // An API server that lists none of them is that of another cluster, or has lost its nodes.
    if !all.iter().any(|identity| asked.listed.contains(&identity.name)) {
        return Ok((Vec::new(), BTreeSet::new()));
    }
    session.release_orphans().await?;
    expire_unlisted(&mut session, "", &all, &asked.listed, &asked.silent).await
}

/// Releases what the unlisted nodes among `all` own, once they have confirmed nothing for too long. Returns the states
/// of their boots, and their names. `ours` is the instance of the caller's boot, `known` are the states before.
async fn expire_unlisted<S: Store>(
    session: &mut S,
    ours: &str,
    all: &[Identity],
    listed: &BTreeSet<String>,
    known: &[Other],
) -> Result<(Vec<Other>, BTreeSet<String>)> {
    let gone = all.iter().map(|identity| &identity.name).filter(|name| !listed.contains(*name));
    let gone: BTreeSet<String> = gone.cloned().collect();
    let mut watched = Vec::new();
    for name in &gone {
        let records = Records::read(session, name).await?;
        let mut others = records.list_others(ours, known);
        let owned = session.owned_by(name).await?;
        records.expire(session, &mut others, &owned).await?;
        watched.append(&mut others);
    }
    Ok((watched, gone))
}
