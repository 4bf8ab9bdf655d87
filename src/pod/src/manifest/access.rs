//! What the network wants to know of a pod.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

use k8s_openapi::api::core::v1::{Container, ContainerPort, PodSpec};

use super::Manifest;
use crate::network::{Bandwidth, Dns, PortMapping, Protocol};

static NONE: BTreeMap<String, String> = BTreeMap::new();

/// Where a pod's name resolution begins, once hostNetwork is considered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DnsPolicy {
    /// From the cluster's name servers.
    ClusterFirst,
    /// From the node's.
    Default,
    /// From nothing but dnsConfig.
    None,
}

impl Manifest {
    fn spec(&self) -> Option<&PodSpec> {
        self.pod.spec.as_ref()
    }

    /// Whether the pod lives in the node's network namespace.
    pub fn host_network(&self) -> bool {
        self.spec().and_then(|spec| spec.host_network).unwrap_or(false)
    }

    /// The pod's host name: `spec.hostname`, or its name, cut to 63 bytes as by the kubelet.
    pub fn hostname(&self) -> &str {
        match self.spec().and_then(|spec| spec.hostname.as_deref()) {
            Some(hostname) if !hostname.is_empty() => hostname,
            _ => self.id.name.get(..63).unwrap_or(&self.id.name).trim_end_matches(['-', '.']),
        }
    }

    /// The ports that have a host port, also of init containers that stay (sidecars). None with
    /// hostNetwork, where they are the node's anyway.
    pub fn port_mappings(&self) -> Vec<PortMapping> {
        let Some(spec) = self.spec().filter(|_| !self.host_network()) else { return Vec::new() };
        containers_with_ports(spec)
            .flat_map(|container| container.ports.iter().flatten())
            .filter_map(mapping)
            .collect()
    }

    /// Traffic limits from the annotations.
    pub fn bandwidth(&self) -> Option<Bandwidth> {
        Bandwidth::from_annotations(self.annotations()).ok().flatten()
    }

    /// Where name resolution begins. Under hostNetwork ClusterFirst means Default, as under the
    /// kubelet.
    pub fn dns_policy(&self) -> DnsPolicy {
        match self.spec().and_then(|spec| spec.dns_policy.as_deref()).unwrap_or_default() {
            "Default" => DnsPolicy::Default,
            "None" => DnsPolicy::None,
            "ClusterFirstWithHostNet" => DnsPolicy::ClusterFirst,
            _ if self.host_network() => DnsPolicy::Default,
            _ => DnsPolicy::ClusterFirst,
        }
    }

    /// `spec.dnsConfig`, which adds to what [`Manifest::dns_policy`] says.
    pub fn dns_config(&self) -> Dns {
        let Some(config) = self.spec().and_then(|spec| spec.dns_config.as_ref()) else {
            return Dns::default();
        };
        let option = |option: &k8s_openapi::api::core::v1::PodDNSConfigOption| {
            let name = option.name.clone()?;
            Some(match option.value.as_deref() {
                Some(value) if !value.is_empty() => format!("{name}:{value}"),
                _ => name,
            })
        };
        Dns {
            servers: config.nameservers.clone().unwrap_or_default(),
            searches: config.searches.clone().unwrap_or_default(),
            options: config.options.iter().flatten().filter_map(option).collect(),
        }
    }

    /// Its annotations.
    pub fn annotations(&self) -> &BTreeMap<String, String> {
        self.pod.metadata.annotations.as_ref().unwrap_or(&NONE)
    }

    /// Its labels.
    pub fn labels(&self) -> &BTreeMap<String, String> {
        self.pod.metadata.labels.as_ref().unwrap_or(&NONE)
    }

    /// How long the pod may take to stop; 30 s unless it says otherwise.
    pub fn termination_grace_period(&self) -> Duration {
        let seconds = self.pod.metadata.deletion_grace_period_seconds;
        let seconds = seconds.or_else(|| self.spec().and_then(|spec| spec.termination_grace_period_seconds));
        Duration::from_secs(seconds.and_then(|seconds| u64::try_from(seconds).ok()).unwrap_or(30))
    }

    /// Whether the API server wants it gone: it has a deletionTimestamp.
    pub fn is_deleting(&self) -> bool {
        self.pod.metadata.deletion_timestamp.is_some()
    }
}

/// The containers whose ports count: all, and of the init containers those that stay.
pub(super) fn containers_with_ports(spec: &PodSpec) -> impl Iterator<Item = &Container> {
    let stays = |container: &&Container| container.restart_policy.as_deref() == Some("Always");
    spec.init_containers.iter().flatten().filter(stays).chain(&spec.containers)
}

/// The mapping that a port asks for; `None` if it asks for none. Valid ports have no other `None`.
fn mapping(port: &ContainerPort) -> Option<PortMapping> {
    let number = |port: i32| u16::try_from(port).ok().filter(|port| *port > 0);
    Some(PortMapping {
        host_port: number(port.host_port?)?,
        container_port: number(port.container_port)?,
        protocol: protocol(port.protocol.as_deref())?,
        host_ip: port.host_ip.as_deref().and_then(address),
    })
}

/// A protocol by its name in a manifest; TCP if there is none.
pub(super) fn protocol(name: Option<&str>) -> Option<Protocol> {
    match name.unwrap_or_default() {
        "" | "TCP" => Some(Protocol::Tcp),
        "UDP" => Some(Protocol::Udp),
        "SCTP" => Some(Protocol::Sctp),
        _ => None,
    }
}

/// An address; `None` for one that says "all".
pub(super) fn address(text: &str) -> Option<IpAddr> {
    text.parse().ok().filter(|address: &IpAddr| !address.is_unspecified())
}
