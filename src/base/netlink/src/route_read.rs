//! Routes as the kernel lists them.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnetwork::IpNetwork;
use netlink_packet_route::route::{RouteAttribute, RouteMessage, RouteProtocol, RouteType};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};
use nix::errno::Errno;

use super::request::encode;
use super::route::NewRoute;
use super::uapi::netlink::NLM_F_REQUEST;
use super::uapi::rtnetlink::{
    RT_TABLE_LOCAL, RT_TABLE_MAIN, RT_TABLE_UNSPEC, RTA_VIA, RTAX_ADVMSS, RTAX_MTU, RTM_F_CLONED,
    RTM_NEWROUTE, RTMSG, RTN_LOCAL, RTN_UNICAST, RTNEXTHOP, RTNH_F_ONLINK, RTPROT_RA,
};
use super::wire::{Attributes, Malformed, Message, Parsed, ip, u8_at, u16_ne, u32_ne};
use super::{IfPresent as _, Netlink, Result};

const SHORT: Malformed = Malformed("a route message is too short");

impl Netlink {
    /// `ip route show dev LINK table TABLE`: the routes of both families that leave by the link `index`. A `table` of
    /// `None` is the main table, and [`ANY_TABLE`](super::route::ANY_TABLE) stands for all. A route of several next
    /// hops is one route for each that is on the link. The kernel's own routes, to the network of an address, are among
    /// them. Only unicast routes are, unless table 255 (local) is asked for. A table that doesn't exist has none.
    pub fn routes(&mut self, index: u32, table: Option<u32>) -> Result<Vec<NewRoute>> {
        let what = format!("list routes of link number {index}");
        let wanted = RouteSelector { index, table: table.unwrap_or(RT_TABLE_MAIN) };
        let found = self.routes_of_both(&what, &wanted)?;
        Ok(found.into_iter().map(|(route, _)| route).collect())
    }

    /// `ip route show`: the unicast routes of the main table, of both families. Each comes with the protocol that made
    /// it (RTPROT_…).
    pub fn routes_by_protocol(&mut self) -> Result<Vec<(NewRoute, u8)>> {
        self.routes_of_both("list routes", &MAIN)
    }

    /// Lists the wanted routes, first those of IPv4, each with the protocol that made it.
    pub(super) fn routes_of_both(
        &mut self,
        what: &str,
        wanted: &RouteSelector,
    ) -> Result<Vec<(NewRoute, u8)>> {
        // One family at a time: for all, the kernel also asks families that refuse the filters (MPLS).
        let mut routes = self.routes_of(AddressFamily::Inet, what, wanted)?;
        routes.extend(self.routes_of(AddressFamily::Inet6, what, wanted)?);
        Ok(routes)
    }

    fn routes_of(
        &mut self,
        family: AddressFamily,
        what: &str,
        wanted: &RouteSelector,
    ) -> Result<Vec<(NewRoute, u8)>> {
        let message = query(family, wanted);
        let found = self.dump(what, message, |message| wanted.read(message, family.into()));
        // The family may have no such table (yet).
        Ok(found.default_for(&[Errno::ENOENT])?.into_iter().flatten().collect())
    }

    /// `ip -6 route show proto ra`: the indexes of links with routes from router advertisements, sorted and each once.
    pub fn links_of_routers(&mut self) -> Result<Vec<u32>> {
        let mut message = RouteMessage::default();
        message.header.address_family = AddressFamily::Inet6;
        message.header.protocol = RouteProtocol::Ra;
        message.attributes = vec![RouteAttribute::Table(RT_TABLE_MAIN)];
        let message = RouteNetlinkMessage::GetRoute(message);
        let found = self.dump("list routes of routers", message, |message| {
            // An old kernel sends more than was asked for.
            if u8_at(message.body, 5) == Some(RTPROT_RA) { link_of(message) } else { Ok(None) }
        });
        // Without IPv6, or without any route yet, there is none.
        let mut links = found.default_for(&[Errno::ENOENT, Errno::EOPNOTSUPP])?;
        links.sort_unstable();
        links.dedup();
        Ok(links)
    }

    /// Returns the index of the link of the default route with the lowest metric. It is one of IPv4 if there is one,
    /// else of IPv6. `None` without a default route.
    pub fn default_link(&mut self) -> Result<Option<u32>> {
        Ok(self.default_routes()?.first().map(|route| route.index))
    }

    /// Returns the default routes of the lowest metric, one for every next hop. They are of IPv4 if there are some,
    /// else of IPv6. Without a default route there are none.
    pub fn default_routes(&mut self) -> Result<Vec<NewRoute>> {
        for family in [AddressFamily::Inet, AddressFamily::Inet6] {
            let found = self.routes_of(family, "list routes", &MAIN)?;
            let mut defaults: Vec<NewRoute> =
                found.into_iter().map(|(route, _)| route).filter(|route| route.dst.prefix() == 0).collect();
            let lowest = defaults.iter().map(|route| route.priority.unwrap_or(0)).min();
            defaults.retain(|route| Some(route.priority.unwrap_or(0)) == lowest);
            if !defaults.is_empty() {
                return Ok(defaults);
            }
        }
        Ok(Vec::new())
    }

    /// `ip route get ADDRESS`: returns the route that packets of this host to `to` take. `None` is for no route, and
    /// for a route that refuses or drops packets.
    pub fn route_towards(&mut self, to: IpAddr) -> Result<Option<Towards>> {
        let mut message = RouteMessage::default();
        message.header.address_family = AddressFamily::from(to);
        message.header.destination_prefix_length = IpNetwork::from(to).prefix();
        message.attributes = vec![RouteAttribute::Destination(to.into())];
        let what = format!("look up the route to {to}");
        let message = encode(RouteNetlinkMessage::GetRoute(message), NLM_F_REQUEST);
        // The kernel answers with the error of an unreachable, prohibited or blackhole route.
        let none = [Errno::ENETUNREACH, Errno::EHOSTUNREACH, Errno::EACCES, Errno::EINVAL];
        self.find(&what, message, &none, towards)
    }

    /// Returns the index of the link for packets of this host to `to`. `None` as with
    /// [`route_towards`](Self::route_towards).
    pub fn link_towards(&mut self, to: IpAddr) -> Result<Option<u32>> {
        Ok(self.route_towards(to)?.map(|found| found.index))
    }
}

/// The route that packets of this host take to an address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Towards {
    /// The index of the link. For an address of this host it is that of lo.
    pub index: u32,
    /// The next hop, unless the address is on the link.
    pub via: Option<IpAddr>,
    /// The type of the route (`RTN_…`, rtnetlink(7)).
    kind: u8,
}

impl Towards {
    /// Whether the address is this host's.
    pub fn is_own(&self) -> bool {
        self.kind == RTN_LOCAL
    }

    /// Whether the address is that of another host, which is on the link.
    pub fn is_on_link(&self) -> bool {
        self.kind == RTN_UNICAST && self.via.is_none()
    }
}

/// Reads the route in the RTM_NEWROUTE that answers a look-up. `None` if it leaves by no link.
pub(super) fn towards(message: &Message<'_>) -> Parsed<Option<Towards>> {
    if message.kind != RTM_NEWROUTE {
        return Ok(None);
    }
    let kind = u8_at(message.body, 7).ok_or(SHORT)?;
    let (mut index, mut via) = (None, None);
    for attribute in Attributes::behind(message.body, RTMSG) {
        let (kind, value) = attribute?;
        match kind {
            libc::RTA_OIF => index = u32_ne(value, 0),
            libc::RTA_GATEWAY | RTA_VIA => via = next_hop(kind, value),
            _ => {}
        }
    }
    Ok(index.map(|index| Towards { index, via, kind }))
}

/// Returns the index of the link that the route in an RTM_NEWROUTE leaves by. `None` if it names none, such as one of
/// several next hops.
fn link_of(message: &Message<'_>) -> Parsed<Option<u32>> {
    if message.kind != RTM_NEWROUTE {
        return Ok(None);
    }
    Ok(Attributes::behind(message.body, RTMSG).find(libc::RTA_OIF)?.and_then(|index| u32_ne(index, 0)))
}

/// Returns the request for the wanted routes of a family. [`RouteSelector::read`] has to check the answers, because
/// some kernels ignore its filters.
pub(super) fn query(family: AddressFamily, wanted: &RouteSelector) -> RouteNetlinkMessage {
    let mut message = RouteMessage::default();
    message.header.address_family = family;
    if wanted.table != RT_TABLE_LOCAL {
        message.header.kind = RouteType::Unicast;
    }
    if wanted.table != RT_TABLE_UNSPEC {
        message.attributes.push(RouteAttribute::Table(wanted.table));
    }
    if wanted.index != 0 {
        message.attributes.push(RouteAttribute::Oif(wanted.index));
    }
    RouteNetlinkMessage::GetRoute(message)
}

/// The routes that are asked for.
pub(super) struct RouteSelector {
    /// The index of the link. 0 stands for all links.
    pub(super) index: u32,
    /// The number of the table. RT_TABLE_UNSPEC stands for all tables.
    pub(super) table: u32,
}

/// All routes of the main table.
const MAIN: RouteSelector = RouteSelector { index: 0, table: RT_TABLE_MAIN };

impl RouteSelector {
    /// Reads the route in an RTM_NEWROUTE: one for every next hop, each with the protocol that made it. `None` if it
    /// wasn't asked for. An old kernel, or one without IPv6, sends more routes than it was asked for.
    pub(super) fn read(&self, message: &Message<'_>, family: u8) -> Parsed<Option<Vec<(NewRoute, u8)>>> {
        if message.kind != RTM_NEWROUTE {
            return Ok(None);
        }
        let [of_family, prefix, _, _, table, protocol, scope, kind] =
            *message.body.first_chunk().ok_or(SHORT)?;
        let flags = u32_ne(message.body, 8).ok_or(SHORT)?;
        let cached = flags & RTM_F_CLONED != 0;
        let other_kind = kind != RTN_UNICAST && self.table != RT_TABLE_LOCAL;
        if of_family != family || cached || other_kind {
            return Ok(None);
        }
        let mut table = u32::from(table);
        let any: IpAddr = match i32::from(family) {
            libc::AF_INET => Ipv4Addr::UNSPECIFIED.into(),
            _ => Ipv6Addr::UNSPECIFIED.into(),
        };
        let mut dst = any;
        let mut multipath = None;
        let mut route = NewRoute { scope: Some(scope), onlink: onlink(flags), ..NewRoute::to(any.into(), 0) };
        for attribute in Attributes::behind(message.body, RTMSG) {
            let (kind, value) = attribute?;
            match kind {
                libc::RTA_DST => dst = ip(value).ok_or(SHORT)?,
                libc::RTA_PREFSRC => route.src = ip(value),
                libc::RTA_OIF => route.index = u32_ne(value, 0).ok_or(SHORT)?,
                libc::RTA_GATEWAY | RTA_VIA => route.via = next_hop(kind, value),
                libc::RTA_PRIORITY => route.priority = u32_ne(value, 0),
                libc::RTA_TABLE => table = u32_ne(value, 0).ok_or(SHORT)?,
                libc::RTA_METRICS => read_metrics(&mut route, value)?,
                libc::RTA_MULTIPATH => multipath = Some(value),
                _ => {}
            }
        }
        if table != self.table && self.table != RT_TABLE_UNSPEC {
            return Ok(None);
        }
        route.table = Some(table);
        route.dst = IpNetwork::new(dst, prefix).map_err(|_| Malformed("a prefix longer than the address"))?;
        let mut routes = match multipath {
            Some(hops) => read_hops(&route, hops)?,
            None => vec![route],
        };
        routes.retain(|route| self.index == 0 || route.index == self.index);
        Ok(Some(routes.into_iter().map(|route| (route, protocol)).collect()))
    }
}

/// Reads RTA_METRICS, which consists of attributes (`RTAX_…`).
fn read_metrics(route: &mut NewRoute, metrics: &[u8]) -> Parsed<()> {
    for attribute in Attributes::new(metrics) {
        let (kind, value) = attribute?;
        match kind {
            RTAX_MTU => route.mtu = u32_ne(value, 0),
            RTAX_ADVMSS => route.advmss = u32_ne(value, 0),
            _ => {}
        }
    }
    Ok(())
}

/// Splits RTA_MULTIPATH: a `struct rtnexthop` for each hop, with attributes.
pub(super) fn hops(mut multipath: &[u8]) -> Parsed<Vec<&[u8]>> {
    let mut hops = Vec::new();
    while !multipath.is_empty() {
        let length = usize::from(u16_ne(multipath, 0).ok_or(SHORT)?);
        if length < RTNEXTHOP {
            return Err(SHORT);
        }
        hops.push(multipath.get(..length).ok_or(SHORT)?);
        multipath = multipath.get(length.next_multiple_of(4)..).unwrap_or_default();
    }
    Ok(hops)
}

/// Returns a copy of `route` for each hop of RTA_MULTIPATH, with the hop's link and gateway.
fn read_hops(route: &NewRoute, multipath: &[u8]) -> Parsed<Vec<NewRoute>> {
    let mut routes = Vec::new();
    for hop in hops(multipath)? {
        let mut route = route.clone();
        route.onlink = onlink(u8_at(hop, 2).ok_or(SHORT)?.into());
        route.index = u32_ne(hop, 4).ok_or(SHORT)?;
        for attribute in Attributes::behind(hop, RTNEXTHOP) {
            let (kind, value) = attribute?;
            if kind == libc::RTA_GATEWAY || kind == RTA_VIA {
                route.via = next_hop(kind, value);
            }
        }
        routes.push(route);
    }
    Ok(routes)
}

/// Reads the gateway. RTA_GATEWAY is an address, and RTA_VIA has the family in front of it.
fn next_hop(kind: u16, value: &[u8]) -> Option<IpAddr> {
    match kind {
        RTA_VIA => ip(value.get(2..)?),
        _ => ip(value),
    }
}

fn onlink(flags: u32) -> bool {
    flags & RTNH_F_ONLINK != 0
}
