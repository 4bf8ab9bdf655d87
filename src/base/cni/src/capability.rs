//! `runtimeConfig`: what a runtime tells a plugin about one container, for the capabilities that the plugin has
//! announced. The forms are a convention (CONVENTIONS.md in the specification's repository, "Dynamic Plugin specific
//! fields"). Keys match in any case, since containerd sends `HostPort` and `IngressRate`.

use std::collections::BTreeMap;
use std::net::IpAddr;

use ipnetwork::IpNetwork;
use serde::Deserialize;

use super::fields::RequestedIp;
use super::{Dns, fields};

/// All capability arguments that runtimes in use send. Missing, `null` and empty are the same.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
#[non_exhaustive]
pub struct RuntimeConfig {
    /// Ports of the host that lead into the container.
    pub port_mappings: Vec<PortMapping>,
    /// Limits of the pod's traffic.
    pub bandwidth: Bandwidth,
    /// Addresses that the container is to get.
    pub ips: Vec<RequestedIp>,
    /// Ranges to allocate from, before the configuration's own. Each inner list is one range set.
    pub ip_ranges: Vec<Vec<IpRange>>,
    /// Hardware address of the container's interface.
    #[serde(deserialize_with = "fields::text_opt")]
    pub mac: Option<String>,
    /// InfiniBand GUID of the container's interface.
    #[serde(rename = "infinibandGUID", deserialize_with = "fields::text_opt")]
    pub infiniband_guid: Option<String>,
    /// Name resolution, in place of the configuration's.
    pub dns: RuntimeDns,
    /// Names of the container in this network, by network name.
    pub aliases: Aliases,
    /// Control group of the pod.
    #[serde(deserialize_with = "fields::text_opt")]
    pub cgroup_path: Option<String>,
    /// PCI address (or other ID) of the device that was assigned to the container.
    #[serde(rename = "deviceID", deserialize_with = "fields::text_opt")]
    pub device_id: Option<String>,
    /// Annotations of a Kubernetes pod.
    #[serde(rename = "io.kubernetes.cri.pod-annotations")]
    pub pod_annotations: BTreeMap<String, String>,
}

/// A port that the node publishes.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct PortMapping {
    /// Port on the host; 0 where it is missing. Runtimes leave out what isn't to be published.
    #[serde(default)]
    pub host_port: u16,
    /// Port in the container.
    #[serde(default)]
    pub container_port: u16,
    /// `tcp`, `udp` or `sctp`, in lower case; `tcp` where it is missing or empty. The plugin refuses others.
    #[serde(default = "tcp", deserialize_with = "protocol")]
    pub protocol: String,
    /// Address of the host that the port is published on; `None` is all.
    #[serde(default, rename = "hostIP", deserialize_with = "fields::ip_opt")]
    pub host_ip: Option<IpAddr>,
}

fn tcp() -> String {
    "tcp".into()
}

/// Reads a protocol in lower case. Runtimes write `tcp` and `TCP`.
fn protocol<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<String, D::Error> {
    let text = fields::text_opt(deserializer)?;
    Ok(text.map_or_else(tcp, |text| text.to_ascii_lowercase()))
}

/// Traffic limits; 0 is no limit. Runtimes send bursts beyond 32 bits.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
#[non_exhaustive]
pub struct Bandwidth {
    /// The rate to the container, in bits per second.
    pub ingress_rate: u64,
    /// The burst to the container, in bits.
    pub ingress_burst: u64,
    /// The rate from the container, in bits per second.
    pub egress_rate: u64,
    /// The burst from the container, in bits.
    pub egress_burst: u64,
}

/// A range of addresses to allocate from.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct IpRange {
    /// The network; host bits are kept, for the plugin to refuse.
    #[serde(deserialize_with = "fields::cidr")]
    pub subnet: IpNetwork,
    /// First address to give out.
    #[serde(default, deserialize_with = "fields::ip_opt")]
    pub range_start: Option<IpAddr>,
    /// Last address to give out.
    #[serde(default, deserialize_with = "fields::ip_opt")]
    pub range_end: Option<IpAddr>,
    /// Gateway of the network.
    #[serde(default, deserialize_with = "fields::ip_opt")]
    pub gateway: Option<IpAddr>,
}

/// Name resolution as runtimes send it; the keys differ from those of [`Dns`].
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct RuntimeDns {
    /// Name servers, by address.
    pub servers: Vec<String>,
    /// Domains of the search list.
    pub searches: Vec<String>,
    /// Options, as in resolv.conf(5).
    pub options: Vec<String>,
}

impl From<RuntimeDns> for Dns {
    fn from(dns: RuntimeDns) -> Self {
        Dns { nameservers: dns.servers, domain: String::new(), search: dns.searches, options: dns.options }
    }
}

/// Names of a container: the convention has a list by network, podman sends a plain one.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Aliases {
    /// Names in every network that the list is handed to.
    pub everywhere: Vec<String>,
    /// Names, by the name of the network.
    pub by_network: BTreeMap<String, Vec<String>>,
}

impl Aliases {
    /// The names in `network`.
    pub fn in_network(&self, network: &str) -> impl Iterator<Item = &str> {
        let named = self.by_network.get(network).into_iter().flatten();
        self.everywhere.iter().chain(named).map(String::as_str)
    }
}

impl<'de> Deserialize<'de> for Aliases {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        use serde::de::{Error, MapAccess, SeqAccess, Visitor};
        struct Either;
        impl<'de> Visitor<'de> for Either {
            type Value = Aliases;
            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("a list of names, or lists of names by network")
            }
            fn visit_unit<E: Error>(self) -> Result<Aliases, E> {
                Ok(Aliases::default())
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Aliases, A::Error> {
                let mut aliases = Aliases::default();
                while let Some(name) = seq.next_element()? {
                    aliases.everywhere.push(name);
                }
                Ok(aliases)
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Aliases, A::Error> {
                let mut aliases = Aliases::default();
                while let Some((network, names)) = map.next_entry::<String, Option<Vec<String>>>()? {
                    aliases.by_network.insert(network, names.unwrap_or_default());
                }
                Ok(aliases)
            }
        }
        deserializer.deserialize_any(Either)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::json::from_value;

    fn read(value: &Value) -> RuntimeConfig {
        from_value(value, "runtimeConfig").unwrap()
    }

    #[test]
    fn what_containerd_sends() {
        let config = read(&json!({
            "portMappings": [
                { "HostPort": 8080, "ContainerPort": 80, "Protocol": "TCP", "HostIP": "" },
                { "HostPort": 53, "ContainerPort": 53, "Protocol": "udp", "HostIP": "10.0.0.1" },
            ],
            "bandwidth": { "IngressRate": 1000, "IngressBurst": 4_294_967_295_u64, "EgressRate": 0, "EgressBurst": 34_359_738_359_u64 },
            "dns": { "Servers": ["10.0.0.10"], "Searches": ["svc"], "Options": ["ndots:5"] },
            "ipRanges": [[{ "Subnet": "10.1.0.0/24", "RangeStart": "10.1.0.9", "RangeEnd": "", "Gateway": "" }]],
            "cgroupPath": "/kubepods/x",
            "io.kubernetes.cri.pod-annotations": { "Kubernetes.io/Config": "X" },
        }));
        assert_eq!(
            config.port_mappings[0],
            PortMapping { host_port: 8080, container_port: 80, protocol: "tcp".into(), host_ip: None }
        );
        assert_eq!(config.port_mappings[1].host_ip.unwrap().to_string(), "10.0.0.1");
        assert_eq!(config.bandwidth.ingress_burst, 4_294_967_295);
        assert_eq!(config.bandwidth.egress_burst, 34_359_738_359);
        assert_eq!(config.ip_ranges[0][0].range_start.unwrap().to_string(), "10.1.0.9");
        assert_eq!(config.ip_ranges[0][0].range_end, None);
        let dns = Dns::from(config.dns);
        assert_eq!((dns.nameservers, dns.search), (vec!["10.0.0.10".into()], vec!["svc".into()]));
        // The keys of a map are data.
        assert_eq!(config.pod_annotations["Kubernetes.io/Config"], "X");
    }

    #[test]
    fn what_podman_and_others_send() {
        let config = read(&json!({
            "ips": ["10.88.0.9", "fd00::9/64"], "mac": "02:00:00:00:00:01", "deviceID": "0000:00:1f.6",
            "infinibandGUID": "c2:11", "aliases": { "net": ["web"], "other": null },
        }));
        assert_eq!(config.ips[1].prefix, Some(64));
        assert_eq!(config.mac.as_deref(), Some("02:00:00:00:00:01"));
        assert_eq!(config.device_id.as_deref(), Some("0000:00:1f.6"));
        assert_eq!(config.aliases.in_network("net").collect::<Vec<_>>(), ["web"]);
        assert_eq!(config.aliases.in_network("other").count(), 0);
        let config = read(&json!({ "aliases": ["a", "b"] }));
        assert_eq!(config.aliases.in_network("any").collect::<Vec<_>>(), ["a", "b"]);
    }

    #[test]
    fn a_port_without_a_protocol_is_of_tcp() {
        for mapping in [json!({}), json!({ "protocol": "" }), json!({ "Protocol": null })] {
            let config = read(&json!({ "portMappings": [mapping] }));
            assert_eq!(config.port_mappings[0].protocol, "tcp", "{mapping}");
        }
    }

    #[test]
    fn empty_and_null_stand_for_absent() {
        let absent = RuntimeConfig::default();
        assert_eq!(read(&Value::Null), absent);
        assert_eq!(
            read(&json!({
                "portMappings": [], "bandwidth": {}, "ips": [], "ipRanges": [], "mac": "", "dns": {},
                "aliases": [], "cgroupPath": "", "deviceID": "", "unknown": 1,
            })),
            absent
        );
        assert_eq!(
            read(&json!({
                "portMappings": null, "bandwidth": null, "ips": null, "ipRanges": null, "mac": null,
                "dns": { "servers": null }, "aliases": null, "io.kubernetes.cri.pod-annotations": null,
            })),
            absent
        );
    }

    #[test]
    fn errors_name_the_place() {
        for (value, msg) in [
            (
                json!({ "portMappings": [{ "hostPort": 65536 }] }),
                "runtimeConfig.portMappings[0].hostPort: invalid value: integer `65536`, expected u16",
            ),
            (
                json!({ "portMappings": [{ "HostIP": "localhost" }] }),
                "runtimeConfig.portMappings[0].hostIP: invalid IP address: localhost",
            ),
            (
                json!({ "ipRanges": [[], [{ "subnet": "10.0.0.0/24" }, { "subnet": "10.0.0.0" }]] }),
                "runtimeConfig.ipRanges[1][1].subnet: invalid CIDR address: 10.0.0.0",
            ),
            (json!({ "ipRanges": [[{}]] }), "runtimeConfig.ipRanges[0][0]: missing field `subnet`"),
            (
                json!({ "bandwidth": { "IngressRate": -1 } }),
                "runtimeConfig.bandwidth.ingressRate: invalid value: integer `-1`, expected u64",
            ),
            (
                json!({ "aliases": "x" }),
                "runtimeConfig.aliases: invalid type: string \"x\", expected a list of names, or lists of names by network",
            ),
        ] {
            assert_eq!(from_value::<RuntimeConfig>(&value, "runtimeConfig").unwrap_err().msg, msg);
        }
    }
}
