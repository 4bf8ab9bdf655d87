use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use cnimble_cni::NetworkList;

use crate::PodId;
use crate::network::{Bandwidth, Dns, PodNetwork, PortMapping};

/// The network's part of CRI's `PodSandboxConfig`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SandboxConfig {
    pub pod: PodId,
    /// A pod of the same name with another UID is another pod.
    pub uid: String,
    /// Also the pod's alias in the network; may be empty.
    #[serde(default)]
    pub hostname: String,
    /// Uses the node's network: no namespace, no addresses of its own.
    #[serde(default)]
    pub host_network: bool,
    /// Callers list sandboxes by labels. Plugins don't hear of them.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// Otherwise it follows from [`SandboxOptions::cgroup_root`](super::SandboxOptions).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cgroup: Option<String>,
    /// Shared: most pods have the same few, and there may be thousands.
    #[serde(default)]
    pub annotations: Arc<BTreeMap<String, String>>,
    #[serde(default)]
    pub ports: Vec<PortMapping>,
    /// Without content there is no resolv.conf.
    #[serde(default)]
    pub dns: Dns,
}

impl SandboxConfig {
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

    /// As under the kubelet, a pod keeps its network when annotations or the node's resolv.conf change.
    pub fn serves(&self, other: &SandboxConfig) -> bool {
        self.pod == other.pod
            && self.uid == other.uid
            && self.host_network == other.host_network
            && self.ports == other.ports
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum State {
    /// Its maker works or died, or could not undo a failed step. The only use is to remove it.
    SettingUp,
    Ready,
    /// A stop works, was interrupted or has failed. The sandbox must be stopped again.
    Stopping,
    Stopped,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PauseProcess {
    pub pid: u32,
    /// The start in clock ticks since boot (field 22 of /proc/PID/stat). A later process with the same ID has another.
    pub start_time: u64,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Sandbox {
    /// 64 hexadecimal digits; the plugins' container ID.
    pub id: String,
    pub config: SandboxConfig,
    /// The number of the pod's earlier sandboxes.
    pub attempt: u32,
    /// The time of creation in seconds since 1970.
    pub created: u64,
    #[serde(default)]
    pub created_nanos: u32,
    /// `/proc/sys/kernel/random/boot_id` when it was made.
    pub boot_id: String,
    pub state: State,
    /// The pin of the namespace; `None` is the node's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub netns: Option<PathBuf>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub process: Option<PauseProcess>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resolv_conf: Option<PathBuf>,
    /// The addresses from the set-up.
    #[serde(default)]
    pub ips: Vec<IpAddr>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cgroup_path: Option<String>,
    /// The configuration of the set-up.
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
