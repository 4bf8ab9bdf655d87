use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use cnimble_cni::NetworkList;

use crate::PodId;
use crate::network::{Bandwidth, Dns, PodNetwork, PortMapping};

/// The configuration of a sandbox: the network's part of CRI's `PodSandboxConfig`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SandboxConfig {
    pub pod: PodId,
    /// The UID. A pod of the same name with another UID is another pod.
    pub uid: String,
    /// The hostname, which is also the pod's alias in the network. May be empty.
    #[serde(default)]
    pub hostname: String,
    /// Whether the pod uses the node's network, without a namespace and addresses of its own.
    #[serde(default)]
    pub host_network: bool,
    /// Labels, by which callers list sandboxes. Plugins do not get them.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// The path of the pod's control group. Without it, [`SandboxOptions::cgroup_root`](super::SandboxOptions) decides.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cgroup: Option<String>,
    /// The annotations, shared because most pods have the same few and there may be thousands.
    #[serde(default)]
    pub annotations: Arc<BTreeMap<String, String>>,
    #[serde(default)]
    pub ports: Vec<PortMapping>,
    /// The content of resolv.conf. If it is empty, no file is made.
    #[serde(default)]
    pub dns: Dns,
}

impl SandboxConfig {
    /// Creates the configuration of a pod with its own network and without ports. Its hostname is its name.
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

    /// Returns whether a sandbox of this configuration can serve `other`, the pod's present one. As under the kubelet,
    /// a pod keeps its sandbox when annotations or the node's resolv.conf change.
    pub fn serves(&self, other: &SandboxConfig) -> bool {
        self.pod == other.pod
            && self.uid == other.uid
            && self.host_network == other.host_network
            && self.ports == other.ports
    }
}

/// The progress of a sandbox on record.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum SandboxState {
    /// The set-up is running, was interrupted, or failed and could not be undone. Such a sandbox can only be removed.
    SettingUp,
    Ready,
    /// A stop is running, was interrupted or has failed. The sandbox must be stopped again.
    Stopping,
    /// Only the record is left.
    Stopped,
}

/// A process, identified by its ID and start.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PauseProcess {
    pub pid: u32,
    /// The start in clock ticks since boot (field 22 of /proc/PID/stat). A later process with the same ID has another
    /// one.
    pub start_time: u64,
}

/// The record of a sandbox.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Sandbox {
    /// The ID of 64 hexadecimal digits, which is the plugins' container ID.
    pub id: String,
    pub config: SandboxConfig,
    /// The number of the pod's earlier sandboxes, or the attempt that the caller gave.
    pub attempt: u32,
    /// The time of creation in seconds since 1970.
    pub created: u64,
    #[serde(default)]
    pub created_nanos: u32,
    /// The boot in which it was made (`/proc/sys/kernel/random/boot_id`).
    pub boot_id: String,
    pub state: SandboxState,
    /// The path to which the namespace is mounted. It is `None` on the node's network.
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
    /// The network's configuration at the set-up. It is `None` on the node's network.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub network: Option<Value>,
}

impl Sandbox {
    /// Returns the name of its network. It returns `None` on the node's own.
    pub fn network_name(&self) -> Option<&str> {
        cnimble_cni::json::get(self.network.as_ref()?, "name")?.as_str()
    }

    /// Returns the facts for plugins, with the network of the set-up. An unreadable network counts as none, with a
    /// warning.
    pub(super) fn network(&self) -> PodNetwork {
        let netns = self.netns.as_deref().unwrap_or(Path::new(""));
        let config = &self.config;
        let mut pod = PodNetwork::new(config.pod.clone(), &self.id, netns);
        pod.uid.clone_from(&config.uid);
        pod.annotations = BTreeMap::clone(&config.annotations);
        pod.ports.clone_from(&config.ports);
        // The limits are valid, because a sandbox with invalid ones is never made.
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
