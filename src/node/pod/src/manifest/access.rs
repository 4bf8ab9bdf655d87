use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use k8s_openapi::api::core::v1::{Container, ContainerPort, PodSpec};

use super::Manifest;
use crate::network::{PortMapping, Protocol};

/// The source of a pod's name resolution. `hostNetwork` has been taken into account.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DnsPolicy {
    ClusterFirst,
    Default,
    None,
}

impl Manifest {
    /// Returns `spec.hostname`, or the pod's name cut to 63 bytes as by the kubelet.
    pub fn hostname(&self) -> &str {
        match self.facts.hostname.as_deref() {
            Some(hostname) => hostname,
            None => self.id.name.get(..63).unwrap_or(&self.id.name).trim_end_matches(['-', '.']),
        }
    }

    /// Sets an annotation. Copies the shared annotations only if it changes one.
    pub(crate) fn annotate(&mut self, key: &str, value: &str) {
        if self.facts.annotations.get(key).is_none_or(|old| old != value) {
            Arc::make_mut(&mut self.facts.annotations).insert(key.to_owned(), value.to_owned());
        }
    }

    /// Returns the grace period of the pod, which is 30 s unless the pod says otherwise.
    pub fn termination_grace_period(&self) -> Duration {
        Duration::from_secs(u64::from(self.facts.grace.unwrap_or(30)))
    }

    /// Returns the time until the deletionTimestamp, or `None` for a pod that is not deleted. It is never longer than
    /// the grace period, even if the clocks of this host and the server differ.
    pub fn time_left(&self, now: SystemTime) -> Option<Duration> {
        let end = SystemTime::UNIX_EPOCH + Duration::from_secs(self.facts.deletion?);
        Some(end.duration_since(now).unwrap_or_default().min(self.termination_grace_period()))
    }

    /// Returns roughly how many bytes the parts of the manifest take whose size the pod chooses.
    pub(crate) fn weight(&self) -> usize {
        let dns = self.facts.dns.as_deref();
        let texts = dns.into_iter().flat_map(|dns| [&dns.servers, &dns.searches, &dns.options]).flatten();
        let dns: usize = texts.map(|text| text.len() + size_of::<String>()).sum();
        let annotations: usize =
            self.facts.annotations.iter().map(|(key, value)| key.len() + value.len() + 64).sum();
        dns + annotations + self.facts.ports.len() * size_of::<PortMapping>()
    }

    /// Returns whether the other manifest wants something else of the network.
    pub(crate) fn differs(&self, other: &Manifest) -> bool {
        self.facts != other.facts
    }
}

/// Returns the containers that run as long as the pod: the usual ones, and sidecars.
pub(super) fn containers_with_ports(spec: &PodSpec) -> impl Iterator<Item = &Container> {
    let init = spec.init_containers.iter().flatten();
    init.filter(|container| container.restart_policy.as_deref() == Some("Always")).chain(&spec.containers)
}

/// Returns the mapping of a container's port. It returns `None` without a host port. A valid port has no other reason
/// for `None`.
pub(super) fn mapping(port: &ContainerPort) -> Option<PortMapping> {
    Some(PortMapping {
        host_port: port_number(port.host_port?)?,
        container_port: port_number(port.container_port)?,
        protocol: protocol(port.protocol.as_deref())?,
        host_ip: port.host_ip.as_deref().and_then(address),
    })
}

fn port_number(port: i32) -> Option<u16> {
    u16::try_from(port).ok().filter(|port| *port > 0)
}

/// Parses a protocol. An empty name is TCP. It returns `None` for an unknown one.
pub(super) fn protocol(name: Option<&str>) -> Option<Protocol> {
    match name.unwrap_or_default() {
        "" | "TCP" => Some(Protocol::Tcp),
        "UDP" => Some(Protocol::Udp),
        "SCTP" => Some(Protocol::Sctp),
        _ => None,
    }
}

/// Parses an address of the host. It returns `None` for an unspecified one such as `0.0.0.0`, which means all
/// addresses.
pub(super) fn address(text: &str) -> Option<IpAddr> {
    text.parse().ok().filter(|address: &IpAddr| !address.is_unspecified())
}
