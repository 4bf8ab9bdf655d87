//! Attributes of a link that a user may set and that a move to another namespace keeps, and its alternative names: `ip
//! link set`, `ip link property`.

use std::collections::BTreeMap;

use netlink_packet_core::DefaultNla;
use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::link::{LinkAttribute, LinkFlags, LinkMessage, Prop};

use crate::link::read::family_and_index;
use crate::request::Mode;
use crate::uapi::if_link::{
    IFF_ALLMULTI, IFF_AUTOMEDIA, IFF_DEBUG, IFF_DYNAMIC, IFF_LOOPBACK, IFF_MULTICAST, IFF_NOARP,
    IFF_NOTRAILERS, IFF_PORTSEL, IFF_PROMISC, IFLA_ALT_IFNAME, IFLA_GRO_IPV4_MAX_SIZE, IFLA_GRO_MAX_SIZE,
    IFLA_GSO_IPV4_MAX_SIZE, IFLA_GSO_MAX_SEGS, IFLA_GSO_MAX_SIZE, IFLA_LINKMODE, IFLA_PERM_ADDRESS,
    IFLA_PROP_LIST,
};
use crate::uapi::rtnetlink::{IFINFOMSG, RTM_NEWLINK};
use crate::wire::{Attributes, Malformed, Message, Parsed, text, u32_ne};
use crate::{Netlink, Request, Result};

/// The flags that can be set (`__dev_change_flags()` in net/core/dev.c), without IFF_UP.
const FLAGS: u32 = IFF_DEBUG
    | IFF_NOTRAILERS
    | IFF_NOARP
    | IFF_PROMISC
    | IFF_ALLMULTI
    | IFF_MULTICAST
    | IFF_PORTSEL
    | IFF_AUTOMEDIA
    | IFF_DYNAMIC;

/// The attributes of [`Details::values`]. Kernels before 5.19 and 6.3 lack the last three.
const VALUES: [u16; 9] = [
    libc::IFLA_BROADCAST,
    libc::IFLA_TXQLEN,
    libc::IFLA_GROUP,
    IFLA_LINKMODE,
    IFLA_GSO_MAX_SEGS,
    IFLA_GSO_MAX_SIZE,
    IFLA_GRO_MAX_SIZE,
    IFLA_GSO_IPV4_MAX_SIZE,
    IFLA_GRO_IPV4_MAX_SIZE,
];

/// More of a link than [`Link`](super::Link) has.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Details {
    /// Whether the link is lo (IFF_LOOPBACK), under any name.
    pub loopback: bool,
    /// The flags that can be set, such as IFF_PROMISC and IFF_NOARP, without IFF_UP.
    pub flags: u32,
    /// The values of broadcast address, queue length, group, link mode, and limits of GSO and GRO. The keys are IFLA_*,
    /// and the values are in the kernel's form.
    pub values: BTreeMap<u16, Vec<u8>>,
    /// `IFLA_PERM_ADDRESS`, the hardware's own address. Empty if the kernel tells none.
    pub permanent: Vec<u8>,
    /// The alternative names (`IFLA_ALT_IFNAME`).
    pub altnames: Vec<String>,
}

impl Details {
    /// Whether the link has IFF_NOARP.
    pub fn without_arp(&self) -> bool {
        self.flags & IFF_NOARP != 0
    }
}

/// A change of alternative names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Altnames {
    /// Adds names: `ip link property add`.
    Add,
    /// Removes names: `ip link property del`.
    Remove,
}

impl Netlink {
    /// Looks up more of the link at `index`.
    ///
    /// # Errors
    /// Fails with ENODEV if there is no such link.
    pub fn details(&mut self, index: u32) -> Result<Details> {
        self.get_link_at(index, read)
    }
}

fn read(message: &Message<'_>) -> Parsed<Option<Details>> {
    const SHORT: Malformed = Malformed("a link message is too short");
    let (family, _) = family_and_index(message).ok_or(SHORT)?;
    if message.kind != RTM_NEWLINK || family != 0 {
        return Ok(None);
    }
    let flags = u32_ne(message.body, 8).ok_or(SHORT)?;
    let mut details =
        Details { loopback: flags & IFF_LOOPBACK != 0, flags: flags & FLAGS, ..Details::default() };
    for attribute in Attributes::behind(message.body, IFINFOMSG) {
        let (kind, value) = attribute?;
        match kind {
            IFLA_PERM_ADDRESS => details.permanent = value.to_vec(),
            IFLA_PROP_LIST => {
                for property in Attributes::new(value) {
                    let (kind, value) = property?;
                    if kind == IFLA_ALT_IFNAME {
                        details.altnames.push(text(value));
                    }
                }
            }
            _ if VALUES.contains(&kind) => drop(details.values.insert(kind, value.to_vec())),
            _ => {}
        }
    }
    Ok(Some(details))
}

/// Returns the request that gives a link these flags and values where it has others `now`. `None` if it has no others.
/// Only flags that can be set count.
pub fn set(
    index: u32,
    name: &str,
    now: &Details,
    flags: u32,
    values: &BTreeMap<u16, Vec<u8>>,
) -> Option<Request> {
    let change = (now.flags ^ flags) & FLAGS;
    let others: Vec<_> =
        values.iter().filter(|(kind, value)| now.values.get(*kind) != Some(*value)).collect();
    if change == 0 && others.is_empty() {
        return None;
    }
    let mut message = LinkMessage::default();
    message.header.index = index;
    message.header.flags = LinkFlags::from_bits_retain(flags & change);
    message.header.change_mask = LinkFlags::from_bits_retain(change);
    message.attributes = others
        .into_iter()
        .map(|(kind, value)| LinkAttribute::Other(DefaultNla::new(*kind, value.clone())))
        .collect();
    let what = format!("set flags and limits of link {name}");
    Some(Request::new(what, Mode::Change, RouteNetlinkMessage::SetLink(message)))
}

/// The request of `ip link property add|del dev NAME altname …`.
pub fn altnames(index: u32, name: &str, change: Altnames, names: &[String]) -> Request {
    let mut message = LinkMessage::default();
    message.header.index = index;
    message.attributes = vec![LinkAttribute::PropList(names.iter().cloned().map(Prop::AltIfName).collect())];
    let (verb, message) = match change {
        Altnames::Add => ("add", RouteNetlinkMessage::NewLinkProp(message)),
        Altnames::Remove => ("remove", RouteNetlinkMessage::DelLinkProp(message)),
    };
    let what = format!("{verb} alternative names of link {name}: {}", names.join(" "));
    Request::new(what, Mode::Change, message)
}
