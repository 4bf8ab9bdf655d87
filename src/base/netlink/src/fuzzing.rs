//! The readers of what the kernel sends, for fuzzers and tests: each takes any bytes.

use super::nft::fuzzing as objects;
use super::tc::fuzzing as queues;
use super::wire::{Ack, Message, Messages};
use super::{addr, conntrack, counters, fdb, link, monitor, neigh, netconf, port, route_read, rule};

/// A datagram of NETLINK_ROUTE.
pub fn route(bytes: &[u8]) {
    for message in Messages::new(bytes).flatten() {
        let _ = Ack::read(&message);
        read(&message);
    }
}

/// Every reader on one message.
pub(super) fn read(message: &Message<'_>) {
    let _ = link::read::read(message);
    let _ = addr::read(message, 1);
    let _ = counters::read(message);
    let _ = counters::read_drops(message);
    let _ = monitor::read(message);
    let _ = neigh::read(message, 1);
    let _ = fdb::read(message);
    let _ = netconf::read(message);
    queues::read(message);
    route_read::raw::read(message);
    let _ = rule::read(message);
    let _ = rule::read_table(message);
    let _ = port::read_vlan(message, 1);
    let _ = port::read_link(message, 1);
}

/// A datagram of NETLINK_NETFILTER: nf_tables, and connection tracking.
pub fn nft(bytes: &[u8]) {
    for message in Messages::new(bytes).flatten() {
        let _ = Ack::read(&message);
        objects::read(&message);
        let _ = monitor::comments(&message).count();
        let _ = conntrack::read(&message);
    }
}
