//! The layer between pods and CNI, like the kubelet's former network plugin layer. A [`NetworkPlugin`] sets up
//! loopback, then the first usable network of the configuration directory. It tears a pod's network down with the
//! configuration of the set-up. Plugins get the same facts of a pod as from kubelets and their runtimes. Each pod has
//! one operation at a time, and only clean-up ([`NetworkPlugin::gc`]) works alone. **Cancellation.** A dropped set-up
//! is undone for the network that was being added. Call [`NetworkPlugin::tear_down`], which waits for that. Dropping
//! another future kills the plugin that it waits for.

mod bandwidth;
mod config;
mod error;
mod gc;
pub(super) mod locks;
mod operations;
mod pod;
mod quantity;
mod read;

use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock, Weak};
use std::time::Duration;

use ipnetwork::IpNetwork;
use tokio::sync::watch;

use cnimble_liveness::DEFAULT_PODS_CACHE_DIR;
use cnimble_runtime::{ConfDir, DEFAULT_CACHE_DIR, Invoker, Network};

use super::PodId;
use super::watch::DirWatch;
use config::LoadedNetworks;
use locks::Locks;

pub use bandwidth::{Bandwidth, BandwidthError, EGRESS, INGRESS};
pub(crate) use error::in_order;
pub use error::{NetworkError, NetworkNotReady, Operation};
pub use gc::Sandboxed;
pub use pod::{Dns, INTERFACE, PodNetwork, PortMapping, Protocol};

/// The default limit of an operation: a little less than the kubelet's limit of a CRI request, 4 minutes.
pub const OPERATION_LIMIT: Duration = Duration::from_secs(220);

/// The default limit of a clean-up. All other operations wait for it, so it gets less time than an operation on one
/// pod.
pub const GC_LIMIT: Duration = Duration::from_secs(30);

/// How often the directory is read even if inotify reports no change.
const POLL: Duration = Duration::from_secs(5);

/// The options of the network layer.
#[derive(Debug, Clone)]
pub struct NetworkOptions {
    /// The configuration directory, usually `/etc/cni/net.d`. It need not exist yet.
    pub conf_dir: PathBuf,
    pub invoker: Invoker,
    /// The node's share of the cluster's addresses, for plugins with the capability `ipRanges`.
    pub pod_cidrs: Vec<IpNetwork>,
    /// The time limit of an operation on one network.
    pub operation_limit: Duration,
    /// The time limit of a clean-up, during which pods wait.
    pub gc_limit: Duration,
    /// The caches of other runtimes, whose entries are evidence in a clean-up.
    pub shared_caches: Vec<PathBuf>,
    /// The networks to which no other runtime adds pods. Only in these the plugins get the verb GC.
    pub own_networks: Vec<String>,
}

impl NetworkOptions {
    /// Returns options with the kubelet's values for everything else.
    pub fn new(conf_dir: impl Into<PathBuf>, invoker: Invoker) -> Self {
        NetworkOptions {
            conf_dir: conf_dir.into(),
            invoker,
            pod_cidrs: Vec::new(),
            operation_limit: OPERATION_LIMIT,
            gc_limit: GC_LIMIT,
            shared_caches: vec![DEFAULT_CACHE_DIR.into(), DEFAULT_PODS_CACHE_DIR.into()],
            own_networks: Vec::new(),
        }
    }
}

/// The network layer. It is cheap to clone, and all clones share one state.
#[derive(Debug, Clone)]
pub struct NetworkPlugin {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    options: NetworkOptions,
    conf: ConfDir,
    state: RwLock<Arc<LoadedNetworks>>,
    reading: tokio::sync::Mutex<()>,
    changes: watch::Sender<u64>,
    /// The network whose plugins failed the last probe, and why. It is `None` if they succeeded.
    status: RwLock<Option<(Arc<Network>, NetworkNotReady)>>,
    pods: Locks<PodId>,
    pod_cidrs: RwLock<Vec<IpNetwork>>,
    /// A clean-up holds it exclusively, and operations on pods share it.
    everything: tokio::sync::RwLock<()>,
}

impl NetworkPlugin {
    /// Reads the directory, and watches it until the last clone is dropped. A missing network is not an error here, but
    /// one of [`Self::ready`]. Needs a tokio runtime.
    pub async fn open(options: NetworkOptions) -> Self {
        let inner = Inner {
            conf: ConfDir::new(&options.conf_dir),
            state: RwLock::default(),
            reading: tokio::sync::Mutex::default(),
            changes: watch::Sender::new(0),
            status: RwLock::default(),
            pods: Locks::default(),
            pod_cidrs: RwLock::new(options.pod_cidrs.clone()),
            everything: tokio::sync::RwLock::default(),
            options: NetworkOptions {
                invoker: options.invoker.clone().with_operation_limit(options.operation_limit),
                ..options
            },
        };
        let plugin = NetworkPlugin { inner: Arc::new(inner) };
        // The watch begins before the read, so that no change between them is lost.
        let options = &plugin.inner.options;
        let dirs = std::iter::once(&options.conf_dir).chain(options.invoker.path()).cloned();
        let watch = DirWatch::new(dirs, POLL);
        plugin.reload().await;
        tokio::spawn(follow(Arc::downgrade(&plugin.inner), watch));
        plugin
    }

    /// Reads the directory again now. Warns once of each unusable file.
    pub async fn reload(&self) {
        let _reading = self.inner.reading.lock().await;
        let before = self.state();
        let Inner { conf, options, .. } = &*self.inner;
        let Some(state) = config::read(conf, &options.invoker, &before).await else {
            return;
        };
        for problem in state.problems.iter().filter(|problem| !before.problems.contains(problem)) {
            log::warn!("{problem}");
        }
        if state.default_name() != before.default_name() {
            match &state.default {
                Some(network) => {
                    let (name, file) = (&network.list.name, network.path.display());
                    log::info!("the default network is {name} from {file}");
                    if network.list.plugins.iter().any(cnimble_cni::list::ListEntry::lacks_ports) {
                        log::warn!(
                            "{file}: plugin portmap publishes no ports: its `capabilities` don't have \
                             `\"portMappings\": true`"
                        );
                    }
                }
                None => log::warn!("there is no network in {}", conf.dir().display()),
            }
        }
        *self.inner.state.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(state);
        self.inner.changes.send_modify(|count| *count += 1);
    }

    /// Returns a receiver for changes of the networks and of readiness. The value only counts them.
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.inner.changes.subscribe()
    }

    /// Returns the cache in which the results of set-ups are kept.
    pub fn cache(&self) -> &cnimble_runtime::Cache {
        self.inner.options.invoker.cache()
    }

    /// Returns the network with which pods are set up now, or `None` without a usable one.
    pub fn default_network(&self) -> Option<Arc<Network>> {
        self.state().default.clone()
    }

    /// Returns the networks from which the node's pods get addresses.
    pub fn pod_cidrs(&self) -> Vec<IpNetwork> {
        self.inner.pod_cidrs.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Sets the networks from which pods get addresses. It applies to later set-ups, if a plugin has the capability
    /// `ipRanges`.
    pub fn set_pod_cidrs(&self, cidrs: Vec<IpNetwork>) {
        *self.inner.pod_cidrs.write().unwrap_or_else(PoisonError::into_inner) = cidrs;
    }

    /// Returns the directory with configurations, and those with plugins.
    pub fn dirs(&self) -> (&Path, &[PathBuf]) {
        (self.inner.conf.dir(), self.inner.options.invoker.path())
    }

    /// Returns the reasons why files of the configuration directory are unusable.
    pub fn problems(&self) -> Vec<String> {
        self.state().problems.clone()
    }

    /// Succeeds if a network exists, unless its plugins failed the last [`NetworkPlugin::probe`]. It asks no plugin
    /// itself. The commands `run` and `serve` repeat the probe ([`NetworkPlugin::keep_probing`]).
    pub fn ready(&self) -> Result<(), NetworkNotReady> {
        let network = self.require()?;
        let status = self.inner.status.read().unwrap_or_else(PoisonError::into_inner);
        match &*status {
            Some((asked, why)) if Arc::ptr_eq(asked, &network) => Err(why.clone()),
            _ => Ok(()),
        }
    }

    /// Asks the plugins whether they can serve an ADD (the verb STATUS, from version 1.1.0 on).
    /// [`NetworkPlugin::ready`] returns the outcome from then on. A different one is reported as a change.
    pub async fn probe(&self) -> Result<(), NetworkNotReady> {
        let network = self.require()?;
        let asked = self.invoker(&network.list).with_time_limit(config::PROBE).status(&network.list).await;
        let outcome = asked.map_err(|err| {
            let text = err.to_spec();
            NetworkNotReady {
                message: format!("Network plugin returns error: {}", one_line(&text.to_string())),
                details: vec![format!("network {} from {}", network.list.name, network.path.display())],
            }
        });
        let status = outcome.clone().err().map(|why| (Arc::clone(&network), why));
        let before = std::mem::replace(
            &mut *self.inner.status.write().unwrap_or_else(PoisonError::into_inner),
            status,
        );
        let was_ready = before.is_none_or(|(asked, _)| !Arc::ptr_eq(&asked, &network));
        match &outcome {
            Err(why) if was_ready => log::warn!("{}", why.condition()),
            Ok(()) if !was_ready => log::info!("network {} is ready again", network.list.name),
            _ => {}
        }
        if was_ready != outcome.is_ok() {
            self.inner.changes.send_modify(|count| *count += 1);
        }
        outcome
    }

    /// Probes once in each period, forever. After a failure, or when the networks change, it probes earlier.
    pub async fn keep_probing(&self, period: Duration) {
        let mut changes = self.changes();
        loop {
            changes.mark_unchanged();
            // After a failure it probes sooner, because pods wait.
            let wait = match self.probe().await {
                Ok(()) => period,
                Err(_) => period / 5,
            };
            // The probe's own change doesn't count.
            changes.mark_unchanged();
            let _ = tokio::time::timeout(wait, changes.changed()).await;
        }
    }

    /// Returns the default network, or why there is none.
    fn require(&self) -> Result<Arc<Network>, NetworkNotReady> {
        let state = self.state();
        state.default.clone().ok_or_else(|| {
            let mut details = state.problems.clone();
            if details.is_empty() {
                let dir = self.inner.conf.dir().display();
                details
                    .push(format!("no CNI configuration file in {dir}. Has your network provider started?"));
            }
            let message = "Network plugin returns error: cni plugin not initialized".to_owned();
            NetworkNotReady { message, details }
        })
    }

    fn state(&self) -> Arc<LoadedNetworks> {
        Arc::clone(&self.inner.state.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Returns the invoker with the plugin directories of a network.
    fn invoker(&self, network: &cnimble_cni::NetworkList) -> Invoker {
        let invoker = &self.inner.options.invoker;
        invoker.clone().with_path(config::plugin_path(network, invoker.path()))
    }
}

/// Reads the directory after each change, until the last clone of the plugin is dropped.
async fn follow(inner: Weak<Inner>, mut watch: DirWatch) {
    loop {
        watch.changed().await;
        match inner.upgrade() {
            Some(inner) => NetworkPlugin { inner }.reload().await,
            None => return,
        }
    }
}

fn one_line(text: &str) -> String {
    text.lines().map(str::trim).collect::<Vec<_>>().join(" ")
}
