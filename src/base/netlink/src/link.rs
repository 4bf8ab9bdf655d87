//! Links: `ip link`.

use std::os::fd::{AsRawFd, BorrowedFd};

use netlink_packet_core::{DefaultNla, Emitable, NLA_F_NESTED};
use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::link::{
    AfSpecInet, AfSpecInet6, AfSpecUnspec, In6AddrGenMode, InfoData, InfoKind, InfoVeth, LinkAttribute,
    LinkMessage,
};
use rtnetlink::{LinkBridge, LinkMessageBuilder, LinkUnspec, LinkVeth};

use super::Request;
pub use super::mac::Mac;
use super::request::Mode;
use super::uapi::if_link::{IFLA_INET_CONF, IPV4_DEVCONF_ARP_NOTIFY};

/// A link as the kernel describes it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Link {
    /// The index of the link (`ifi_index`).
    pub index: u32,
    /// The name of the link.
    pub name: String,
    /// The kind, such as `bridge` or `veth`. Empty for hardware and lo.
    pub kind: String,
    /// Hardware address, if it has one of six bytes.
    pub mac: Option<Mac>,
    /// The MTU in bytes.
    pub mtu: u32,
    /// Whether the link is administratively up (IFF_UP).
    pub up: bool,
    /// IFF_PROMISC was asked for (`ip link set … promisc on`); a bridge or a packet capture
    /// that turns it on by itself doesn't count.
    pub promisc: bool,
    /// IFF_ALLMULTI was asked for, as with `promisc`.
    pub allmulti: bool,
    /// Length of the transmit queue, in packets.
    pub txqlen: u32,
    /// `ip link … group`; 0 is the default.
    pub group: u32,
    /// Whether `IFLA_OPERSTATE` is up.
    pub oper_up: bool,
    /// IFF_LOWER_UP: the link is up and has a carrier.
    pub carrier: bool,
    /// Index of the bridge that it is a port of.
    pub master: Option<u32>,
    /// The kind with its settings, of those of [`Kind`](super::kind::Kind) that have some.
    pub settings: Option<super::kind::Kind>,
    /// The value of `IFLA_LINK`. For a veth, it is the index of the other end in that end's namespace. For a macvlan,
    /// ipvlan or vlan, it is the index of the parent.
    pub peer: Option<u32>,
    /// The value of `IFLA_LINK_NETNSID`, if the peer is in another namespace. It is that namespace's number here, which
    /// was the lowest free one when the namespace became known. It is negative if there is no number.
    pub far: Option<i32>,
    /// `ip link … alias`.
    pub alias: String,
    /// Bridge port flags, for a port of a bridge.
    pub port: Option<Port>,
    /// `vlan_filtering`, for a bridge.
    pub vlan_filtering: bool,
    /// The sysctl `net/ipv6/conf/LINK/accept_ra`, if the kernel tells.
    pub accept_ra: Option<u32>,
}

/// The flags of a bridge port that plugins care for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Port {
    /// Whether the port has `hairpin on`.
    pub hairpin: bool,
    /// Whether the port has `isolated on`.
    pub isolated: bool,
    /// `group_fwd_mask 0xfffd`, see [`claim`](super::port::claim).
    pub closed: bool,
}

/// The addresses 01:80:c2:00:00:00 to :0f except :01 (pause frames). No bridge forwards that one, and no mask may have
/// it.
pub(super) const RESERVED: u16 = 0xfffd;

/// A bridge to make.
#[derive(Debug, Clone)]
pub struct NewBridge<'a> {
    /// The name of the bridge.
    pub name: &'a str,
    /// MTU in bytes; `None` is the kernel's.
    pub mtu: Option<u32>,
    /// Set at creation, so that it never follows the ports.
    pub mac: Mac,
    /// Whether the bridge has `vlan_filtering 1`.
    pub vlan_filtering: bool,
}

/// A veth pair to make: one end here, the other born in another namespace.
#[derive(Debug, Clone)]
pub struct NewVeth<'a> {
    /// Name of the end in this namespace.
    pub name: &'a str,
    /// Its hardware address; `None` is the kernel's choice.
    pub mac: Option<Mac>,
    /// Its master.
    pub master: Option<u32>,
    /// Whether this end comes up at once.
    pub up: bool,
    /// MTU of both ends; `None` is the kernel's.
    pub mtu: Option<u32>,
    /// Name of the other end.
    pub peer_name: &'a str,
    /// Its hardware address; `None` is the kernel's choice.
    pub peer_mac: Option<Mac>,
    /// The namespace that the other end is born in.
    pub peer_ns: BorrowedFd<'a>,
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
    /// `Some(0)` takes it off its master.
    pub master: Option<u32>,
    /// The namespace that the link is moved into, down, before anything else is changed. It keeps its name, or gets
    /// `name` if that is taken there. Otherwise it is renamed to `name` afterwards, so an EEXIST may mean that it has
    /// been moved. The namespace must stay open until the request has been carried out.
    pub netns: Option<BorrowedFd<'a>>,
    /// Its index where it is moved to, which must be free there (EBUSY). Kernels before 5.13 ignore it.
    pub index: Option<u32>,
    pub promisc: Option<bool>,
    pub allmulti: Option<bool>,
    pub txqlen: Option<u32>,
    /// `addrgenmode none`: the kernel gives it no link-local IPv6 address when it comes up. Only
    /// for a link that has IPv6: any other refuses (EAFNOSUPPORT).
    pub addrgenmode_none: bool,
}

/// `ip link add NAME type bridge`, down. Use with [`Netlink::create_link`].
///
/// [`Netlink::create_link`]: super::Netlink::create_link
pub fn add_bridge(bridge: &NewBridge<'_>) -> Request {
    let mut message = LinkBridge::new(bridge.name).down().address(bridge.mac.0.to_vec());
    if let Some(mtu) = bridge.mtu {
        message = message.mtu(mtu);
    }
    if bridge.vlan_filtering {
        message = message.vlan_filtering(true);
    }
    new_link("bridge", &[bridge.name], message.build())
}

/// `ip link add NAME type veth peer name PEER netns NS`. Use with
/// [`Netlink::create_link`](super::Netlink::create_link).
///
/// Each end has one queue, because the kernel uses only one of a veth's queues. By default it first makes one for each
/// processor, with a directory in sysfs for each, and removes them again.
///
/// The request has the number of `peer_ns`, which must stay open until it has been carried
/// out. The other end is born down: the kernel can't bring it up before this end exists
/// (ENOTCONN).
pub fn add_veth(veth: &NewVeth<'_>) -> Request {
    let mut peer = LinkUnspec::new_with_name(veth.peer_name).setns_by_fd(veth.peer_ns.as_raw_fd());
    if let Some(mac) = veth.peer_mac {
        peer = peer.address(mac.0.to_vec());
    }
    let mut message = LinkVeth::new(veth.name, veth.peer_name);
    for queues in [LinkAttribute::NumTxQueues(1), LinkAttribute::NumRxQueues(1)] {
        peer = peer.append_extra_attribute(queues.clone());
        message = message.append_extra_attribute(queues);
    }
    if let Some(mtu) = veth.mtu {
        peer = peer.mtu(mtu);
        message = message.mtu(mtu);
    }
    message = message.set_info_data(InfoData::Veth(InfoVeth::Peer(peer.build())));
    if let Some(mac) = veth.mac {
        message = message.address(mac.0.to_vec());
    }
    if let Some(master) = veth.master {
        message = message.controller(master);
    }
    if veth.up {
        message = message.up();
    }
    let mut request = new_link("veth", &[veth.name, veth.peer_name], message.build());
    request.master = veth.master;
    request
}

fn new_link(kind: &str, names: &[&str], message: LinkMessage) -> Request {
    let what = format!("add {kind} {}", names.first().unwrap_or(&""));
    Request::new_link(what, names, RouteNetlinkMessage::NewLink(message))
}

/// `ip link set`; `name` is for messages.
pub fn set(index: u32, name: &str, change: &Change<'_>) -> Request {
    changed(LinkUnspec::new_with_index(index), name, change, RouteNetlinkMessage::SetLink)
}

/// `message` with `change`, of the type that `wrap` makes of it.
pub(super) fn changed<K>(
    mut message: LinkMessageBuilder<K>,
    name: &str,
    change: &Change<'_>,
    wrap: fn(LinkMessage) -> RouteNetlinkMessage,
) -> Request {
    message = with(message, change.up, |message, up| match up {
        true => message.up(),
        false => message.down(),
    });
    message = with(message, change.promisc, LinkMessageBuilder::promiscuous);
    message = with(message, change.allmulti, LinkMessageBuilder::allmulticast);
    message = with(message, change.mtu, LinkMessageBuilder::mtu);
    message = with(message, change.mac.map(|mac| mac.0.to_vec()), LinkMessageBuilder::address);
    message = with(message, change.name, |message, name| message.name(name.to_owned()));
    message = with(message, change.alias, LinkMessageBuilder::alias);
    message = with(message, change.master, LinkMessageBuilder::controller);
    message = with(message, change.txqlen, LinkMessageBuilder::txqueuelen);
    message = with(message, change.netns.map(|netns| netns.as_raw_fd()), LinkMessageBuilder::setns_by_fd);
    message = with(message, change.index, |message, index| {
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
    Request::of_link(what, change.name.as_slice(), wrap(message.build()))
}

/// The sysctl `net/ipv4/conf/LINK/arp_notify` on (IFLA_INET_CONF, linux/if_link.h): the kernel
/// announces the link's addresses when it comes up.
pub fn set_arp_notify(index: u32, name: &str) -> Request {
    let on = DefaultNla::new(IPV4_DEVCONF_ARP_NOTIFY, 1_u32.to_ne_bytes().to_vec());
    let mut nested = vec![0; on.buffer_len()];
    on.emit(&mut nested);
    let conf = AfSpecInet::Other(DefaultNla::new(IFLA_INET_CONF | NLA_F_NESTED, nested));
    let mut message = LinkMessage::default();
    message.header.index = index;
    message.attributes.push(LinkAttribute::AfSpecUnspec(vec![AfSpecUnspec::Inet(vec![conf])]));
    Request::new(format!("set arp_notify of {name}"), Mode::Change, RouteNetlinkMessage::SetLink(message))
}

/// IFALIASZ without the NUL.
const ALIAS_MAX: usize = 255;

fn with<K, T>(
    message: LinkMessageBuilder<K>,
    value: Option<T>,
    apply: impl FnOnce(LinkMessageBuilder<K>, T) -> LinkMessageBuilder<K>,
) -> LinkMessageBuilder<K> {
    match value {
        Some(value) => apply(message, value),
        None => message,
    }
}

/// `ip link del`
pub fn del(index: u32, name: &str) -> Request {
    let message = LinkUnspec::new_with_index(index).build();
    let message = RouteNetlinkMessage::DelLink(message);
    Request::new(format!("delete link {name}"), Mode::Change, message)
}

/// `ip link set NAME group NUMBER`
pub(super) fn set_group(index: u32, name: &str, group: u32) -> Request {
    let mut message = LinkMessage::default();
    message.header.index = index;
    message.attributes.push(LinkAttribute::Group(group));
    Request::new(
        format!("set link {name} group {group}"),
        Mode::Change,
        RouteNetlinkMessage::SetLink(message),
    )
}

/// `ip link del group NUMBER`
pub(super) fn del_group(group: u32, count: usize) -> Request {
    let mut message = LinkMessage::default();
    message.attributes.push(LinkAttribute::Group(group));
    Request::new(format!("delete {count} links"), Mode::Change, RouteNetlinkMessage::DelLink(message))
}

/// `ip link set BRIDGE type bridge vlan_filtering 1`
pub fn set_vlan_filtering(index: u32, name: &str, on: bool) -> Request {
    let message = LinkMessageBuilder::<LinkBridge>::new_with_info_kind(InfoKind::Bridge)
        .index(index)
        .vlan_filtering(on);
    // RTM_SETLINK would take it and change nothing.
    let message = RouteNetlinkMessage::NewLink(message.build());
    let what = format!("set link {name} type bridge vlan_filtering {}", u8::from(on));
    Request::new(what, Mode::Change, message)
}

impl Change<'_> {
    /// The changes in words, for an error.
    fn words(&self) -> String {
        let on = |on: bool| if on { "on" } else { "off" };
        [
            self.up.map(|up| if up { "up" } else { "down" }.to_owned()),
            self.mtu.map(|mtu| format!("mtu {mtu}")),
            self.mac.map(|mac| format!("address {mac}")),
            self.name.map(|name| format!("name {name}")),
            self.alias.map(|alias| format!("alias {alias}")),
            self.master.map(|master| format!("master {master}")),
            self.netns.map(|_| "netns".to_owned()),
            self.index.map(|index| format!("new-index {index}")),
            self.promisc.map(|yes| format!("promisc {}", on(yes))),
            self.allmulti.map(|yes| format!("allmulticast {}", on(yes))),
            self.txqlen.map(|length| format!("txqueuelen {length}")),
            self.addrgenmode_none.then(|| "addrgenmode none".to_owned()),
        ]
        .into_iter()
        .flatten()
        .collect::<Vec<_>>()
        .join(" ")
    }
}

/// Which links to list; both filters run in the kernel.
#[derive(Debug, Clone, Default)]
pub struct Filter<'a> {
    /// Only ports of this bridge.
    pub master: Option<u32>,
    /// Only links of this kind.
    pub kind: Option<&'a str>,
}
