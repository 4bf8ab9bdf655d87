//! The metrics of `run` in the OpenMetrics format (<https://prometheus.io/docs/specs/om/open_metrics_spec/>).

use std::sync::Mutex;
use std::time::Duration;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::metrics::info::Info;
use prometheus_client::registry::{Registry, Unit};

use cnimble_pod::leases;
use cnimble_pod::network::NetworkPlugin;
use cnimble_pod::sync::{Board, Event};
use cnimble_runtime::{Execution, PluginError};

/// The content type of the text that [`Metrics::text`] returns.
pub(crate) const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// The upper bounds in seconds. A plugin takes milliseconds, or minutes on a machine in trouble.
const BUCKETS: [f64; 14] =
    [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0, 60.0, 220.0];

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfPlugin {
    plugin: String,
    verb: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfError {
    plugin: String,
    verb: String,
    code: u32,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfOperation {
    operation: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfFailure {
    operation: &'static str,
    reason: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfPhase {
    phase: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfRange {
    network: String,
    range: String,
}

fn histogram() -> Histogram {
    Histogram::new(BUCKETS)
}

/// The registry and the metrics in it.
pub(super) struct Metrics {
    registry: Registry,
    executions: Family<OfPlugin, Counter>,
    errors: Family<OfError, Counter>,
    execution_time: Family<OfPlugin, Histogram, fn() -> Histogram>,
    operations: Family<OfOperation, Counter>,
    failures: Family<OfFailure, Counter>,
    operation_time: Family<OfOperation, Histogram, fn() -> Histogram>,
    pods: Family<OfPhase, Gauge>,
    problems: Gauge,
    leases: Mutex<Leases>,
}

/// Leases are read again for each answer, so that removed ranges vanish.
#[derive(Clone)]
struct Leases {
    used: Family<OfRange, Gauge<f64, std::sync::atomic::AtomicU64>>,
    free: Family<OfRange, Gauge<f64, std::sync::atomic::AtomicU64>>,
}

impl Metrics {
    pub(super) fn new() -> Self {
        let mut registry = Registry::with_prefix("cnimble");
        let executions = Family::default();
        registry.register("plugin_executions", "Executions of plugins that have ended", executions.clone());
        let errors = Family::default();
        registry.register(
            "plugin_errors",
            "Executions of plugins that failed, by CNI error code",
            errors.clone(),
        );
        let execution_time = Family::new_with_constructor(histogram as fn() -> Histogram);
        registry.register_with_unit(
            "plugin_duration",
            "How long executions of plugins took",
            Unit::Seconds,
            execution_time.clone(),
        );
        let operations = Family::default();
        registry.register("pod_operations", "Pieces of work on pods that have ended", operations.clone());
        let failures = Family::default();
        registry.register("pod_failures", "Pieces of work on pods that failed", failures.clone());
        let operation_time = Family::new_with_constructor(histogram as fn() -> Histogram);
        registry.register_with_unit(
            "pod_operation_duration",
            "How long pieces of work on pods took",
            Unit::Seconds,
            operation_time.clone(),
        );
        let pods = Family::default();
        registry.register("pods", "Pods by phase", pods.clone());
        let problems = Gauge::default();
        registry.register("manifest_problems", "Manifests and sources that can't be used", problems.clone());
        let leases = Leases { used: Family::default(), free: Family::default() };
        registry.register("leases_used", "Addresses that are leased", leases.used.clone());
        registry.register("leases_free", "Addresses that could still be leased", leases.free.clone());
        registry.register(
            "build",
            "Which cnimble this is",
            Info::new([("version", env!("CARGO_PKG_VERSION"))]),
        );
        Metrics {
            registry,
            executions,
            errors,
            execution_time,
            operations,
            failures,
            operation_time,
            pods,
            problems,
            leases: Mutex::new(leases),
        }
    }

    /// Counts an execution of a plugin.
    pub(super) fn executed(&self, execution: &Execution<'_>) {
        let of = OfPlugin { plugin: execution.plugin(), verb: execution.verb.as_str().to_owned() };
        self.executions.get_or_create(&of).inc();
        self.execution_time.get_or_create(&of).observe(seconds(execution.took));
        if let Some(error) = execution.error {
            let OfPlugin { plugin, verb } = of;
            self.errors.get_or_create(&OfError { plugin, verb, code: code(error) }).inc();
        }
    }

    /// Counts an event of the loop.
    pub(super) fn happened(&self, event: &Event) {
        if let Event::Worked { operation, took, failure, .. } = event {
            let of = OfOperation { operation };
            self.operations.get_or_create(&of).inc();
            self.operation_time.get_or_create(&of).observe(seconds(*took));
            if let Some(reason) = *failure {
                self.failures.get_or_create(&OfFailure { operation, reason }).inc();
            }
        }
    }

    /// Returns all metrics as text. Reads the leases, so it may block for a moment.
    pub(super) fn text(&self, board: &Board, problems: usize, network: &NetworkPlugin) -> String {
        for (phase, count) in board.counts() {
            let count = i64::try_from(count).unwrap_or(i64::MAX);
            self.pods.get_or_create(&OfPhase { phase: phase.as_str() }).set(count);
        }
        self.problems.set(i64::try_from(problems).unwrap_or(i64::MAX));
        {
            let leases = self.leases.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
            leases.read(network);
        }
        let mut text = String::new();
        // A write to a string can't fail.
        let _ = encode(&mut text, &self.registry);
        text
    }
}

impl Leases {
    fn read(&self, network: &NetworkPlugin) {
        self.used.clear();
        self.free.clear();
        let Some(network) = network.default_network() else { return };
        let name = &network.list.name;
        match leases::usage(&network.list) {
            Ok(ranges) => {
                for usage in ranges {
                    let of = OfRange { network: name.clone(), range: usage.range };
                    self.used.get_or_create(&of).set(usage.used as f64);
                    self.free.get_or_create(&of).set(usage.free as f64);
                }
            }
            Err(err) => log::warn!("can't count the leases of {name}: {err}"),
        }
    }
}

fn seconds(took: Duration) -> f64 {
    took.as_secs_f64()
}

/// Returns the plugin's own code, or the code for the kind of failure.
fn code(error: &PluginError) -> u32 {
    error.code().0
}
