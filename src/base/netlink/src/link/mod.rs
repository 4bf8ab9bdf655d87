//! Links of a namespace: `ip link`.

pub mod details;
mod group;
pub(crate) mod host_end;
pub mod kind;
mod mac;
pub mod port;
pub(crate) mod read;
mod remove;
mod xdp;

use std::os::fd::{AsRawFd, BorrowedFd};

use netlink_packet_core::{DefaultNla, Emitable, NLA_F_NESTED};
use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::link::{
    AfSpecInet, AfSpecInet6, AfSpecUnspec, In6AddrGenMode, LinkAttribute, LinkMessage,
};
use rtnetlink::{LinkMessageBuilder, LinkUnspec};

use super::Request;
use super::request::Mode;
use super::uapi::if_link::{IFLA_INET_CONF, IPV4_DEVCONF_ARP_NOTIFY, IPV4_DEVCONF_ARPFILTER};
use kind::Kind;
use port::{Frames, Port};

pub use kind::bridge::{NewBridge, VlanFiltering, add_bridge, set_vlan_filtering};
pub use kind::veth::{NewVeth, add_veth};
pub use mac::Mac;

/// A link as the kernel describes it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Link {
    /// The index of the link (`ifi_index`).
    pub index: u32,
    /// The name of the link.
    pub name: String,
    /// The kind, such as `bridge` or `veth`. Empty for hardware and lo.
    pub kind: String,
    /// The hardware address, if the link has one of six bytes.
    pub mac: Option<Mac>,
    /// The MTU in bytes.
    pub mtu: u32,
    /// Whether the link is administratively up (IFF_UP).
    pub up: bool,
    /// Whether IFF_PROMISC was asked for (`ip link set … promisc on`). It doesn't count that a bridge or a packet
    /// capture has turned it on.
    pub promisc: bool,
    /// Whether IFF_ALLMULTI was asked for, as with `promisc`.
    pub allmulti: bool,
    /// The length of the transmit queue, in packets.
    pub txqlen: u32,
    /// The number of its group (`ip link … group`). 0 is the default.
    pub group: u32,
    /// Whether `IFLA_OPERSTATE` is up.
    pub oper_up: bool,
    /// Whether the link is up and has a carrier (IFF_LOWER_UP).
    pub carrier: bool,
    /// The index of the link that it is a port of, such as a bridge or a VRF.
    pub master: Option<u32>,
    /// The kind with its settings, of those of [`Kind`] that have some.
    pub settings: Option<Kind>,
    /// `IFLA_LINK`: the index of the parent, or of a veth's other end in that end's namespace.
    pub peer: Option<u32>,
    /// `IFLA_LINK_NETNSID`, if the peer is in another namespace: its number here, which was the lowest free one when
    /// the namespace became known. Negative if there is no number.
    pub peer_netnsid: Option<i32>,
    /// The alias, as of `ip link … alias`.
    pub alias: String,
    /// Bridge port flags, for a port of a bridge.
    pub port: Option<Port>,
    /// The treatment of a bridge port's frames, for a port of a bridge.
    pub frames: Option<Frames>,
    /// `vlan_filtering`, for a bridge.
    pub vlan_filtering: bool,
    /// The sysctl `net/ipv4/conf/LINK/forwarding`, if the kernel tells. For IPv6
    /// [`Netlink::forwards`](crate::Netlink::forwards) alone decides.
    pub forwards: Option<bool>,
    /// The sysctl `net/ipv6/conf/LINK/accept_ra`, if the kernel tells.
    pub accept_ra: Option<u32>,
    /// The sysctl `net/ipv6/conf/LINK/disable_ipv6`, if the kernel tells.
    pub disable_ipv6: Option<bool>,
}

/// Changes to a link; `None` leaves a setting as it is.
#[derive(Debug, Clone, Default)]
#[allow(missing_docs)] // named as in `ip link set`
pub struct Change<'a> {
    pub up: Option<bool>,
    pub mtu: Option<u32>,
    pub mac: Option<Mac>,
    pub name: Option<&'a str>,
    pub alias: Option<&'a str>,
    pub group: Option<u32>,
    /// The index of the link whose port it becomes. `Some(0)` takes it off its master.
    pub master: Option<u32>,
    /// The namespace that the link is moved into, down, before anything else is changed. It keeps its name, or gets
    /// `name` if that is taken there. Otherwise it is renamed to `name` afterwards, so an EEXIST may mean that it has
    /// been moved. The namespace must stay open until the request has been carried out.
    pub netns: Option<BorrowedFd<'a>>,
    /// The index in the namespace that the link is moved to. It must be free there (EBUSY). Kernels before 5.13 ignore
    /// it.
    pub index: Option<u32>,
    pub promisc: Option<bool>,
    pub allmulti: Option<bool>,
    pub txqlen: Option<u32>,
    /// `addrgenmode none`: no link-local IPv6 address when it comes up. A link without IPv6 refuses it (EAFNOSUPPORT).
    pub addrgenmode_none: bool,
}

/// A request for a new link, the first of `names`, which asks for an echo.
fn new_link<K>(kind: &str, names: &[&str], message: LinkMessageBuilder<K>) -> Request {
    let name = names.first().copied().unwrap_or_default();
    let message = RouteNetlinkMessage::NewLink(message.build());
    let request = named(format!("add {kind} {name}"), Mode::CreateEchoed, names, message);
    Request { makes: Some(name.to_owned()), ..request }
}

/// Refuses a name that no link can have. The kernel would cut it at a NUL and take another link. A very long one
/// doesn't fit into an attribute.
fn named(what: String, mode: Mode, names: &[&str], message: RouteNetlinkMessage) -> Request {
    match names.iter().find_map(|name| bad_name(name)) {
        Some(reason) => Request::invalid(what, reason),
        None => Request::new(what, mode, message),
    }
}

/// Returns why the kernel's dev_valid_name() refuses the name, or `None` for a good one.
pub(crate) fn bad_name(name: &str) -> Option<&'static str> {
    match name {
        "" => Some("the name is empty"),
        "." | ".." => Some("the name is . or .."),
        _ if name.len() > 15 => Some("the name has more than 15 bytes"),
        _ if name.contains(['/', ':', '\0']) || name.contains(char::is_whitespace) => {
            Some("the name has a character that no link may have")
        }
        _ => None,
    }
}

/// `ip link set`; `name` is for messages.
pub fn set(index: u32, name: &str, change: &Change<'_>) -> Request {
    changed(LinkUnspec::new_with_index(index), name, change, RouteNetlinkMessage::SetLink)
}

/// Returns the request of `message` with `change`, of the type that `wrap` makes of it.
pub(super) fn changed<K>(
    mut message: LinkMessageBuilder<K>,
    name: &str,
    change: &Change<'_>,
    wrap: fn(LinkMessage) -> RouteNetlinkMessage,
) -> Request {
    message = set_some(message, change.up, |message, up| if up { message.up() } else { message.down() });
    message = set_some(message, change.promisc, LinkMessageBuilder::promiscuous);
    message = set_some(message, change.allmulti, LinkMessageBuilder::allmulticast);
    message = set_some(message, change.mtu, LinkMessageBuilder::mtu);
    message = set_some(message, change.mac.map(Mac::to_vec), LinkMessageBuilder::address);
    message = set_some(message, change.name, LinkMessageBuilder::name);
    message = set_some(message, change.alias, LinkMessageBuilder::alias);
    message =
        set_some(message, change.group.map(LinkAttribute::Group), LinkMessageBuilder::append_extra_attribute);
    message = set_some(message, change.master, LinkMessageBuilder::controller);
    message = set_some(message, change.txqlen, LinkMessageBuilder::txqueuelen);
    message = set_some(message, change.netns.map(|netns| netns.as_raw_fd()), LinkMessageBuilder::setns_by_fd);
    message = set_some(message, change.index, |message, index| {
        message.append_extra_attribute(LinkAttribute::NewIfIndex(index.cast_signed()))
    });
    if change.addrgenmode_none {
        let inet6 = AfSpecUnspec::Inet6(vec![AfSpecInet6::AddrGenMode(In6AddrGenMode::None)]);
        message = message.append_extra_attribute(LinkAttribute::AfSpecUnspec(vec![inet6]));
    }
    let what = format!("set link {name} {}", change.words());
    if change.alias.is_some_and(|alias| alias.len() > ALIAS_MAX) {
        return Request::invalid(what, "the alias has more than 255 bytes");
    }
    named(what, Mode::Change, change.name.as_slice(), wrap(message.build()))
}

/// A switch in `net/ipv4/conf/LINK`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ArpSwitch {
    /// `arp_filter`: the link answers only hosts that a route by this link leads to.
    Filter,
    /// `arp_notify`: the kernel announces the link's addresses when it comes up.
    Notify,
}

/// Returns the request that switches it on, without /proc/sys (IFLA_INET_CONF, linux/if_link.h). `name` is for
/// messages.
pub fn set_arp(index: u32, name: &str, switch: ArpSwitch) -> Request {
    let (what, number) = match switch {
        ArpSwitch::Filter => ("arp_filter", IPV4_DEVCONF_ARPFILTER),
        ArpSwitch::Notify => ("arp_notify", IPV4_DEVCONF_ARP_NOTIFY),
    };
    let on = DefaultNla::new(number, 1_u32.to_ne_bytes().to_vec());
    let mut nested = vec![0; on.buffer_len()];
    on.emit(&mut nested);
    let conf = AfSpecInet::Other(DefaultNla::new(IFLA_INET_CONF | NLA_F_NESTED, nested));
    let mut message = LinkMessage::default();
    message.header.index = index;
    message.attributes.push(LinkAttribute::AfSpecUnspec(vec![AfSpecUnspec::Inet(vec![conf])]));
    Request::new(format!("set {what} of {name}"), Mode::Change, RouteNetlinkMessage::SetLink(message))
}

/// The longest alias, in bytes: IFALIASZ without the NUL.
const ALIAS_MAX: usize = 255;

/// Applies a setting to a message if there is one.
fn set_some<K, T>(
    message: LinkMessageBuilder<K>,
    value: Option<T>,
    apply: impl FnOnce(LinkMessageBuilder<K>, T) -> LinkMessageBuilder<K>,
) -> LinkMessageBuilder<K> {
    match value {
        Some(value) => apply(message, value),
        None => message,
    }
}

/// `ip link del`; `name` is for messages.
pub fn del(index: u32, name: &str) -> Request {
    let message = LinkUnspec::new_with_index(index).build();
    let message = RouteNetlinkMessage::DelLink(message);
    Request::new(format!("delete link {name}"), Mode::Change, message)
}

/// Returns the request that deletes all links of a group. `count` is their number, for messages.
pub(super) fn del_group(group: u32, count: usize) -> Request {
    let mut message = LinkMessage::default();
    message.attributes.push(LinkAttribute::Group(group));
    Request::new(format!("delete {count} links"), Mode::Change, RouteNetlinkMessage::DelLink(message))
}

/// Returns the word for the value of a switch, as `ip` and `bridge` take it.
fn on_or_off(on: bool) -> &'static str {
    if on { "on" } else { "off" }
}

impl Change<'_> {
    /// Names the changes as `ip link set` does, for messages.
    fn words(&self) -> String {
        [
            self.up.map(|up| if up { "up" } else { "down" }.to_owned()),
            self.mtu.map(|mtu| format!("mtu {mtu}")),
            self.mac.map(|mac| format!("address {mac}")),
            self.name.map(|name| format!("name {name}")),
            self.alias.map(|alias| format!("alias {alias}")),
            self.group.map(|group| format!("group {group}")),
            self.master.map(|master| format!("master {master}")),
            self.netns.map(|_| "netns".to_owned()),
            self.index.map(|index| format!("new-index {index}")),
            self.promisc.map(|on| format!("promisc {}", on_or_off(on))),
            self.allmulti.map(|on| format!("allmulticast {}", on_or_off(on))),
            self.txqlen.map(|length| format!("txqueuelen {length}")),
            self.addrgenmode_none.then(|| "addrgenmode none".to_owned()),
        ]
        .into_iter()
        .flatten()
        .collect::<Vec<_>>()
        .join(" ")
    }
}

/// Chooses links for a list. Both filters run in the kernel.
#[derive(Debug, Clone, Default)]
pub struct Filter<'a> {
    /// Lists only ports of the link with this index, such as a bridge.
    pub master: Option<u32>,
    /// Lists only links of this kind.
    pub kind: Option<&'a str>,
}
