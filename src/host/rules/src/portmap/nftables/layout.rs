use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use cnimble_cni::hash::hash16;
use cnimble_cni::owner::tag;
use cnimble_cni::{Attachment, Owner};
use cnimble_netlink::Result;
use cnimble_netlink::nft::packet::{DESTINATION, SOURCE, load_address, load_network, octets, of_family};
use cnimble_netlink::nft::{
    Batch, Expr, Family, Header, Hook, HookPoint, KeyType, Meta, Nft, REG1, Table, Verdict, protocol_name,
    word,
};

use super::links::leave;
use super::names::{
    ADDR_PORTS, DISPATCH, GUARD, HAIRPIN, LINKS, LOCAL, OUTPUT, PORTS, POSTROUTING, PREROUTING, Portmap, V4,
    V6, family, hairpin_network, has_ports, is_conditional, is_in, is_of_addresses,
};
use crate::elements::{self, Claim, Layout, Placed, first_name};
use crate::listed::Effect;
use crate::portmap::conntrack;

/// The priority `raw` (nft(8)): before connection tracking.
const RAW: i32 = -300;

/// `RTN_LOCAL` (linux/rtnetlink.h), `IPS_DST_NAT` (linux/netfilter/nf_conntrack_common.h).
const RTN_LOCAL: u32 = 2;
const IPS_DST_NAT: u32 = 0x20;

const LOOPBACK: IpAddr = IpAddr::V4(Ipv4Addr::new(127, 0, 0, 0));

impl Layout for Portmap {
    const TABLE: Table<'static> = Table::new(Family::Inet, "cnimble");
    const CHAINS: &'static [&'static str] = &[DISPATCH, PREROUTING, OUTPUT, POSTROUTING, GUARD];
    /// A mapping of one address of the host is looked up before one of all addresses.
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
    /// The chain that guards localhost must stay until [`leave`] has switched `route_localnet` off. A note in the set
    /// [`LINKS`] keeps the part meanwhile, because [`drop_part`](elements::drop_part) removes no part with an element.
    const STAYS: bool = true;
    const NOTES: &'static [&'static str] = &[LINKS];
    const SAMPLE: Option<&'static str> = Some("portmap-hairpin-0.0.0.0/0");

    fn is_ours(set: &str) -> bool {
        Self::FIXED.contains(&set) || set.starts_with(HAIRPIN) || is_conditional(set)
    }

    fn makes(set: &str) -> bool {
        !is_conditional(set)
    }

    /// A port belongs to the container that had it first.
    fn claim(set: &str) -> Claim {
        if has_ports(set) {
            Claim::Container
        } else if set == LINKS {
            Claim::Last
        } else {
            Claim::Network
        }
    }

    /// A container may want a port for two of its interfaces in one network.
    fn suffix(set: &str, comment: &str) -> Option<String> {
        let tag = tag(comment)?;
        if !has_ports(set) {
            return Some(tag.split_once('-')?.0.to_owned());
        }
        let Owner { network, attachment } = Owner::named(comment)?;
        Some(hash16(&format!("{network}:{}", attachment.ifname)))
    }

    fn create_chain(batch: &mut Batch, chain: &str) {
        let place = Self::TABLE.chain(chain);
        let hook = match (Self::hook(chain), chain) {
            (Some(hook), _) => hook,
            (None, GUARD) => Hook { kind: "filter", hook: HookPoint::Prerouting, priority: RAW },
            (None, _) => return batch.create_chain(place),
        };
        batch.create_base_chain(place, hook);
    }

    fn hook(chain: &str) -> Option<Hook> {
        let hook = match chain {
            PREROUTING => HookPoint::Prerouting,
            OUTPUT => HookPoint::Output,
            POSTROUTING => HookPoint::Postrouting,
            _ => return None,
        };
        Some(Hook::after_nat_of_others(hook))
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
        let Some(ip) = family(set).filter(|_| Self::makes(set)) else { return };
        let addr = addr_type(ip);
        if is_in(&PORTS, set) {
            batch.create_map(place, &[InetProto, InetService], &[addr, InetService]);
        } else if is_in(&ADDR_PORTS, set) {
            batch.create_map(place, &[addr, InetProto, InetService], &[addr, InetService]);
        } else {
            batch.create_set(place, &[addr]);
        }
    }

    fn add_rule(batch: &mut Batch, set: &str) {
        let Some(ip) = family(set).filter(|_| Self::makes(set)) else { return };
        let dispatch = Self::TABLE.chain(DISPATCH);
        if is_in(&ADDR_PORTS, set) && first_name(set) != set {
            // A mapping of one address comes before those of all addresses.
            return batch.insert_rule(dispatch, &dnat(set, ip), "");
        }
        if has_ports(set) {
            return batch.add_rule(dispatch, &dnat(set, ip), "");
        }
        // These sources are masqueraded on their way to a pod of the set. `None` is all sources.
        let sources = match first_name(set) {
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

    /// Returns `None` for elements for hairpin and localhost, which aren't listed.
    fn effect(placed: &Placed) -> Option<Effect> {
        let (host_address, protocol, host_port) = placed.element.key.as_port()?;
        let (address, port) = placed.element.data.as_ref()?.as_service()?;
        let protocol = protocol_name(protocol);
        Some(Effect::PortMapping { protocol, host_address, host_port, address, port })
    }

    fn forget(nft: &mut Nft, found: &[Placed]) -> Result<()> {
        let present = elements::unchanged::<Self>(nft, found)?;
        elements::delete::<Self>(nft, &present)?;
        conntrack::after(conntrack::of_elements(&present).collect());
        leave(nft, &[])
    }

    fn let_go(nft: &mut Nft, found: &[Placed]) -> Result<()> {
        elements::delete::<Self>(nft, found)?;
        leave(nft, &[])
    }

    fn gc(nft: &mut Nft, network: &str, valid: &[Attachment]) -> Result<Vec<Placed>> {
        let removed = elements::gc::<Self>(nft, network, valid)?;
        if !removed.is_empty() || Self::is_idle(nft)? {
            leave(nft, &removed)?;
        }
        Ok(removed)
    }
}

/// Returns the type of a set's key for the family of an address.
fn addr_type(ip: IpAddr) -> KeyType {
    if ip.is_ipv4() { KeyType::Ipv4Addr } else { KeyType::Ipv6Addr }
}

/// `iifname != "lo" ip daddr 127.0.0.0/8 drop`, or `ip saddr`, as `end` says. The chain comes before connection
/// tracking, so answers to localhost still have the address of masquerading there, and pass.
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

/// `ip6 daddr ::1 return`. Packets from ::1 can't leave the host, and a client is better refused than left without an
/// answer.
fn not_localhost6() -> Vec<Expr> {
    let mut rule = of_family(V6);
    rule.push(load_address(V6, DESTINATION));
    rule.push(Expr::equal(REG1, &Ipv6Addr::LOCALHOST.octets()));
    rule.push(Expr::verdict(Verdict::Return));
    rule
}

/// `dnat ip to meta l4proto . th dport map @portmap4`. For a map of single addresses the key begins with `ip daddr .`.
fn dnat(map: &str, ip: IpAddr) -> Vec<Expr> {
    // An IPv4 address takes one 32-bit word of the registers, and an IPv6 address four.
    let behind = if ip.is_ipv4() { 1 } else { 4 };
    let mut rule = Vec::new();
    let mut at = 0;
    if is_of_addresses(map) {
        rule.extend(of_family(ip));
        rule.push(load_address(ip, DESTINATION));
        at = behind;
    }
    rule.push(Expr::meta(Meta::L4proto, word(at)));
    rule.push(Expr::payload(Header::Transport, 2, 2, word(at + 1)));
    rule.push(Expr::map(REG1, map, REG1));
    let family = if ip.is_ipv4() { Family::Ipv4 } else { Family::Ipv6 };
    rule.push(Expr::dnat(family, REG1, word(behind)));
    rule
}

/// `ct status dnat`, for packets of one family.
fn redirected(ip: IpAddr) -> Vec<Expr> {
    let mut rule = vec![
        Expr::ct_status(REG1),
        Expr::mask(REG1, &IPS_DST_NAT.to_ne_bytes()),
        Expr::differ(REG1, &0_u32.to_ne_bytes()),
    ];
    rule.extend(of_family(ip));
    rule
}

#[cfg(test)]
mod tests {
    use ipnetwork::IpNetwork;

    use super::super::names::hairpin_set;
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
        for (set, of_addresses, v4) in [
            ("portmap-when-b70a60970e0f5394-4", false, true),
            ("portmap-when-b70a60970e0f5394-addr6", true, false),
            ("portmap-when-b70a60970e0f5394-6-0123456789abcdef", false, false),
            ("portmap-when-b70a60970e0f5394-addr4-0123456789abcdef", true, true),
        ] {
            assert!(Portmap::is_ours(first_name(set)) && has_ports(set) && !Portmap::makes(set));
            assert_eq!((is_of_addresses(set), family(set).unwrap().is_ipv4()), (of_addresses, v4), "{set}");
            assert_eq!(first_name(set) == set, set.len() < 40);
        }
        assert!(Portmap::is_ours("portmap4") && !Portmap::is_ours("masq-10.1.0.0/16"));
        for set in Portmap::FIXED {
            assert_eq!(family(set).is_none(), *set == LINKS, "{set}");
        }
    }
}
