//! The blocks and addresses of all nodes, for agents that keep routes to the other nodes' pods. It only reads, without
//! a lock. [`follow`] ends with the first failure: the agent keeps its state, and starts again.

use std::collections::BTreeMap;
use std::io;
use std::net::IpAddr;
use std::time::Duration;

use etcd_client::{EventType, KeyValue, WatchStream};
use serde::Serialize;
use tokio::time::Instant;

use cnimble_cni::names;
use cnimble_leases::cluster::config::Cluster;
use cnimble_leases::cluster::share::Share;

use crate::record::{Host, Owner};
use crate::session::{Session, away, failed, parse};
use crate::{Result, keys};

/// Changes within this time are reported together.
const SETTLE: Duration = Duration::from_millis(50);
/// Between reads of etcd, and lines to the agent, without changes. A member without a quorum reports nothing.
const LOOK: Duration = Duration::from_secs(10);

#[derive(Debug, Default, Serialize)]
struct Shares<'s> {
    ips: &'s [IpAddr],
    blocks: Vec<IpAddr>,
    singles: Vec<IpAddr>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Line<'s> {
    epoch: u64,
    revision: i64,
    host_bits: u32,
    nodes: BTreeMap<&'s str, Shares<'s>>,
}

/// The valid records in etcd.
#[derive(Debug, Default)]
struct State {
    blocks: BTreeMap<IpAddr, String>,
    singles: BTreeMap<IpAddr, String>,
    hosts: BTreeMap<String, Vec<IpAddr>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum List {
    Blocks,
    Singles,
    Hosts,
}

impl State {
    /// Updates or removes a key. An invalid value counts as none.
    fn take(&mut self, list: List, kv: &KeyValue, event: EventType) {
        let exists = event == EventType::Put;
        let key = String::from_utf8_lossy(kv.key());
        let owners = match list {
            List::Blocks => &mut self.blocks,
            List::Singles => &mut self.singles,
            List::Hosts => {
                let Some(name) = key.rsplit('/').next().filter(|name| names::is_identifier(name)) else {
                    return;
                };
                match parse::<Host>(kv).ok().filter(|_| exists) {
                    Some(host) => drop(self.hosts.insert(name.to_owned(), host.ips)),
                    None => drop(self.hosts.remove(name)),
                }
                return;
            }
        };
        let Some(ip) = keys::ip(&key) else { return };
        let owner = parse::<Owner>(kv).ok().filter(|owner| {
            // The pods of a released node are gone.
            exists && owner.free.is_none() && names::is_identifier(&owner.node)
        });
        match owner {
            Some(owner) => drop(owners.insert(ip, owner.node)),
            None => drop(owners.remove(&ip)),
        }
    }

    fn line(&self, cluster: &Cluster, session: &Session) -> Result<String> {
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
        let (epoch, revision) = (session.fence.epoch, session.revision);
        let line = Line { epoch, revision, host_bits: cluster.host_bits, nodes };
        serde_json::to_string(&line)
            .map_err(|err| cnimble_cni::Error::new(cnimble_cni::Code::INTERNAL, err.to_string()).into())
    }
}

/// Prints all states from now on, a line each, and an empty line now and then. `seen` is the latest known epoch and
/// revision, `patience` the limit before the first line. Fails if etcd is another one, or the reader is gone.
pub async fn follow(
    cluster: &Cluster,
    seen: (u64, i64),
    patience: Duration,
    say: impl Fn(&str) -> io::Result<()>,
) -> Result<()> {
    let sent = |outcome: io::Result<()>| outcome.map_err(|err| away(format!("the agent is gone: {err}")));
    let begun = tokio::time::timeout(patience, begin(cluster, seen)).await;
    let (mut session, mut state, streams) = begun.map_err(|_| away("no time left"))??;
    let [mut blocks, mut singles, mut hosts] = streams;
    sent(say(&state.line(cluster, &session)?))?;
    let mut look = tokio::time::interval_at(Instant::now() + LOOK, LOOK);
    let mut due: Option<Instant> = None;
    loop {
        let (list, message) = tokio::select! {
            message = blocks.message() => (List::Blocks, message),
            message = singles.message() => (List::Singles, message),
            message = hosts.message() => (List::Hosts, message),
            () = tokio::time::sleep_until(due.unwrap_or_else(Instant::now)), if due.is_some() => {
                sent(say(&state.line(cluster, &session)?))?;
                due = None;
                continue;
            }
            _ = look.tick() => {
                session.look().await?;
                sent(say(""))?;
                continue;
            }
        };
        let message = message.map_err(|err| failed(&err))?.ok_or_else(|| away("it ends the watch"))?;
        if message.canceled() {
            return Err(away(format!("it ends the watch: {}", message.cancel_reason())));
        }
        for event in message.events() {
            let Some(kv) = event.kv() else { continue };
            state.take(list, kv, event.event_type());
            due = due.or(Some(Instant::now() + SETTLE));
        }
        session.saw(message.header().map(etcd_client::ResponseHeader::revision));
    }
}

/// Reads everything, and watches from there on.
async fn begin(cluster: &Cluster, seen: (u64, i64)) -> Result<(Session, State, [WatchStream; 3])> {
    let share = Share::read(&cluster.base.store)?;
    let seen = seen.max(share.map_or((0, 0), |share| share.seen()));
    let mut session = Session::open(cluster, seen).await?;
    let mut state = State::default();
    let mut streams = Vec::new();
    let (blocks, singles, hosts) = (session.keys.blocks(), session.keys.singles(), session.keys.hosts());
    for (list, prefix) in [(List::Blocks, blocks), (List::Singles, singles), (List::Hosts, hosts)] {
        let revision = session.each(&prefix, |kv| state.take(list, &kv, EventType::Put)).await?;
        streams.push(session.watch(&prefix, revision + 1).await?);
    }
    let streams = streams.try_into().map_err(|_| away("a watch is missing"))?;
    Ok((session, state, streams))
}
