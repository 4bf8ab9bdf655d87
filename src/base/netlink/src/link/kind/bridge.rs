//! `type bridge`.

use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::link::{InfoKind, LinkAttribute};
use rtnetlink::{LinkBridge, LinkMessageBuilder};

use crate::Request;
use crate::link::{Mac, new_link, set_some};
use crate::request::Mode;

/// A bridge to make.
#[derive(Debug, Clone)]
pub struct NewBridge<'a> {
    /// The name of the bridge.
    pub name: &'a str,
    /// The MTU in bytes. `None` is the kernel's default.
    pub mtu: Option<u32>,
    /// The hardware address. It is set at the creation, so that it never follows the ports.
    pub mac: Mac,
    /// Whether the bridge has `vlan_filtering 1`.
    pub vlan_filtering: bool,
    /// The group of the link; `None` is the default, 0. The kernel ignores an alias at the creation, but not the group.
    pub group: Option<u32>,
}

/// `ip link add NAME type bridge`, down. Use with [`Netlink::create_link`](crate::Netlink::create_link).
pub fn add_bridge(bridge: &NewBridge<'_>) -> Request {
    let message = LinkBridge::new(bridge.name).down().address(bridge.mac.to_vec());
    let message = set_some(message, bridge.mtu, LinkMessageBuilder::mtu);
    let message =
        set_some(message, bridge.group.map(LinkAttribute::Group), LinkMessageBuilder::append_extra_attribute);
    let message = if bridge.vlan_filtering { message.vlan_filtering(true) } else { message };
    new_link("bridge", &[bridge.name], message)
}

/// Whether a bridge separates vlans.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)] // the values of vlan_filtering in ip-link(8)
pub enum VlanFiltering {
    On,
    Off,
}

/// The request of `ip link set BRIDGE type bridge vlan_filtering 1`.
pub fn set_vlan_filtering(index: u32, name: &str, filtering: VlanFiltering) -> Request {
    let on = filtering == VlanFiltering::On;
    let message = LinkMessageBuilder::<LinkBridge>::new_with_info_kind(InfoKind::Bridge)
        .index(index)
        .vlan_filtering(on);
    // RTM_SETLINK would take it and change nothing.
    let message = RouteNetlinkMessage::NewLink(message.build());
    let what = format!("set link {name} type bridge vlan_filtering {}", u8::from(on));
    Request::new(what, Mode::Change, message)
}
