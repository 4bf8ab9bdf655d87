//! A pod as the network layer passes it to plugins.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;

use ipnetwork::IpNetwork;
use serde::{Deserialize, Serialize};
use serde_json::json;

use cnimble_cni::NetworkList;
use cnimble_runtime::Attach;

use super::Bandwidth;
use crate::PodId;

/// The name of a pod's interface, as under the kubelet.
pub const INTERFACE: &str = "eth0";

/// The protocol of a published port.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Protocol {
    Tcp,
    Udp,
    Sctp,
}

/// A port of the node that leads into the pod.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PortMapping {
    pub host_port: u16,
    pub container_port: u16,
    pub protocol: Protocol,
    /// The address of the node. `None` means all addresses.
    #[serde(default, rename = "hostIP", skip_serializing_if = "Option::is_none")]
    pub host_ip: Option<IpAddr>,
}

/// The content of a pod's resolv.conf, in the words of resolv.conf(5).
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Dns {
    pub servers: Vec<String>,
    pub searches: Vec<String>,
    pub options: Vec<String>,
}

impl Dns {
    /// Returns whether there are no servers, searches and options.
    pub fn is_empty(&self) -> bool {
        *self == Dns::default()
    }
}

/// A pod with all facts that plugins get.
#[derive(Debug, Clone, PartialEq)]
pub struct PodNetwork {
    pub pod: PodId,
    pub uid: String,
    /// The plugins' container ID.
    pub sandbox_id: String,
    /// The path of the network namespace. For tear-down it need not exist.
    pub netns: PathBuf,
    pub annotations: BTreeMap<String, String>,
    pub ports: Vec<PortMapping>,
    pub bandwidth: Option<Bandwidth>,
    pub dns: Dns,
    pub aliases: Vec<String>,
    pub cgroup_path: Option<String>,
    /// The network. `None` means the present default. The network of the set-up allows to tear the pod down after a
    /// change of the configuration or a crash.
    pub network: Option<Arc<NetworkList>>,
}

impl PodNetwork {
    /// Creates a pod with nothing but its names and its namespace.
    pub fn new(pod: PodId, sandbox_id: impl Into<String>, netns: impl Into<PathBuf>) -> Self {
        PodNetwork {
            pod,
            uid: String::new(),
            sandbox_id: sandbox_id.into(),
            netns: netns.into(),
            annotations: BTreeMap::new(),
            ports: Vec::new(),
            bandwidth: None,
            dns: Dns::default(),
            aliases: Vec::new(),
            cgroup_path: None,
            network: None,
        }
    }

    /// Returns the call's arguments. The invoker passes to each plugin only the capability arguments that it declares.
    pub(super) fn attach(&self, ifname: &str, pod_cidrs: &[IpNetwork]) -> Attach {
        let mut attach = Attach::new(&self.sandbox_id, &self.netns, ifname)
            .arg("IgnoreUnknown", "1")
            .arg("K8S_POD_NAMESPACE", &self.pod.namespace)
            .arg("K8S_POD_NAME", &self.pod.name)
            .arg("K8S_POD_INFRA_CONTAINER_ID", &self.sandbox_id)
            .arg("K8S_POD_UID", &self.uid);
        let args = &mut attach.capability_args;
        if !self.ports.is_empty() {
            args.insert("portMappings".to_owned(), json!(self.ports));
        }
        if let Some(bandwidth) = self.bandwidth {
            args.insert("bandwidth".to_owned(), bandwidth.capability());
        }
        if !pod_cidrs.is_empty() {
            // Each inner list is a range set, and the pod gets an address of each.
            let sets = pod_cidrs.iter().map(|cidr| json!([{"subnet": cidr.to_string()}]));
            args.insert("ipRanges".to_owned(), sets.collect());
        }
        if !self.dns.is_empty() {
            args.insert("dns".to_owned(), json!(self.dns));
        }
        if !self.aliases.is_empty() {
            args.insert("aliases".to_owned(), json!(self.aliases));
        }
        if let Some(path) = &self.cgroup_path {
            args.insert("cgroupPath".to_owned(), json!(path));
        }
        if !self.annotations.is_empty() {
            args.insert("io.kubernetes.cri.pod-annotations".to_owned(), json!(self.annotations));
        }
        attach
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;
    use crate::network::Protocol;

    #[test]
    fn what_the_plugins_are_told() {
        let mut pod = PodNetwork::new(PodId::new("default", "web"), "abc", "/run/netns/x");
        pod.uid = "u1".into();
        let attach = pod.attach("eth0", &[]);
        let args: Vec<String> = attach.args.iter().map(|(key, value)| format!("{key}={value}")).collect();
        assert_eq!(
            args.join(";"),
            "IgnoreUnknown=1;K8S_POD_NAMESPACE=default;K8S_POD_NAME=web;\
             K8S_POD_INFRA_CONTAINER_ID=abc;K8S_POD_UID=u1"
        );
        // Some plugins stumble over empty lists.
        assert_eq!(Value::Object(attach.capability_args), json!({}));

        pod.ports = vec![
            PortMapping { host_port: 8080, container_port: 80, protocol: Protocol::Tcp, host_ip: None },
            PortMapping {
                host_port: 53,
                container_port: 53,
                protocol: Protocol::Udp,
                host_ip: Some("10.0.0.1".parse().unwrap()),
            },
        ];
        pod.bandwidth = Some(Bandwidth { ingress: Some(1_000_000), egress: None });
        pod.dns.servers = vec!["10.0.0.10".into()];
        pod.aliases = vec!["web".into()];
        pod.cgroup_path = Some("/kubepods/podu1".into());
        pod.annotations = BTreeMap::from([("a/b".into(), "c".into())]);
        let cidrs = ["10.1.0.0/24".parse().unwrap(), "fd00::/64".parse().unwrap()];
        let attach = pod.attach("eth0", &cidrs);
        assert_eq!(
            Value::Object(attach.capability_args),
            json!({
                "portMappings": [
                    {"hostPort": 8080, "containerPort": 80, "protocol": "tcp"},
                    {"hostPort": 53, "containerPort": 53, "protocol": "udp", "hostIP": "10.0.0.1"},
                ],
                "bandwidth": {"ingressRate": 1_000_000, "ingressBurst": 2_147_483_647},
                "ipRanges": [[{"subnet": "10.1.0.0/24"}], [{"subnet": "fd00::/64"}]],
                "dns": {"servers": ["10.0.0.10"], "searches": [], "options": []},
                "aliases": ["web"],
                "cgroupPath": "/kubepods/podu1",
                "io.kubernetes.cri.pod-annotations": {"a/b": "c"},
            })
        );
    }
}
