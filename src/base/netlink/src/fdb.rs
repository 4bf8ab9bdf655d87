//! Forwarding entries of bridges, which map a hardware address to a port: `bridge fdb`.

use netlink_packet_route::neighbour::{NeighbourAttribute, NeighbourFlags, NeighbourMessage, NeighbourState};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};
use nix::errno::Errno;

use super::request::{Mode, encode};
use super::uapi::netlink::NLM_F_REQUEST;
use super::uapi::rtnetlink::RTM_NEWNEIGH;
use super::wire::{Malformed, Message, Parsed, u8_at, u16_ne, u32_ne};
use super::{Netlink, Request, Result, link::Mac};

/// `NUD_PERMANENT`, `NTF_STICKY` (see linux/neighbour.h).
const NUD_PERMANENT: u16 = 0x80;
const NTF_STICKY: u8 = 0x40;

/// An entry to make, in a vlan or, without one, in all that the port has.
#[derive(Debug, Clone, Copy)]
pub struct NewEntry<'a> {
    /// The port, and its name for messages.
    pub port: u32,
    #[allow(missing_docs)]
    pub name: &'a str,
    #[allow(missing_docs)]
    pub mac: Mac,
    #[allow(missing_docs)]
    pub vlan: Option<u16>,
    /// Whether no frame with that source can move it to another port. Since Linux 4.20.
    pub sticky: bool,
}

/// An entry as the kernel describes it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Entry {
    /// The port, or the bridge itself.
    pub port: u32,
    #[allow(missing_docs)]
    pub sticky: bool,
    /// An address of the bridge or of a port: frames to it are for the host.
    pub local: bool,
}

/// `bridge fdb add MAC dev PORT master static [sticky] [vlan ID]`: never ages. EEXIST if any port has the address.
pub fn add(entry: &NewEntry<'_>) -> Request {
    Request::new(entry.words("add"), Mode::Create, entry.message())
}

/// `bridge fdb replace …`: replaces also an entry of another port, sticky or not.
pub fn replace(entry: &NewEntry<'_>) -> Request {
    Request::new(entry.words("replace"), Mode::Replace, entry.message())
}

impl NewEntry<'_> {
    fn words(&self, verb: &str) -> String {
        let vlan = self.vlan.map(|id| format!(" in vlan {id}")).unwrap_or_default();
        format!("{verb} forwarding entry {} of port {}{vlan}", self.mac, self.name)
    }

    fn message(&self) -> RouteNetlinkMessage {
        let mut message = NeighbourMessage::default();
        message.header.family = AddressFamily::Bridge;
        message.header.ifindex = self.port;
        message.header.state = NeighbourState::Noarp;
        message.header.flags = NeighbourFlags::Controller;
        message.header.flags.set(NeighbourFlags::Sticky, self.sticky);
        message.attributes.push(NeighbourAttribute::LinkLayerAddress(self.mac.to_vec()));
        message.attributes.extend(self.vlan.map(NeighbourAttribute::Vlan));
        RouteNetlinkMessage::NewNeighbour(message)
    }
}

impl Netlink {
    /// `bridge fdb get MAC br BRIDGE [vlan ID]`. Since Linux 5.0.
    ///
    /// # Errors
    /// Fails with EOPNOTSUPP on an older kernel.
    pub fn forwarding_entry(&mut self, bridge: u32, mac: Mac, vlan: Option<u16>) -> Result<Option<Entry>> {
        let what = format!("look up forwarding entry {mac} of bridge number {bridge}");
        let mut message = NeighbourMessage::default();
        message.header.family = AddressFamily::Bridge;
        message.attributes.push(NeighbourAttribute::LinkLayerAddress(mac.to_vec()));
        message.attributes.push(NeighbourAttribute::Controller(bridge));
        message.attributes.extend(vlan.map(NeighbourAttribute::Vlan));
        let message = encode(RouteNetlinkMessage::GetNeighbour(message), NLM_F_REQUEST);
        self.find(&what, message, &[Errno::ENOENT], read)
    }
}

/// An entry from RTM_NEWNEIGH of AF_BRIDGE (struct ndmsg).
pub(super) fn read(message: &Message<'_>) -> Parsed<Option<Entry>> {
    const SHORT: Malformed = Malformed("a forwarding entry is too short");
    let family = u8_at(message.body, 0).map(i32::from);
    if message.kind != RTM_NEWNEIGH || family != Some(libc::AF_BRIDGE) {
        return Ok(None);
    }
    let port = u32_ne(message.body, 4).ok_or(SHORT)?;
    let state = u16_ne(message.body, 8).ok_or(SHORT)?;
    let flags = u8_at(message.body, 10).ok_or(SHORT)?;
    Ok(Some(Entry { port, sticky: flags & NTF_STICKY != 0, local: state & NUD_PERMANENT != 0 }))
}
