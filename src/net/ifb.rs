//! Intermediate functional blocks: `ip link add … type ifb`. Packets that are redirected to
//! one pass its queue and go on from where they came, so that received traffic can be shaped.

use netlink_packet_route::RouteNetlinkMessage;
use nix::errno::Errno;
use rtnetlink::LinkIfb;

use super::{Netlink, Request, Result};

/// An ifb to make.
#[derive(Debug, Clone)]
pub struct NewIfb<'a> {
    /// Name.
    pub name: &'a str,
    /// MTU in bytes.
    pub mtu: u32,
    /// Length of the transmit queue, in packets.
    pub txqlen: u32,
}

/// `ip link add NAME type ifb`, up. Use with [`Netlink::create_link`].
pub fn add(ifb: &NewIfb<'_>) -> Request {
    let message = LinkIfb::new(ifb.name).mtu(ifb.mtu).txqueuelen(ifb.txqlen).up().build();
    let message = RouteNetlinkMessage::NewLink(message);
    Request::new_link(format!("add ifb {}", ifb.name), &[ifb.name], message)
}

impl Netlink {
    /// Whether the kernel has this kind. Asked by one with a hardware address that can't be,
    /// which changes nothing: a kernel that knows the kind refuses the address.
    ///
    /// # Errors
    /// Whatever else the kernel says, such as EPERM.
    pub fn knows_ifb(&mut self) -> Result<bool> {
        let message = LinkIfb::new("cnimble-ifb-ask").address(vec![0; 6]).build();
        let message = RouteNetlinkMessage::NewLink(message);
        match self.execute(Request::new_link("ask for ifb".into(), &["cnimble-ifb-ask"], message)) {
            Err(err) if err.is(Errno::EOPNOTSUPP) => Ok(false),
            Err(err) if !err.is(Errno::EADDRNOTAVAIL) => Err(err),
            _ => Ok(true),
        }
    }
}
