//! The next hops that a pod reaches on its own link. `cnimble validate --strict` asks the same functions as ADD.

use std::net::IpAddr;

use ipnetwork::IpNetwork;

use super::{IpConfig, Route, cidr};

/// The next hop of a route: its own, or the first gateway of its family. The unspecified address means that there is
/// none, and that the destination is on the link.
pub fn next_hop(route: &Route, ips: &[IpConfig]) -> Option<IpAddr> {
    let mut gateways = ips.iter().filter_map(|ip| ip.gateway);
    let via = route.gw.or_else(|| gateways.find(|via| via.is_ipv4() == route.dst.is_ipv4()));
    via.filter(|via| !via.is_unspecified())
}

/// Whether a plugin has to put the next hop on the link (`RTNH_F_ONLINK`) because nothing else in the result does: the
/// gateway of an address without a network (/32, /128). Providers give single addresses with such a gateway.
///
/// A route without a next hop that contains the gateway puts it on the link already. dhcp and cluster-local give one.
pub fn is_on_link(via: IpAddr, ips: &[IpConfig], routes: &[Route]) -> bool {
    let is_gateway =
        ips.iter().any(|ip| ip.gateway == Some(via) && ip.address == cidr::host(ip.address.ip()));
    let has_route = routes
        .iter()
        .any(|route| next_hop(route, ips).is_none() && cidr::network_of(route.dst).contains(via));
    is_gateway && !has_route && !ips.iter().any(|ip| ip.address.contains(via)) && !is_link_local(via)
}

/// The gateways that a plugin makes reachable for a pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Gateways {
    /// Gateways in a network of the pod are on the link, and those of [`is_on_link`].
    InNetworks,
    /// Each address's gateway, as with ptp, which routes to it.
    All,
}

/// The first route with a next hop that the pod does not reach on its link, by its number, and that next hop. The
/// kernel refuses such a route. A route without a next hop puts its destination on the link for those that follow.
pub fn unreachable(ips: &[IpConfig], routes: &[Route], gateways: Gateways) -> Option<(usize, IpAddr)> {
    let mut on_link: Vec<IpNetwork> = ips.iter().map(|ip| cidr::network_of(ip.address)).collect();
    if gateways == Gateways::All {
        on_link.extend(ips.iter().filter_map(|ip| ip.gateway).map(cidr::host));
    }
    for (n, route) in routes.iter().enumerate() {
        let Some(via) = next_hop(route, ips) else {
            on_link.push(cidr::network_of(route.dst));
            continue;
        };
        if !is_link_local(via)
            && !is_on_link(via, ips, routes)
            && !on_link.iter().any(|net| net.contains(via))
        {
            return Some((n, via));
        }
    }
    None
}

/// Returns whether an address is a link-local one of IPv6. Every link has such addresses, with any other network.
fn is_link_local(ip: IpAddr) -> bool {
    matches!(ip, IpAddr::V6(ip) if ip.is_unicast_link_local())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ips(list: &[(&str, &str)]) -> Vec<IpConfig> {
        let ip = |(address, gateway): &(&str, &str)| {
            IpConfig::new(cidr::parse_cidr(address).unwrap(), cidr::parse_ip(gateway))
        };
        list.iter().map(ip).collect()
    }

    fn routes(list: &[(&str, &str)]) -> Vec<Route> {
        list.iter().map(|(dst, gw)| Route::new(cidr::parse_cidr(dst).unwrap(), cidr::parse_ip(gw))).collect()
    }

    #[test]
    fn a_route_needs_a_next_hop_on_the_link() {
        let both = ips(&[("10.1.2.7/24", "10.1.2.1"), ("fd00::7/64", "fe80::1")]);
        for (list, found) in [
            (&[("0.0.0.0/0", ""), ("::/0", "")][..], None),
            (&[("10.9.0.0/16", "10.1.2.9"), ("fd09::/64", "fd00::9")], None),
            (&[("fd09::/64", "fe80::9")], None),
            (&[("0.0.0.0/0", ""), ("10.9.0.0/16", "10.3.0.1")], Some((1, "10.3.0.1"))),
            (&[("fd09::/64", "fd01::1")], Some((0, "fd01::1"))),
            // The destination of a route without a next hop is on the link, for later routes.
            (&[("10.3.0.1/32", "0.0.0.0"), ("10.9.0.0/16", "10.3.0.1")], None),
            (&[("10.9.0.0/16", "10.3.0.1"), ("10.3.0.1/32", "0.0.0.0")], Some((0, "10.3.0.1"))),
        ] {
            let expected = found.map(|(n, via)| (n, cidr::parse_ip(via).unwrap()));
            assert_eq!(unreachable(&both, &routes(list), Gateways::InNetworks), expected, "{list:?}");
        }
    }

    #[test]
    fn the_gateway_of_a_single_address_is_on_the_link_and_of_a_network_only_with_ptp() {
        let default = routes(&[("0.0.0.0/0", "")]);
        let gateway = "10.8.0.1".parse().unwrap();
        for (address, in_networks) in [("10.9.0.5/32", None), ("10.9.0.5/24", Some((0, gateway)))] {
            let ips = ips(&[(address, "10.8.0.1")]);
            assert_eq!(unreachable(&ips, &default, Gateways::InNetworks), in_networks, "{address}");
            assert_eq!(unreachable(&ips, &default, Gateways::All), None, "{address}");
            assert_eq!(is_on_link(gateway, &ips, &default), in_networks.is_none());
            let explicit = routes(&[("10.8.0.1/32", "0.0.0.0"), ("0.0.0.0/0", "")]);
            assert!(!is_on_link(gateway, &ips, &explicit), "a route of the result puts it there");
        }
        let inside = ips(&[("10.9.0.5/32", "10.8.0.1"), ("10.8.0.7/24", "")]);
        assert!(!is_on_link(gateway, &inside, &default), "a network of the pod contains it");
    }
}
