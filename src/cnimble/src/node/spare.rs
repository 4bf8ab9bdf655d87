//! Keeps spare blocks for networks with cluster-local, so that no ADD waits for etcd. A program does the work. It
//! starts when the leases of a network have changed, and at least once a minute.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::PathBuf;
use std::time::{Duration, Instant, SystemTime};

use serde_json::{Map, Value};
use tokio::time::sleep;

use cnimble_agent::{Shared, uplink_addresses};
use cnimble_cni::{Code, Error};
use cnimble_leases::cluster::share::NAMESAKE;
use cnimble_runtime::ConfDir;

use super::super::etcd;
use super::configured::{Configured, Network};
use super::status::{Status, Trouble};

/// The interval between looks at the leases of the networks.
const LOOK: Duration = Duration::from_secs(1);
/// The interval between two runs of the program without changes, or after a failure of etcd. It is shorter if etcd has
/// to confirm the node's blocks more often.
const SELDOM: Duration = Duration::from_secs(60);

/// The interval between looks at a store that was complete at the last one. Each look is three requests.
const RARELY: Duration = Duration::from_secs(300);

/// The first interval after a failure of the store, once it answers again. It doubles with each failure.
const SOON: Duration = Duration::from_secs(5);
/// The longest such interval.
const LATER: Duration = Duration::from_secs(40);

/// What the program has reached for a network.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum SpareOutcome {
    /// The node has a spare block.
    Done,
    /// The subnet has no free block.
    Short,
    /// The program returned this error.
    Failed(Error),
}

impl SpareOutcome {
    /// Returns why an ADD gets no address now or may get none soon, or `None` if the node knows no reason. A full
    /// subnet is not a fault of this node.
    fn trouble(&self, network: &Network) -> Option<Trouble> {
        let SpareOutcome::Failed(err) = self else {
            let why = format!("the cluster has no free block of addresses for network {}", network.name);
            return (*self == SpareOutcome::Short).then_some(Trouble { why, fails: false });
        };
        // A full pool is full for the next agent, too: a roll-out goes on.
        let is_full = err.code == Code::NO_ADDRESS;
        let fails = !is_full && (err.code == Code::NOT_AVAILABLE || !network.is_valid());
        Some(Trouble { why: format!("network {}: {err}", network.name), fails })
    }
}

/// The report of the program.
pub(super) struct Tended {
    outcome: SpareOutcome,
    /// The number of other boots that use the node's name at the same time.
    namesakes: usize,
}

/// The last look at a network.
struct NetworkCheck {
    at: Instant,
    /// The lease directory's modification time before that look.
    changed: Option<SystemTime>,
    outcome: SpareOutcome,
    /// The number of failures in a row, which the store has answered.
    failures: u32,
    /// The number of other boots that use the node's name.
    namesakes: usize,
    /// The time of the last look at the store, and the error of an ADD that needs it, if there was one.
    looked: (Instant, Option<Error>),
}

impl NetworkCheck {
    /// Returns whether the program has to run again. `changed` is the lease directory's modification time now.
    fn is_due(&self, network: &Network, changed: Option<SystemTime>, routed: Option<&Routed>) -> bool {
        let answers = routed.is_some_and(Routed::answers);
        if answers && self.failures > 0 && self.at.elapsed() >= pause_after(self.failures) {
            return true;
        }
        self.at.elapsed() >= SELDOM.min(network.offline / 6)
            || (self.outcome == SpareOutcome::Done && self.changed != changed)
    }
}

/// Returns the time until the next run of the program after so many failures in a row.
fn pause_after(failures: u32) -> Duration {
    SOON.saturating_mul(1 << failures.saturating_sub(1).min(8)).min(LATER)
}

/// The network for which the other nodes have routes to this node's pods.
#[derive(Debug, Clone)]
pub(super) struct Routed {
    pub(super) name: String,
    /// The node's addresses that the user has given. If there are none, those of the uplink are used.
    pub(super) ips: Vec<IpAddr>,
    pub(super) shared: Shared,
}

impl Routed {
    /// Returns whether etcd reports nodes now.
    fn answers(&self) -> bool {
        let known = self.shared.known();
        known.listed && known.trouble.is_none()
    }

    /// Returns the node's addresses. It fails if there is neither a given one nor one of the uplink.
    fn addresses(&self) -> Result<Vec<IpAddr>, String> {
        if !self.ips.is_empty() {
            return Ok(self.ips.clone());
        }
        let ips = uplink_addresses().map_err(|err| err.to_string())?;
        if ips.is_empty() {
            Err("there is no default route whose link has the node's address; name it with --node-ip"
                .to_owned())
        } else {
            Ok(ips)
        }
    }
}

/// Maintains the networks of the directory until the future is dropped. `listed` are the nodes of an API server, if
/// there is one.
pub(super) async fn keep(
    conf: ConfDir,
    path: Vec<PathBuf>,
    routed: Option<Routed>,
    listed: Option<Shared>,
    status: Status,
) {
    let mut seen: BTreeMap<String, NetworkCheck> = BTreeMap::new();
    let mut configured = Configured::new(conf);
    loop {
        let nodes = listed.as_ref().map(Shared::names).unwrap_or_default();
        let networks = configured.networks();
        seen.retain(|name, _| networks.iter().any(|network| network.name == *name));
        for network in networks {
            let changed = std::fs::metadata(&network.store).and_then(|meta| meta.modified()).ok();
            let last = seen.get(&network.name);
            let routed = routed.as_ref().filter(|routed| routed.name == network.name);
            if last.is_some_and(|last| !last.is_due(network, changed, routed)) {
                continue;
            }
            // etcd knows the other boots: without it they stay as they were.
            let before = last.map_or(0, |last| last.namesakes);
            let tended = tend(network, &path, routed, &nodes).await;
            let Tended { mut outcome, namesakes } =
                tended.unwrap_or_else(|why| Tended { outcome: SpareOutcome::Failed(why), namesakes: before });
            let looked = match last.map(|last| last.looked.clone()) {
                // The agent's watch reports the store.
                _ if routed.is_some() => (Instant::now(), None),
                Some(looked) if looked.0.elapsed() < RARELY && looked.1.is_none() => looked,
                _ => (Instant::now(), etcd::check_store(&path, &network.config).await.err()),
            };
            // The store may have lost what the node goes on with.
            if let (SpareOutcome::Done, Some(err)) = (&outcome, &looked.1) {
                outcome = SpareOutcome::Failed(err.clone());
            }
            if last.is_none_or(|last| last.outcome != outcome) {
                log_outcome(&network.name, &outcome);
            }
            if namesakes > before {
                log::warn!("network {}: {NAMESAKE}", network.name);
            }
            let at = Instant::now();
            let failures = count_failures(last, &outcome, routed);
            seen.insert(
                network.name.clone(),
                NetworkCheck { at, changed, outcome, failures, namesakes, looked },
            );
        }
        let troubles = networks.iter().filter_map(|of| seen.get(&of.name)?.outcome.trouble(of)).collect();
        status.troubles(troubles);
        status.namesakes(seen.values().map(|seen| seen.namesakes).max().unwrap_or(0));
        sleep(LOOK).await;
    }
}

/// Returns the number of failures in a row, after the check `last`. Those of a store that does not answer count as one,
/// so that the node is quick once it does.
fn count_failures(last: Option<&NetworkCheck>, outcome: &SpareOutcome, routed: Option<&Routed>) -> u32 {
    let SpareOutcome::Failed(err) = outcome else { return 0 };
    let is_answer = routed.is_none_or(Routed::answers) && err.code != Code::TRY_AGAIN_LATER;
    let before = last.filter(|_| is_answer).map_or(0, |last| last.failures);
    before.saturating_add(1)
}

/// Logs a new outcome.
fn log_outcome(name: &str, outcome: &SpareOutcome) {
    match outcome {
        SpareOutcome::Done => log::info!("network {name} has a spare block of addresses"),
        SpareOutcome::Short => log::warn!("the cluster has no free block of addresses for network {name}"),
        SpareOutcome::Failed(why) => {
            log::warn!("can't get a spare block of addresses for network {name}: {why}");
        }
    }
}

/// Runs the program for a network. `nodes` are the names of the cluster's nodes, or empty if they are unknown.
///
/// # Errors
/// Fails with the error of the program, and if the node's addresses for `routed` are unknown.
pub(super) async fn tend(
    network: &Network,
    path: &[PathBuf],
    routed: Option<&Routed>,
    nodes: &[String],
) -> Result<Tended, Error> {
    let ips = routed.map_or(Ok(Vec::new()), Routed::addresses);
    let known = ips.iter().flatten().map(IpAddr::to_string);
    let args = std::iter::once("tend".to_owned()).chain(known);
    let mut config: Map<String, Value> = serde_json::from_str(&network.config)
        .map_err(|err| Error::new(Code::TRY_AGAIN_LATER, err.to_string()))?;
    config.insert("nodes".to_owned(), nodes.into());
    let answer = etcd::answer(path, args, &Value::from(config).to_string()).await?;
    ips.map_err(|why| Error::new(Code::TRY_AGAIN_LATER, why))?;
    let answer: Value = serde_json::from_slice(&answer).unwrap_or_default();
    let is_short = answer.get("short").and_then(Value::as_bool).unwrap_or(false);
    let namesakes = answer.get("namesakes").and_then(Value::as_u64).unwrap_or(0);
    let outcome = if is_short { SpareOutcome::Short } else { SpareOutcome::Done };
    Ok(Tended { outcome, namesakes: usize::try_from(namesakes).unwrap_or(usize::MAX) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refused_node_asks_less_and_less_often() {
        let pauses: Vec<u64> = (1..7).map(|failures| pause_after(failures).as_secs()).collect();
        assert_eq!(pauses, [5, 10, 20, 40, 40, 40]);
        assert_eq!(pause_after(u32::MAX), LATER);
    }

    #[test]
    fn failures_of_a_silent_store_count_as_one() {
        let failed = |code| SpareOutcome::Failed(Error::new(code, "no"));
        let check = |outcome, failures| NetworkCheck {
            at: Instant::now(),
            changed: None,
            outcome,
            failures,
            namesakes: 0,
            looked: (Instant::now(), None),
        };
        let last = check(failed(Code::NOT_AVAILABLE), 3);
        assert_eq!(count_failures(Some(&last), &failed(Code::NOT_AVAILABLE), None), 4);
        assert_eq!(count_failures(Some(&last), &failed(Code::TRY_AGAIN_LATER), None), 1);
        assert_eq!(count_failures(Some(&last), &SpareOutcome::Done, None), 0);
        assert_eq!(count_failures(None, &failed(Code::NOT_AVAILABLE), None), 1);
    }
}
