//! The packets by which a namespace finds a neighbour's MAC: ARP (RFC 826), and neighbour discovery of IPv6 (RFC 4861). A
//! rule that drops them looks like a neighbour that does not answer.

use std::net::IpAddr;

use cnimble_netlink::nft::packet::{DESTINATION, SOURCE, load_address, octets};
use cnimble_netlink::nft::{Expr, Header, Meta, REG1, TraceStep};

use super::conditions::{has, is_protocol};
use super::drops::Dropped;

/// The EtherType of ARP, as the kernel compares it.
const ARP: [u8; 2] = [0x08, 0x06];
/// The offsets in a packet of ARP about IPv4.
const OPERATION: usize = 6;
const SENDER: usize = 14;
const TARGET: usize = 24;

const ICMPV6: u8 = 58;
/// The types of neighbour solicitations and advertisements, and the offset of the target in both.
const SOLICITATION: u8 = 135;
const ADVERTISEMENT: u8 = 136;
const ND_TARGET: usize = 8;

/// Returns the conditions of rules that match the questions of `ip` for a neighbour, the questions of neighbours for it,
/// and the answers. Each list is one rule.
pub(super) fn conditions(ip: IpAddr) -> Vec<Vec<Expr>> {
    let own = octets(ip);
    if ip.is_ipv4() {
        let is_arp = [Expr::meta(Meta::Protocol, REG1), Expr::equal(REG1, &ARP)];
        let offsets = [SENDER, TARGET].into_iter().filter_map(|offset| u32::try_from(offset).ok());
        return offsets
            .map(|offset| {
                let address = [Expr::payload(Header::Network, offset, 4, REG1), Expr::equal(REG1, &own)];
                [is_arp.clone(), address].concat()
            })
            .collect();
    }
    let is_nd = |kind: u8| [is_protocol(ICMPV6), has(0, &[kind])].concat();
    let mut rules = Vec::new();
    for (kind, end) in [(SOLICITATION, SOURCE), (ADVERTISEMENT, DESTINATION)] {
        let address = [load_address(ip, end), Expr::equal(REG1, &own)];
        rules.push([&is_nd(kind)[..], &address].concat());
        rules.push([&is_nd(kind)[..], &has(8, &own)].concat());
    }
    rules
}

/// Recognizes such a packet in a step through the rules. It returns `None` for another one, and for one that `ip` has no
/// part in.
pub(super) fn recognize(ip: IpAddr, step: &TraceStep) -> Option<Dropped> {
    let own = octets(ip);
    let is_own = |bytes: &[u8], offset: usize| bytes.get(offset..).is_some_and(|rest| rest.starts_with(&own));
    let (is_its, is_question) = if ip.is_ipv4() {
        let arp = step.network.as_slice();
        // A packet of ARP has no transport header, and begins with its hardware type, which is Ethernet.
        let is_arp = step.transport.is_empty() && arp.starts_with(&[0, 1, 0x08, 0]);
        (is_arp && (is_own(arp, SENDER) || is_own(arp, TARGET)), arp.get(OPERATION..OPERATION + 2)? == [0, 1])
    } else {
        let kind = *step.transport.first()?;
        let ends = [SOURCE.1, DESTINATION.1].map(|offset| usize::try_from(offset).unwrap_or(0));
        let has_end = ends.into_iter().any(|offset| is_own(&step.network, offset));
        let is_nd = [SOLICITATION, ADVERTISEMENT].contains(&kind) && step.network.get(6) == Some(&ICMPV6);
        (is_nd && (has_end || is_own(&step.transport, ND_TARGET)), kind == SOLICITATION)
    };
    is_its.then_some(if is_question { Dropped::NeighbourQuestion } else { Dropped::NeighbourAnswer })
}

#[cfg(test)]
mod tests {
    use cnimble_netlink::nft::Family;

    use super::*;

    fn step(network: &[u8], transport: &[u8]) -> TraceStep {
        TraceStep {
            id: 1,
            family: Family::Bridge,
            table: String::new(),
            chain: String::new(),
            rule: None,
            dropped: true,
            network: network.to_vec(),
            transport: transport.to_vec(),
        }
    }

    #[test]
    fn arp_is_told_from_other_packets() {
        let (own, other): (IpAddr, IpAddr) = ("10.0.0.2".parse().unwrap(), "10.0.0.3".parse().unwrap());
        let mut arp = vec![0, 1, 8, 0, 6, 4, 0, 1];
        arp.extend([2, 0, 0, 0, 0, 1, 10, 0, 0, 2, 0, 0, 0, 0, 0, 0, 10, 0, 0, 1]);
        assert_eq!(recognize(own, &step(&arp, &[])), Some(Dropped::NeighbourQuestion));
        assert_eq!(recognize(other, &step(&arp, &[])), None);
        arp[7] = 2;
        assert_eq!(recognize(own, &step(&arp, &[])), Some(Dropped::NeighbourAnswer));
        for length in 0..arp.len() {
            let _ = recognize(own, &step(&arp[..length], &[]));
        }
    }

    #[test]
    fn neighbour_discovery_is_told_from_other_packets() {
        let own: IpAddr = "fd00::2".parse().unwrap();
        let mut header = vec![0x60, 0, 0, 0, 0, 24, 58, 255];
        header.extend(octets(own));
        header.extend([0xff; 16]);
        let mut question = vec![135, 0, 0, 0, 0, 0, 0, 0];
        question.extend(octets("fd00::1".parse().unwrap()));
        assert_eq!(recognize(own, &step(&header, &question)), Some(Dropped::NeighbourQuestion));
        assert_eq!(recognize("fd00::3".parse().unwrap(), &step(&header, &question)), None);
        assert_eq!(
            recognize("fd00::1".parse().unwrap(), &step(&header, &question)),
            Some(Dropped::NeighbourQuestion)
        );
        question[0] = 128;
        assert_eq!(recognize(own, &step(&header, &question)), None);
        assert_eq!(recognize(own, &step(&header, &[])), None);
    }
}
