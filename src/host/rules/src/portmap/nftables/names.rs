//! The sets of port mappings, and the element that a mapping becomes.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnetwork::IpNetwork;

use cnimble_netlink::nft::{Element, Key};

use crate::elements::{Placed, first};
use crate::packet::{network_name, network_named};
use crate::portmap::Mapping;

pub(crate) struct Portmap;

pub(super) const DISPATCH: &str = "portmap";
pub(super) const PREROUTING: &str = "portmap-prerouting";
pub(super) const OUTPUT: &str = "portmap-output";
pub(super) const POSTROUTING: &str = "portmap-postrouting";
pub(super) const GUARD: &str = "portmap-guard";

pub(super) const PORTS: [&str; 2] = ["portmap4", "portmap6"];
pub(super) const ADDR_PORTS: [&str; 2] = ["portmap-addr4", "portmap-addr6"];
pub(super) const LOCAL: &str = "portmap-local4";
/// Links where `route_localnet` was switched on. No rule looks at it: it is a note for [`leave`](super::leave).
pub(super) const LINKS: &str = "portmap-localnet";
/// Pods that see the host instead of the client.
pub(super) const ALL: [&str; 2] = ["portmap-all4", "portmap-all6"];
/// Packets from pods of a network are masqueraded. The name has the network.
pub(super) const HAIRPIN: &str = "portmap-hairpin-";

/// Mappings with conditions ([`conditions`](super::conditions)). The name has their hash.
pub(super) const WHEN: &str = "portmap-when-";
const ENDS: [&str; 2] = ["-4", "-6"];
const ADDR_ENDS: [&str; 2] = ["-addr4", "-addr6"];

pub(super) const V4: IpAddr = IpAddr::V4(Ipv4Addr::UNSPECIFIED);
pub(super) const V6: IpAddr = IpAddr::V6(Ipv6Addr::UNSPECIFIED);

pub(super) fn is_in(names: &[&str; 2], set: &str) -> bool {
    names.contains(&first(set))
}

pub(in crate::portmap) fn has_ports(set: &str) -> bool {
    is_in(&PORTS, set) || is_in(&ADDR_PORTS, set) || is_conditional(set)
}

pub(in crate::portmap) fn is_conditional(set: &str) -> bool {
    set.starts_with(WHEN)
}

pub(super) fn is_of_addresses(set: &str) -> bool {
    is_in(&ADDR_PORTS, set) || is_conditional(set) && is_in_any(&ADDR_ENDS, set)
}

fn is_in_any(ends: &[&str; 2], set: &str) -> bool {
    ends.iter().any(|end| first(set).ends_with(end))
}

pub(super) fn family(set: &str) -> Option<IpAddr> {
    match hairpin_network(set) {
        Some(network) => Some(network.ip()),
        None if first(set).ends_with('4') => Some(V4),
        None if first(set).ends_with('6') => Some(V6),
        None => None,
    }
}

pub(super) fn name(names: [&'static str; 2], index: usize) -> &'static str {
    let [v4, v6] = names;
    if index == 0 { v4 } else { v6 }
}

pub(super) fn for_family(names: [&'static str; 2], ip: IpAddr) -> &'static str {
    name(names, usize::from(ip.is_ipv6()))
}

/// `portmap-hairpin-10.1.0.0/16`
pub(super) fn hairpin_set(pod: &IpNetwork) -> String {
    format!("{HAIRPIN}{}", network_name(pod))
}

pub(in crate::portmap) fn hairpin_network(set: &str) -> Option<IpNetwork> {
    network_named(first(set).strip_prefix(HAIRPIN)?)
}

pub(in crate::portmap) fn is_all(set: &str) -> bool {
    ALL.contains(&first(set))
}

/// The element of a mapping, without a comment; `hash` is that of conditions.
pub(super) fn element(mapping: &Mapping, pod: &IpNetwork, hash: Option<&str>) -> Placed {
    let number = mapping.protocol.number();
    let (names, ends, key) = match mapping.address() {
        Some(ip) => (ADDR_PORTS, ADDR_ENDS, Key::ip(ip).and_port(number, mapping.host_port)),
        None => (PORTS, ENDS, Key::port(number, mapping.host_port)),
    };
    let set = match hash {
        Some(hash) => format!("{WHEN}{hash}{}", for_family(ends, pod.ip())),
        None => for_family(names, pod.ip()).to_owned(),
    };
    let target = Key::ip(pod.ip()).and_service(mapping.container_port);
    Placed { set, element: Element::mapped(key, target, "") }
}
