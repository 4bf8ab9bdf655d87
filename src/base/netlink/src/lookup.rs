//! The route that the kernel chooses for one packet: `ip route get`.

use std::fmt;
use std::net::IpAddr;

use super::uapi::netlink::NLM_F_REQUEST;
use super::uapi::rtnetlink::{
    RT_TABLE_MAIN, RTA_DPORT, RTA_IP_PROTO, RTA_SPORT, RTA_VIA, RTAX_MTU, RTM_F_LOOKUP_TABLE, RTM_NEWROUTE,
    RTMSG, RTN_BLACKHOLE, RTN_BROADCAST, RTN_LOCAL, RTN_MULTICAST, RTN_PROHIBIT, RTN_THROW, RTN_UNICAST,
    RTN_UNREACHABLE,
};
use super::wire::{self, Attributes, Malformed, Message, Parsed, ip, u8_at, u32_ne};
use super::{Netlink, Result, socket};

const SHORT: Malformed = Malformed("a route message is too short");

/// A packet that the routing tables are asked about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Packet {
    /// The address that the packet goes to.
    pub to: IpAddr,
    /// The source address. The kernel chooses one if it is missing.
    pub from: Option<IpAddr>,
    /// The link that the packet arrives at. A packet without one is made here.
    pub input: Option<u32>,
    /// The link that a packet which is made here leaves by, or the VRF whose routes it takes.
    pub output: Option<u32>,
    /// The protocol (`IPPROTO_…`) with source and destination port. Only TCP and UDP have ports.
    pub transport: Option<(u8, u16, u16)>,
}

/// The type of a route (`RTN_…`, rtnetlink(7)).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)] // as in ip-route(8)
pub enum RouteKind {
    Unicast,
    Local,
    Broadcast,
    Multicast,
    Blackhole,
    Unreachable,
    Prohibit,
    Throw,
    Other,
}

impl RouteKind {
    pub(super) fn from_number(number: u8) -> Self {
        match number {
            RTN_UNICAST => RouteKind::Unicast,
            RTN_LOCAL => RouteKind::Local,
            RTN_BROADCAST => RouteKind::Broadcast,
            RTN_MULTICAST => RouteKind::Multicast,
            RTN_BLACKHOLE => RouteKind::Blackhole,
            RTN_UNREACHABLE => RouteKind::Unreachable,
            RTN_PROHIBIT => RouteKind::Prohibit,
            RTN_THROW => RouteKind::Throw,
            _ => RouteKind::Other,
        }
    }

    /// Whether packets for such a route are dropped.
    pub fn drops(self) -> bool {
        matches!(self, RouteKind::Blackhole | RouteKind::Unreachable | RouteKind::Prohibit)
    }
}

impl fmt::Display for RouteKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            RouteKind::Unicast => "unicast",
            RouteKind::Local => "local",
            RouteKind::Broadcast => "broadcast",
            RouteKind::Multicast => "multicast",
            RouteKind::Blackhole => "blackhole",
            RouteKind::Unreachable => "unreachable",
            RouteKind::Prohibit => "prohibit",
            RouteKind::Throw => "throw",
            RouteKind::Other => "other",
        })
    }
}

/// The kernel's choice for a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ChosenRoute {
    /// The type of the route.
    pub kind: RouteKind,
    /// The link that the packet leaves by, or lo for this host's own addresses. 0 if the kernel tells none.
    pub index: u32,
    /// The gateway, or `None` if the destination is on the link itself.
    pub via: Option<IpAddr>,
    /// The source address of a packet that is made here.
    pub source: Option<IpAddr>,
    /// The number of the table with the route. The kernel tells it for IPv4 only if it is not main.
    pub table: u32,
    /// The MTU of the route, if it has its own.
    pub mtu: Option<u32>,
}

impl Netlink {
    /// `ip route get TO [from FROM] [iif LINK] [oif LINK] [ipproto P sport N dport N]`.
    ///
    /// # Errors
    /// Fails with ENETUNREACH if there is no route, and with EACCES for a prohibited one. EHOSTUNREACH is for an
    /// unreachable route, or says that IPv4 forwarding is off. EINVAL is for a blackhole, the reverse-path filter, or a
    /// source that no packet may have. For IPv6 the kernel doesn't look whether forwarding is on.
    pub fn choose_route(&mut self, packet: &Packet) -> Result<ChosenRoute> {
        let what = format!("look up the route to {}", packet.to);
        let message = query(packet);
        let found = self.get(&what, message, read)?;
        found.ok_or_else(|| socket::broken(&what, "it is no route"))
    }
}

fn query(packet: &Packet) -> Vec<u8> {
    let (family, bits) = family_of(packet.to);
    let source_bits = if packet.from.is_some() { bits } else { 0 };
    let mut header = vec![family, bits, source_bits, 0, 0, 0, 0, 0];
    // Only IPv4 knows the flag, and IPv6 refuses it.
    let flags = if packet.to.is_ipv4() { RTM_F_LOOKUP_TABLE } else { 0 };
    header.extend(flags.to_ne_bytes());
    wire::message(libc::RTM_GETROUTE, NLM_F_REQUEST, &header, |w| {
        w.bytes(libc::RTA_DST, &octets(packet.to));
        if let Some(from) = packet.from {
            w.bytes(libc::RTA_SRC, &octets(from));
        }
        if let Some(input) = packet.input {
            w.u32_ne(libc::RTA_IIF, input);
        }
        if let Some(output) = packet.output {
            w.u32_ne(libc::RTA_OIF, output);
        }
        if let Some((protocol, from_port, to_port)) = packet.transport {
            w.bytes(RTA_IP_PROTO, &[protocol]);
            if from_port != 0 || to_port != 0 {
                w.bytes(RTA_SPORT, &from_port.to_be_bytes());
                w.bytes(RTA_DPORT, &to_port.to_be_bytes());
            }
        }
    })
}

/// The address family, and the length of an address in bits.
pub(super) fn family_of(ip: IpAddr) -> (u8, u8) {
    match ip {
        IpAddr::V4(_) => (libc::AF_INET as u8, 32),
        IpAddr::V6(_) => (libc::AF_INET6 as u8, 128),
    }
}

fn octets(ip: IpAddr) -> Vec<u8> {
    match ip {
        IpAddr::V4(ip) => ip.octets().to_vec(),
        IpAddr::V6(ip) => ip.octets().to_vec(),
    }
}

pub(super) fn read(message: &Message<'_>) -> Parsed<Option<ChosenRoute>> {
    if message.kind != RTM_NEWROUTE {
        return Ok(None);
    }
    let mut route = ChosenRoute {
        kind: RouteKind::from_number(u8_at(message.body, 7).ok_or(SHORT)?),
        index: 0,
        via: None,
        source: None,
        table: RT_TABLE_MAIN,
        mtu: None,
    };
    let small_table = u32::from(u8_at(message.body, 4).ok_or(SHORT)?);
    if small_table != 0 {
        route.table = small_table;
    }
    for attribute in Attributes::behind(message.body, RTMSG) {
        let (kind, value) = attribute?;
        match kind {
            libc::RTA_OIF => route.index = u32_ne(value, 0).ok_or(SHORT)?,
            libc::RTA_GATEWAY => route.via = ip(value),
            // Its address family comes first.
            RTA_VIA => route.via = value.get(2..).and_then(ip),
            libc::RTA_PREFSRC => route.source = ip(value),
            libc::RTA_TABLE => route.table = u32_ne(value, 0).ok_or(SHORT)?,
            libc::RTA_METRICS => {
                let mtu = Attributes::new(value).find(RTAX_MTU)?;
                route.mtu = mtu.and_then(|mtu| u32_ne(mtu, 0));
            }
            _ => {}
        }
    }
    Ok(Some(route))
}
