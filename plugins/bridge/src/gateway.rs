//! The host as the gateway of the pods: addresses of the bridge, forwarding and default routes.

use std::net::IpAddr;

use ipnetwork::IpNetwork;
use nix::errno::Errno;

use cnimble_cni::{CniResult, Code, Error, Route, cidr, reach};
use cnimble_netlink::addr::Addr;
use cnimble_netlink::link::{self, Change, Filter, Link};
use cnimble_netlink::route::{self, NewRoute};
use cnimble_netlink::{IfPresent, Netlink, addr, sysctl};
use cnimble_plugin::Call;
use cnimble_plugin::interface::host::{forward, forward_from, switch_ipv6_on};
use cnimble_plugin::interface::{carries, check, protected};

use crate::bridge::take_back;
use crate::config::Config;
use crate::context::Context;
use crate::{ours, vlan_gateway};

/// Adds the missing gateways to IPAM's `result`, and with `isDefaultGateway` the missing default routes. A missing
/// gateway is the first address of the pod's network.
///
/// Returns the addresses that the bridge needs ([`addresses_of`]), or none if the bridge is no gateway. Fails with code
/// 102 if the pod has the gateway's own address, or if the bridge would have no route back to the pod.
pub(crate) fn complete(result: &mut CniResult, config: &Config) -> Result<Vec<IpNetwork>, Error> {
    if !config.is_gateway {
        return Ok(Vec::new());
    }
    for ip in &mut result.ips {
        let gateway = *ip.gateway.get_or_insert_with(|| cidr::first_address(ip.address));
        if gateway == ip.address.ip() {
            return Err(Error::new(
                Code::CONFLICT,
                format!("IPAM gave the pod its own gateway's address, {gateway}"),
            ));
        }
        let everywhere = cidr::everywhere(ip.address);
        let is_routed = result.routes.iter().any(|route| route.dst.is_ipv4() == ip.address.is_ipv4());
        let is_alone = reach::is_on_link(gateway, std::slice::from_ref(ip), &result.routes);
        if is_alone && (config.is_default_gateway || is_routed) {
            return Err(no_way_back(gateway, ip.address));
        }
        if config.is_default_gateway
            && !result.routes.iter().any(|route| route.dst == everywhere && route.gw.is_some())
        {
            result.routes.push(Route::new(everywhere, Some(gateway)));
        }
    }
    addresses_of(result)
}

/// Returns the error for a gateway whose bridge has no route to the pod. The pod's packets would arrive by its own
/// route to the gateway. The answers would not, because no network of the bridge contains the pod.
fn no_way_back(gateway: IpAddr, pod: IpNetwork) -> Error {
    Error::new(Code::CONFLICT, format!("the bridge can't be the gateway {gateway} of {pod}")).details(
        "the address has no network with the gateway in it; hint: change its prefix length, or use ptp",
    )
}

/// Returns the address that the bridge needs for each gateway: the gateway with the prefix length of the pod's address.
/// Addresses without a gateway are skipped.
///
/// # Errors
/// Fails with code 7 if the prefix length does not fit the gateway's family: /64 for an IPv4 gateway of an IPv6
/// address.
pub(crate) fn addresses_of(result: &CniResult) -> Result<Vec<IpNetwork>, Error> {
    let mut gateways = Vec::new();
    for ip in &result.ips {
        let Some(gateway) = ip.gateway else { continue };
        // A link-local gateway is in fe80::/64, whatever the network of the pod is.
        let prefix = if is_link_local(gateway) { LINK_LOCAL_PREFIX } else { ip.address.prefix() };
        let wanted = IpNetwork::new(gateway, prefix)
            .map_err(|err| Error::config(format!("gateway {gateway} of {}: {err}", ip.address)))?;
        if !gateways.contains(&wanted) {
            gateways.push(wanted);
        }
    }
    Ok(gateways)
}

/// Gives the bridge, or the VLAN's gateway interface, the addresses of `gateways` and the routes to the pods, and
/// switches forwarding on. A link that cnimble has made also gets IPv6 switched on if it needs it. Each change has its
/// undo.
///
/// Returns the VLAN's gateway interface if the network has a VLAN, or `None`. The caller makes it permanent at the end
/// of ADD ([`vlan_gateway::keep_gateway`]). Without gateways this does nothing, and returns `None` even with a VLAN.
///
/// # Errors
/// Fails with code 102 if an address or a route of the host conflicts with a gateway ([`addresses`]). Fails with code
/// 100 if the MTU of the link is too small for IPv6. Fails as well if the host does not forward and cannot be changed.
pub(crate) fn ensure(
    cx: &mut Context<'_>,
    bridge: &Link,
    gateways: &[IpNetwork],
    result: &CniResult,
) -> Result<Option<Link>, Error> {
    if gateways.is_empty() {
        return Ok(None);
    }
    let vlan = match cx.config.vlan {
        Some(vlan) => Some(vlan_gateway::ensure(cx, bridge, vlan)?),
        None => None,
    };
    let link = vlan.as_ref().unwrap_or(bridge);
    let is_own = vlan.is_some() || ours::is_ours(bridge) || ours::has_uplink(bridge);
    if is_own && gateways.iter().any(IpNetwork::is_ipv6) {
        enable_ipv6(cx.call, bridge.index, link, gateways)?;
    }
    addresses(cx, bridge.index, link, gateways)?;
    for ip in result.ips.iter().filter(|ip| ip.gateway.is_some_and(is_link_local)) {
        add_route_to_pods(cx, bridge.index, link, cidr::network_of(ip.address))?;
    }
    forward(cx.call, &mut cx.host, gateways)?;
    if is_own {
        forward_from(link, gateways)?;
    }
    Ok(vlan)
}

/// Switches IPv6 on for the gateway's link. The undo switches it off again, unless other pods use the bridge. Does
/// nothing if it is on.
///
/// When IPv6 is switched off, the kernel removes all IPv6 addresses of the link. If an ADD has joined meanwhile
/// ([`take_back`]), the undo gives it the addresses of the gateways back.
fn enable_ipv6(call: &Call, bridge: u32, link: &Link, gateways: &[IpNetwork]) -> Result<(), Error> {
    let Some((key, old)) = switch_ipv6_on(link)? else { return Ok(()) };
    let (index, name) = (link.index, link.name.clone());
    let gateways: Vec<IpNetwork> = gateways.iter().copied().filter(IpNetwork::is_ipv6).collect();
    call.undo.push(format!("restore {key}"), move || {
        take_back(
            |host| is_used(host, bridge, index),
            |_| Ok(sysctl::write(&key, &old).if_present().map(drop)?),
            |host| {
                sysctl::write(&key, "0").if_present()?;
                for gateway in gateways {
                    host.execute(addr::add(index, &name, gateway)).default_for(&[Errno::EEXIST])?;
                }
                Ok(())
            },
        )
    });
    Ok(())
}

/// Gives `link` the addresses of the gateways that it lacks, with their undo. With a new address, also fixes the MAC of
/// the link, which a foreign bridge would still change with its ports.
///
/// # Errors
/// Fails with code 102 if the link has an address that conflicts with a gateway and `forceAddress` is not set. The same
/// code means that a gateway by DHCP is another host, or that the host would send its packets for others to the pods.
/// Fails with code 100 if the MTU of the link is too small for IPv6.
fn addresses(cx: &mut Context<'_>, bridge: u32, link: &Link, gateways: &[IpNetwork]) -> Result<(), Error> {
    let (call, config, host) = (cx.call, cx.config, &mut cx.host);
    let present = host.addrs(link.index)?;
    for wanted in gateways {
        if present.iter().any(|addr| addr.net == *wanted) {
            continue;
        }
        // The router that a DHCP server names may be another host, so the bridge must not get a duplicate of its
        // address.
        if config.ipam.as_deref() == Some("dhcp") {
            if present.iter().any(|addr| addr.net.ip() == wanted.ip()) {
                continue;
            }
            return Err(foreign(wanted.ip(), &link.name));
        }
        for other in &present {
            if gateways.contains(&other.net) || !conflict(other.net, *wanted) {
                continue;
            }
            if !config.force_address {
                return Err(Error::new(
                    Code::CONFLICT,
                    format!("\"{}\" already has an IP address different from {wanted}", link.name),
                )
                .details(format!(
                    "it has {0}; hint: use another bridge; forceAddress replaces {0}, and pods that use it lose their gateway",
                    other.net
                )));
            }
            replace(call, host, link, other.net)?;
        }
        refuse_harmful(call, config, host, link, *wanted)?;
        if wanted.is_ipv6() {
            carries(link, [wanted.ip()])?;
        }
        match host.execute(addr::add(link.index, &link.name, *wanted)) {
            Ok(()) => {
                let (index, name, net) = (link.index, link.name.clone(), *wanted);
                call.undo.push(format!("take {net} off {name}"), move || {
                    take_back(
                        |host| is_used(host, bridge, index),
                        |host| Ok(host.execute(addr::del(index, &name, net)).if_present().map(drop)?),
                        |host| {
                            Ok(host.execute(addr::add(index, &name, net)).default_for(&[Errno::EEXIST])?)
                        },
                    )
                });
            }
            // A concurrent ADD has added the address.
            Err(err) if err.is(Errno::EEXIST) => {}
            Err(err) => return Err(err.into()),
        }
        // Setting the present MAC keeps it for the neighbour entries of the pods.
        if let Some(mac) = link.mac {
            host.execute(link::set(link.index, &link.name, &Change { mac: Some(mac), ..Change::default() }))?;
        }
    }
    Ok(())
}

/// Fails with code 102 if the route to the new network `net` of the bridge would send packets for others to the pods. A
/// network of all addresses always does, because its route is the default route.
///
/// Any other network is the administrator's choice, except with the IPAM plugin static. There the author of a pod may
/// ask for an address with any prefix length. Then the network must contain no address of the host's other links and no
/// next hop of its routes.
fn refuse_harmful(
    call: &Call,
    config: &Config,
    host: &mut Netlink,
    link: &Link,
    net: IpNetwork,
) -> Result<(), Error> {
    if net.prefix() == 0 {
        return Err(harmful(link, net, "every address is in it"));
    }
    if config.ipam.as_deref() != Some("static") || !protected::is_requested(call)? {
        return Ok(());
    }
    let own = host.addrs(link.index)?;
    let others = host.all_addrs()?.into_iter().filter(|addr| !own.contains(addr)).map(|addr| addr.net.ip());
    if let Some(ip) = others.into_iter().find(|ip| would_be_led_away(net, *ip)) {
        return Err(harmful(link, net, &format!("the host has {ip} on another link")));
    }
    match host.next_hops()?.into_iter().find(|ip| would_be_led_away(net, *ip)) {
        Some(ip) => Err(harmful(link, net, &format!("{ip} is a next hop of the host's routes"))),
        None => Ok(()),
    }
}

/// Returns true if the host would send its packets for `ip` to the network `net`. It does not for link-local addresses,
/// which are of one link.
fn would_be_led_away(net: IpNetwork, ip: IpAddr) -> bool {
    net.contains(ip) && !protected::is_of_one_link(ip)
}

/// Returns the error for a network whose route would lead packets for others to the pods, with code 102.
fn harmful(link: &Link, net: IpNetwork, why: &str) -> Error {
    let msg = format!("\"{}\" can't be the gateway of {}: {why}", link.name, cidr::network_of(net));
    Error::new(Code::CONFLICT, msg).details(
        "the host would send packets for it to the pods; hint: ask for an address with a longer prefix",
    )
}

/// Returns the error for a gateway that a DHCP server names and the bridge does not have, with code 102.
fn foreign(gateway: IpAddr, bridge: &str) -> Error {
    let msg =
        format!("\"{bridge}\" can't be the gateway {gateway}: by DHCP that is another host of the network");
    Error::new(Code::CONFLICT, msg).details(format!(
        "hint: leave isGateway and isDefaultGateway out; or, if the DHCP server is on this host, give \"{bridge}\" the address {gateway}"
    ))
}

/// Removes a conflicting address from the link (`forceAddress`). The undo adds it again.
fn replace(call: &Call, host: &mut Netlink, link: &Link, net: IpNetwork) -> Result<(), Error> {
    // A concurrent ADD may have removed the address. It then restores the address itself if it fails.
    if host.execute(addr::del(link.index, &link.name, net)).if_present()?.is_none() {
        return Ok(());
    }
    let (index, name) = (link.index, link.name.clone());
    call.undo.push(format!("give {name} its address {net} back"), move || {
        Ok(Netlink::open()?.execute(addr::add(index, &name, net)).default_for(&[Errno::EEXIST])?)
    });
    Ok(())
}

/// Adds a route to the pods' network, because a link-local address of the gateway gives the host none. The undo removes
/// it, unless other pods use the bridge. Fails with code 102 if the host has a route to it by another link.
fn add_route_to_pods(cx: &mut Context<'_>, bridge: u32, link: &Link, net: IpNetwork) -> Result<(), Error> {
    let (call, config, host) = (cx.call, cx.config, &mut cx.host);
    let wanted = NewRoute::to(net, link.index);
    if !host.routes(link.index, None)?.iter().any(|route| route.dst == net) {
        refuse_harmful(call, config, host, link, net)?;
    }
    match host.execute(route::add(&wanted, &link.name)) {
        Ok(()) => {
            let name = link.name.clone();
            call.undo.push(format!("take the route to {net} off {name}"), move || {
                take_back(
                    |host| is_used(host, bridge, wanted.index),
                    |host| Ok(host.execute(route::del(&wanted, &name)).if_present().map(drop)?),
                    |host| Ok(host.execute(route::add(&wanted, &name)).default_for(&[Errno::EEXIST])?),
                )
            });
            Ok(())
        }
        Err(err) if err.is(Errno::EEXIST) => {
            if host.routes(link.index, None)?.iter().any(|route| route.dst == net) {
                return Ok(());
            }
            Err(Error::new(
                Code::CONFLICT,
                format!("the host has a route to {net} by another link than {}", link.name),
            )
            .details(err.to_string()))
        }
        Err(err) => Err(err.into()),
    }
}

/// Returns the host's routes to the pods in `result`: those of [`add_route_to_pods`], and those that the kernel makes to
/// the networks of the gateways' addresses. `present` are the addresses of `link`. A gateway that is not among them has no
/// route here.
pub(crate) fn routes_to_pods(present: &[Addr], link: &Link, result: &CniResult) -> Vec<NewRoute> {
    let mut routes: Vec<NewRoute> = Vec::new();
    for ip in &result.ips {
        let Some(gateway) = ip.gateway else { continue };
        let back = Some(cidr::network_of(ip.address)).filter(|_| is_link_local(gateway));
        let of_address = present.iter().map(|addr| addr.net).filter(|net| net.ip() == gateway);
        let wide = of_address.filter(|net| *net != cidr::host(gateway)).map(cidr::network_of);
        for net in wide.chain(back) {
            // The kernel removes a route with its source address, so this one has the gateway as its source.
            let src = Some(gateway).filter(|_| net.is_ipv4());
            routes.push(NewRoute { src, ..NewRoute::to(net, link.index) });
        }
    }
    routes
}

/// Adds those of [`routes_to_pods`] that are missing, in the form in which the kernel makes them.
pub(crate) fn lead_to_pods(host: &mut Netlink, link: &Link, result: &CniResult) -> Result<(), Error> {
    for route in routes_to_pods(&host.addrs(link.index)?, link, result) {
        if check::routes(host, link, std::slice::from_ref(&route), "on the host").is_err() {
            let priority = route.dst.is_ipv6().then_some(KERNELS_PRIORITY);
            host.execute(route::restore(&NewRoute { priority, ..route }, &link.name))?;
        }
    }
    Ok(())
}

/// Returns true if another pod uses the bridge. The port of the pod whose ADD is undone does not count. Neither does
/// the port of the VLAN's gateway interface, which exists if `index`, the link of the gateway, is not the bridge
/// itself.
fn is_used(host: &mut Netlink, bridge: u32, index: u32) -> Result<bool, Error> {
    let own = if index == bridge { 1 } else { 2 };
    Ok(host.links(&Filter { master: Some(bridge), kind: None })?.len() > own)
}

/// The metric of the routes that the kernel makes to the networks of IPv6 addresses (IP6_RT_PRIO_ADDRCONF).
const KERNELS_PRIORITY: u32 = 256;

/// The prefix length of fe80::/64, the network of link-local addresses.
const LINK_LOCAL_PREFIX: u8 = 64;

fn is_link_local(ip: IpAddr) -> bool {
    matches!(ip, IpAddr::V6(ip) if ip.is_unicast_link_local())
}

/// Returns true if the present address `one` cannot stay beside the gateway `other`. Two different IPv4 addresses
/// always conflict, IPv6 ones only if their networks overlap. A present link-local address conflicts with nothing,
/// because a link may have several.
fn conflict(one: IpNetwork, other: IpNetwork) -> bool {
    one.is_ipv4() == other.is_ipv4()
        && !is_link_local(one.ip())
        && (one.is_ipv4() || one.contains(other.ip()) || other.contains(one.ip()))
}
