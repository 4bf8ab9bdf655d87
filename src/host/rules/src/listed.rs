//! A packet rule with its owner and effect, as it is listed for people.

use std::fmt;
use std::net::IpAddr;

use ipnetwork::IpNetwork;
use serde::Serialize;

use cnimble_cni::{Owner, owner};

#[derive(Debug, Clone, PartialEq)]
pub struct OwnedRule {
    pub owner: RuleOwner,
    /// The effect of the rule.
    pub effect: Effect,
}

/// What a rule tells of its owner.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum RuleOwner {
    /// A comment of [`Owner::comment`], which may have been cut.
    Comment(String),
    /// The names in the comment of a rule of iptables. It does not name the interface.
    Container { network: String, container_id: String },
}

impl RuleOwner {
    /// Returns whether the rule belongs to an attachment. Pass the attachment's [`Owner::tag`], which is costly to
    /// compute anew for each rule. Rules of iptables belong to all interfaces of a container.
    pub fn is(&self, owner: &Owner, tag: &str) -> bool {
        match self {
            RuleOwner::Comment(comment) => owner::tag_of(comment) == tag,
            RuleOwner::Container { network, container_id } => {
                *network == owner.network && *container_id == owner.attachment.container_id
            }
        }
    }
}

/// What a rule does.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(tag = "kind", rename_all = "kebab-case", rename_all_fields = "camelCase")]
pub enum Effect {
    /// Packets from the address that leave its network get the node's address.
    Masquerade {
        address: IpAddr,
        #[serde(serialize_with = "as_text")]
        network: IpNetwork,
    },
    /// Packets to a port of the host go to a port of the pod.
    PortMapping {
        protocol: String,
        /// The address of the host. `None` is all addresses.
        host_address: Option<IpAddr>,
        host_port: u16,
        address: IpAddr,
        port: u16,
    },
    /// Packets from the address, and the answers to them, are forwarded.
    Forward { address: IpAddr },
    /// Frames from the port are dropped if their source is not this MAC address.
    MacCheck { port: String, mac: String },
    /// A container's chain in the table `nat` of iptables.
    Iptables {
        /// `masquerade` or `port mappings`.
        purpose: String,
        /// `ip` or `ip6`.
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
