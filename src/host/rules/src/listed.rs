//! A packet rule with its owner, as it is listed for people, and in words.

use std::fmt;
use std::net::IpAddr;

use ipnetwork::IpNetwork;
use serde::Serialize;

use cnimble_cni::{Owner, owner};

#[derive(Debug, Clone, PartialEq)]
pub struct Listed {
    pub owner: RuleOwner,
    /// The effect of the rule.
    pub effect: Effect,
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum RuleOwner {
    /// [`Owner::comment`], whole or cut.
    Comment(String),
    /// The names in the comment of a rule of iptables.
    Container { network: String, container_id: String },
}

impl RuleOwner {
    /// A container owns iptables rules through all of its interfaces. `tag` is the attachment's.
    pub fn is(&self, owner: &Owner, tag: &str) -> bool {
        match self {
            RuleOwner::Comment(comment) => owner::tag_of(comment) == tag,
            RuleOwner::Container { network, container_id } => {
                *network == owner.network && *container_id == owner.attachment.container_id
            }
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(tag = "kind", rename_all = "kebab-case", rename_all_fields = "camelCase")]
pub enum Effect {
    /// Packets from the address that leave its network get the node's address.
    Masquerade {
        address: IpAddr,
        #[serde(serialize_with = "as_text")]
        network: IpNetwork,
    },
    PortMapping {
        protocol: String,
        /// `None` is all addresses of the node.
        host_address: Option<IpAddr>,
        host_port: u16,
        address: IpAddr,
        port: u16,
    },
    Forward {
        address: IpAddr,
    },
    /// Frames from the port with another source are dropped.
    MacCheck {
        port: String,
        mac: String,
    },
    Iptables {
        /// `masquerade` or `port mappings`.
        purpose: String,
        family: String,
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
