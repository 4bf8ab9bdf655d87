//! The routes to and from a pod's address, through one gateway in both directions, for `10.1.2.7/24` and `10.1.2.1`:
//! ```text
//! pod    10.1.2.1 dev eth0 scope link src 10.1.2.7
//!        10.1.2.0/24 via 10.1.2.1 dev eth0 src 10.1.2.7   (in place of the kernel's own)
//! host   10.1.2.1/32 on the host's end
//!        10.1.2.7 dev veth… scope host
//! ```

use std::net::IpAddr;

use ipnetwork::IpNetwork;

use cnimble_cni::{CniResult, Code, Error, cidr};
use cnimble_netlink::route::NewRoute;

/// RT_SCOPE_HOST of linux/rtnetlink.h. Routes of IPv6 have no scope.
const SCOPE_HOST: u8 = 254;
/// RT_SCOPE_LINK of linux/rtnetlink.h.
const SCOPE_LINK: u8 = 253;

/// An address of the pod, and the gateway of its packets in both directions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Path {
    pub(crate) address: IpNetwork,
    pub(crate) gateway: IpAddr,
}

/// Returns the paths of IPAM's result. Fails with code 104 if there is no address, or if an address has no gateway.
/// Fails with code 102 for a gateway of another family, or one that is an address of the pod. `ipam` is the plugin's
/// name for the error.
pub(crate) fn paths(result: &CniResult, ipam: &str) -> Result<Vec<Path>, Error> {
    if result.ips.is_empty() {
        return Err(Error::new(Code::DELEGATE, "IPAM plugin returned missing IP config")
            .details(format!("IPAM plugin {ipam}")));
    }
    let mut paths = Vec::with_capacity(result.ips.len());
    let own: Vec<IpAddr> = result.ips.iter().map(|ip| ip.address.ip()).collect();
    for ip in &result.ips {
        let gateway = ip.gateway.filter(|gateway| !gateway.is_unspecified()).ok_or_else(|| {
            Error::new(Code::DELEGATE, format!("IPAM plugin returned no gateway for {}", ip.address))
                .details(format!("IPAM plugin {ipam}; with ptp a pod reaches everything by way of one"))
        })?;
        if own.contains(&gateway) {
            return Err(Error::new(
                Code::CONFLICT,
                format!("IPAM gave the pod its own gateway's address, {gateway}"),
            ));
        }
        if gateway.is_ipv4() != ip.address.is_ipv4() {
            return Err(Error::new(
                Code::CONFLICT,
                format!("gateway {gateway} and address {} are of different families", ip.address),
            ));
        }
        paths.push(Path { address: ip.address, gateway });
    }
    Ok(paths)
}

/// Leaves out routes whose destination an earlier route has, because several addresses may share gateway and subnet.
fn distinct(routes: impl Iterator<Item = NewRoute>) -> Vec<NewRoute> {
    let mut distinct: Vec<NewRoute> = Vec::new();
    for route in routes {
        if !distinct.iter().any(|other| other.dst == route.dst) {
            distinct.push(route);
        }
    }
    distinct
}

/// Returns the pod's routes to the gateways, on the link of this `index`.
pub(crate) fn gateways(paths: &[Path], index: u32) -> Vec<NewRoute> {
    distinct(paths.iter().map(|path| NewRoute {
        src: Some(path.address.ip()),
        scope: path.gateway.is_ipv4().then_some(SCOPE_LINK),
        ..NewRoute::to(cidr::host(path.gateway), index)
    }))
}

/// Returns the pod's routes to the subnets, through the gateways. They replace the kernel's own ([`of_kernel`]). A
/// subnet of one address has none.
pub(crate) fn subnets(paths: &[Path], index: u32) -> Vec<NewRoute> {
    let wider = paths.iter().filter(|path| path.address != cidr::host(path.address.ip()));
    distinct(wider.map(|path| NewRoute {
        via: Some(path.gateway),
        src: Some(path.address.ip()),
        ..NewRoute::to(cidr::network_of(path.address), index)
    }))
}

/// Returns the kernel's own route to a subnet, for its deletion. It differs in the scope, and for IPv6 in the metric
/// (IP6_RT_PRIO_ADDRCONF).
pub(crate) fn of_kernel(subnet: &NewRoute) -> NewRoute {
    const METRIC: u32 = 256;
    let v4 = subnet.dst.is_ipv4();
    NewRoute {
        scope: v4.then_some(SCOPE_LINK),
        priority: (!v4).then_some(METRIC),
        ..NewRoute::to(subnet.dst, subnet.index)
    }
}

/// Returns the host's routes to the addresses of the pod, by the host's end of this `index`.
pub(crate) fn to_pod(paths: &[Path], index: u32) -> Vec<NewRoute> {
    distinct(paths.iter().map(|path| NewRoute {
        scope: path.address.is_ipv4().then_some(SCOPE_HOST),
        ..NewRoute::to(cidr::host(path.address.ip()), index)
    }))
}

/// Returns the addresses of the host's end: each gateway once, with a prefix of one address.
pub(crate) fn host_addresses(paths: &[Path]) -> Vec<IpNetwork> {
    let mut addrs: Vec<IpNetwork> = Vec::new();
    for path in paths {
        let addr = cidr::host(path.gateway);
        if !addrs.contains(&addr) {
            addrs.push(addr);
        }
    }
    addrs
}

#[cfg(test)]
mod tests {
    use cnimble_cni::{Dns, IpConfig};

    use super::*;

    fn result(ips: &[(&str, &str)]) -> CniResult {
        let ip = |(address, gateway): &(&str, &str)| {
            IpConfig::new(cidr::parse_cidr(address).unwrap(), cidr::parse_ip(gateway))
        };
        CniResult::ipam(ips.iter().map(ip).collect(), Vec::new(), Dns::default())
    }

    fn texts(routes: &[NewRoute]) -> Vec<String> {
        let text = |route: &NewRoute| match (route.via, route.src) {
            (Some(via), Some(src)) => format!("{} via {via} src {src}", route.dst),
            (None, Some(src)) => format!("{} src {src}", route.dst),
            _ => route.dst.to_string(),
        };
        routes.iter().map(text).collect()
    }

    #[test]
    fn all_traffic_leaves_by_the_gateway_and_routes_are_not_repeated() {
        let result = result(&[
            ("10.1.2.7/24", "10.1.2.1"),
            ("10.1.2.8/24", "10.1.2.1"),
            ("10.9.9.9/32", "10.1.2.1"),
            ("fd00::7/64", "fe80::1"),
        ]);
        let paths = paths(&result, "x").unwrap();
        assert_eq!(texts(&gateways(&paths, 2)), ["10.1.2.1/32 src 10.1.2.7", "fe80::1/128 src fd00::7"]);
        assert_eq!(
            texts(&subnets(&paths, 2)),
            ["10.1.2.0/24 via 10.1.2.1 src 10.1.2.7", "fd00::/64 via fe80::1 src fd00::7"]
        );
        assert_eq!(texts(&to_pod(&paths, 9)), ["10.1.2.7/32", "10.1.2.8/32", "10.9.9.9/32", "fd00::7/128"]);
        let addrs: Vec<String> = host_addresses(&paths).iter().map(IpNetwork::to_string).collect();
        assert_eq!(addrs, ["10.1.2.1/32", "fe80::1/128"]);
    }

    #[test]
    fn every_address_needs_a_gateway_that_is_another() {
        for (ips, code, msg) in [
            (&[][..], Code::DELEGATE, "IPAM plugin returned missing IP config"),
            (&[("10.1.2.7/24", "")], Code::DELEGATE, "IPAM plugin returned no gateway for 10.1.2.7/24"),
            (
                &[("10.1.2.7/24", "10.1.2.1"), ("fd00::7/64", "::")],
                Code::DELEGATE,
                "IPAM plugin returned no gateway for fd00::7/64",
            ),
            (
                &[("10.1.2.7/24", "10.1.2.7")],
                Code::CONFLICT,
                "IPAM gave the pod its own gateway's address, 10.1.2.7",
            ),
            (
                &[("10.1.2.7/24", "fd00::1")],
                Code::CONFLICT,
                "gateway fd00::1 and address 10.1.2.7/24 are of different families",
            ),
        ] {
            let err = paths(&result(ips), "x").unwrap_err();
            assert_eq!((err.code, err.msg.as_str()), (code, msg));
        }
    }
}
