//! The configuration of a pod's sandbox.

use std::collections::BTreeMap;

use crate::wire;
pub use cnimble_pod::network::{Dns, PortMapping, Protocol};

/// The part of CRI's `PodSandboxConfig` that names the pod and describes its network.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PodConfig {
    pub name: String,
    pub namespace: String,
    pub uid: String,
    pub attempt: u32,
    /// The hostname. It is empty for a pod on the node's network.
    pub hostname: String,
    pub log_directory: String,
    pub dns: Dns,
    pub ports: Vec<PortMapping>,
    pub labels: BTreeMap<String, String>,
    pub annotations: BTreeMap<String, String>,
    pub cgroup_parent: String,
    pub host_network: bool,
}

impl From<PodConfig> for wire::PodSandboxConfig {
    fn from(of: PodConfig) -> Self {
        let namespaces = wire::NamespaceOption {
            network: if of.host_network { wire::NODE } else { wire::POD },
            // Each container has processes of its own, as under a kubelet.
            pid: wire::CONTAINER,
            ipc: wire::POD,
            userns_options: None,
        };
        let Dns { servers, searches, options } = of.dns;
        let dns = wire::DnsConfig { servers, searches, options };
        wire::PodSandboxConfig {
            metadata: Some(wire::PodSandboxMetadata {
                name: of.name,
                uid: of.uid,
                namespace: of.namespace,
                attempt: of.attempt,
            }),
            hostname: of.hostname,
            log_directory: of.log_directory,
            dns_config: (dns != wire::DnsConfig::default()).then_some(dns),
            port_mappings: of.ports.iter().map(convert_port).collect(),
            labels: of.labels,
            annotations: of.annotations,
            linux: Some(wire::LinuxPodSandboxConfig {
                cgroup_parent: of.cgroup_parent,
                security_context: Some(wire::LinuxSandboxSecurityContext {
                    namespace_options: Some(namespaces),
                }),
                ..wire::LinuxPodSandboxConfig::default()
            }),
        }
    }
}

fn convert_port(port: &PortMapping) -> wire::PortMapping {
    wire::PortMapping {
        // The numbers are CRI's.
        protocol: port.protocol as i32,
        container_port: port.container_port.into(),
        host_port: port.host_port.into(),
        // Empty stands for every address.
        host_ip: port.host_ip.map(|ip| ip.to_string()).unwrap_or_default(),
    }
}
