//! Bridge ports and their vlans: `bridge link`, `bridge vlan`.

use netlink_packet_route::AddressFamily;
use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::link::{
    BridgePortState, BridgeVlanInfoFlags, LinkAttribute, LinkExtentMask, LinkMessage,
};
use nix::errno::Errno;
use rtnetlink::{LinkBridgePort, LinkBridgeVlan};

use super::{Change, changed};
use crate::port_state::PortState;
use crate::request::Mode;
use crate::uapi::if_bridge::{
    BR_STATE_FORWARDING, BR_VLAN_MSG, BRIDGE_VLANDB_ENTRY, BRIDGE_VLANDB_ENTRY_INFO,
    BRIDGE_VLANDB_ENTRY_RANGE, IFLA_BRIDGE_VLAN_INFO,
};
use crate::uapi::if_link::{
    IFLA_BRPORT_BCAST_FLOOD, IFLA_BRPORT_GROUP_FWD_MASK, IFLA_BRPORT_ISOLATED, IFLA_BRPORT_LEARNING,
    IFLA_BRPORT_MCAST_FLOOD, IFLA_BRPORT_MODE, IFLA_BRPORT_STATE, IFLA_BRPORT_UNICAST_FLOOD,
};
use crate::uapi::rtnetlink::{IFINFOMSG, RTM_GETVLAN, RTM_NEWLINK, RTM_NEWVLAN};
use crate::wire::{self, Attributes, Malformed, Message, Parsed, u8_at, u16_ne, u32_ne};
use crate::{Netlink, Request, Result};

/// The flags of a bridge port that plugins care for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Port {
    /// Whether the port has `hairpin on`.
    pub hairpin: bool,
    /// Whether the port has `isolated on`.
    pub isolated: bool,
    /// Whether the port has all bits of `group_fwd_mask 0xfffd`, see [`claim`].
    pub closed: bool,
}

/// How a bridge treats the frames of a port. A new port learns addresses, and gets all frames that are flooded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Frames {
    /// The state of the port. Only a port that is forwarding lets frames pass. The kernel disables a port that has no
    /// carrier.
    pub state: PortState,
    /// Whether the port has `learning on`.
    pub learning: bool,
    /// Whether the port has `flood on`, `bcast_flood on` and `mcast_flood on`.
    pub flood: bool,
}

/// Reads the attributes of a port (`IFLA_BRPORT_*`). Older kernels lack some of the switches. Such a kernel behaves as if
/// those of [`Frames`] were on, and those of [`Port`] off.
pub(crate) fn read_port(attributes: Attributes<'_>) -> Parsed<(Port, Frames)> {
    let mask = attributes.find(IFLA_BRPORT_GROUP_FWD_MASK)?.and_then(|mask| u16_ne(mask, 0)).unwrap_or(0);
    let port = Port {
        hairpin: is_on(attributes, IFLA_BRPORT_MODE, false)?,
        isolated: is_on(attributes, IFLA_BRPORT_ISOLATED, false)?,
        closed: mask & RESERVED == RESERVED,
    };
    let state = attributes.find_u8(IFLA_BRPORT_STATE)?.unwrap_or(BR_STATE_FORWARDING);
    let frames = Frames {
        state: PortState::from_number(state),
        learning: is_on(attributes, IFLA_BRPORT_LEARNING, true)?,
        flood: is_on(attributes, IFLA_BRPORT_UNICAST_FLOOD, true)?
            && is_on(attributes, IFLA_BRPORT_BCAST_FLOOD, true)?
            && is_on(attributes, IFLA_BRPORT_MCAST_FLOOD, true)?,
    };
    Ok((port, frames))
}

/// Returns a switch of a port, or the default if there is none.
fn is_on(attributes: Attributes<'_>, kind: u16, default: bool) -> Parsed<bool> {
    Ok(attributes.find_u8(kind)?.map_or(default, |value| value != 0))
}

/// The mask of the addresses 01:80:c2:00:00:00 to :0f, except :01 (pause frames). No bridge forwards that one, and no
/// mask may have it.
pub(crate) const RESERVED: u16 = 0xfffd;

/// Returns the first change of a new port, which is down: `change` and its flags, all in one message. Flags that `port`
/// doesn't have stay as they are, because a new port has none.
///
/// Without the mask, a frame to a reserved address 01:80:c2:00:00:0x bypasses the bridge: the port receives it, and the
/// bridge learns its source without any rule (`br_handle_frame` in net/bridge/br_input.c). Kernels before 4.15 ignore
/// the mask.
pub fn claim(index: u32, name: &str, port: Port, change: &Change<'_>) -> Request {
    let message = LinkBridgePort::new(index);
    // A new port has no flag.
    let message = if port.closed { message.group_fwd_mask(RESERVED) } else { message };
    let message = if port.hairpin { message.hairpin(true) } else { message };
    let message = if port.isolated { message.isolated(true) } else { message };
    // RTM_SETLINK would take it and change nothing of the port.
    changed(message, name, change, RouteNetlinkMessage::NewLink)
}

/// `bridge link set dev PORT hairpin … isolated …`. Whether the port is closed stays as it is.
pub fn set(index: u32, name: &str, port: Port) -> Request {
    let message = LinkBridgePort::new(index).hairpin(port.hairpin).isolated(port.isolated);
    // RTM_SETLINK would take it and change nothing.
    let message = RouteNetlinkMessage::NewLink(message.build());
    let (hairpin, isolated) = (super::on_or_off(port.hairpin), super::on_or_off(port.isolated));
    let what = format!("set bridge port {name} hairpin {hairpin} isolated {isolated}");
    Request::new(what, Mode::Change, message)
}

/// `bridge link set dev PORT learning on flood on bcast_flood on mcast_flood on`.
pub fn pass_frames(index: u32, name: &str) -> Request {
    let message = LinkBridgePort::new(index).learning(true).flood(true).bcast_flood(true).mcast_flood(true);
    let message = RouteNetlinkMessage::NewLink(message.build());
    Request::new(format!("set bridge port {name} learning on flood on"), Mode::Change, message)
}

/// `bridge link set dev PORT state 3`. The kernel refuses it with EBUSY on a bridge that runs STP itself, and with
/// ENETDOWN for a port without carrier.
pub fn enable(index: u32, name: &str) -> Request {
    let message = LinkBridgePort::new(index).state(BridgePortState::Forwarding);
    let message = RouteNetlinkMessage::NewLink(message.build());
    Request::new(format!("set bridge port {name} state forwarding"), Mode::Change, message)
}

/// A vlan of a port or of a bridge.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Vlan {
    /// The VLAN ID, 1 to 4094.
    pub id: u16,
    /// Whether untagged frames that come in belong to this VLAN.
    pub pvid: bool,
    /// Whether frames of this VLAN go out untagged.
    pub untagged: bool,
}

/// `bridge vlan add dev PORT vid FIRST[-LAST] [pvid] [untagged]`, for the vlans from `first` to `last_id` with the
/// flags of `first`.
pub fn add_vlans(index: u32, name: &str, first: Vlan, last_id: u16) -> Request {
    let mut flags = BridgeVlanInfoFlags::empty();
    flags.set(BridgeVlanInfoFlags::Pvid, first.pvid);
    flags.set(BridgeVlanInfoFlags::Untagged, first.untagged);
    let (range, message) = vlans(index, first.id, last_id, flags);
    let what = format!("add vlan {range} to {name}");
    Request::new(what, Mode::Change, RouteNetlinkMessage::SetLink(message))
}

/// `bridge vlan del dev PORT vid FIRST[-LAST]`, for the vlans from `first` to `last`.
pub fn del_vlans(index: u32, name: &str, first: u16, last: u16) -> Request {
    let (range, message) = vlans(index, first, last, BridgeVlanInfoFlags::empty());
    let what = format!("delete vlan {range} from {name}");
    Request::new(what, Mode::Change, RouteNetlinkMessage::DelLink(message))
}

/// Returns a range of vlans in words, and a message about it for a port.
fn vlans(index: u32, first: u16, last: u16, flags: BridgeVlanInfoFlags) -> (String, LinkMessage) {
    let message = LinkBridgeVlan::new(index);
    if first == last {
        (first.to_string(), message.vlan(first, flags).build())
    } else {
        let message = message.vlan_range_start(first, flags).vlan_range_end(last, flags);
        (format!("{first}-{last}"), message.build())
    }
}

impl Netlink {
    /// `bridge vlan show dev PORT`, for a port or a bridge, sorted. Empty where the kernel has no vlan filtering.
    ///
    /// # Errors
    /// Fails with EINVAL if the link is neither a port nor a bridge.
    pub fn vlans(&mut self, index: u32) -> Result<Vec<Vlan>> {
        let what = format!("list vlans of link number {index}");
        // struct br_vlan_msg: family, padding, index.
        let mut body = [0; 8];
        let [family, _, _, _, number @ ..] = &mut body;
        *family = libc::AF_BRIDGE as u8;
        *number = index.to_ne_bytes();
        let message = wire::list(RTM_GETVLAN, &body);
        let found = self.dump_raw(&what, &message, |message| read_vlan(message, index));
        match found {
            // The bridge has no RTM_GETVLAN before Linux 5.6.
            Err(err) if err.is(Errno::EOPNOTSUPP) => self.vlans_of_all_ports(index),
            found => Ok(sorted(found?)),
        }
    }

    /// Lists the vlans of a port from a list of all ports. Before Linux 5.6 the kernel has no other.
    pub(crate) fn vlans_of_all_ports(&mut self, index: u32) -> Result<Vec<Vlan>> {
        let message = RouteNetlinkMessage::GetLink(all_ports());
        let found = self.dump("list vlans", message, |message| read_link(message, index))?;
        Ok(sorted(found))
    }
}

/// Sorts the vlans by their numbers.
fn sorted(found: Vec<Vec<Vlan>>) -> Vec<Vlan> {
    let mut vlans: Vec<Vlan> = found.into_iter().flatten().collect();
    vlans.sort_unstable();
    vlans
}

/// Returns the request for all ports with their vlans, of which runs are told by their first and last.
fn all_ports() -> LinkMessage {
    let mut message = LinkMessage::default();
    message.header.interface_family = AddressFamily::Bridge;
    let compressed = LinkExtentMask::BrvlanCompressed;
    message.attributes.push(LinkAttribute::ExtMask(vec![compressed]));
    message
}

/// Reads the vlans of link `wanted` from an RTM_NEWVLAN: `struct br_vlan_msg` and a BRIDGE_VLANDB_ENTRY for every run.
/// `None` for another link.
pub(crate) fn read_vlan(message: &Message<'_>, wanted: u32) -> Parsed<Option<Vec<Vlan>>> {
    if message.kind != RTM_NEWVLAN || u32_ne(message.body, 4) != Some(wanted) {
        return Ok(None);
    }
    let mut vlans = Vec::new();
    for attribute in Attributes::behind(message.body, BR_VLAN_MSG) {
        let (kind, entry) = attribute?;
        if kind != BRIDGE_VLANDB_ENTRY {
            continue;
        }
        let (mut first, mut last) = (None, None);
        for attribute in Attributes::new(entry) {
            let (kind, value) = attribute?;
            match kind {
                BRIDGE_VLANDB_ENTRY_INFO => first = vlan_info(value),
                BRIDGE_VLANDB_ENTRY_RANGE => last = u16_ne(value, 0),
                _ => {}
            }
        }
        let (_, first) = first.ok_or(Malformed("a vlan without number"))?;
        run(&mut vlans, first, last.unwrap_or(first.id));
    }
    Ok(Some(vlans))
}

/// Reads the vlans of port `wanted` from an RTM_NEWLINK of AF_BRIDGE. `None` for another link.
pub(crate) fn read_link(message: &Message<'_>, wanted: u32) -> Parsed<Option<Vec<Vlan>>> {
    let family = u8_at(message.body, 0).map(i32::from);
    if message.kind != RTM_NEWLINK
        || family != Some(libc::AF_BRIDGE)
        || u32_ne(message.body, 4) != Some(wanted)
    {
        return Ok(None);
    }
    let mut vlans = Vec::new();
    let mut begin: Option<Vlan> = None;
    for attribute in Attributes::behind(message.body, IFINFOMSG) {
        let (kind, spec) = attribute?;
        if kind != libc::IFLA_AF_SPEC {
            continue;
        }
        for attribute in Attributes::new(spec) {
            let (kind, value) = attribute?;
            if kind != IFLA_BRIDGE_VLAN_INFO {
                continue;
            }
            let (flags, vlan) = vlan_info(value).ok_or(Malformed("a vlan without number"))?;
            if flags.contains(BridgeVlanInfoFlags::RangeBegin) {
                begin = Some(vlan);
            } else {
                run(&mut vlans, begin.take().unwrap_or(vlan), vlan.id);
            }
        }
    }
    Ok(Some(vlans))
}

/// Reads a `struct bridge_vlan_info`: its flags, and the vlan with those of them that matter here.
fn vlan_info(value: &[u8]) -> Option<(BridgeVlanInfoFlags, Vlan)> {
    let flags = BridgeVlanInfoFlags::from_bits_retain(u16_ne(value, 0)?);
    let vlan = Vlan {
        id: u16_ne(value, 2)?,
        pvid: flags.contains(BridgeVlanInfoFlags::Pvid),
        untagged: flags.contains(BridgeVlanInfoFlags::Untagged),
    };
    Some((flags, vlan))
}

/// The largest number in 12 bits.
const VLAN_MAX: u16 = 4095;

/// Appends the vlans from `first` to the one numbered `last`, all with the same flags.
fn run(vlans: &mut Vec<Vlan>, first: Vlan, last: u16) {
    vlans.extend((first.id..=last.min(VLAN_MAX)).map(|id| Vlan { id, ..first }));
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns an attribute of one byte, with its padding.
    fn attribute(kind: u16, value: u8) -> Vec<u8> {
        [&5u16.to_ne_bytes()[..], &kind.to_ne_bytes(), &[value, 0, 0, 0]].concat()
    }

    #[test]
    fn a_port_without_switches_passes_frames_and_a_damaged_one_is_an_error() {
        let (port, frames) = read_port(Attributes::new(&[])).unwrap();
        assert_eq!(port, Port::default());
        assert_eq!(frames, Frames { state: PortState::Forwarding, learning: true, flood: true });
        let mut bytes = [attribute(IFLA_BRPORT_STATE, 0), attribute(IFLA_BRPORT_ISOLATED, 1)].concat();
        let (port, frames) = read_port(Attributes::new(&bytes)).unwrap();
        assert!(port.isolated && frames.state == PortState::Disabled);
        // An attribute that is longer than the message.
        bytes.extend([200, 0, 1, 0]);
        assert!(read_port(Attributes::new(&bytes)).is_err());
    }
}
