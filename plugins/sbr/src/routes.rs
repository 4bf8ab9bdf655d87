//! The routes of the interface: which table each belongs to.

use std::net::IpAddr;

use ipnetwork::IpNetwork;

use cnimble_cni::{IpConfig, cidr};
use cnimble_netlink::link::Link;
use cnimble_netlink::route::NewRoute;

/// Returns true if a route stays in the table main: one to link-local addresses, which no rule by source address
/// matches.
pub(crate) fn stays(route: &NewRoute) -> bool {
    matches!(route.dst, IpNetwork::V6(dst) if dst.ip().is_unicast_link_local())
}

/// Returns the routes for the table of `ip`, in an order that the kernel accepts. Their `table` is still that of
/// `main`, the interface's present routes. `all` are the interface's addresses. `fixed` is the configured gateway,
/// whose default route replaces any other.
pub(crate) fn select_for(
    ip: &IpConfig,
    all: &[&IpConfig],
    main: &[NewRoute],
    link: &Link,
    fixed: Option<IpAddr>,
) -> Vec<NewRoute> {
    let selected = main.iter().filter(|route| {
        // A route that belongs to no address in particular goes to the tables of all addresses of its family.
        route.dst.is_ipv4() == ip.address.is_ipv4()
            && !(fixed.is_some() && route.dst.prefix() == 0)
            && (belongs_to(route, ip) || !all.iter().any(|ip| belongs_to(route, ip)))
    });
    let mut routes: Vec<NewRoute> = selected.cloned().collect();
    let has_default = routes.iter().any(|route| route.dst.prefix() == 0);
    // Another plugin may have removed the default route, so it is made from the gateway.
    if let Some(gateway) = fixed.or(ip.gateway).filter(|gateway| !has_default && !gateway.is_unspecified()) {
        routes
            .push(NewRoute { via: Some(gateway), ..NewRoute::to(cidr::everywhere(ip.address), link.index) });
    }
    routes.sort_by_key(|route| (route.via.is_some(), route.dst.prefix() == 0));
    routes
}

/// Returns true if the source or the next hop of the route is in the network of the address.
fn belongs_to(route: &NewRoute, ip: &IpConfig) -> bool {
    [route.src, route.via].into_iter().flatten().any(|at| ip.address.contains(at))
}

/// Returns the route to an address's network that `addSourceHints` keeps in the table main.
pub(crate) fn hint(ip: &IpConfig, link: &Link) -> NewRoute {
    NewRoute { src: Some(ip.address.ip()), ..NewRoute::to(cidr::network_of(ip.address), link.index) }
}

/// Returns true if the route is that of [`hint`], by any link and with any metric.
pub(crate) fn is_hint(route: &NewRoute, ip: &IpConfig) -> bool {
    route.dst == cidr::network_of(ip.address) && route.via.is_none() && route.src == Some(ip.address.ip())
}
