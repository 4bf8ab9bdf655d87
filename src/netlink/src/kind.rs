//! Links of one end: `ip link add NAME [link PARENT] type KIND`. A veth pair is made by
//! [`super::link::add_veth`], a bridge by [`super::link::add_bridge`].

use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::link::InfoKind;
use nix::errno::Errno;
use rtnetlink::{LinkMessageBuilder, LinkUnspec};

use super::link::Mac;
use super::{Netlink, Request, Result};

/// What sort of link it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// `type dummy`: takes what is sent to it and drops it.
    Dummy,
    /// `type ifb`: gives back what is redirected to it.
    Ifb,
}

impl Kind {
    /// As in `ip link add … type`, and in [`Link::kind`](super::link::Link::kind).
    pub fn name(self) -> &'static str {
        match self {
            Kind::Dummy => "dummy",
            Kind::Ifb => "ifb",
        }
    }

    fn info(self) -> InfoKind {
        match self {
            Kind::Dummy => InfoKind::Dummy,
            Kind::Ifb => InfoKind::Ifb,
        }
    }
}

/// A link to make, down.
#[derive(Debug, Clone)]
pub struct NewLink<'a> {
    /// Name.
    pub name: &'a str,
    /// Kind.
    pub kind: Kind,
    /// MTU in bytes; `None` is the kernel's.
    pub mtu: Option<u32>,
    /// Hardware address; `None` is the kernel's choice.
    pub mac: Option<Mac>,
}

/// `ip link add NAME type KIND`. Use with [`Netlink::create_link`].
pub fn add(link: &NewLink<'_>) -> Request {
    let mut message = message(link.name, link.kind);
    if let Some(mtu) = link.mtu {
        message = message.mtu(mtu);
    }
    if let Some(mac) = link.mac {
        message = message.address(mac.0.to_vec());
    }
    let what = format!("add {} {}", link.kind.name(), link.name);
    Request::new_link(what, &[link.name], RouteNetlinkMessage::NewLink(message.build()))
}

fn message(name: &str, kind: Kind) -> LinkMessageBuilder<LinkUnspec> {
    LinkMessageBuilder::<LinkUnspec>::new_with_info_kind(kind.info()).name(name.to_owned())
}

impl Netlink {
    /// Returns true if and only if the kernel has this kind of link. It is asked for one with an
    /// impossible hardware address, which changes nothing: a kernel that knows the kind refuses
    /// the address.
    ///
    /// # Errors
    /// Whatever else the kernel says, such as EPERM.
    pub fn knows_kind(&mut self, kind: Kind) -> Result<bool> {
        let name = "cnimble-ask";
        let message = message(name, kind).address(vec![0; 6]).build();
        let what = format!("ask for the link kind {}", kind.name());
        match self.execute(Request::new_link(what, &[name], RouteNetlinkMessage::NewLink(message))) {
            Err(err) if err.is(Errno::EOPNOTSUPP) => Ok(false),
            Err(err) if !err.is(Errno::EADDRNOTAVAIL) => Err(err),
            _ => Ok(true),
        }
    }
}
