//! The metrics of `run` in the OpenMetrics format (<https://prometheus.io/docs/specs/om/open_metrics_spec/>).

use std::sync::atomic::AtomicU64;
use std::sync::{Mutex, MutexGuard, PoisonError};

use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::metrics::info::Info;
use prometheus_client::registry::{Metric, Registry, Unit};

use cnimble_pod::leases;
use cnimble_pod::network::NetworkPlugin;
use cnimble_pod::sync::{Board, Event};
use cnimble_runtime::Execution;

/// The media type of the text.
pub(crate) const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// The upper bounds of the histograms' buckets in seconds. A plugin takes milliseconds, or minutes on a machine in
/// trouble.
const BUCKETS: [f64; 14] =
    [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0, 60.0, 220.0];

/// The names and values of a metric's labels.
type Labels<const N: usize> = [(&'static str, String); N];

/// Counters by labels.
type Counts<const N: usize> = Family<Labels<N>, Counter>;
/// Histograms by labels.
type Durations<const N: usize> = Family<Labels<N>, Histogram, fn() -> Histogram>;
/// Numbers of addresses by network and range.
type Addresses = Family<Labels<2>, Gauge<f64, AtomicU64>>;

/// Registers a metric.
fn new<M: Metric + Clone + Default>(registry: &mut Registry, name: &str, help: &str) -> M {
    let metric = M::default();
    registry.register(name, help, metric.clone());
    metric
}

/// Registers a histogram of durations.
fn durations<const N: usize>(registry: &mut Registry, name: &str, help: &str) -> Durations<N> {
    let metric: Durations<N> = Family::new_with_constructor(|| Histogram::new(BUCKETS));
    registry.register_with_unit(name, help, Unit::Seconds, metric.clone());
    metric
}

/// The metrics with their current values.
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

/// The numbers of leases. They are read again for each answer, so that removed ranges vanish.
struct Leases {
    used: Addresses,
    free: Addresses,
}

impl Metrics {
    pub(super) fn new() -> Self {
        let mut registry = Registry::with_prefix("cnimble");
        let mut metrics = Metrics {
            executions: new(&mut registry, "plugin_executions", "Executions of plugins that have ended"),
            errors: new(
                &mut registry,
                "plugin_errors",
                "Executions of plugins that failed, by CNI error code",
            ),
            execution_time: durations(&mut registry, "plugin_duration", "Durations of executions of plugins"),
            operations: new(&mut registry, "pod_operations", "Operations on pods that have ended"),
            failures: new(&mut registry, "pod_failures", "Operations on pods that failed"),
            operation_time: durations(&mut registry, "pod_operation_duration", "Durations of work on pods"),
            pods: new(&mut registry, "pods", "Pods by phase"),
            problems: new(&mut registry, "manifest_problems", "Manifests and sources that can't be used"),
            leases: Mutex::new(Leases {
                used: new(&mut registry, "leases_used", "Addresses that are leased"),
                free: new(&mut registry, "leases_free", "Addresses that could still be leased"),
            }),
            registry,
        };
        let version = Info::new([("version", env!("CARGO_PKG_VERSION"))]);
        metrics.registry.register("build", "The version of cnimble", version);
        metrics
    }

    fn leases(&self) -> MutexGuard<'_, Leases> {
        self.leases.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts a run of a plugin.
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

    /// Counts an operation on a pod. Other events are ignored.
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

    /// Returns all metrics as text. It reads the leases, so it may block for a moment.
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
    /// Reads the leases of the default network. A failure is logged, and its ranges are then missing.
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
