//! The metrics of `run` in the OpenMetrics format (<https://prometheus.io/docs/specs/om/open_metrics_spec/>).

use std::sync::atomic::AtomicU64;
use std::sync::{Mutex, MutexGuard, PoisonError};

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
use cnimble_runtime::Execution;

pub(crate) const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// The upper bounds in seconds. A plugin takes milliseconds, or minutes on a machine in trouble.
const BUCKETS: [f64; 14] =
    [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0, 60.0, 220.0];

/// The names and values of a metric's labels.
type Labels<const N: usize> = [(&'static str, String); N];

type Counts<const N: usize> = Family<Labels<N>, Counter>;
type Durations<const N: usize> = Family<Labels<N>, Histogram, fn() -> Histogram>;
type Addresses = Family<Labels<2>, Gauge<f64, AtomicU64>>;

fn histogram() -> Histogram {
    Histogram::new(BUCKETS)
}

pub(super) struct Metrics {
    registry: Registry,
    executions: Counts<2>,
    errors: Counts<3>,
    execution_time: Durations<2>,
    operations: Counts<1>,
    failures: Counts<2>,
    operation_time: Durations<1>,
    pods: Family<Labels<1>, Gauge>,
    problems: Gauge,
    leases: Mutex<Leases>,
}

/// Leases are read again for each answer, so that removed ranges vanish.
#[derive(Clone, Default)]
struct Leases {
    used: Addresses,
    free: Addresses,
}

impl Metrics {
    pub(super) fn new() -> Self {
        let durations = || histogram as fn() -> Histogram;
        let metrics = Metrics {
            registry: Registry::with_prefix("cnimble"),
            executions: Family::default(),
            errors: Family::default(),
            execution_time: Family::new_with_constructor(durations()),
            operations: Family::default(),
            failures: Family::default(),
            operation_time: Family::new_with_constructor(durations()),
            pods: Family::default(),
            problems: Gauge::default(),
            leases: Mutex::default(),
        };
        metrics.registered()
    }

    fn registered(mut self) -> Self {
        let leases = self.leases().clone();
        let all = &mut self.registry;
        all.register("plugin_executions", "Executions of plugins that have ended", self.executions.clone());
        let help = "Executions of plugins that failed, by CNI error code";
        all.register("plugin_errors", help, self.errors.clone());
        let (help, unit) = ("Durations of executions of plugins", Unit::Seconds);
        all.register_with_unit("plugin_duration", help, unit, self.execution_time.clone());
        all.register("pod_operations", "Operations on pods that have ended", self.operations.clone());
        all.register("pod_failures", "Operations on pods that failed", self.failures.clone());
        let (help, unit) = ("Durations of work on pods", Unit::Seconds);
        all.register_with_unit("pod_operation_duration", help, unit, self.operation_time.clone());
        all.register("pods", "Pods by phase", self.pods.clone());
        let help = "Manifests and sources that can't be used";
        all.register("manifest_problems", help, self.problems.clone());
        all.register("leases_used", "Addresses that are leased", leases.used);
        all.register("leases_free", "Addresses that could still be leased", leases.free);
        let version = Info::new([("version", env!("CARGO_PKG_VERSION"))]);
        all.register("build", "The version of cnimble", version);
        self
    }

    fn leases(&self) -> MutexGuard<'_, Leases> {
        self.leases.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn executed(&self, execution: &Execution<'_>) {
        let [plugin, verb] = [("plugin", execution.plugin()), ("verb", execution.verb.as_str().to_owned())];
        if let Some(error) = execution.error {
            let code = ("code", error.code().0.to_string());
            self.errors.get_or_create(&[plugin.clone(), verb.clone(), code]).inc();
        }
        let of = [plugin, verb];
        self.executions.get_or_create(&of).inc();
        self.execution_time.get_or_create(&of).observe(execution.took.as_secs_f64());
    }

    pub(super) fn happened(&self, event: &Event) {
        if let Event::Worked { operation, took, failure, .. } = event {
            let of = [("operation", (*operation).to_owned())];
            self.operations.get_or_create(&of).inc();
            self.operation_time.get_or_create(&of).observe(took.as_secs_f64());
            if let Some(reason) = *failure {
                let [operation] = of;
                self.failures.get_or_create(&[operation, ("reason", reason.to_owned())]).inc();
            }
        }
    }

    /// Reads the leases, so it may block for a moment.
    pub(super) fn text(&self, board: &Board, problems: usize, network: &NetworkPlugin) -> String {
        for (phase, count) in board.counts() {
            let count = i64::try_from(count).unwrap_or(i64::MAX);
            self.pods.get_or_create(&[("phase", phase.as_str().to_owned())]).set(count);
        }
        self.problems.set(i64::try_from(problems).unwrap_or(i64::MAX));
        self.leases().read(network);
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
                    let of = [("network", name.clone()), ("range", usage.range)];
                    self.used.get_or_create(&of).set(usage.used as f64);
                    self.free.get_or_create(&of).set(usage.free as f64);
                }
            }
            Err(err) => log::warn!("can't count the leases of {name}: {err}"),
        }
    }
}
