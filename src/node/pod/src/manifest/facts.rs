//! The facts of a pod that the network needs. They are kept instead of the Pod, which takes kilobytes, because a node
//! may have thousands.

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::api::core::v1::{Pod, PodDNSConfig, PodDNSConfigOption};

use super::MANAGED_ANNOTATION;
use super::access::{DnsPolicy, containers_with_ports, mapping};
use crate::network::{Dns, PortMapping};

/// The parts of a pod's manifest that matter for its network.
#[derive(Debug, Clone, PartialEq)]
pub struct Facts {
    /// Whether the pod lives in the node's network namespace.
    pub host_network: bool,
    pub(super) hostname: Option<Box<str>>,
    /// The ports with a host port, also of sidecars. The list is empty with hostNetwork, where the ports are the node's
    /// anyway.
    pub ports: Box<[PortMapping]>,
    /// The source of name resolution. With hostNetwork, `ClusterFirst` becomes [`DnsPolicy::Default`], as under the
    /// kubelet.
    pub dns_policy: DnsPolicy,
    /// `spec.dnsConfig`, which adds to the policy.
    pub dns: Option<Box<Dns>>,
    /// The annotations, shared because most pods have the same few. A static pod has all of them. For a pod of an API
    /// server see [`ApiSource::annotations`](crate::source::ApiSource::annotations).
    pub annotations: Arc<BTreeMap<String, String>>,
    /// The grace period in seconds.
    pub(super) grace: Option<u32>,
    /// The deletionTimestamp in seconds since 1970. It is `None` unless the pod is being deleted.
    pub deletion: Option<u64>,
    /// Whether the phase is Succeeded or Failed.
    pub ended: bool,
    /// Whether no kubelet manages the pod, by [`MANAGED_ANNOTATION`](super::MANAGED_ANNOTATION).
    pub managed: bool,
}

impl Facts {
    /// Takes these parts from a pod.
    pub(super) fn from_pod(pod: Pod) -> Facts {
        let spec = pod.spec.unwrap_or_default();
        let host_network = spec.host_network.unwrap_or(false);
        let ports = if host_network {
            Box::default()
        } else {
            containers_with_ports(&spec)
                .flat_map(|container| container.ports.iter().flatten())
                .filter_map(mapping)
                .collect()
        };
        let dns_policy = match spec.dns_policy.as_deref().unwrap_or_default() {
            "Default" => DnsPolicy::Default,
            "None" => DnsPolicy::None,
            "ClusterFirstWithHostNet" => DnsPolicy::ClusterFirst,
            _ if host_network => DnsPolicy::Default,
            _ => DnsPolicy::ClusterFirst,
        };
        let annotations = pod.metadata.annotations.unwrap_or_default();
        let grace = pod.metadata.deletion_grace_period_seconds.or(spec.termination_grace_period_seconds);
        let deletion = pod.metadata.deletion_timestamp.map(|time| time.0.as_second());
        let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
        Facts {
            host_network,
            hostname: spec.hostname.filter(|name| !name.is_empty()).map(String::into_boxed_str),
            ports,
            dns_policy,
            dns: spec.dns_config.map(|config| Box::new(dns(config))),
            managed: annotations.get(MANAGED_ANNOTATION).is_some_and(|value| value == "true"),
            annotations: Arc::new(annotations),
            grace: grace.map(|seconds| u32::try_from(seconds.max(0)).unwrap_or(u32::MAX)),
            deletion: deletion.map(|seconds| u64::try_from(seconds).unwrap_or(0)),
            ended: matches!(phase, Some("Succeeded" | "Failed")),
        }
    }
}

fn dns(config: PodDNSConfig) -> Dns {
    Dns {
        servers: config.nameservers.unwrap_or_default(),
        searches: config.searches.unwrap_or_default(),
        options: config.options.unwrap_or_default().into_iter().filter_map(dns_option).collect(),
    }
}

/// Returns an option as resolv.conf(5) has it, or `None` for one without a name.
fn dns_option(option: PodDNSConfigOption) -> Option<String> {
    let name = option.name?;
    Some(match option.value.as_deref() {
        Some(value) if !value.is_empty() => format!("{name}:{value}"),
        _ => name,
    })
}
