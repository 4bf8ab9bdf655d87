//! The names of the sets and chains of port mappings, and the element of a mapping.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnetwork::IpNetwork;

use cnimble_netlink::nft::{Element, Key};

use crate::elements::{Placed, first_name};
use crate::packet::{network_name, network_named};
use crate::portmap::Mapping;

/// The layout of port mappings, a part of the table `inet cnimble`.
pub(crate) struct Portmap;

/// The chain with the rules over the maps. The chains at the hooks jump to it.
pub(super) const DISPATCH: &str = "portmap";
pub(super) const PREROUTING: &str = "portmap-prerouting";
pub(super) const OUTPUT: &str = "portmap-output";
pub(super) const POSTROUTING: &str = "portmap-postrouting";
pub(super) const GUARD: &str = "portmap-guard";

/// The maps for ports of all addresses of the host, for IPv4 and IPv6.
pub(super) const PORTS: [&str; 2] = ["portmap4", "portmap6"];
/// The maps for ports of single addresses of the host.
pub(super) const ADDR_PORTS: [&str; 2] = ["portmap-addr4", "portmap-addr6"];
/// The set of pods that localhost reaches.
pub(super) const LOCAL: &str = "portmap-local4";
/// The set of links on which `route_localnet` was switched on. No rule looks at it: it is a note for
/// [`leave`](super::leave).
pub(super) const LINKS: &str = "portmap-localnet";
/// The sets of pods that see the host instead of the client (`masqAll`).
pub(super) const ALL: [&str; 2] = ["portmap-all4", "portmap-all6"];
/// The beginning of the name of a set with published pods of one network, which the rest names. Packets to them from
/// the same network are masqueraded.
pub(super) const HAIRPIN: &str = "portmap-hairpin-";

/// The beginning of the name of a map for mappings with [`conditions`](super::conditions). The hash of these follows.
pub(super) const WHEN: &str = "portmap-when-";
/// The ends of the names of maps with conditions, for all addresses of the host.
const ENDS: [&str; 2] = ["-4", "-6"];
/// The ends of such names for single addresses of the host.
const ADDR_ENDS: [&str; 2] = ["-addr4", "-addr6"];

/// Any IPv4 address. Functions that need only a family take it.
pub(super) const V4: IpAddr = IpAddr::V4(Ipv4Addr::UNSPECIFIED);
pub(super) const V6: IpAddr = IpAddr::V6(Ipv6Addr::UNSPECIFIED);

/// Returns whether a set has one of these names, or is a second set beside such a one.
pub(super) fn is_in(names: &[&str; 2], set: &str) -> bool {
    names.contains(&first_name(set))
}

/// Returns whether a set is a map of ports, with or without conditions. The others are sets of pods or links.
pub(in crate::portmap) fn has_ports(set: &str) -> bool {
    is_in(&PORTS, set) || is_in(&ADDR_PORTS, set) || is_conditional(set)
}

/// Returns whether a set is a map for mappings with conditions. The `nft` command has made it.
pub(in crate::portmap) fn is_conditional(set: &str) -> bool {
    set.starts_with(WHEN)
}

/// Returns whether a set is a map for ports of single addresses of the host.
pub(super) fn is_of_addresses(set: &str) -> bool {
    is_in(&ADDR_PORTS, set) || is_conditional(set) && is_in_any(&ADDR_ENDS, set)
}

fn is_in_any(ends: &[&str; 2], set: &str) -> bool {
    ends.iter().any(|end| first_name(set).ends_with(end))
}

/// Returns some address of the set's family, or `None` for the set of links.
pub(super) fn family(set: &str) -> Option<IpAddr> {
    match hairpin_network(set) {
        Some(network) => Some(network.ip()),
        None if first_name(set).ends_with('4') => Some(V4),
        None if first_name(set).ends_with('6') => Some(V6),
        None => None,
    }
}

/// Returns the first name for index 0, and the second one otherwise.
pub(super) fn name(names: [&'static str; 2], index: usize) -> &'static str {
    let [v4, v6] = names;
    if index == 0 { v4 } else { v6 }
}

/// Returns the name for the family of an address: the first for IPv4, the second for IPv6.
pub(super) fn for_family(names: [&'static str; 2], ip: IpAddr) -> &'static str {
    name(names, usize::from(ip.is_ipv6()))
}

/// Returns the name of the hairpin set for a pod's network: `portmap-hairpin-10.1.0.0/16`.
pub(super) fn hairpin_set(pod: &IpNetwork) -> String {
    format!("{HAIRPIN}{}", network_name(pod))
}

/// Returns the network in the name of a hairpin set, or `None` for any other set.
pub(in crate::portmap) fn hairpin_network(set: &str) -> Option<IpNetwork> {
    network_named(first_name(set).strip_prefix(HAIRPIN)?)
}

pub(in crate::portmap) fn is_all(set: &str) -> bool {
    ALL.contains(&first_name(set))
}

/// Returns the element of a mapping, with an empty comment. `hash` is that of its conditions, if it has any.
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
