//! Routes, as of `ip route`.

use std::net::IpAddr;

use ipnetwork::IpNetwork;
use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::route::{
    RouteAttribute, RouteFlags, RouteMessage, RouteMetric, RouteProtocol, RouteScope,
};
use rtnetlink::RouteMessageBuilder;

pub use super::route_read::Towards;

use super::Request;
use super::request::Mode;
use super::uapi::rtnetlink::{RT_TABLE_MAIN, RT_TABLE_UNSPEC};

/// Any table (RT_TABLE_UNSPEC), for [`Netlink::routes`](super::Netlink::routes).
pub const ANY_TABLE: u32 = RT_TABLE_UNSPEC;

/// A route out of a link.
#[derive(Debug, Clone, PartialEq, Eq)]
#[allow(missing_docs)] // named as in `ip route`
pub struct NewRoute {
    pub dst: IpNetwork,
    pub via: Option<IpAddr>,
    pub index: u32,
    pub src: Option<IpAddr>,
    /// The MTU in bytes.
    pub mtu: Option<u32>,
    /// The advertised segment size in bytes.
    pub advmss: Option<u32>,
    pub priority: Option<u32>,
    pub table: Option<u32>,
    pub scope: Option<u8>,
    /// `onlink`: the next hop need not be covered by an address of the link.
    pub onlink: bool,
}

impl NewRoute {
    /// `DST dev LINK`, and nothing else: in the table main, with the kernel's metric.
    pub fn to(dst: IpNetwork, index: u32) -> Self {
        NewRoute {
            dst,
            via: None,
            index,
            src: None,
            mtu: None,
            advmss: None,
            priority: None,
            table: None,
            scope: None,
            onlink: false,
        }
    }
}

/// `ip route add …`. The protocol is `boot`, as of everything that `ip route` adds. Without a scope, an IPv4 route
/// without next hop gets `link`, others `global`.
pub fn add(route: &NewRoute, link: &str) -> Request {
    new("add", route, link, Mode::Create, RouteProtocol::Boot)
}

/// `ip route prepend …`: as [`add`], beside another route to the same destination. Of two IPv4 routes the later one
/// counts, IPv6 ones share the load. Only the very same route is EEXIST.
pub fn prepend(route: &NewRoute, link: &str) -> Request {
    new("add", route, link, Mode::Prepend, RouteProtocol::Boot)
}

/// [`add`] with another protocol (`proto NUMBER`), which marks its maker.
pub fn add_of(route: &NewRoute, link: &str, protocol: u8) -> Request {
    new("add", route, link, Mode::Create, protocol.into())
}

/// `ip route append … proto NUMBER`: beside existing routes, so that packets have a way until the older one is deleted.
pub fn append_of(route: &NewRoute, link: &str, protocol: u8) -> Request {
    new("add", route, link, Mode::Append, protocol.into())
}

/// Adds a route as the kernel makes it to the network of an address (`proto kernel`), which goes with the address. It
/// comes in front of others, as with [`prepend`].
pub fn restore(route: &NewRoute, link: &str) -> Request {
    let of_address = NewRoute { scope: route.scope.or(Some(RouteScope::Link.into())), ..route.clone() };
    new("restore", &of_address, link, Mode::Prepend, RouteProtocol::Kernel)
}

fn new(verb: &str, route: &NewRoute, link: &str, mode: Mode, protocol: RouteProtocol) -> Request {
    let default =
        if route.via.is_none() && route.dst.is_ipv4() { RouteScope::Link } else { RouteScope::Universe };
    let what = words(verb, route, link, protocol);
    match message(route, default, protocol) {
        Ok(message) => Request::new(what, mode, RouteNetlinkMessage::NewRoute(message)),
        Err(reason) => Request::invalid(what, reason),
    }
}

/// `ip route del …`: the route of any protocol and, if the route has none, of any scope.
pub fn del(route: &NewRoute, link: &str) -> Request {
    delete(route, link, RouteProtocol::Unspec)
}

/// `ip route del … proto NUMBER`: ESRCH if the route is of another protocol.
pub fn del_of(route: &NewRoute, link: &str, protocol: u8) -> Request {
    delete(route, link, protocol.into())
}

fn delete(route: &NewRoute, link: &str, protocol: RouteProtocol) -> Request {
    let what = words("delete", route, link, protocol);
    match message(route, RouteScope::NoWhere, protocol) {
        Ok(message) => Request::new(what, Mode::Change, RouteNetlinkMessage::DelRoute(message)),
        Err(reason) => Request::invalid(what, reason),
    }
}

/// The message about a route, with this scope unless the route has one.
fn message(
    route: &NewRoute,
    scope: RouteScope,
    protocol: RouteProtocol,
) -> Result<RouteMessage, &'static str> {
    // Destination first: it decides the family.
    let mut builder = RouteMessageBuilder::<IpAddr>::new()
        .destination_prefix(route.dst.ip(), route.dst.prefix())
        .map_err(|_| "the destination is no prefix")?
        .output_interface(route.index)
        .table_id(route.table.unwrap_or(RT_TABLE_MAIN));
    if let Some(via) = route.via {
        // IPv4 behind an IPv6 next hop is possible (RTA_VIA, since Linux 5.2).
        builder = builder.gateway(via).map_err(|_| "an IPv6 destination can't have an IPv4 next hop")?;
    }
    if let Some(src) = route.src {
        builder = builder.pref_source(src).map_err(|_| "source and destination are of different families")?;
    }
    if let Some(priority) = route.priority {
        builder = builder.priority(priority);
    }
    let mut message = builder.build();
    message.header.scope = route.scope.map_or(scope, RouteScope::from);
    message.header.protocol = protocol;
    if route.onlink {
        message.header.flags |= RouteFlags::Onlink;
    }
    let metrics: Vec<RouteMetric> = [route.mtu.map(RouteMetric::Mtu), route.advmss.map(RouteMetric::Advmss)]
        .into_iter()
        .flatten()
        .collect();
    if !metrics.is_empty() {
        message.attributes.push(RouteAttribute::Metrics(metrics));
    }
    Ok(message)
}

fn words(verb: &str, route: &NewRoute, link: &str, protocol: RouteProtocol) -> String {
    let dst = match route.dst.prefix() {
        0 if route.dst.is_ipv4() => "default".to_owned(),
        0 => "default (IPv6)".to_owned(),
        _ => route.dst.to_string(),
    };
    let via = route.via.map(|via| format!(" via {via}")).unwrap_or_default();
    let table = route.table.map(|table| format!(" table {table}")).unwrap_or_default();
    let proto = match protocol {
        RouteProtocol::Boot | RouteProtocol::Kernel | RouteProtocol::Unspec => String::new(),
        other => format!(" proto {}", u8::from(other)),
    };
    format!("{verb} route {dst}{via} dev {link}{table}{proto}")
}
