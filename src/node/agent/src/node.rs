//! The fields of a node that matter to the agent.

use std::collections::BTreeMap;
use std::net::IpAddr;

use ipnetwork::IpNetwork;
use serde::Deserialize;

use cnimble_api::tame;

/// How many networks and addresses of a node are read. The others are ignored.
const MANY: usize = 16;
/// The longest name of a node, in bytes.
const NAME: usize = 253;

/// A node as far as it is valid.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Node {
    /// The networks of its pods: podCIDRs, or blocks and single addresses.
    pub cidrs: Vec<IpNetwork>,
    /// The addresses of the node, to which routes to its pods lead.
    pub ips: Vec<IpAddr>,
    /// The text of `metadata.creationTimestamp`. Its order is that of time.
    pub created: String,
    /// The invalid parts of the node, as sentences. Its other parts are used.
    pub wrong: Vec<String>,
}

/// Nodes by name.
pub type Nodes = BTreeMap<String, Node>;

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct Object {
    metadata: Meta,
    spec: Option<Spec>,
    status: Option<Status>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct Meta {
    name: Option<String>,
    creation_timestamp: Option<String>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Spec {
    #[serde(rename = "podCIDR")]
    one: Option<String>,
    #[serde(rename = "podCIDRs")]
    all: Option<Vec<String>>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Status {
    addresses: Option<Vec<Address>>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Address {
    #[serde(rename = "type")]
    kind: String,
    address: String,
}

/// Reads a node from its JSON, with its name. Fails without a valid name. Other faults are in [`Node::wrong`].
pub(crate) fn read(text: &[u8]) -> Result<(String, Node), String> {
    let object: Object = serde_json::from_slice(text).map_err(|err| tame(&err.to_string()))?;
    let name = object.metadata.name.unwrap_or_default();
    if name.is_empty() || name.len() > NAME || tame(&name) != name {
        return Err("a node without a name that a node can have".to_owned());
    }
    let mut node =
        Node { created: object.metadata.creation_timestamp.unwrap_or_default(), ..Node::default() };
    let spec = object.spec.unwrap_or_default();
    let cidrs = spec.all.filter(|all| !all.is_empty()).unwrap_or_else(|| spec.one.into_iter().collect());
    for text in cidrs.iter().filter(|text| !text.is_empty()).take(MANY) {
        match network(text) {
            Ok(cidr) => node.cidrs.push(cidr),
            Err(why) => node.wrong.push(format!("podCIDR \"{}\" {why}", tame(text).escape_debug())),
        }
    }
    let addresses = object.status.unwrap_or_default().addresses.unwrap_or_default();
    for address in addresses.iter().filter(|address| address.kind == "InternalIP").take(MANY) {
        let text = tame(&address.address);
        match address.address.parse::<IpAddr>() {
            Ok(ip) if is_host(ip) => node.ips.push(ip),
            Ok(ip) => node.wrong.push(format!("InternalIP {ip} is the address of no host")),
            Err(_) => node.wrong.push(format!("InternalIP \"{}\" is no address", text.escape_debug())),
        }
    }
    Ok((name, node))
}

/// Reads a podCIDR. It must be a network of a usable size. The plan checks overlaps.
fn network(text: &str) -> Result<IpNetwork, String> {
    let cidr: IpNetwork = text.parse().map_err(|_| "is no network".to_owned())?;
    if !text.contains('/') || cidr.ip() != cidr.network() {
        return Err("is no network".to_owned());
    }
    let least = if cidr.is_ipv4() { 8 } else { 16 };
    if cidr.prefix() < least {
        return Err(format!("is too large: a node's has a prefix of at least /{least}"));
    }
    if !is_host(cidr.ip()) {
        return Err("has addresses that no pod can have".to_owned());
    }
    Ok(cidr)
}

/// Returns whether a host may have the address and others may reach it. It returns false for link-local, loopback and
/// multicast addresses, for example.
pub(crate) fn is_host(ip: IpAddr) -> bool {
    let unusual = match ip {
        IpAddr::V4(ip) => {
            ip.is_link_local()
                || ip.is_broadcast()
                || ip.octets().first().is_none_or(|n| *n >= 240 || *n == 0)
        }
        IpAddr::V6(ip) => ip.is_unicast_link_local() || ip.to_ipv4_mapped().is_some(),
    };
    !unusual && !ip.is_unspecified() && !ip.is_loopback() && !ip.is_multicast()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hostile_addresses_and_networks_are_refused_with_a_sentence() {
        let (name, node) = read(
            br#"{"metadata": {"name": "a"}, "spec": {"podCIDRs": ["0.0.0.0/0", "10.1.0.0/24", "::/0", "10.2.3.4/24",
            "224.0.0.0/8", "127.0.0.0/8", "x", "10.9.0.0", "fd00:1::/64", "169.254.0.0/16"]}, "status": {"addresses": [
            {"type": "InternalIP", "address": "nowhere\u001b[31m"}, {"type": "InternalIP", "address": "0.0.0.0"},
            {"type": "Hostname", "address": "a"}, {"type": "InternalIP", "address": "192.0.2.1"},
            {"type": "InternalIP", "address": "fe80::1"}, {"type": "InternalIP", "address": "::ffff:1.2.3.4"}]}}"#,
        )
        .unwrap();
        assert_eq!(name, "a");
        let text = |all: &[IpNetwork]| all.iter().map(ToString::to_string).collect::<Vec<_>>();
        assert_eq!(text(&node.cidrs), ["10.1.0.0/24", "fd00:1::/64"]);
        assert_eq!(node.ips, ["192.0.2.1".parse::<IpAddr>().unwrap()]);
        assert_eq!(node.wrong.len(), 12, "{:#?}", node.wrong);
        assert!(node.wrong.iter().all(|text| !text.contains(char::is_control)));
        for bad in ["", "{}", "[]", r#"{"metadata": {"name": "a\nb"}}"#, r#"{"metadata": {"name": 1}}"#] {
            assert!(read(bad.as_bytes()).is_err(), "{bad}");
        }
        let (_, old) = read(br#"{"metadata": {"name": "a"}, "spec": {"podCIDR": "10.1.0.0/24"}}"#).unwrap();
        assert_eq!(text(&old.cidrs), ["10.1.0.0/24"]);
    }
}
