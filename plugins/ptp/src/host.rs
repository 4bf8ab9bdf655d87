//! The host's end of the veth pair, which is the pod's gateway.

use std::net::IpAddr;

use nix::errno::Errno;

use cnimble_cni::{Code, Error};
use cnimble_netlink::link::{self, Change, Link};
use cnimble_netlink::{IfPresent as _, Netlink, addr, route, sysctl};
use cnimble_plugin::interface::host::{ignore_router_advertisements_on_new, switch_ipv6_on};
use cnimble_plugin::interface::protected;

use crate::path::{self, Path};

/// Fails with code 102 if the host needs the address of a pod or its gateway itself. The author of the pod may have
/// chosen the address.
pub(crate) fn refuse_protected(host: &mut Netlink, paths: &[Path]) -> Result<(), Error> {
    for path in paths {
        let ip = path.address.ip();
        let towards = host.route_towards(ip)?;
        if let Some(why) = protected::find_reason(host, ip, towards.as_ref())? {
            return Err(protected_address("the address", ip, why));
        }
        // The host's ends of other pods already have the gateway's address, so an address of the host is no reason
        // here.
        let towards = host.route_towards(path.gateway)?.filter(|towards| !towards.is_own());
        if let Some(why) = protected::find_reason(host, path.gateway, towards.as_ref())? {
            return Err(protected_address("the gateway", path.gateway, why));
        }
    }
    Ok(())
}

/// Returns the error for an address that the host needs itself, with code 102.
fn protected_address(whose: &str, ip: IpAddr, why: &str) -> Error {
    Error::new(Code::CONFLICT, format!("IPAM gave the pod {whose} {ip}, which {why}"))
        .details("hint: take it out of the IPAM plugin's range, or ask for another address")
}

/// Gives the host's end the gateways' addresses, sets it up, and adds the routes to the pod. It has no undo of its own:
/// the undo of the pair deletes the link, and the kernel removes addresses and routes with it.
///
/// Fails with code 102 if the host has a route to an address of the pod already.
pub(crate) fn configure(host: &mut Netlink, end: &Link, paths: &[Path]) -> Result<(), Error> {
    ignore_router_advertisements_on_new(end)?;
    // No other host is on this link, so duplicate address detection is switched off.
    let accept_dad = format!("net/ipv6/conf/{}/accept_dad", end.name);
    sysctl::write(&accept_dad, "0").default_for(&[Errno::EROFS]).if_present()?;
    if paths.iter().any(|path| path.gateway.is_ipv6()) {
        switch_ipv6_on(end)?;
    }
    let mut requests: Vec<_> =
        path::host_addresses(paths).into_iter().map(|net| addr::add(end.index, &end.name, net)).collect();
    requests.push(link::set(end.index, &end.name, &Change { up: Some(true), ..Change::default() }));
    host.execute_all(requests)?;
    let routes = path::to_pod(paths, end.index);
    let requests = routes.iter().map(|wanted| route::add(wanted, &end.name)).collect();
    host.execute_all(requests).map_err(|err| match err.errno {
        Errno::EEXIST => Error::new(Code::CONFLICT, "the host has a route to an address of the pod already")
            .details(format!("{err}; hint: `ip route get ADDRESS` tells by which interface")),
        _ => err.into(),
    })
}
