//! The lease that a DHCPv4 server has given. Times are milliseconds since boot (CLOCK_BOOTTIME). A change of the system
//! time does not affect them, and the time in suspension counts.

use std::net::{IpAddr, Ipv4Addr};

use ipnetwork::{IpNetwork, Ipv4Network};
use serde::{Deserialize, Serialize};

use cnimble_cni::{Dns, Route};
use cnimble_netlink::link::Mac;

use super::message::{ServerMessage, code};
use crate::domains;

/// The duration of a lease if the server gives none, as in the Go plugin.
const DEFAULT_SECONDS: u32 = 3600;
/// The duration that means "for ever" (RFC 2131, section 3.3).
const FOR_EVER: u32 = u32::MAX;
/// The shortest duration that counts, because a server must not make the client send without a pause.
const SHORTEST_SECONDS: u32 = 2;
/// The smallest MTU that is used. Every host receives packets of that size (RFC 791). A smaller one is an attack or an
/// accident.
const SMALLEST_MTU: u16 = 576;
/// The scope `link` of rtnetlink(7).
const SCOPE_LINK: u8 = 253;

/// A lease, as it is in answers and files.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Lease {
    pub(crate) address: Ipv4Addr,
    pub(crate) prefix: u8,
    pub(crate) server: Ipv4Addr,
    /// The hardware address of the server, or of the relay in front of it.
    pub(crate) server_mac: [u8; 6],
    /// The router. `None` if the server gives none that a host may have.
    pub(crate) gateway: Option<Ipv4Addr>,
    /// The routes of the lease. On-link ones have no gateway here, unlike those of [`Lease::routes`].
    pub(crate) routes: Vec<Route>,
    pub(crate) dns: Dns,
    /// T1, the time at which the client begins to renew.
    pub(crate) renew: u64,
    /// T2, the time at which the client begins to rebind.
    pub(crate) rebind: u64,
    /// The end of the lease. It is `u64::MAX` for an endless lease.
    pub(crate) expires: u64,
}

impl Lease {
    /// Returns the lease in `answer`, which came at `now` from `mac`, or the reason why there is no usable one.
    ///
    /// A renewal may omit the server and the subnet mask. They are then those of `before`. Without `before` both are
    /// needed. Router, routes and DNS settings are always those of `answer`.
    pub(crate) fn from_answer(
        answer: &ServerMessage,
        now: u64,
        mac: Mac,
        before: Option<&Lease>,
    ) -> Result<Lease, &'static str> {
        let address = answer.address;
        if !is_usable(address) {
            return Err("no host may have this address");
        }
        let server = answer.address_of(code::SERVER).or(before.map(|lease| lease.server));
        let server = server.filter(|server| is_usable(*server)).ok_or("it does not name its server")?;
        let prefix = match answer.option(code::SUBNET_MASK) {
            Some(mask) => prefix(mask).ok_or("its subnet mask is invalid")?,
            None => before.map(|lease| lease.prefix).ok_or("DHCP option Subnet Mask is missing")?,
        };
        let gateway = answer.address_of(code::ROUTERS).filter(|gateway| is_usable(*gateway));
        let times = Times::from_answer(answer);
        Ok(Lease {
            address,
            prefix,
            server,
            server_mac: mac.0,
            gateway,
            routes: routes(answer, gateway, Ipv4Network::new(address, prefix).ok()),
            dns: dns(answer),
            renew: after(now, times.renew),
            rebind: after(now, times.rebind),
            expires: if times.lease == FOR_EVER { u64::MAX } else { after(now, times.lease) },
        })
    }

    /// Returns the address with its prefix length.
    pub(crate) fn net(&self) -> IpNetwork {
        // A file may contain any number as a prefix length.
        let net = Ipv4Network::new(self.address, self.prefix);
        IpNetwork::V4(net.unwrap_or_else(|_| Ipv4Network::from(self.address)))
    }

    /// Returns the lifetime of the address for the kernel, in seconds: the time that remains at `now`, and up to two
    /// seconds more. The kernel may be a quarter of a second early (ADDRCONF_TIMER_FUZZ). While this process runs, it
    /// removes the address in time, or extends its lifetime. An endless lease has [`FOR_EVER`], and one that has expired
    /// has 1.
    pub(crate) fn lifetime(&self, now: u64) -> u32 {
        match self.expires {
            u64::MAX => FOR_EVER,
            end => u32::try_from(end.saturating_sub(now).div_ceil(1000) + 1).unwrap_or(FOR_EVER - 1),
        }
    }

    /// Returns the hardware address that a renewal is sent to.
    pub(crate) fn mac(&self) -> Mac {
        Mac(self.server_mac)
    }

    /// Returns the routes for the result, with the configuration's `priority`. On-link routes come first, because they
    /// may lead to the gateways of others. Their gateway is 0.0.0.0, as with the Go plugin. Without one an installer
    /// would use the router of the address.
    pub(crate) fn routes(&self, priority: Option<u32>) -> Vec<Route> {
        let link = IpAddr::V4(Ipv4Addr::UNSPECIFIED);
        let mut routes = self.routes.clone();
        for route in &mut routes {
            route.gw = route.gw.or(Some(link));
            route.priority = priority;
        }
        routes.sort_by_key(|route| route.gw != Some(link));
        routes
    }
}

/// Returns the time that is `seconds` after `now`, in milliseconds.
fn after(now: u64, seconds: u32) -> u64 {
    now.saturating_add(u64::from(seconds) * 1000)
}

/// T1, T2 and the end, in seconds from the answer.
struct Times {
    renew: u32,
    rebind: u32,
    lease: u32,
}

impl Times {
    /// Returns the times of an answer. Inconsistent ones are replaced by half and seven eighths of the duration (RFC
    /// 2131, section 4.4.5).
    fn from_answer(answer: &ServerMessage) -> Times {
        let lease = answer.number(code::LEASE_TIME).unwrap_or(DEFAULT_SECONDS).max(SHORTEST_SECONDS);
        let (half, late) = (lease / 2, lease - lease / 8);
        let renew = answer.number(code::RENEWAL).unwrap_or(half);
        let rebind = answer.number(code::REBINDING).unwrap_or(late);
        if lease == FOR_EVER {
            return Times { renew: FOR_EVER, rebind: FOR_EVER, lease };
        }
        if renew >= 1 && renew <= rebind && rebind <= lease {
            Times { renew, rebind, lease }
        } else {
            Times { renew: half, rebind: late, lease }
        }
    }
}

/// Returns true if a host may have this address: it is not of 0/8, 127/8, a multicast group, or reserved.
pub(crate) fn is_usable(address: Ipv4Addr) -> bool {
    let [first, ..] = address.octets();
    first != 0 && first < 224 && !address.is_loopback()
}

/// Returns the prefix length of a subnet mask. `None` if it has gaps, is 0.0.0.0, or has not four bytes.
fn prefix(mask: &[u8]) -> Option<u8> {
    let mask: [u8; 4] = mask.try_into().ok()?;
    let prefix = u8::try_from(u32::from_be_bytes(mask).leading_ones()).ok()?;
    (ipnetwork::ipv4_mask_to_prefix(mask.into()).ok()? == prefix && prefix > 0).then_some(prefix)
}

/// Returns the classless routes (RFC 3442), or else the static ones and the default route through the router. Each gets
/// the MTU. A router outside of `net` gets an on-link route, as with other clients: clouds give addresses of 32 bits.
fn routes(answer: &ServerMessage, gateway: Option<Ipv4Addr>, net: Option<Ipv4Network>) -> Vec<Route> {
    let classless = [code::CLASSLESS_ROUTES, code::CLASSLESS_ROUTES_MS];
    let classless = classless.into_iter().filter_map(|code| answer.option(code));
    let mut routes = match classless.map(classless_routes).find(|routes| !routes.is_empty()) {
        Some(routes) => routes,
        None => {
            let far = gateway.filter(|gateway| net.is_some_and(|net| !net.contains(*gateway)));
            let far = far.map(|gateway| (gateway, 32, Ipv4Addr::UNSPECIFIED));
            let default = gateway.map(|gateway| (Ipv4Addr::UNSPECIFIED, 0, gateway));
            let all = far.into_iter().chain(static_routes(answer)).chain(default);
            all.filter_map(|(to, prefix, by)| route(to, prefix, by)).collect()
        }
    };
    let mtu = answer.option(code::MTU).and_then(|bytes| Some(u16::from_be_bytes(bytes.try_into().ok()?)));
    for route in &mut routes {
        route.mtu = mtu.filter(|mtu| *mtu >= SMALLEST_MTU).map(u32::from);
    }
    routes
}

/// Parses classless routes (RFC 3442). A destination is a prefix length and only the octets that it covers. A damaged
/// route ends the list, and an unusable one is left out.
fn classless_routes(mut bytes: &[u8]) -> Vec<Route> {
    let mut routes = Vec::new();
    while let Some((prefix, rest)) = bytes.split_first() {
        let octets = usize::from(*prefix).div_ceil(8);
        let Some((significant, rest)) = rest.split_at_checked(octets) else { break };
        let Some((router, rest)) = rest.split_first_chunk::<4>() else { break };
        let mut destination = [0; 4];
        let Some(covered) = destination.get_mut(..octets) else { break };
        covered.copy_from_slice(significant);
        routes.extend(route(destination.into(), *prefix, (*router).into()));
        bytes = rest;
    }
    routes
}

/// Returns the destination, prefix length and router of static routes (RFC 2132, section 5.8). The class of a
/// destination decides its prefix length. Default routes are left out.
fn static_routes(answer: &ServerMessage) -> Vec<(Ipv4Addr, u8, Ipv4Addr)> {
    let addresses: Vec<Ipv4Addr> = answer.addresses(code::STATIC_ROUTES).collect();
    let pairs = addresses.as_chunks::<2>().0.iter();
    pairs
        .filter(|[destination, _]| is_usable(*destination))
        .map(|[destination, router]| {
            let [first, ..] = destination.octets();
            let prefix = if first < 128 {
                8
            } else if first < 192 {
                16
            } else {
                24
            };
            (*destination, prefix, *router)
        })
        .collect()
}

/// Returns a route, which is on-link for the router 0.0.0.0. `None` if the router is unusable.
fn route(destination: Ipv4Addr, prefix: u8, router: Ipv4Addr) -> Option<Route> {
    let net = Ipv4Network::new(destination, prefix).ok()?;
    let dst = IpNetwork::V4(Ipv4Network::new(net.network(), prefix).ok()?);
    if router.is_unspecified() {
        let mut route = Route::new(dst, None);
        route.scope = Some(SCOPE_LINK);
        return Some(route);
    }
    is_usable(router).then(|| Route::new(dst, Some(IpAddr::V4(router))))
}

/// Returns the DNS settings of an answer. Invalid names are left out.
fn dns(answer: &ServerMessage) -> Dns {
    let servers = answer.addresses(code::NAME_SERVERS).filter(|server| !server.is_unspecified());
    let mut dns = Dns::default();
    dns.nameservers = servers.map(|server| server.to_string()).collect();
    dns.domain = answer.option(code::DOMAIN_NAME).and_then(domains::text).unwrap_or_default();
    dns.search = answer.option(code::DOMAIN_SEARCH).map(domains::search).unwrap_or_default();
    dns
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::held::{self, AnyLease};
    use crate::v4::message::Type;
    use crate::v4::message::tests::{MAC, answer};

    const ADDRESS: Ipv4Addr = Ipv4Addr::new(10, 1, 2, 50);
    const SERVER: (u8, &[u8]) = (code::SERVER, &[10, 1, 2, 1]);
    const MASK: (u8, &[u8]) = (code::SUBNET_MASK, &[255, 255, 255, 0]);
    const ROUTER: (u8, &[u8]) = (code::ROUTERS, &[10, 1, 2, 1]);

    fn read(address: Ipv4Addr, options: &[(u8, &[u8])]) -> Result<Lease, &'static str> {
        let answer = ServerMessage::parse(&answer(Type::Ack, 1, address, options), MAC).unwrap();
        Lease::from_answer(&answer, 1000, MAC, None)
    }

    fn texts(lease: &Lease) -> Vec<String> {
        let via = |route: Route| {
            let scope = route.scope.map(|scope| format!(" scope {scope}"));
            format!("{} via {}{}", route.dst, route.gw.unwrap(), scope.unwrap_or_default())
        };
        lease.routes(None).into_iter().map(via).collect()
    }

    #[test]
    fn a_lease_has_address_gateway_and_routes() {
        let lease = read(ADDRESS, &[SERVER, MASK, ROUTER, (code::MTU, &[5, 120])]).unwrap();
        let result = held::result(&[AnyLease::Four(lease.clone())], Some(7));
        assert_eq!(result.ips[0].address.to_string(), "10.1.2.50/24");
        assert_eq!(result.ips[0].gateway, Some(IpAddr::from([10, 1, 2, 1])));
        assert_eq!(texts(&lease), ["0.0.0.0/0 via 10.1.2.1"]);
        assert_eq!((result.routes[0].mtu, result.routes[0].priority), (Some(1400), Some(7)));
    }

    #[test]
    fn classless_routes_replace_router_and_static_ones() {
        let fixed = (code::STATIC_ROUTES, &[172, 16, 0, 0, 10, 1, 2, 3, 0, 0, 0, 0, 10, 1, 2, 4][..]);
        let lease = read(ADDRESS, &[SERVER, MASK, ROUTER, fixed]).unwrap();
        assert_eq!(texts(&lease), ["172.16.0.0/16 via 10.1.2.3", "0.0.0.0/0 via 10.1.2.1"]);
        let bytes = [0, 10, 1, 2, 1, 12, 172, 31, 10, 1, 2, 5, 32, 10, 9, 9, 9, 0, 0, 0, 0, 24, 10];
        for code in [code::CLASSLESS_ROUTES, code::CLASSLESS_ROUTES_MS] {
            let lease = read(ADDRESS, &[SERVER, MASK, ROUTER, fixed, (code, &bytes)]).unwrap();
            let expected =
                ["10.9.9.9/32 via 0.0.0.0 scope 253", "0.0.0.0/0 via 10.1.2.1", "172.16.0.0/12 via 10.1.2.5"];
            assert_eq!(texts(&lease), expected);
        }
        for none in [&[33, 1, 2, 3, 4, 5, 10, 1, 2, 1][..], &[255; 9], &[8]] {
            let lease = read(ADDRESS, &[SERVER, MASK, ROUTER, (code::CLASSLESS_ROUTES, none)]).unwrap();
            assert_eq!(texts(&lease), ["0.0.0.0/0 via 10.1.2.1"]);
        }
    }

    #[test]
    fn unusable_addresses_are_refused() {
        for address in ["0.0.0.0", "0.1.2.3", "127.0.0.1", "224.0.0.1", "255.255.255.255"] {
            assert!(read(address.parse().unwrap(), &[SERVER, MASK]).is_err(), "{address}");
        }
        for mask in [&[0, 0, 0, 0][..], &[255, 0, 255, 0], &[255, 255], &[0, 255, 255, 255]] {
            assert!(read(ADDRESS, &[SERVER, (code::SUBNET_MASK, mask)]).is_err(), "{mask:?}");
        }
        assert_eq!(read(ADDRESS, &[SERVER]), Err("DHCP option Subnet Mask is missing"));
        assert!(read(ADDRESS, &[MASK]).is_err());
    }

    #[test]
    fn inconsistent_times_are_replaced() {
        let number = u32::to_be_bytes;
        let times = |lease: u32, renew: u32, rebind: u32| {
            let (lease, renew, rebind) = (number(lease), number(renew), number(rebind));
            let times = [(code::LEASE_TIME, &lease[..]), (code::RENEWAL, &renew), (code::REBINDING, &rebind)];
            let lease = read(ADDRESS, &[&[SERVER, MASK][..], &times].concat()).unwrap();
            (lease.renew, lease.rebind, lease.expires)
        };
        assert_eq!(times(100, 10, 20), (11_000, 21_000, 101_000));
        for (renew, rebind) in [(0, 20), (30, 20), (10, 101), (0, 0)] {
            assert_eq!(times(100, renew, rebind), (51_000, 89_000, 101_000));
        }
        assert_eq!(times(0, 0, 0), (2_000, 3_000, 3_000));
        assert_eq!(times(u32::MAX, 1, 1).2, u64::MAX);
        let default = read(ADDRESS, &[SERVER, MASK]).unwrap();
        assert_eq!((default.renew, default.expires), (1_801_000, 3_601_000));
        let lifetimes = [1000, 1001, 3_601_000, u64::MAX].map(|now| default.lifetime(now));
        assert_eq!(lifetimes, [3601, 3601, 1, 1]);
        assert_eq!(Lease { expires: u64::MAX, ..default }.lifetime(1000), u32::MAX);
    }

    #[test]
    fn a_lease_is_the_same_after_a_file() {
        let options = [SERVER, MASK, ROUTER, (code::NAME_SERVERS, &[10, 1, 2, 1, 10, 1, 2, 2])];
        let lease = read(ADDRESS, &options).unwrap();
        let text = serde_json::to_string(&lease).unwrap();
        assert_eq!(serde_json::from_str::<Lease>(&text).unwrap(), lease);
        assert_eq!(lease.dns.nameservers, ["10.1.2.1", "10.1.2.2"]);
    }
}
