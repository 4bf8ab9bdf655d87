//! Neighbour entries: `ip neighbour`.

use std::net::IpAddr;

use netlink_packet_route::neighbour::{NeighbourAttribute, NeighbourFlags, NeighbourMessage, NeighbourState};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};
use nix::errno::Errno;

use super::request::{Mode, encode};
use super::uapi::netlink::NLM_F_REQUEST;
use super::uapi::rtnetlink::{
    NDMSG, NTF_ROUTER, NUD_FAILED, NUD_INCOMPLETE, NUD_NOARP, NUD_PERMANENT, NUD_REACHABLE, NUD_STALE,
    RTM_NEWNEIGH,
};
use super::wire::{Attributes, Malformed, Message, Parsed, ip, u8_at, u16_ne, u32_ne};
use super::{Netlink, Request, Result, link::Mac};

/// Returns a message that names the entry of `ip` on the link `index`.
pub(super) fn entry(index: u32, ip: IpAddr) -> NeighbourMessage {
    let mut message = NeighbourMessage::default();
    message.header.family = AddressFamily::from(ip);
    message.header.ifindex = index;
    message.attributes.push(NeighbourAttribute::Destination(ip.into()));
    message
}

/// `ip neighbour add IP lladdr MAC dev LINK nud permanent`. The kernel refuses it with EEXIST if there is an entry.
/// `link` is the link's name, for messages.
pub fn add(index: u32, link: &str, ip: IpAddr, mac: Mac) -> Request {
    let mut message = entry(index, ip);
    message.header.state = NeighbourState::Permanent;
    message.attributes.push(NeighbourAttribute::LinkLayerAddress(mac.0.to_vec()));
    let what = format!("add neighbour {ip} to {link}");
    Request::new(what, Mode::Create, RouteNetlinkMessage::NewNeighbour(message))
}

/// `ip neighbour change IP lladdr MAC dev LINK nud probe`: the kernel asks the neighbour at once whether it is there.
/// The entry must exist (ENOENT). `link` is the link's name, for messages.
pub fn probe(index: u32, link: &str, ip: IpAddr, mac: Mac) -> Request {
    let mut message = entry(index, ip);
    message.header.state = NeighbourState::Probe;
    message.attributes.push(NeighbourAttribute::LinkLayerAddress(mac.0.to_vec()));
    Request::new(
        format!("probe neighbour {ip} of {link}"),
        Mode::Change,
        RouteNetlinkMessage::NewNeighbour(message),
    )
}

/// `ip neighbour replace IP dev LINK use`: the kernel asks for the hardware address, as if it had a packet to send.
///
/// It asks nothing for an entry that has a hardware address. See [`probe`] for one of these.
pub fn resolve(index: u32, link: &str, ip: IpAddr) -> Request {
    let mut message = entry(index, ip);
    message.header.flags = NeighbourFlags::Use;
    Request::new(
        format!("ask for neighbour {ip} on {link}"),
        Mode::Replace,
        RouteNetlinkMessage::NewNeighbour(message),
    )
}

/// `ip neighbour del IP dev LINK`
pub fn del(index: u32, link: &str, ip: IpAddr) -> Request {
    let what = format!("delete neighbour {ip} from {link}");
    Request::new(what, Mode::Change, RouteNetlinkMessage::DelNeighbour(entry(index, ip)))
}

/// An entry of the neighbour table of a link. Entries that need no resolution (NUD_NOARP), such as those of multicast
/// addresses, are left out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Neighbour {
    /// The address.
    pub ip: IpAddr,
    /// The hardware address, if the kernel knows it.
    pub mac: Option<Mac>,
    /// Whether the neighbour has told that it is a router of IPv6 (NTF_ROUTER).
    pub is_router: bool,
    /// The state of the entry (`NUD_…`, rtnetlink(7)).
    state: u16,
}

impl Neighbour {
    /// Whether the neighbour has answered lately (NUD_REACHABLE), or is configured (NUD_PERMANENT).
    pub fn is_known(&self) -> bool {
        self.state & (NUD_REACHABLE | NUD_PERMANENT) != 0
    }

    /// Whether the entry was written by hand (NUD_PERMANENT). The kernel never asks whether such a neighbour is there.
    pub fn is_permanent(&self) -> bool {
        self.state & NUD_PERMANENT != 0
    }

    /// Whether the neighbour was known, and nobody has asked again (NUD_STALE).
    pub fn is_stale(&self) -> bool {
        self.state & NUD_STALE != 0
    }

    /// Whether the kernel has given up after probes without an answer (NUD_FAILED), or has not asked yet (NUD_NONE).
    pub fn is_failed(&self) -> bool {
        self.state == 0 || self.state & NUD_FAILED != 0
    }
}

impl Netlink {
    /// `ip neighbour show dev LINK`: the addresses of the entries that have a hardware address, in whatever state.
    pub fn neighbours(&mut self, index: u32) -> Result<Vec<(IpAddr, Mac)>> {
        let what = format!("list neighbours of link number {index}");
        self.dump(&what, query(index), |message| read(message, index))
    }

    /// `ip neighbour show dev LINK`: all entries, also those without a hardware address.
    pub fn neighbour_entries(&mut self, index: u32) -> Result<Vec<Neighbour>> {
        let what = format!("list neighbours of link number {index}");
        self.dump(&what, query(index), |message| read_entry(message, index))
    }

    /// `ip neighbour get IP dev LINK`: the entry, or `None` if there is none or one that needs no resolution. Exists
    /// since Linux 5.0.
    ///
    /// # Errors
    /// Fails with EOPNOTSUPP on an older kernel.
    pub fn neighbour_entry(&mut self, index: u32, ip: IpAddr) -> Result<Option<Neighbour>> {
        let what = format!("look up neighbour {ip} on link number {index}");
        let message = encode(RouteNetlinkMessage::GetNeighbour(entry(index, ip)), NLM_F_REQUEST);
        self.find(&what, message, &[Errno::ENOENT], |message| read_entry(message, index))
    }

    /// `ip neighbour get IP dev LINK`: the hardware address in the entry, in whatever state. `None` without an entry,
    /// or if the kernel knows none. Exists since Linux 5.0.
    ///
    /// # Errors
    /// Fails with EOPNOTSUPP on an older kernel.
    pub fn neighbour(&mut self, index: u32, ip: IpAddr) -> Result<Option<Mac>> {
        let what = format!("look up neighbour {ip} on link number {index}");
        let message = encode(RouteNetlinkMessage::GetNeighbour(entry(index, ip)), NLM_F_REQUEST);
        let found = self.find(&what, message, &[Errno::ENOENT], |message| read(message, index))?;
        Ok(found.map(|(_, mac)| mac))
    }
}

/// The state of a neighbour entry (`NUD_…`, linux/neighbour.h), as far as it decides about packets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Resolution {
    /// Frames go to this address, which a neighbour confirmed at some time.
    Known(Mac),
    /// The address was written by hand, and the kernel never asks for it.
    Permanent(Mac),
    /// The kernel asks, and nothing has answered yet.
    Asking,
    /// The kernel asked, and nothing answered.
    Failed,
}

impl Netlink {
    /// `ip neighbour get IP dev LINK`, with the state. `None` without an entry, and for an entry that the kernel
    /// doesn't resolve (NUD_NOARP) or hasn't asked for yet (NUD_NONE).
    ///
    /// # Errors
    /// Fails with EOPNOTSUPP on a kernel before 5.0.
    pub fn resolution(&mut self, index: u32, ip: IpAddr) -> Result<Option<Resolution>> {
        let what = format!("look up neighbour {ip} on link number {index}");
        let message = encode(RouteNetlinkMessage::GetNeighbour(entry(index, ip)), NLM_F_REQUEST);
        self.find(&what, message, &[Errno::ENOENT], read_resolution)
    }
}

/// Reads the state of the entry in an RTM_NEWNEIGH. `None` as with [`Netlink::resolution`].
pub(super) fn read_resolution(message: &Message<'_>) -> Parsed<Option<Resolution>> {
    let state = u16_ne(message.body, 8).ok_or(Malformed("a neighbour message is too short"))?;
    if message.kind != RTM_NEWNEIGH {
        return Ok(None);
    }
    let mac = Attributes::behind(message.body, NDMSG).find(libc::NDA_LLADDR)?;
    let mac = mac.and_then(|mac| mac.try_into().ok()).map(Mac);
    Ok(match mac {
        Some(mac) if state & NUD_PERMANENT != 0 => Some(Resolution::Permanent(mac)),
        _ if state & NUD_FAILED != 0 => Some(Resolution::Failed),
        _ if state & NUD_INCOMPLETE != 0 => Some(Resolution::Asking),
        Some(mac) if state & NUD_NOARP == 0 => Some(Resolution::Known(mac)),
        _ => None,
    })
}

/// Returns the request for the entries of a link.
pub(super) fn query(index: u32) -> RouteNetlinkMessage {
    let mut message = NeighbourMessage::default();
    message.attributes.push(NeighbourAttribute::IfIndex(index));
    RouteNetlinkMessage::GetNeighbour(message)
}

/// Reads a neighbour on link `wanted` from an RTM_NEWNEIGH. `None` for another link, and without a hardware address.
pub(super) fn read(message: &Message<'_>, wanted: u32) -> Parsed<Option<(IpAddr, Mac)>> {
    Ok(read_entry(message, wanted)?.and_then(|entry| Some((entry.ip, entry.mac?))))
}

/// Reads an entry on link `wanted` from an RTM_NEWNEIGH. `None` for another link, for an entry without an IP address,
/// and for one that needs no resolution (NUD_NOARP).
pub(super) fn read_entry(message: &Message<'_>, wanted: u32) -> Parsed<Option<Neighbour>> {
    let index = u32_ne(message.body, 4).ok_or(Malformed("a neighbour message is too short"))?;
    let state = u16_ne(message.body, 8).unwrap_or(0);
    if message.kind != RTM_NEWNEIGH || index != wanted || state & NUD_NOARP != 0 {
        return Ok(None);
    }
    let is_router = u8_at(message.body, 10).unwrap_or(0) & NTF_ROUTER != 0;
    let (mut address, mut mac) = (None, None);
    for attribute in Attributes::behind(message.body, NDMSG) {
        let (kind, value) = attribute?;
        match kind {
            libc::NDA_DST => address = ip(value),
            libc::NDA_LLADDR => mac = value.try_into().ok().map(Mac),
            _ => {}
        }
    }
    Ok(address.map(|ip| Neighbour { ip, mac, is_router, state }))
}
