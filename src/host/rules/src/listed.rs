//! A packet rule with its owner, as it is listed for people, and in words.

use std::fmt;
use std::net::IpAddr;

use ipnetwork::IpNetwork;
use serde::Serialize;

use cnimble_cni::{Owner, owner};

/// A rule of one attachment.
#[derive(Debug, Clone, PartialEq)]
pub struct Listed {
    /// The owner of the rule.
    pub owner: RuleOwner,
    /// The effect of the rule.
    pub effect: Effect,
}

/// The owner of a rule, as the rule names it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum RuleOwner {
    /// By a comment of [`Owner::comment`], whole or cut.
    Comment(String),
    /// By network and container, as iptables rules do.
    Container {
        /// The name of the network.
        network: String,
        /// The ID of the container.
        container_id: String,
    },
}

impl RuleOwner {
    /// Whether it is this attachment's. A container owns iptables rules through all of its interfaces.
    pub fn is(&self, owner: &Owner, tag: &str) -> bool {
        match self {
            RuleOwner::Comment(comment) => owner::tag_of(comment) == tag,
            RuleOwner::Container { network, container_id } => {
                *network == owner.network && *container_id == owner.attachment.container_id
            }
        }
    }
}

/// The effect of a rule.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(tag = "kind", rename_all = "kebab-case", rename_all_fields = "camelCase")]
pub enum Effect {
    /// Packets from the address that leave its network get the node's address.
    Masquerade {
        /// The address of the pod.
        address: IpAddr,
        /// Its network, where nothing is changed.
        #[serde(serialize_with = "as_text")]
        network: IpNetwork,
    },
    /// A port of the node leads to the pod.
    PortMapping {
        /// The protocol: `tcp`, `udp` or `sctp`.
        protocol: String,
        /// The one address of the node that it is for; `None` is all.
        host_address: Option<IpAddr>,
        /// The port on the node.
        host_port: u16,
        /// The address of the pod.
        address: IpAddr,
        /// The port in the pod.
        port: u16,
    },
    /// Packets from the address pass, and answers to them.
    Forward {
        /// The address of the pod.
        address: IpAddr,
    },
    /// Frames from the port have this source, or are dropped.
    MacCheck {
        /// The port of the bridge.
        port: String,
        /// The one hardware address that passes.
        mac: String,
    },
    /// A chain of iptables (nf_tables variant).
    Iptables {
        /// `masquerade` or `port mappings`.
        purpose: String,
        /// The family: `ip` or `ip6`.
        family: String,
        /// The chain in the table `nat`.
        chain: String,
    },
}

impl fmt::Display for Effect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Effect::Masquerade { address, network } => write!(f, "masquerade {address} outside {network}"),
            Effect::PortMapping { protocol, host_address, host_port, address, port } => {
                let host = match host_address {
                    Some(host) if host.is_ipv6() => format!("[{host}]:{host_port}"),
                    Some(host) => format!("{host}:{host_port}"),
                    None => host_port.to_string(),
                };
                let pod = if address.is_ipv6() { format!("[{address}]") } else { address.to_string() };
                write!(f, "port {host}/{protocol} to {pod}:{port}")
            }
            Effect::Forward { address } => write!(f, "forward {address} and answers"),
            Effect::MacCheck { mac, .. } => write!(f, "source MAC {mac} only"),
            Effect::Iptables { purpose, family, chain } => write!(f, "{purpose}: {family} nat {chain}"),
        }
    }
}

#[allow(clippy::trivially_copy_pass_by_ref)] // serde's signature
fn as_text<S: serde::Serializer>(net: &IpNetwork, to: S) -> std::result::Result<S::Ok, S::Error> {
    to.collect_str(net)
}
