//! Intermediate functional blocks: `ip link add … type ifb`. Packets that are redirected to
//! one pass its queue and go on from where they came, so that received traffic can be shaped.

use netlink_packet_route::RouteNetlinkMessage;
use rtnetlink::LinkIfb;

use super::Request;

/// An ifb to make.
#[derive(Debug, Clone)]
pub struct NewIfb<'a> {
    /// The name of the link.
    pub name: &'a str,
    /// The MTU in bytes.
    pub mtu: u32,
    /// Length of the transmit queue, in packets.
    pub txqlen: u32,
}

/// `ip link add NAME type ifb`, up. Use with
/// [`Netlink::create_link`](super::Netlink::create_link).
pub fn add(ifb: &NewIfb<'_>) -> Request {
    let message = LinkIfb::new(ifb.name).mtu(ifb.mtu).txqueuelen(ifb.txqlen).up().build();
    let message = RouteNetlinkMessage::NewLink(message);
    Request::new_link(format!("add ifb {}", ifb.name), &[ifb.name], message)
}
