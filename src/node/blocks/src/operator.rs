//! The operator's tasks: setting a network up, listing its blocks, and releasing a node.

use std::net::IpAddr;

use cnimble_leases::cluster::config::Cluster;
use cnimble_leases::cluster::share::{self, Share};

use crate::record::{Fence, Owner, unix_now};
use crate::store::Store;
use crate::task::Setup;
use crate::{BlocksError, Result};

/// Sets a network up. Fails if it is set up already. Nodes refuse to work with a store in which it is not.
///
/// A store that was lost looks like a new one. In a lost store the blocks of living pods look free, so the operator
/// says which of the two it is. Without `setup` this always fails, with an error that asks for the choice. With
/// [`Setup::New`] it fails if the store has blocks of the network, or if this node has had addresses of it.
pub(crate) async fn init<S: Store>(cluster: &Cluster, setup: Option<Setup>) -> Result<()> {
    let again = format!("network {} is set up already", cluster.network);
    let mut session = S::connect(cluster).await?;
    let share = Share::read(&cluster.base.store)?;
    let setup = match setup {
        _ if session.read_fence().await?.is_some() => return Err(refusal(again)),
        Some(setup) => setup,
        None => {
            return Err(refusal(format!(
                "{} has nothing of network {}: give --new for a new cluster, or --recover if nodes have had \
                 addresses of it",
                S::NAME,
                cluster.network
            )));
        }
    };
    if setup == Setup::New {
        if !session.all_owners().await?.is_empty() {
            let why = format!("network {} is not new, because {} has blocks of it", cluster.network, S::NAME);
            return Err(refusal(format!("{why}: give --recover")));
        }
        if let Some(what) = trace(cluster, share.as_ref())? {
            return Err(refusal(format!(
                "network {} is not new, because this node has {what} in {}: give --recover, or remove that \
                 directory on each node when no pod has an address of it",
                cluster.network,
                cluster.base.store.display()
            )));
        }
    }
    if session.init(cluster, fence(cluster, share.as_ref(), setup)).await? {
        Ok(())
    } else {
        Err(refusal(again))
    }
}

/// Returns the error of a network that can't be set up as the operator wants.
fn refusal(why: String) -> BlocksError {
    BlocksError::Local(cnimble_cni::Error::config(why))
}

/// Returns what proves on this node that the network was set up before, or `None`. An agent makes a share before the
/// network is set up, so an empty share proves nothing.
fn trace(cluster: &Cluster, share: Option<&Share>) -> Result<Option<&'static str>> {
    if share.is_some_and(|share| share.registered || !share.owned.is_empty() || share.seen() > (0, 0)) {
        return Ok(Some("its share of the addresses"));
    }
    Ok(if share::leases(cluster)?.is_empty() { None } else { Some("leases") })
}

/// Returns the first fence of a network. After [`Setup::Recover`] nothing is claimed at first, as after a restored
/// backup.
fn fence(cluster: &Cluster, share: Option<&Share>, setup: Setup) -> Fence {
    let (host_bits, offline) = (cluster.host_bits, cluster.offline_ms());
    let new = Fence { host_bits, offline, ..Fence::default() };
    if setup == Setup::New {
        return new;
    }
    let longest = share.map_or(0, |share| share.longest);
    let epoch = unix_now().max(share.map_or(0, |share| share.epoch + 1));
    let suspect = Some("`cnimble ipam init --recover` has set the network up again".to_owned());
    Fence { epoch, suspect, offline: offline.max(longest), ..new }
}

/// Returns the first address of each block, and each single address, sorted, with whether it is a single one and its
/// owner.
pub(crate) async fn list<S: Store>(cluster: &Cluster) -> Result<Vec<(IpAddr, bool, Owner)>> {
    let mut all = S::begin(cluster, (0, 0), 0).await?.all_owners().await?;
    all.sort_by_key(|(first, ..)| *first);
    Ok(all)
}

/// Releases what all boots of `name` own. Others may claim it when the node's right to give addresses without the store
/// has ended, plus a tenth of that time, because clocks differ. Returns the number, and until when others wait, in
/// milliseconds since 1970. After a failure another call continues.
///
/// # Errors
/// Fails with [`BlocksError::Identity`] if the store has nothing of the node. Fails with [`BlocksError::Contended`] if a
/// process changes the node's records meanwhile.
pub(crate) async fn release<S: Store>(cluster: &Cluster, name: &str) -> Result<(usize, u64)> {
    let mut session = S::open(cluster, (0, 0), 0).await?;
    let mut records = session.records(name).await?;
    // The records are ended first. From then on nothing confirms the node, and it claims nothing.
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
