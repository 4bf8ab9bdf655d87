//! The chains, sets and rules of port mappings.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnetwork::IpNetwork;

use cnimble_netlink::nft::{
    Batch, Element, Expr, Family, Header, Hook, HookPoint, Key, KeyType, Meta, REG1, Table, Verdict, word,
};

use crate::elements::{Claim, Layout, Placed, first};
use crate::packet::{
    DESTINATION, SOURCE, load_address, load_network, network_name, network_named, octets, of_family,
};
use crate::portmap::Mapping;

pub(in crate::portmap) struct Portmap;

/// Where the mappings are looked up.
pub(super) const DISPATCH: &str = "portmap";
pub(super) const PREROUTING: &str = "portmap-prerouting";
pub(super) const OUTPUT: &str = "portmap-output";
pub(super) const POSTROUTING: &str = "portmap-postrouting";
pub(super) const GUARD: &str = "portmap-guard";

/// Mappings for all addresses of the host, IPv4 and IPv6.
pub(super) const PORTS: [&str; 2] = ["portmap4", "portmap6"];
/// Mappings for one address.
pub(super) const ADDR_PORTS: [&str; 2] = ["portmap-addr4", "portmap-addr6"];
/// Pods that localhost may talk to.
pub(super) const LOCAL: &str = "portmap-local4";
/// Links where `route_localnet` was switched on. No rule looks at it: it is a note for
/// [`leave`](super::leave).
pub(super) const LINKS: &str = "portmap-localnet";
/// Pods that see the host instead of everybody.
pub(super) const ALL: [&str; 2] = ["portmap-all4", "portmap-all6"];
/// Pods of a network: what comes from there is masqueraded. The network is in the name.
pub(super) const HAIRPIN: &str = "portmap-hairpin-";

/// `priority dstnat`, `srcnat` and `raw` (nft(8)).
const DSTNAT: i32 = -100;
const SRCNAT: i32 = 100;
const RAW: i32 = -300;

/// `RTN_LOCAL` (linux/rtnetlink.h), `IPS_DST_NAT` (linux/netfilter/nf_conntrack_common.h).
const RTN_LOCAL: u32 = 2;
const IPS_DST_NAT: u32 = 0x20;

const V4: IpAddr = IpAddr::V4(Ipv4Addr::UNSPECIFIED);
const V6: IpAddr = IpAddr::V6(Ipv6Addr::UNSPECIFIED);
const LOOPBACK: IpAddr = IpAddr::V4(Ipv4Addr::new(127, 0, 0, 0));

impl Layout for Portmap {
    const TABLE: Table<'static> = Table::new(Family::Inet, "cnimble");
    const CHAINS: &'static [&'static str] = &[DISPATCH, PREROUTING, OUTPUT, POSTROUTING, GUARD];
    /// The mapping for one address is looked up before that for all.
    const FIXED: &'static [&'static str] = &[
        "portmap-addr4",
        "portmap4",
        "portmap-addr6",
        "portmap6",
        LOCAL,
        "portmap-all4",
        "portmap-all6",
        LINKS,
    ];
    /// Until [`leave`](super::leave) has switched `route_localnet` off, the guard has to be there.
    const STAYS: bool = true;

    fn is_ours(set: &str) -> bool {
        Self::FIXED.contains(&set) || set.starts_with(HAIRPIN)
    }

    /// A port is whose it was first.
    fn claim(set: &str) -> Claim {
        if PORTS.contains(&set) || ADDR_PORTS.contains(&set) {
            Claim::First
        } else if set == LINKS {
            Claim::Last
        } else {
            Claim::Network
        }
    }

    fn create_chain(batch: &mut Batch, chain: &str) {
        let place = Self::TABLE.chain(chain);
        let (kind, hook, priority) = match chain {
            PREROUTING => ("nat", HookPoint::Prerouting, DSTNAT),
            OUTPUT => ("nat", HookPoint::Output, DSTNAT),
            POSTROUTING => ("nat", HookPoint::Postrouting, SRCNAT),
            GUARD => ("filter", HookPoint::Prerouting, RAW),
            _ => return batch.create_chain(place),
        };
        batch.create_base_chain(place, Hook { kind, hook, priority });
    }

    fn add_first_rules(batch: &mut Batch, chain: &str) {
        let rules = match chain {
            DISPATCH => vec![not_localhost6()],
            PREROUTING | OUTPUT => vec![to_this_host()],
            GUARD => vec![guard(DESTINATION), guard(SOURCE)],
            _ => Vec::new(),
        };
        for rule in rules {
            batch.add_rule(Self::TABLE.chain(chain), &rule, "");
        }
    }

    fn create_set(batch: &mut Batch, set: &str) {
        use KeyType::{InetProto, InetService};
        let place = Self::TABLE.set(set);
        if set == LINKS {
            return batch.create_set(place, &[KeyType::Ifname]);
        }
        let Some(ip) = family(set) else { return };
        let addr = addr_type(ip);
        if PORTS.contains(&set) {
            batch.create_map(place, &[InetProto, InetService], &[addr, InetService]);
        } else if ADDR_PORTS.contains(&set) {
            batch.create_map(place, &[addr, InetProto, InetService], &[addr, InetService]);
        } else {
            batch.create_set(place, &[addr]);
        }
    }

    fn add_rule(batch: &mut Batch, set: &str) {
        let Some(ip) = family(set) else { return };
        if PORTS.contains(&set) || ADDR_PORTS.contains(&set) {
            return batch.add_rule(Self::TABLE.chain(DISPATCH), &dnat(set, ip), "");
        }
        // Which sources are masqueraded on their way to a pod of the set.
        let sources = match first(set) {
            LOCAL => Some((LOOPBACK, 8)),
            _ => hairpin_network(set).map(|network| (network.ip(), network.prefix())),
        };
        let mut rule = redirected(ip);
        if let Some((network, prefix)) = sources {
            rule.extend(load_network(network, SOURCE, prefix));
            rule.push(Expr::equal(REG1, &octets(network)));
        }
        rule.push(load_address(ip, DESTINATION));
        rule.push(Expr::in_set(REG1, set));
        rule.push(Expr::masquerade());
        batch.add_rule(Self::TABLE.chain(POSTROUTING), &rule, "");
    }
}

/// The family of a set of ours, as an address.
fn family(set: &str) -> Option<IpAddr> {
    match hairpin_network(set) {
        Some(network) => Some(network.ip()),
        None if first(set).ends_with('4') => Some(V4),
        None if first(set).ends_with('6') => Some(V6),
        None => None,
    }
}

fn addr_type(ip: IpAddr) -> KeyType {
    if ip.is_ipv4() { KeyType::Ipv4Addr } else { KeyType::Ipv6Addr }
}

pub(super) fn name(names: [&'static str; 2], index: usize) -> &'static str {
    let [v4, v6] = names;
    if index == 0 { v4 } else { v6 }
}

pub(super) fn for_family(names: [&'static str; 2], ip: IpAddr) -> &'static str {
    name(names, usize::from(ip.is_ipv6()))
}

/// `iifname != "lo" ip daddr 127.0.0.0/8 drop`, or the source: no packet from outside has such
/// an address. Before connection tracking, so that answers to localhost, which get their old
/// destination back after it, pass.
fn guard(end: (u32, u32)) -> Vec<Expr> {
    let mut lo = b"lo".to_vec();
    lo.resize(16, 0);
    let mut rule = vec![Expr::meta(Meta::Iifname, REG1), Expr::differ(REG1, &lo)];
    rule.extend(of_family(V4));
    rule.extend(load_network(LOOPBACK, end, 8));
    rule.push(Expr::equal(REG1, &octets(LOOPBACK)));
    rule.push(Expr::verdict(Verdict::Drop));
    rule
}

/// `fib daddr type local jump portmap`
fn to_this_host() -> Vec<Expr> {
    vec![
        Expr::destination_type(REG1),
        Expr::equal(REG1, &RTN_LOCAL.to_ne_bytes()),
        Expr::verdict(Verdict::Jump(DISPATCH.to_owned())),
    ]
}

/// `ip6 daddr ::1 return`: packets from ::1 can't leave the host. Rather a refusal at once than
/// silence.
fn not_localhost6() -> Vec<Expr> {
    let mut rule = of_family(V6);
    rule.push(load_address(V6, DESTINATION));
    rule.push(Expr::equal(REG1, &Ipv6Addr::LOCALHOST.octets()));
    rule.push(Expr::verdict(Verdict::Return));
    rule
}

/// `dnat ip to meta l4proto . th dport map @portmap4`, or with `ip daddr .` in front.
fn dnat(map: &str, ip: IpAddr) -> Vec<Expr> {
    // An address takes one word of the registers, or four.
    let behind = if ip.is_ipv4() { 1 } else { 4 };
    let mut rule = Vec::new();
    let mut at = 0;
    if ADDR_PORTS.contains(&map) {
        rule.extend(of_family(ip));
        rule.push(load_address(ip, DESTINATION));
        at = behind;
    }
    rule.push(Expr::meta(Meta::L4proto, word(at)));
    rule.push(Expr::payload(Header::Transport, 2, 2, word(at + 1)));
    rule.push(Expr::map(REG1, map, REG1));
    rule.push(Expr::dnat(ip.is_ipv6(), REG1, word(behind)));
    rule
}

/// `ct status dnat` and the family: packets of connections that were given a new destination.
fn redirected(ip: IpAddr) -> Vec<Expr> {
    let mut rule = vec![
        Expr::ct_status(REG1),
        Expr::mask(REG1, &IPS_DST_NAT.to_ne_bytes()),
        Expr::differ(REG1, &0_u32.to_ne_bytes()),
    ];
    rule.extend(of_family(ip));
    rule
}

/// `portmap-hairpin-10.1.0.0/16`
pub(super) fn hairpin_set(pod: &IpNetwork) -> String {
    format!("{HAIRPIN}{}", network_name(pod))
}

fn hairpin_network(set: &str) -> Option<IpNetwork> {
    network_named(first(set).strip_prefix(HAIRPIN)?)
}

/// The element of a mapping, without a comment.
pub(super) fn element(mapping: &Mapping, pod: &IpNetwork) -> Placed {
    let number = mapping.protocol.number();
    let (set, key) = match mapping.address() {
        Some(ip) => (for_family(ADDR_PORTS, ip), Key::ip(ip).and_port(number, mapping.host_port)),
        None => (for_family(PORTS, pod.ip()), Key::port(number, mapping.host_port)),
    };
    let target = Key::ip(pod.ip()).and_service(mapping.container_port);
    Placed { set: set.to_owned(), element: Element::mapped(key, target, "") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn set_names_say_their_network() {
        for (pod, name) in [
            ("10.1.2.3/16", "portmap-hairpin-10.1.0.0/16"),
            ("10.1.2.3/32", "portmap-hairpin-10.1.2.3/32"),
            ("fd00:1::5/64", "portmap-hairpin-fd00-1--/64"),
        ] {
            let pod: IpNetwork = pod.parse().unwrap();
            assert_eq!(hairpin_set(&pod), name);
            for name in [name.to_owned(), format!("{name}-b70a60970e0f5394")] {
                let back = hairpin_network(&name).unwrap();
                assert_eq!((back.ip(), back.prefix()), (pod.network(), pod.prefix()));
            }
            assert!(Portmap::is_ours(name));
        }
        assert!(Portmap::is_ours("portmap4") && !Portmap::is_ours("masq-10.1.0.0/16"));
        for set in Portmap::FIXED {
            assert!(family(set).is_some() || *set == LINKS, "{set}");
        }
    }
}
