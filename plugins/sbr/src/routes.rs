//! Selects the routes for an address's table and those that the table main keeps.

use std::net::IpAddr;

use ipnetwork::IpNetwork;

use cnimble_cni::{IpConfig, cidr};
use cnimble_netlink::link::Link;
use cnimble_netlink::route::NewRoute;

/// Whether a route of the interface stays in the table main. No rule by source address matches link-local addresses.
pub(crate) fn stays(route: &NewRoute) -> bool {
    matches!(route.dst, IpNetwork::V6(dst) if dst.ip().is_unicast_link_local())
}

/// Returns the routes for the table of the address `ip`: those of the interface in the table main, in an
/// order that the kernel accepts. `all` are the addresses of the interface. `fixed` is the configured gateway.
pub(crate) fn of(
    ip: &IpConfig,
    all: &[&IpConfig],
    main: &[NewRoute],
    link: &Link,
    fixed: Option<IpAddr>,
) -> Vec<NewRoute> {
    let belongs = |route: &&NewRoute| {
        let is_in =
            |ip: &IpConfig| [route.src, route.via].into_iter().flatten().any(|at| ip.address.contains(at));
        // A route that belongs to no particular address is added to every table.
        route.dst.is_ipv4() == ip.address.is_ipv4()
            && !(fixed.is_some() && route.dst.prefix() == 0)
            && (is_in(ip) || !all.iter().any(|ip| is_in(ip)))
    };
    let mut routes: Vec<NewRoute> = main.iter().filter(belongs).cloned().collect();
    let has_default = routes.iter().any(|route| route.dst.prefix() == 0);
    // Another plugin may have removed the default route.
    if let Some(gateway) = fixed.or(ip.gateway).filter(|gateway| !has_default && !gateway.is_unspecified()) {
        routes
            .push(NewRoute { via: Some(gateway), ..NewRoute::to(cidr::everywhere(ip.address), link.index) });
    }
    routes.sort_by_key(|route| (route.via.is_some(), route.dst.prefix() == 0));
    routes
}

/// Returns the route to the address's network that `addSourceHints` adds to the table main.
pub(crate) fn hint(ip: &IpConfig, link: &Link) -> NewRoute {
    NewRoute { src: Some(ip.address.ip()), ..NewRoute::to(cidr::network_of(ip.address), link.index) }
}

/// Whether `route` leads to the address's network with that source address.
pub(crate) fn is_hint(route: &NewRoute, ip: &IpConfig) -> bool {
    route.dst == cidr::network_of(ip.address) && route.via.is_none() && route.src == Some(ip.address.ip())
}
