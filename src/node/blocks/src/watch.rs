//! The blocks and addresses of all nodes, for agents that keep routes to the other nodes' pods. It takes no lock. It
//! only reads, with one exception: if [`Store::open`] notices that the store was restored, it writes that to the fence.
//! [`follow`] ends with a failure: the agent keeps its state, and starts again. A single look that the store does not
//! answer is no failure.

use std::collections::BTreeMap;
use std::io;
use std::net::IpAddr;
use std::time::Duration;

use serde::Serialize;
use tokio::time::Instant;

use cnimble_cni::names;
use cnimble_leases::cluster::config::Cluster;
use cnimble_leases::cluster::share::Share;

use crate::record::Change;
use crate::store::{Store, Watch};
use crate::{BlocksError, Result};

/// How long changes are collected before they are reported together.
const SETTLE: Duration = Duration::from_millis(50);
/// The time between lines to the agent, and the shortest one between two reads of the fence.
pub(crate) const LOOK: Duration = Duration::from_secs(10);
/// The time until the next read of a store that did not answer, while a removal waits to be reported.
const AGAIN: Duration = Duration::from_secs(1);

#[derive(Debug, Default, Serialize)]
struct Shares<'s> {
    ips: &'s [IpAddr],
    blocks: Vec<IpAddr>,
    singles: Vec<IpAddr>,
}

/// A line for the agent.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Line<'s> {
    epoch: u64,
    revision: i64,
    host_bits: u32,
    nodes: BTreeMap<&'s str, Shares<'s>>,
}

/// The valid records of the store: owners of blocks and single addresses by first address, and the nodes' addresses.
#[derive(Debug, Default)]
struct State {
    blocks: BTreeMap<IpAddr, String>,
    singles: BTreeMap<IpAddr, String>,
    hosts: BTreeMap<String, Vec<IpAddr>>,
    revision: i64,
}

impl State {
    /// Applies a change. Returns whether the state differs now.
    fn apply(&mut self, change: Change) -> bool {
        let (owners, ip, owner) = match change {
            Change::Fence => return false,
            Change::Host(name, ips) => return set_key(&mut self.hosts, name, ips),
            Change::Block(ip, owner) => (&mut self.blocks, ip, owner),
            Change::Single(ip, owner) => (&mut self.singles, ip, owner),
        };
        // The pods of a released node are gone.
        let owner = owner.filter(|owner| owner.free.is_none() && names::is_identifier(&owner.node));
        set_key(owners, ip, owner.map(|owner| owner.node))
    }

    /// Returns the state as a line of JSON.
    fn line(&self, cluster: &Cluster, epoch: u64) -> Result<String> {
        let mut nodes: BTreeMap<&str, Shares<'_>> = BTreeMap::new();
        for (name, ips) in &self.hosts {
            nodes.entry(name).or_default().ips = ips;
        }
        for (first, name) in self.blocks.iter().filter(|(first, _)| cluster.block_of(**first) == **first) {
            nodes.entry(name).or_default().blocks.push(*first);
        }
        for (ip, name) in self.singles.iter().filter(|(ip, _)| cluster.is_in_tail(**ip)) {
            nodes.entry(name).or_default().singles.push(*ip);
        }
        let line = Line { epoch, revision: self.revision, host_bits: cluster.host_bits, nodes };
        serde_json::to_string(&line)
            .map_err(|err| cnimble_cni::Error::new(cnimble_cni::Code::INTERNAL, err.to_string()).into())
    }
}

/// Sets or removes a key. Returns whether that changes its value.
fn set_key<K: Ord, V: PartialEq>(map: &mut BTreeMap<K, V>, key: K, value: Option<V>) -> bool {
    if map.get(&key) == value.as_ref() {
        return false;
    }
    match value {
        Some(value) => drop(map.insert(key, value)),
        None => drop(map.remove(&key)),
    }
    true
}

/// Passes each state from now on to `say` as a line, and an empty line now and then as a sign of life. `seen` is the
/// latest known epoch and revision, `patience` the limit before the first line. Fails if the store is another one, or
/// the reader is gone.
pub(crate) async fn follow<S: Store>(
    cluster: &Cluster,
    seen: (u64, i64),
    patience: Duration,
    say: impl Fn(&str) -> io::Result<()>,
) -> Result<()> {
    let begun = tokio::time::timeout(patience, begin::<S>(cluster, seen)).await;
    let (mut session, mut state, mut changes) =
        begun.map_err(|_| BlocksError::Away(S::NAME, "no time left".to_owned()))??;
    let epoch = session.fence().epoch;
    say(&state.line(cluster, epoch)?).map_err(|err| agent_error::<S>(&err))?;
    let mut look = tokio::time::interval_at(Instant::now() + LOOK, LOOK);
    let mut pending = Pending { due: None, removes: false, missed: false };
    let (mut told, mut checked) = (state.revision, Instant::now());
    loop {
        tokio::select! {
            next = changes.next() => {
                let (news, revision) = next?;
                let is_fence = news.iter().any(|change| matches!(change, Change::Fence));
                news.into_iter().for_each(|change| pending.apply(&mut state, change));
                state.revision = state.revision.max(revision.unwrap_or(0));
                if is_fence {
                    pending.check(&mut session, cluster).await?;
                }
            }
            () = tokio::time::sleep_until(pending.due.unwrap_or_else(Instant::now)), if pending.due.is_some() => {
                // An emptied store looks like one whose nodes have gone. Only its fence tells them apart.
                if pending.removes && !pending.check(&mut session, cluster).await? {
                    pending.due = Some(Instant::now() + AGAIN);
                    continue;
                }
                say(&state.line(cluster, epoch)?).map_err(|err| agent_error::<S>(&err))?;
                (pending.due, pending.removes) = (None, false);
                told = state.revision;
            }
            _ = look.tick() => {
                let limit = changes.read_again();
                // A tick comes a little early or late.
                if pending.missed || checked.elapsed() + LOOK / 2 >= limit {
                    if !pending.check(&mut session, cluster).await? {
                        continue;
                    }
                    checked = Instant::now();
                }
                // The agent must know the latest revision. Pending changes are reported by their own branch.
                let is_news = told < state.revision && pending.due.is_none();
                let line = if is_news { state.line(cluster, epoch)? } else { String::new() };
                say(&line).map_err(|err| agent_error::<S>(&err))?;
                told = if is_news { state.revision } else { told };
            }
        }
    }
}

/// Returns the error of a line that the agent did not take.
fn agent_error<S: Store>(err: &io::Error) -> BlocksError {
    BlocksError::Away(S::NAME, format!("the agent is gone: {err}"))
}

/// Changes that are not yet reported to the agent.
struct Pending {
    /// The time at which they are reported. It is `None` without changes.
    due: Option<Instant>,
    /// Whether one of them removes something.
    removes: bool,
    /// Whether the store did not answer when it was read last.
    missed: bool,
}

impl Pending {
    /// Applies a change to the state, and sets the time of the report.
    fn apply(&mut self, state: &mut State, change: Change) {
        let removes = change.removes();
        if state.apply(change) {
            self.removes |= removes;
            self.due = self.due.or(Some(Instant::now() + SETTLE));
        }
    }

    /// Checks that the store is still the same. Returns false if it did not answer for the first time, and fails at the
    /// second. After a failure the agent reads everything again, and a server may be busy only for a moment.
    async fn check<S: Store>(&mut self, session: &mut S, cluster: &Cluster) -> Result<bool> {
        match session.check_fence(cluster).await {
            Err(BlocksError::Away(..)) if !self.missed => self.missed = true,
            outcome => {
                outcome?;
                self.missed = false;
            }
        }
        Ok(!self.missed)
    }
}

/// Reads everything, and watches from there on.
async fn begin<S: Store>(cluster: &Cluster, seen: (u64, i64)) -> Result<(S, State, S::Watch)> {
    let share = Share::read(&cluster.base.store)?;
    let (known, at) = share.map_or(((0, 0), 0), |share| (share.seen(), share.answered));
    let mut session = S::open(cluster, seen.max(known), at).await?;
    let mut state = State::default();
    let changes = session.watch(|change| _ = state.apply(change)).await?;
    // A store that was emptied meanwhile has no nodes in these lists, so its fence is read again.
    session.check_fence(cluster).await?;
    state.revision = session.revision();
    Ok((session, state, changes))
}
