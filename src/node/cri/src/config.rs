//! The configuration of a pod's sandbox.

use std::collections::BTreeMap;

use crate::wire;

/// The part of CRI's `PodSandboxConfig` that names the pod and describes its network.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PodConfig {
    /// The name of the pod.
    pub name: String,
    /// The Kubernetes namespace of the pod.
    pub namespace: String,
    /// The UID of the pod.
    pub uid: String,
    /// How many sandboxes it has had before.
    pub attempt: u32,
    /// Its host name; empty on the node's network.
    pub hostname: String,
    /// The directory of the containers' logs.
    pub log_directory: String,
    /// Addresses of name servers.
    pub dns_servers: Vec<String>,
    /// Search domains.
    pub dns_searches: Vec<String>,
    /// Options, as in resolv.conf(5).
    pub dns_options: Vec<String>,
    /// Ports that the node publishes.
    pub ports: Vec<Port>,
    /// Labels of the sandbox.
    pub labels: BTreeMap<String, String>,
    /// Annotations of the sandbox.
    pub annotations: BTreeMap<String, String>,
    /// The control group above the pod's.
    pub cgroup_parent: String,
    /// Whether the pod uses the node's network.
    pub host_network: bool,
}

/// A port that the node publishes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Port {
    /// The protocol of the port.
    pub protocol: Protocol,
    /// The port in the pod.
    pub container_port: u16,
    /// The port on the node.
    pub host_port: u16,
    /// The address on the node. Empty stands for every address.
    pub host_ip: String,
}

/// CRI's protocols of ports, by their numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Protocol {
    /// TCP, number 0 in CRI.
    Tcp = 0,
    /// UDP, number 1 in CRI.
    Udp = 1,
    /// SCTP, number 2 in CRI.
    Sctp = 2,
}

impl From<PodConfig> for wire::PodSandboxConfig {
    fn from(of: PodConfig) -> Self {
        let port = |port: Port| wire::PortMapping {
            protocol: port.protocol as i32,
            container_port: port.container_port.into(),
            host_port: port.host_port.into(),
            host_ip: port.host_ip,
        };
        let namespaces = wire::NamespaceOption {
            network: if of.host_network { wire::NODE } else { wire::POD },
            // Each container has processes of its own, as under a kubelet.
            pid: wire::CONTAINER,
            ipc: wire::POD,
            userns_options: None,
        };
        let dns =
            wire::DnsConfig { servers: of.dns_servers, searches: of.dns_searches, options: of.dns_options };
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
            port_mappings: of.ports.into_iter().map(port).collect(),
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
