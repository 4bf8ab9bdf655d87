//! The readers of what the kernel sends, for fuzzers and tests: each takes any bytes.

use super::nft::{Element, Rule};
use super::route_read::RouteSelector;
use super::tc::{filter, htb, programs, qdisc, subnet};
use super::uapi::nfnetlink::NFGENMSG;
use super::wire::{Ack, Attributes, Message, Messages};
use super::{
    addr, conntrack, counters, fdb, link, listeners, lookup, monitor, neigh, netconf, next_hop, policy, port,
    route_read, rule,
};

/// A datagram of NETLINK_ROUTE.
pub fn route(bytes: &[u8]) {
    for message in Messages::new(bytes).flatten() {
        let _ = Ack::read(&message);
        read(&message);
    }
}

pub(super) fn read(message: &Message<'_>) {
    let _ = (link::read::read(message), monitor::read(message), addr::read(message, 1));
    let _ = link::host_end::read(message);
    let _ = (counters::read(message), counters::read_drops(message), netconf::read(message));
    let _ = (neigh::read(message, 1), fdb::read(message), listeners::read(message));
    let _ = (
        qdisc::read(message),
        htb::read(message),
        filter::effect(message),
        programs::read(message),
        subnet::read(message),
    );
    let _ = (rule::read(message), rule::read_table(message), rule::read_about(message, "x"));
    let _ = (next_hop::read(message), route_read::towards(message));
    let _ = (port::read_vlan(message, 1), port::read_link(message, 1));
    let _ = lookup::read(message);
    let _ = neigh::read_resolution(message);
    for v4 in [true, false] {
        let _ = (policy::read_rule(message, v4), policy::read_route(message, v4));
    }
    for (table, family) in [(254, 2), (254, 10), (255, 2), (255, 10)] {
        let _ = RouteSelector { index: 1, table }.read(message, family);
    }
}

/// A datagram of NETLINK_NETFILTER: nf_tables, and connection tracking.
pub fn nft(bytes: &[u8]) {
    for message in Messages::new(bytes).flatten() {
        let _ = (Ack::read(&message), conntrack::read(&message), monitor::comments(&message).count());
        let _ = super::nft::read_trace(&message);
        let attrs = Attributes::behind(message.body, NFGENMSG);
        if let Some(rule) = Rule::parse(attrs) {
            let _ = (rule.target(), rule.uses_set("x"), rule.has("masq"), rule.constants().count());
            let _ = rule.immediates().count();
        }
        for element in Element::parse_list(attrs).into_iter().chain(Element::parse(attrs)) {
            let _ = (element.key.to_string(), element.data.map(|data| data.to_string()));
        }
        // Tables, chains and sets are looked at by their attributes alone.
        for kind in 1..8 {
            let _ = (attrs.text(kind), attrs.u32_be(kind));
        }
    }
}
