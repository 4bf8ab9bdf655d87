//! The tasks of the program `cluster-local-store`.

use std::io;
use std::net::IpAddr;
use std::time::Duration;

use serde_json::{Value, json};

use cnimble_leases::cluster::config::{self, Cluster};
use cnimble_leases::cluster::share::Share;

use crate::etcd::Etcd;
use crate::kubernetes::Kubernetes;
use crate::node::{Node, Turn};
use crate::store::Store;
use crate::tend::{Asked, tended};
use crate::vanished::{self, Cleared};
use crate::{BlocksError, Result, look, operator, watch};

/// The time limit of a task.
const DEADLINE: Duration = Duration::from_secs(12);

/// An operator's statement about the past of a network that the store doesn't have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Setup {
    /// No node has had an address of it.
    New,
    /// Nodes have had addresses of it, and claim again what they own.
    Recover,
}

/// A task, which is one start of the program.
#[derive(Debug)]
pub enum Task {
    /// The range set with this number needs at least so many free addresses.
    More(usize, usize),
    /// The node needs to own this address.
    Address(IpAddr),
    /// The share is confirmed in any case.
    Confirm,
    /// Unused blocks and addresses are returned.
    Tidy,
    /// Checks whether an ADD that needs the store would succeed. Changes nothing of the node.
    Look,
    /// The node's agent publishes addresses of the node, keeps a spare block, and returns what is unused.
    Tend(Asked),
    /// The node's agent follows all owners from this epoch and revision on.
    Watch((u64, i64)),
    /// The operator sets the network up. `None` fails, and explains the choice.
    Init(Option<Setup>),
    /// The operator lists all blocks and their owners.
    Blocks,
    /// The operator releases everything that a node owns.
    Release(String),
    /// A process of the operator releases what nodes own that are gone for good.
    Reclaim(Cleared),
}

impl Task {
    /// Returns the answer if the task needs nothing from the store, otherwise `None`. It needs no runtime and no
    /// connection.
    pub fn is_done(&self, cluster: &Cluster) -> Result<Option<String>> {
        Ok(match self {
            Task::More(set, count) if has_more(cluster, *set, *count)? => Some(String::new()),
            Task::Tend(asked) => tended(cluster, asked)?.map(|tended| json!(tended).to_string()),
            _ => None,
        })
    }

    /// Performs the task within 12 seconds, and returns the answer to print. `Watch` runs until it fails, and passes
    /// each line to `say`.
    pub async fn perform(&self, cluster: &Cluster, say: impl Fn(&str) -> io::Result<()>) -> Result<String> {
        match &cluster.store {
            config::Store::Etcd(_) => self.perform_in::<Etcd>(cluster, say).await,
            config::Store::Kubernetes(_) => self.perform_in::<Kubernetes>(cluster, say).await,
        }
    }

    async fn perform_in<S: Store>(
        &self,
        cluster: &Cluster,
        say: impl Fn(&str) -> io::Result<()>,
    ) -> Result<String> {
        if let Task::Watch(seen) = self {
            return watch::follow::<S>(cluster, *seen, DEADLINE, say).await.map(|()| String::new());
        }
        tokio::time::timeout(DEADLINE, self.perform_once::<S>(cluster))
            .await
            .unwrap_or_else(|_| Err(BlocksError::Away(S::NAME, "no time left".to_owned())))
    }

    async fn perform_once<S: Store>(&self, cluster: &Cluster) -> Result<String> {
        match self {
            Task::More(set, count) => Node::<S>::open(cluster).await?.more(*set, *count).await?,
            Task::Address(ip) => Node::<S>::open(cluster).await?.address(*ip).await?,
            Task::Confirm => drop(Node::<S>::open_with(cluster, Turn::Always).await?),
            Task::Tidy => Node::<S>::open(cluster).await?.tidy().await?,
            Task::Tend(asked) => {
                let tended = Node::<S>::open(cluster).await?.tend(asked).await?;
                return Ok(json!(tended).to_string());
            }
            Task::Look => look::check_add::<S>(cluster).await?,
            Task::Watch(_) => {}
            Task::Init(setup) => operator::init::<S>(cluster, *setup).await?,
            Task::Blocks => {
                let all = operator::list::<S>(cluster).await?;
                let rows = all.iter().map(|(first, is_single, owner)| {
                    let last = if *is_single { *first } else { cluster.last_of(*first) };
                    json!({"first": first, "last": last, "node": owner.node, "freeAt": owner.free})
                });
                return Ok(Value::from_iter(rows).to_string());
            }
            Task::Release(name) => {
                let (count, until) = operator::release::<S>(cluster, name).await?;
                return Ok(json!({"released": count, "freeAt": until}).to_string());
            }
            Task::Reclaim(asked) => {
                let (silent, gone) = vanished::reclaim::<S>(cluster, asked).await?;
                return Ok(json!({"silent": silent, "gone": gone}).to_string());
            }
        }
        Ok(String::new())
    }
}

/// Returns whether the node's share is valid, and has so many free addresses in the range set.
fn has_more(cluster: &Cluster, set: usize, count: usize) -> Result<bool> {
    let share = Share::read(&cluster.base.store)?;
    let Some(share) = share.filter(|share| share.is_valid().unwrap_or(false)) else {
        return Ok(false);
    };
    Ok(share.free(cluster, set)? >= count)
}
