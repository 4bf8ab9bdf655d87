//! The pages of the agent.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use serde_json::json;

use cnimble_agent::{Report, Shared};
use cnimble_leases::cluster::share::NAMESAKE;

use crate::plain;
use crate::run::metrics::CONTENT_TYPE;
use crate::run::serve::Pages;
use crate::style::count;

/// The number of faults that the page of the health lists.
const TOLD: usize = 20;

/// The last look at the host.
#[derive(Default)]
pub(super) struct Last {
    pub(super) report: Report,
    /// Why the last look could not be completed.
    pub(super) trouble: Option<String>,
    /// A look was completed.
    pub(super) looked: bool,
    /// The start of the current look, if one is running.
    pub(super) begun: Option<Instant>,
}

/// The source of the cluster's nodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Source {
    Api,
    Etcd,
}

impl Source {
    fn words(self) -> &'static str {
        match self {
            Source::Api => "the API server",
            Source::Etcd => "the store",
        }
    }

    /// Returns the key in /nodes for a failure of this source.
    fn key(self) -> &'static str {
        match self {
            Source::Api => "api",
            Source::Etcd => "etcd",
        }
    }
}

/// The reason why an ADD gets no address now, or may get none soon.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Trouble {
    pub(super) why: String,
    /// Somebody has to act on this node or its store. A full pool isn't such a fault.
    pub(super) fails: bool,
}

/// The state that the pages show. Clones share it.
#[derive(Clone)]
pub(super) struct Status {
    nodes: Shared,
    source: Source,
    last: Arc<Mutex<Last>>,
    looks: Counter,
    writes: Counter,
    /// The number of other boots that use this node's name at the same time.
    namesakes: Gauge,
    troubles: Arc<Mutex<Vec<Trouble>>>,
}

impl Status {
    pub(super) fn new(nodes: Shared, source: Source) -> Self {
        Status {
            nodes,
            source,
            last: Arc::default(),
            looks: Counter::default(),
            writes: Counter::default(),
            namesakes: Gauge::default(),
            troubles: Arc::default(),
        }
    }

    fn last(&self) -> MutexGuard<'_, Last> {
        self.last.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records the number of other boots that use this node's name.
    pub(super) fn namesakes(&self, number: usize) {
        self.namesakes.set(i64::try_from(number).unwrap_or(i64::MAX));
    }

    /// Replaces the troubles that ADDs of the networks with cluster-local meet.
    pub(super) fn troubles(&self, troubles: Vec<Trouble>) {
        *self.troubles.lock().unwrap_or_else(PoisonError::into_inner) = troubles;
    }

    /// Returns the texts of the troubles whose `fails` is this.
    fn list_troubles(&self, fails: bool) -> Vec<String> {
        let troubles = self.troubles.lock().unwrap_or_else(PoisonError::into_inner);
        troubles.iter().filter(|trouble| trouble.fails == fails).map(|trouble| trouble.why.clone()).collect()
    }

    /// Returns why an ADD that needs the store fails until somebody acts. It is empty if none does.
    fn failing(&self) -> BTreeSet<String> {
        let known = self.nodes.known();
        let refused = known.trouble.clone().filter(|_| known.refused);
        refused.into_iter().chain(self.list_troubles(true)).collect()
    }

    /// Records the start of a look.
    pub(super) fn begin(&self) {
        self.last().begun = Some(Instant::now());
    }

    /// Returns whether the current look takes longer than `limit`. It returns false if none is running.
    pub(super) fn hangs(&self, limit: Duration) -> bool {
        self.last().begun.is_some_and(|begun| begun.elapsed() > limit)
    }

    /// Records the end of a look. It logs faults and failures that the last look didn't have.
    pub(super) fn looked(&self, outcome: Result<Report, String>) {
        self.looks.inc();
        let mut last = self.last();
        last.begun = None;
        match outcome {
            Ok(report) => {
                self.writes.inc_by(u64::try_from(report.writes).unwrap_or(u64::MAX));
                let told: BTreeSet<_> = last.report.conditions.iter().collect();
                for (node, why) in report.conditions.iter().filter(|new| !told.contains(new)) {
                    log::warn!("node {node}: {why}");
                }
                drop(told);
                for why in report.failures.iter().filter(|new| !last.report.failures.contains(new)) {
                    log::error!("{why}");
                }
                if report.writes > 0 {
                    let (routes, writes) = (count(report.routes, "route"), count(report.writes, "write"));
                    log::info!("{routes} to other nodes' pods, {writes}");
                }
                *last = Last { report, looked: true, ..Last::default() };
            }
            Err(why) => {
                log::error!("{why}");
                last.trouble = Some(why);
            }
        }
    }

    /// Records that the network's file was written before any node is known: it counts the writes and logs faults. This
    /// is no look, so the node is not healthy yet.
    pub(super) fn prepared(&self, outcome: Result<Report, String>) {
        match outcome {
            Ok(report) => {
                self.writes.inc_by(u64::try_from(report.writes).unwrap_or(u64::MAX));
                report.conditions.iter().for_each(|(node, why)| log::warn!("node {node}: {why}"));
                report.failures.iter().for_each(|why| log::error!("{why}"));
            }
            Err(why) => log::error!("{why}"),
        }
    }

    /// Returns the numbers of the last completed look for systemd, such as `2 routes, 0 conditions, 1 failure`. All are 0
    /// before the first look.
    pub(super) fn sentence(&self) -> String {
        let last = self.last();
        let Report { routes, conditions, failures, .. } = &last.report;
        [(*routes, "route"), (conditions.len(), "condition"), (failures.len(), "failure")]
            .map(|(number, noun)| count(number, noun))
            .join(", ")
    }
}

/// Returns a gauge with this value.
fn gauge(value: usize) -> Gauge<i64> {
    let gauge = Gauge::<i64>::default();
    gauge.set(i64::try_from(value).unwrap_or(i64::MAX));
    gauge
}

impl Pages for Status {
    fn name(&self) -> &'static str {
        "/nodes"
    }

    fn metrics(&self) -> (String, &'static str) {
        let mut registry = Registry::with_prefix("cnimble_node");
        let (nodes, reached) = {
            let known = self.nodes.known();
            (known.nodes.len(), known.listed && known.trouble.is_none())
        };
        let last = self.last();
        for (name, help, value) in [
            ("nodes", "Nodes that the API server or the store reports", nodes),
            ("api_reachable", "Whether the API server or the store is reachable now", usize::from(reached)),
            ("routes", "Routes to other nodes' pods", last.report.routes),
            ("conditions", "Faults of nodes", last.report.conditions.len()),
            ("failures", "Failures on this host", last.report.failures.len()),
            (
                "store_faults",
                "Reasons why an ADD that needs the store fails until somebody acts",
                self.failing().len(),
            ),
            (
                "networks_short",
                "Networks without a spare block of addresses",
                self.list_troubles(false).len(),
            ),
        ] {
            registry.register(name, help, gauge(value));
        }
        registry.register("looks", "Looks at the host", self.looks.clone());
        registry.register("namesakes", "Other boots that use this node's name", self.namesakes.clone());
        registry.register("writes", "Routes, tables and files that were written", self.writes.clone());
        let mut text = String::new();
        let _ = encode(&mut text, &registry);
        (text, CONTENT_TYPE)
    }

    /// Returns the state, or why the node isn't healthy. A fault of another node doesn't make this node unhealthy.
    fn health(&self) -> Result<String, String> {
        let last = self.last();
        let mut failures = last.trouble.iter().chain(&last.report.failures).cloned().collect::<Vec<_>>();
        failures.extend(self.failing());
        if !failures.is_empty() {
            return Err(plain::text(&failures.join("\n")));
        }
        if !last.looked {
            let why = self.nodes.known().trouble.clone();
            return Err(plain::text(
                &why.unwrap_or_else(|| format!("{} has not reported nodes yet", self.source.words())),
            ));
        }
        // Routes stay meanwhile, and a restarted process could not reach the server either.
        let trouble = self.nodes.known().trouble.clone();
        let trouble = trouble.map(|why| format!("nodes are as they were told of last: {why}\n"));
        let short: String = self.list_troubles(false).iter().map(|why| format!("{why}\n")).collect();
        let namesake = if self.namesakes.get() > 0 { format!("{NAMESAKE}\n") } else { String::new() };
        let conditions = &last.report.conditions;
        let told = conditions.iter().take(TOLD).map(|(node, why)| format!("node {node}: {why}\n"));
        let more = conditions.len().saturating_sub(TOLD);
        let more = if more > 0 { format!("{more} more: /nodes\n") } else { String::new() };
        Ok(plain::text(&format!(
            "ok\n{}{short}{namesake}{}{more}",
            trouble.unwrap_or_default(),
            told.collect::<String>()
        )))
    }

    fn list(&self) -> String {
        let trouble = self.nodes.known().trouble.clone();
        let last = self.last();
        let conditions = super::conditions(&last.report.conditions);
        let own: Vec<String> = last.report.own.iter().map(ToString::to_string).collect();
        let all = json!({"podCIDRs": own, "routes": last.report.routes, "conditions": conditions,
            "failures": last.report.failures, "namesakes": self.namesakes.get(), (self.source.key()): trouble});
        plain::json(&format!("{all:#}\n"))
    }
}
