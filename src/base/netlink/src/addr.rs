//! Addresses of links: `ip address`, linux/if_addr.h.

use std::net::IpAddr;

use ipnetwork::IpNetwork;
use netlink_packet_route::address::{
    AddressAttribute, AddressFlags, AddressHeaderFlags, AddressMessage, CacheInfo,
};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};

use super::request::Mode;
use super::uapi::rtnetlink::{IFA_FLAGS, IFADDRMSG, RTM_NEWADDR};
use super::wire::{Attributes, Malformed, Message, Parsed, ip, u32_ne};
use super::{Netlink, Request, Result};

/// An address on a link.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Addr {
    /// Address and prefix length.
    pub net: IpNetwork,
    /// IFA_F_TENTATIVE or IFA_F_DADFAILED: not usable (yet).
    pub tentative: bool,
    /// IFA_F_DADFAILED: another host on the network has it.
    pub duplicate: bool,
    /// `scope`, as in rtnetlink(7).
    pub scope: u8,
    /// IFA_F_PERMANENT: it doesn't expire, as those of routers and DHCP do.
    pub permanent: bool,
}

/// `ip address add NET dev LINK nodad`: usable at once. The broadcast address is the network's last, as in the Go
/// plugins.
pub fn add(index: u32, link: &str, net: IpNetwork) -> Request {
    let message = message(index, net);
    new(link, net, if net.is_ipv6() { without_dad(message) } else { message })
}

/// `ip address add NET dev LINK`: as [`add`], but the kernel probes for duplicates of an IPv6 address first.
pub fn add_probed(index: u32, link: &str, net: IpNetwork) -> Request {
    new(link, net, message(index, net))
}

fn new(link: &str, net: IpNetwork, mut message: AddressMessage) -> Request {
    if let IpNetwork::V4(net) = net
        && net.prefix() <= 30
    {
        message.attributes.push(AddressAttribute::Broadcast(net.broadcast()));
    }
    let what = format!("add address {net} to {link}");
    Request::new(what, Mode::Create, RouteNetlinkMessage::NewAddress(message))
}

fn without_dad(mut message: AddressMessage) -> AddressMessage {
    message.header.flags = AddressHeaderFlags::Nodad;
    message.attributes.push(AddressAttribute::Flags(AddressFlags::Nodad));
    message
}

/// `ip address replace NET dev LINK nodad preferred_lft SECONDS valid_lft SECONDS`; `u32::MAX` is for ever. The kernel
/// removes the address after the valid lifetime, and refuses one of 0.
pub fn set_lifetime(index: u32, link: &str, net: IpNetwork, preferred: u32, valid: u32) -> Request {
    let mut message = without_dad(message(index, net));
    let mut times = CacheInfo::default();
    (times.ifa_preferred, times.ifa_valid) = (preferred, valid);
    message.attributes.push(AddressAttribute::CacheInfo(times));
    let what = format!("set the lifetime of address {net} of {link}");
    Request::new(what, Mode::Replace, RouteNetlinkMessage::NewAddress(message))
}

/// The request of `ip address del NET dev LINK`.
pub fn del(index: u32, link: &str, net: IpNetwork) -> Request {
    let what = format!("delete address {net} from {link}");
    let message = RouteNetlinkMessage::DelAddress(message(index, net));
    Request::new(what, Mode::Change, message)
}

/// Returns the message about an address. It is not made by rtnetlink's builder, which would give a broadcast address to
/// a /31 and to a deletion, too.
fn message(index: u32, net: IpNetwork) -> AddressMessage {
    let mut message = AddressMessage::default();
    message.header.family = AddressFamily::from(net.ip());
    message.header.prefix_len = net.prefix();
    message.header.index = index;
    message.attributes.push(AddressAttribute::Local(net.ip()));
    message.attributes.push(AddressAttribute::Address(net.ip()));
    message
}

impl Netlink {
    /// `ip address show dev LINK`; the kernel filters by index.
    pub fn addrs(&mut self, index: u32) -> Result<Vec<Addr>> {
        let what = format!("list addresses of link number {index}");
        self.dump(&what, query(index), |message| read(message, index))
    }

    /// `ip address show`, of all links: the addresses for which `wanted` returns true. The others take no memory,
    /// however many there are.
    pub fn addrs_where(&mut self, wanted: impl Fn(IpAddr) -> bool) -> Result<Vec<Addr>> {
        self.dump("list all addresses", query(0), |message| {
            Ok(read(message, 0)?.filter(|addr| wanted(addr.net.ip())))
        })
    }

    /// `ip address show`, of all links.
    pub fn all_addrs(&mut self) -> Result<Vec<Addr>> {
        self.dump("list all addresses", query(0), |message| read(message, 0))
    }

    /// `ip address show`, of all links: each address with the index of its link.
    pub fn addrs_with_links(&mut self) -> Result<Vec<(u32, Addr)>> {
        self.dump("list all addresses", query(0), |message| Ok(link_of(message).zip(read(message, 0)?)))
    }
}

pub(super) fn query(index: u32) -> RouteNetlinkMessage {
    let mut message = AddressMessage::default();
    message.header.index = index;
    RouteNetlinkMessage::GetAddress(message)
}

/// Returns the index of the link that a message about an address is for.
pub(super) fn link_of(message: &Message<'_>) -> Option<u32> {
    u32_ne(message.body, 4)
}

/// An address of link `wanted` (0 is any) from RTM_NEWADDR.
pub(super) fn read(message: &Message<'_>, wanted: u32) -> Parsed<Option<Addr>> {
    const SHORT: Malformed = Malformed("an address message is too short");
    let [family, prefix, flags, scope] = *message.body.first_chunk().ok_or(SHORT)?;
    let family = i32::from(family);
    let index = link_of(message).ok_or(SHORT)?;
    let known = family == libc::AF_INET || family == libc::AF_INET6;
    if message.kind != RTM_NEWADDR || (wanted != 0 && index != wanted) || !known {
        return Ok(None);
    }
    let mut flags = u32::from(flags);
    let (mut local, mut address): (Option<IpAddr>, Option<IpAddr>) = (None, None);
    for attribute in Attributes::behind(message.body, IFADDRMSG) {
        let (kind, value) = attribute?;
        match kind {
            libc::IFA_LOCAL => local = ip(value),
            libc::IFA_ADDRESS => address = ip(value),
            IFA_FLAGS => flags = u32_ne(value, 0).unwrap_or(flags),
            _ => {}
        }
    }
    // On a point-to-point link IFA_ADDRESS is the other side's.
    let address = local.or(address).ok_or(Malformed("an address message without address"))?;
    let net = IpNetwork::new(address, prefix).map_err(|_| Malformed("a prefix longer than the address"))?;
    Ok(Some(Addr {
        net,
        tentative: flags & (libc::IFA_F_TENTATIVE | libc::IFA_F_DADFAILED) != 0,
        duplicate: flags & libc::IFA_F_DADFAILED != 0,
        scope,
        permanent: flags & libc::IFA_F_PERMANENT != 0,
    }))
}
