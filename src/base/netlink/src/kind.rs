//! Links of one end: `ip link add NAME [link PARENT] type KIND`. A veth pair is made by
//! [`super::link::add_veth`], a bridge by [`super::link::add_bridge`], a tap by
//! [`super::tap`].

mod settings;

use std::fmt;
use std::os::fd::{AsRawFd, BorrowedFd};

use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::link::{InfoKind, LinkAttribute};
use nix::errno::Errno;
use rtnetlink::{LinkMessageBuilder, LinkUnspec};

use super::mac::Mac;
use super::{Netlink, Request, Result};

pub(super) use settings::read;

/// The kind of a link, with the settings of that kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// `type dummy`: takes what is sent to it and drops it.
    Dummy,
    /// `type ifb`: gives back what is redirected to it.
    Ifb,
    /// `type ipvlan mode MODE`: shares its parent's hardware address and takes the packets to its own
    /// addresses.
    Ipvlan(IpvlanMode),
    /// `type macvlan mode MODE bcqueuelen LENGTH`: takes the frames to its own hardware address.
    Macvlan {
        /// The mode, which decides which of a parent's macvlans reach each other.
        mode: MacvlanMode,
        /// How many broadcast frames may wait; `None` is the kernel's. Kernels before 5.11 have no such
        /// setting: they ignore it, and don't tell it.
        bcqueuelen: Option<u32>,
    },
    /// `ip tuntap add NAME mode tap`, which the kernel calls `tun`.
    Tap {
        /// The user that may attach to it.
        owner: Option<u32>,
        /// The group that may.
        group: Option<u32>,
        /// Whether it can have several queues.
        multi_queue: bool,
    },
    /// `type vlan id ID`: takes the frames with this tag (802.1Q).
    Vlan {
        /// 0 to 4094.
        id: u16,
    },
    /// `type vrf table TABLE`: its ports have a routing table of their own.
    Vrf {
        /// The table.
        table: u32,
    },
}

/// The mode of an ipvlan (linux/if_link.h).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IpvlanMode {
    /// It answers ARP and neighbour solicitations itself.
    L2,
    /// Its parent routes for it; no broadcasts.
    L3,
    /// L3 through the host's netfilter.
    L3s,
}

/// The mode of a macvlan (linux/if_link.h).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MacvlanMode {
    /// The macvlans of a parent hear each other.
    Bridge,
    /// They don't.
    Private,
    /// They hear each other by way of a switch that sends frames back.
    Vepa,
    /// One macvlan has its parent to itself.
    Passthru,
}

impl IpvlanMode {
    /// All of them.
    pub const ALL: [IpvlanMode; 3] = [IpvlanMode::L2, IpvlanMode::L3, IpvlanMode::L3s];

    /// As in `ip link add … type ipvlan mode …`.
    pub fn name(self) -> &'static str {
        match self {
            IpvlanMode::L2 => "l2",
            IpvlanMode::L3 => "l3",
            IpvlanMode::L3s => "l3s",
        }
    }
}

impl MacvlanMode {
    /// All of them.
    pub const ALL: [MacvlanMode; 4] =
        [MacvlanMode::Bridge, MacvlanMode::Private, MacvlanMode::Vepa, MacvlanMode::Passthru];

    /// As in `ip link add … type macvlan mode …`.
    pub fn name(self) -> &'static str {
        match self {
            MacvlanMode::Bridge => "bridge",
            MacvlanMode::Private => "private",
            MacvlanMode::Vepa => "vepa",
            MacvlanMode::Passthru => "passthru",
        }
    }
}

impl Kind {
    /// As in `ip link add … type`, and in [`Link::kind`](super::link::Link::kind).
    pub fn name(self) -> &'static str {
        match self {
            Kind::Dummy => "dummy",
            Kind::Ifb => "ifb",
            Kind::Ipvlan(_) => "ipvlan",
            Kind::Macvlan { .. } => "macvlan",
            Kind::Tap { .. } => "tun",
            Kind::Vlan { .. } => "vlan",
            Kind::Vrf { .. } => "vrf",
        }
    }

    fn info(self) -> InfoKind {
        match self {
            Kind::Dummy => InfoKind::Dummy,
            Kind::Ifb => InfoKind::Ifb,
            Kind::Ipvlan(_) => InfoKind::IpVlan,
            Kind::Macvlan { .. } => InfoKind::MacVlan,
            Kind::Tap { .. } => InfoKind::Tun,
            Kind::Vlan { .. } => InfoKind::Vlan,
            Kind::Vrf { .. } => InfoKind::Vrf,
        }
    }

    /// The kernel's module.
    pub fn module(self) -> &'static str {
        match self {
            Kind::Vlan { .. } => "8021q",
            kind => kind.name(),
        }
    }

    /// Whether a link of this kind has a parent, which it is made on.
    pub fn has_parent(self) -> bool {
        matches!(self, Kind::Ipvlan(_) | Kind::Macvlan { .. } | Kind::Vlan { .. })
    }

    /// Whether a link of this kind and with these settings, as the kernel tells them
    /// ([`Link`](super::link::Link)), is such a link. What isn't wanted, or isn't told, is no
    /// difference.
    pub fn is_of(self, kind: &str, settings: Option<Kind>) -> bool {
        if kind != self.name() {
            return false;
        }
        match (self, settings) {
            (Kind::Dummy | Kind::Ifb, _) => true,
            (
                Kind::Macvlan { mode, bcqueuelen },
                Some(Kind::Macvlan { mode: mode_now, bcqueuelen: length_now }),
            ) => mode == mode_now && bcqueuelen.zip(length_now).is_none_or(|(wanted, now)| wanted == now),
            (
                Kind::Tap { owner, group, multi_queue },
                Some(Kind::Tap { owner: owner_now, group: group_now, multi_queue: queues_now }),
            ) => {
                let allows = |wanted: Option<u32>, now| wanted.is_none() || wanted == now;
                allows(owner, owner_now) && allows(group, group_now) && multi_queue == queues_now
            }
            (wanted, now) => Some(wanted) == now,
        }
    }
}

/// As in `ip link add … type`.
impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())?;
        match self {
            Kind::Ipvlan(mode) => write!(f, " mode {}", mode.name()),
            Kind::Macvlan { mode, bcqueuelen } => {
                write!(f, " mode {}", mode.name())?;
                bcqueuelen.map_or(Ok(()), |length| write!(f, " bcqueuelen {length}"))
            }
            Kind::Vlan { id } => write!(f, " id {id}"),
            Kind::Vrf { table } => write!(f, " table {table}"),
            Kind::Tap { owner, group, multi_queue } => {
                f.write_str(" mode tap")?;
                for (word, id) in [("user", owner), ("group", group)] {
                    id.map_or(Ok(()), |id| write!(f, " {word} {id}"))?;
                }
                f.write_str(if *multi_queue { " multi_queue" } else { "" })
            }
            Kind::Dummy | Kind::Ifb => Ok(()),
        }
    }
}

/// A link to make.
#[derive(Debug, Clone)]
pub struct NewLink<'a> {
    /// Name.
    pub name: &'a str,
    /// Kind.
    pub kind: Kind,
    /// Index of the parent, in this namespace.
    pub parent: Option<u32>,
    /// The namespace that it is born in, if that is another.
    pub netns: Option<BorrowedFd<'a>>,
    /// MTU in bytes; `None` is the kernel's.
    pub mtu: Option<u32>,
    /// Hardware address; `None` is the kernel's choice.
    pub mac: Option<Mac>,
    /// Its group; `None` is the default, 0.
    pub group: Option<u32>,
    /// Whether it comes up at once.
    pub up: bool,
}

/// `ip link add NAME [link PARENT] [netns NS] [group NUMBER] type KIND`. Use with [`Netlink::create_link`], or with
/// [`Netlink::execute`] for a link in another namespace: that isn't echoed here.
///
/// The name must be free (EEXIST): for older kernels in both namespaces, for Linux 6.18 where it is born. The request has the number of `netns`, which must
/// stay open until it has been carried out.
pub fn add(link: &NewLink<'_>) -> Request {
    let mut message = message(link.name, link.kind);
    if let Some(data) = settings::data(link.kind) {
        message = message.set_info_data(data);
    }
    if let Some(parent) = link.parent {
        message = message.link(parent);
    }
    if let Some(netns) = link.netns {
        message = message.setns_by_fd(netns.as_raw_fd());
    }
    if let Some(mtu) = link.mtu {
        message = message.mtu(mtu);
    }
    if let Some(mac) = link.mac {
        message = message.address(mac.0.to_vec());
    }
    if let Some(group) = link.group {
        message = message.append_extra_attribute(LinkAttribute::Group(group));
    }
    if link.up {
        message = message.up();
    }
    let what = format!("add {} {}", link.kind.name(), link.name);
    Request::new_link(what, &[link.name], RouteNetlinkMessage::NewLink(message.build()))
}

fn message(name: &str, kind: Kind) -> LinkMessageBuilder<LinkUnspec> {
    LinkMessageBuilder::<LinkUnspec>::new_with_info_kind(kind.info()).name(name.to_owned())
}

impl Netlink {
    /// Returns true if and only if the kernel has this kind of link. It is asked for one with an
    /// impossible hardware address, and no parent, which changes nothing: a kernel that knows the kind
    /// refuses either.
    ///
    /// # Errors
    /// Whatever else the kernel says, such as EPERM.
    pub fn knows_kind(&mut self, kind: Kind) -> Result<bool> {
        let name = "cnimble-ask";
        let message = message(name, kind).address(vec![0; 6]).build();
        let what = format!("ask for the link kind {}", kind.name());
        match self.execute(Request::new_link(what, &[name], RouteNetlinkMessage::NewLink(message))) {
            Err(err) if err.is(Errno::EOPNOTSUPP) => Ok(false),
            // An ipvlan has its parent's address, and isn't asked for its own.
            Err(err) if err.is(Errno::EINVAL) && kind.has_parent() => Ok(true),
            Err(err) if !err.is(Errno::EADDRNOTAVAIL) => Err(err),
            _ => Ok(true),
        }
    }
}
