//! What a pod's sandbox is to be.

use std::collections::BTreeMap;

use crate::wire;

/// What a kubelet tells a runtime of a pod: CRI's PodSandboxConfig, as far as the network and the
/// pod's names go.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PodConfig {
    /// The pod's name.
    pub name: String,
    /// Its Kubernetes namespace.
    pub namespace: String,
    /// Its UID.
    pub uid: String,
    /// How many sandboxes it has had before.
    pub attempt: u32,
    /// Its host name; empty on the node's network.
    pub hostname: String,
    /// Where its containers' logs go.
    pub log_directory: String,
    /// Name servers.
    pub dns_servers: Vec<String>,
    /// Domains that names are looked for in.
    pub dns_searches: Vec<String>,
    /// Options of resolv.conf.
    pub dns_options: Vec<String>,
    /// Published ports.
    pub ports: Vec<Port>,
    /// Labels.
    pub labels: BTreeMap<String, String>,
    /// Annotations.
    pub annotations: BTreeMap<String, String>,
    /// Its control group.
    pub cgroup_parent: String,
    /// It uses the node's network.
    pub host_network: bool,
}

/// A published port.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Port {
    /// Its protocol.
    pub protocol: Protocol,
    /// The port in the pod.
    pub container_port: u16,
    /// The node's.
    pub host_port: u16,
    /// The node's address; empty is every one.
    pub host_ip: String,
}

/// CRI's protocols of ports, by their numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Protocol {
    /// TCP.
    Tcp = 0,
    /// UDP.
    Udp = 1,
    /// SCTP.
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
