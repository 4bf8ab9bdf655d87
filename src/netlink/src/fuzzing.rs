//! The readers of what the kernel sends, for fuzzers and tests: each takes any bytes.

use super::nft::fuzzing as objects;
use super::wire::{self, Message, Messages};
use super::{addr, conntrack, fdb, filter, htb, link_read, neigh, netconf, port, qdisc, route_read, sort};

/// A datagram of NETLINK_ROUTE.
pub fn route(bytes: &[u8]) {
    for message in Messages::new(bytes).flatten() {
        let _ = wire::verdict(&message);
        read(&message);
    }
}

/// Every reader on one message.
pub(super) fn read(message: &Message<'_>) {
    let _ = link_read::read(message);
    let _ = addr::read(message, 1);
    let _ = neigh::read(message, 1);
    let _ = fdb::read(message);
    let _ = netconf::read(message);
    let _ = filter::read(message);
    let _ = qdisc::read(message);
    let _ = htb::read(message);
    let _ = sort::read(message);
    route_read::raw::read(message);
    let _ = port::read_vlan(message, 1);
    let _ = port::read_link(message, 1);
}

/// A datagram of NETLINK_NETFILTER: nf_tables, and connection tracking.
pub fn nft(bytes: &[u8]) {
    for message in super::nft::attr::messages(bytes) {
        objects::read(message);
        let _ = conntrack::parse(message.payload, message.attrs());
    }
}
