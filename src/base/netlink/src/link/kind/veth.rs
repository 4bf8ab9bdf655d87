//! `type veth`: a pair of links, each of which receives the packets that the other sends.

use std::os::fd::{AsRawFd, BorrowedFd};

use netlink_packet_route::link::{InfoData, InfoVeth, LinkAttribute};
use rtnetlink::{LinkMessageBuilder, LinkUnspec, LinkVeth};

use crate::Request;
use crate::link::{Mac, new_link, set_some};

/// A veth pair to make: one end here, the other born in another namespace.
#[derive(Debug, Clone)]
pub struct NewVeth<'a> {
    /// The name of the end in this namespace.
    pub name: &'a str,
    /// The hardware address of this end; `None` is the kernel's choice.
    pub mac: Option<Mac>,
    /// The index of the link whose port this end becomes, such as a bridge.
    pub master: Option<u32>,
    /// Whether this end comes up at once.
    pub up: bool,
    /// The MTU of both ends, in bytes. `None` is the kernel's default.
    pub mtu: Option<u32>,
    /// The name of the other end.
    pub peer_name: &'a str,
    /// The hardware address of the other end; `None` is the kernel's choice.
    pub peer_mac: Option<Mac>,
    /// The namespace that the other end is made in.
    pub peer_ns: BorrowedFd<'a>,
}

/// `ip link add NAME type veth peer name PEER netns NS`. Use with
/// [`Netlink::create_link`](crate::Netlink::create_link). `peer_ns` must stay open until the request has been carried
/// out.
///
/// Each end has one queue, because the kernel uses only one of a veth's queues. By default it first makes one for each
/// processor, with a directory in sysfs for each, and removes them again. The other end is born down: the kernel can't
/// bring it up before this end exists (ENOTCONN).
pub fn add_veth(veth: &NewVeth<'_>) -> Request {
    let mut peer = LinkUnspec::new_with_name(veth.peer_name).setns_by_fd(veth.peer_ns.as_raw_fd());
    let mut message = LinkVeth::new(veth.name, veth.peer_name);
    for queues in [LinkAttribute::NumTxQueues(1), LinkAttribute::NumRxQueues(1)] {
        peer = peer.append_extra_attribute(queues.clone());
        message = message.append_extra_attribute(queues);
    }
    peer = set_some(peer, veth.peer_mac.map(Mac::to_vec), LinkMessageBuilder::address);
    peer = set_some(peer, veth.mtu, LinkMessageBuilder::mtu);
    message = set_some(message, veth.mtu, LinkMessageBuilder::mtu);
    message = message.set_info_data(InfoData::Veth(InfoVeth::Peer(peer.build())));
    message = set_some(message, veth.mac.map(Mac::to_vec), LinkMessageBuilder::address);
    message = set_some(message, veth.master, LinkMessageBuilder::controller);
    message = if veth.up { message.up() } else { message };
    Request { master: veth.master, ..new_link("veth", &[veth.name, veth.peer_name], message) }
}
