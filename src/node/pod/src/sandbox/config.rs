use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use cnimble_cni::NetworkList;

use crate::PodId;
use crate::network::{Bandwidth, Dns, PodNetwork, PortMapping};

/// The configuration of a pod's sandbox: the network's part of CRI's `PodSandboxConfig`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SandboxConfig {
    /// The ID of the pod.
    pub pod: PodId,
    /// Its UID. A pod of the same name with another UID is another pod.
    pub uid: String,
    /// Its host name, which is also its alias in the network; may be empty.
    #[serde(default)]
    pub hostname: String,
    /// It uses the node's network: no namespace, no addresses of its own.
    #[serde(default)]
    pub host_network: bool,
    /// Its labels, for callers that list sandboxes by them; plugins don't hear of them.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// Its control group, unless it follows from [`SandboxOptions::cgroup_root`](super::SandboxOptions).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cgroup: Option<String>,
    /// Its annotations. Shared: most pods have the same few, and there may be thousands.
    #[serde(default)]
    pub annotations: Arc<BTreeMap<String, String>>,
    /// The ports that the pod publishes.
    #[serde(default)]
    pub ports: Vec<PortMapping>,
    /// The content of resolv.conf. Without content there is no file.
    #[serde(default)]
    pub dns: Dns,
}

impl SandboxConfig {
    /// A pod without anything special.
    pub fn new(pod: PodId, uid: impl Into<String>) -> Self {
        SandboxConfig {
            hostname: pod.name.clone(),
            pod,
            uid: uid.into(),
            host_network: false,
            labels: BTreeMap::new(),
            cgroup: None,
            annotations: Arc::default(),
            ports: Vec::new(),
            dns: Dns::default(),
        }
    }

    /// Whether a sandbox with this configuration serves `other`. Not every difference counts, as under the kubelet: a
    /// pod keeps its network when annotations or the node's resolv.conf change.
    pub fn serves(&self, other: &SandboxConfig) -> bool {
        self.pod == other.pod
            && self.uid == other.uid
            && self.host_network == other.host_network
            && self.ports == other.ports
    }
}

/// How far a sandbox is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum State {
    /// Unfinished: its maker works or died, or could not undo a failed step. Its only use is to be removed.
    SettingUp,
    /// The pod has its network.
    Ready,
    /// The network is being taken down, or that was interrupted or failed. It must be stopped again.
    Stopping,
    /// Its network is down and its namespace gone.
    Stopped,
}

/// The process that holds the sandbox' namespace.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PauseProcess {
    /// The process ID.
    pub pid: u32,
    /// Its start in clock ticks since boot (field 22 of /proc/PID/stat), which a later process with the same ID doesn't
    /// share.
    pub start_time: u64,
}

/// A pod's sandbox, as its checkpoint has it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Sandbox {
    /// 64 hexadecimal digits; the plugins' container ID.
    pub id: String,
    /// The configuration of the sandbox.
    pub config: SandboxConfig,
    /// How many sandboxes this pod has had before.
    pub attempt: u32,
    /// When it was made, in seconds since 1970.
    pub created: u64,
    /// And so many nanoseconds.
    #[serde(default)]
    pub created_nanos: u32,
    /// The boot in which it was made (`/proc/sys/kernel/random/boot_id`).
    pub boot_id: String,
    /// How far it is.
    pub state: State,
    /// Where its network namespace is pinned; `None` is the node's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub netns: Option<PathBuf>,
    /// The process in its namespace, if there is to be one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub process: Option<PauseProcess>,
    /// Its resolv.conf, if it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resolv_conf: Option<PathBuf>,
    /// The addresses that it got at set-up.
    #[serde(default)]
    pub ips: Vec<IpAddr>,
    /// Its control group, as the plugins hear of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cgroup_path: Option<String>,
    /// The network that it is set up with: the configuration as it was then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub network: Option<Value>,
}

impl Sandbox {
    /// The name of its network; `None` on the node's own.
    pub fn network_name(&self) -> Option<&str> {
        cnimble_cni::json::get(self.network.as_ref()?, "name")?.as_str()
    }

    pub(super) fn network(&self) -> PodNetwork {
        let netns = self.netns.as_deref().unwrap_or(Path::new(""));
        let config = &self.config;
        let mut pod = PodNetwork::new(config.pod.clone(), &self.id, netns);
        pod.uid.clone_from(&config.uid);
        pod.annotations = BTreeMap::clone(&config.annotations);
        pod.ports.clone_from(&config.ports);
        // An invalid limit has kept the sandbox from being made.
        pod.bandwidth = Bandwidth::from_annotations(&config.annotations).unwrap_or_default();
        pod.dns.clone_from(&config.dns);
        pod.aliases = Some(config.hostname.clone()).filter(|name| !name.is_empty()).into_iter().collect();
        pod.cgroup_path.clone_from(&self.cgroup_path);
        pod.network = self
            .network
            .clone()
            .and_then(|document| {
                let list = NetworkList::from_value(document).and_then(NetworkList::complete);
                list.inspect_err(|err| log::warn!("sandbox {}: its network's record: {err}", self.id)).ok()
            })
            .map(Arc::new);
        pod
    }
}
