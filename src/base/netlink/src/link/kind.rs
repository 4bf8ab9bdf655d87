//! Links by their kind: `ip link add NAME [link PARENT] type KIND`. Kinds with more than a number have a file below.

pub mod bridge;
mod ipvlan;
mod macvlan;
pub mod tap;
pub mod veth;

use std::fmt;
use std::os::fd::{AsRawFd, BorrowedFd};

use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::link::{InfoData, InfoKind, InfoVlan, InfoVrf, LinkAttribute};
use nix::errno::Errno;
use rtnetlink::{LinkMessageBuilder, LinkUnspec};

pub use ipvlan::IpvlanMode;
pub use macvlan::{Macvlan, MacvlanMode};
pub use tap::TapSettings;

use super::{Mac, new_link, set_some};
use crate::request::Mode;
use crate::uapi::if_link::{IFLA_VLAN_ID, IFLA_VRF_TABLE};
use crate::wire::{Attributes, Parsed, u16_ne, u32_ne};
use crate::{Netlink, Request, Result};

const VLAN: &str = "vlan";
const VRF: &str = "vrf";

/// The kind of a link, with the settings of that kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)] // as in `ip link add … type`
pub enum Kind {
    Dummy,
    Ifb,
    Ipvlan(IpvlanMode),
    Macvlan(Macvlan),
    Tap(TapSettings),
    Vlan(Vlan),
    Vrf(Vrf),
}

/// The settings of a vlan: it takes the frames with this tag (802.1Q).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Vlan {
    /// The VLAN ID, from 0 to 4094.
    pub id: u16,
}

/// The settings of a VRF: its ports have a routing table of their own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Vrf {
    /// The number of the routing table.
    pub table: u32,
}

/// Reads the settings of a link of this kind. `None` for a kind without settings, and for a mode that is not made here.
pub(super) fn read(kind: &str, data: &[u8]) -> Parsed<Option<Kind>> {
    let data = Attributes::new(data);
    Ok(match kind {
        ipvlan::NAME => ipvlan::read(data)?.map(Kind::Ipvlan),
        macvlan::NAME => macvlan::read(data)?.map(Kind::Macvlan),
        tap::NAME => tap::read(data)?.map(Kind::Tap),
        VLAN => data.find(IFLA_VLAN_ID)?.and_then(|id| u16_ne(id, 0)).map(|id| Kind::Vlan(Vlan { id })),
        VRF => {
            let table = data.find(IFLA_VRF_TABLE)?.and_then(|table| u32_ne(table, 0));
            table.map(|table| Kind::Vrf(Vrf { table }))
        }
        _ => None,
    })
}

impl Kind {
    /// Returns the name as in `ip link add … type`, and in [`Link::kind`](super::Link::kind).
    pub fn name(self) -> &'static str {
        match self {
            Kind::Dummy => "dummy",
            Kind::Ifb => "ifb",
            Kind::Ipvlan(_) => ipvlan::NAME,
            Kind::Macvlan(_) => macvlan::NAME,
            Kind::Tap(_) => tap::NAME,
            Kind::Vlan(_) => VLAN,
            Kind::Vrf(_) => VRF,
        }
    }

    /// Returns the kind's own attributes (`IFLA_INFO_DATA`). `None` if it has none. A tap is not made by netlink.
    fn data(self) -> Option<InfoData> {
        match self {
            Kind::Dummy | Kind::Ifb | Kind::Tap(_) => None,
            Kind::Ipvlan(mode) => Some(mode.data()),
            Kind::Macvlan(settings) => Some(settings.data()),
            Kind::Vlan(Vlan { id }) => Some(InfoData::Vlan(vec![InfoVlan::Id(id)])),
            Kind::Vrf(Vrf { table }) => Some(InfoData::Vrf(vec![InfoVrf::TableId(table)])),
        }
    }

    /// Returns the name of the kernel module that has this kind.
    pub fn module(self) -> &'static str {
        match self {
            Kind::Vlan(_) => "8021q",
            kind => kind.name(),
        }
    }

    /// Whether a link of this kind has a parent, which it is made on.
    pub fn has_parent(self) -> bool {
        matches!(self, Kind::Ipvlan(_) | Kind::Macvlan(_) | Kind::Vlan(_))
    }

    /// Whether a link of this kind and with these settings, as the kernel reports them ([`Link`](super::Link)), is such
    /// a link. An optional setting that is not wanted makes no difference. Nor does a macvlan's queue length that the
    /// kernel doesn't report. A kind with settings is not met by a link whose settings aren't known.
    pub fn is_of(self, kind: &str, settings: Option<Kind>) -> bool {
        let is_met = match (self, settings) {
            (Kind::Dummy | Kind::Ifb, _) => true,
            (Kind::Macvlan(wanted), Some(Kind::Macvlan(now))) => wanted.is_met_by(now),
            (Kind::Tap(wanted), Some(Kind::Tap(now))) => wanted.is_met_by(now),
            (wanted, now) => now == Some(wanted),
        };
        kind == self.name() && is_met
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())?;
        match self {
            Kind::Dummy | Kind::Ifb => Ok(()),
            Kind::Ipvlan(mode) => write!(f, " mode {}", mode.name()),
            Kind::Macvlan(settings) => write!(f, "{settings}"),
            Kind::Tap(settings) => write!(f, "{settings}"),
            Kind::Vlan(Vlan { id }) => write!(f, " id {id}"),
            Kind::Vrf(Vrf { table }) => write!(f, " table {table}"),
        }
    }
}

/// A link to make.
#[derive(Debug, Clone)]
#[allow(missing_docs)] // named as in `ip link add`
pub struct NewLink<'a> {
    pub name: &'a str,
    pub kind: Kind,
    /// Index of the parent, in this namespace.
    pub parent: Option<u32>,
    /// The namespace that the link is made in, if that is another than the socket's.
    pub netns: Option<BorrowedFd<'a>>,
    /// The MTU in bytes. `None` is the kernel's default.
    pub mtu: Option<u32>,
    /// The hardware address. `None` is the kernel's choice.
    pub mac: Option<Mac>,
    /// The group of the link; `None` is the default, 0.
    pub group: Option<u32>,
    /// The length of the transmit queue, in packets. `None` is the kernel's default.
    pub txqlen: Option<u32>,
    /// Whether it comes up at once.
    pub up: bool,
}

impl<'a> NewLink<'a> {
    /// A link in this namespace, down, with the kernel's choice of everything else.
    pub fn new(name: &'a str, kind: Kind) -> Self {
        let (parent, netns, mtu, mac, group, txqlen) = (None, None, None, None, None, None);
        NewLink { name, kind, parent, netns, mtu, mac, group, txqlen, up: false }
    }
}

/// `ip link add NAME [link PARENT] [netns NS] [group NUMBER] type KIND`. Use with [`Netlink::create_link`], or with
/// [`Netlink::execute`] for a link in another namespace: that isn't echoed here.
///
/// The name must be free (EEXIST), before Linux 6.18 in both namespaces. `netns` must stay open until the request has
/// been carried out.
pub fn add(link: &NewLink<'_>) -> Request {
    let mut message = message(link.name, link.kind);
    message = set_some(message, link.kind.data(), LinkMessageBuilder::set_info_data);
    message = set_some(message, link.parent, LinkMessageBuilder::link);
    message = set_some(message, link.netns.map(|netns| netns.as_raw_fd()), LinkMessageBuilder::setns_by_fd);
    message = set_some(message, link.mtu, LinkMessageBuilder::mtu);
    message = set_some(message, link.txqlen, LinkMessageBuilder::txqueuelen);
    message = set_some(message, link.mac.map(Mac::to_vec), LinkMessageBuilder::address);
    message =
        set_some(message, link.group.map(LinkAttribute::Group), LinkMessageBuilder::append_extra_attribute);
    message = if link.up { message.up() } else { message };
    new_link(link.kind.name(), &[link.name], message)
}

/// Begins a request for a new link with this name and kind.
fn message(name: &str, kind: Kind) -> LinkMessageBuilder<LinkUnspec> {
    LinkMessageBuilder::<LinkUnspec>::new_with_info_kind(InfoKind::from(kind.name())).name(name)
}

impl Netlink {
    /// Returns true if the kernel has this kind of link. It is asked for one with an impossible hardware address and no
    /// parent. A kernel that knows the kind refuses either, so nothing changes.
    ///
    /// # Errors
    /// Fails if the kernel refuses it for another reason, such as with EPERM.
    pub fn knows_kind(&mut self, kind: Kind) -> Result<bool> {
        let name = "cnimble-ask";
        let message = message(name, kind).address(vec![0; 6]).build();
        let what = format!("ask for the link kind {}", kind.name());
        match self.execute(Request::new(what, Mode::Create, RouteNetlinkMessage::NewLink(message))) {
            Err(err) if err.is(Errno::EOPNOTSUPP) => Ok(false),
            // An ipvlan has its parent's address, and isn't asked for its own.
            Err(err) if err.is(Errno::EINVAL) && kind.has_parent() => Ok(true),
            Err(err) if !err.is(Errno::EADDRNOTAVAIL) => Err(err),
            _ => Ok(true),
        }
    }
}
