//! Compares an interface, its addresses and routes with the result of ADD, for CHECK. A difference is an error with
//! code 103, and an invalid result one with code 7. If the kernel refuses a question, the error has the kernel's reason
//! and code 100.

use ipnetwork::IpNetwork;
use nix::errno::Errno;

use cnimble_cni::{CniResult, Error, Interface};
use cnimble_netlink::link::{self, Change, Link};
use cnimble_netlink::{IfPresent as _, NetNs, Netlink, Request, addr, route};

use crate::{Call, Place};

/// Returns the link of this name. If it is missing, fails with code 103; `place` ends the sentence, as in `on the
/// host`.
pub fn find_link(netlink: &mut Netlink, name: &str, place: &str) -> Result<Link, Error> {
    netlink.find_link(name)?.ok_or_else(|| Error::check(format!("interface {name} is missing {place}")))
}

/// Checks that the link has the hardware address of the result.
///
/// # Errors
/// Fails with the codes of the module.
pub fn same_mac(link: &Link, told: &Interface) -> Result<(), Error> {
    let now = link.mac.map(|mac| mac.to_string()).unwrap_or_default();
    if told.mac.is_empty() || now.eq_ignore_ascii_case(&told.mac) {
        return Ok(());
    }
    Err(Error::check(format!("interface {} has MAC {now}, prevResult has {}", link.name, told.mac)))
}

/// Returns the result without the addresses of other interfaces, which a later plugin in the chain may have added.
pub fn of_this_interface(call: &Call, prev: &CniResult) -> CniResult {
    let mut ours = prev.clone();
    let at = prev.interfaces.iter().position(|i| i.name == call.ifname && i.sandbox == call.netns);
    ours.ips.retain(|ip| ip.interface.is_none() || ip.interface.map(|n| n as usize) == at);
    ours
}

/// Checks that the pod's interface has this `kind`, and matches the result, and returns it. It must be up only if `up`
/// says so. Its MTU is the result's or a smaller one: the Go plugin tuning, later in the chain, sets one without
/// changing the result. A larger MTU loses packets.
pub fn pod(call: &Call, inside: &mut Netlink, prev: &CniResult, kind: &str, up: bool) -> Result<Link, Error> {
    let told = prev
        .interfaces
        .iter()
        .find(|i| i.name == call.ifname && !i.sandbox.is_empty())
        .ok_or_else(|| Error::config(format!("prevResult: no interface {} in a sandbox", call.ifname)))?;
    if told.sandbox != call.netns {
        return Err(Error::config(format!(
            "prevResult: sandbox {} doesn't match CNI_NETNS {}",
            told.sandbox, call.netns
        )));
    }
    let pod = find_link(inside, &call.ifname, &format!("in {}", call.netns))?;
    if pod.kind != kind {
        let what = format!("interface {} in {} is not a {kind}", pod.name, call.netns);
        return Err(Error::check(what));
    }
    same_mac(&pod, told)?;
    if up && !pod.up {
        return Err(Error::check(format!("interface {} in {} is down", pod.name, call.netns)));
    }
    mtu(&pod, told.mtu)?;
    Ok(pod)
}

/// Checks that the MTU is at most this one. `None` allows any.
///
/// # Errors
/// Fails with the codes of the module.
pub fn mtu(link: &Link, most: Option<u32>) -> Result<(), Error> {
    match most.filter(|most| link.mtu > *most) {
        None => Ok(()),
        Some(most) => {
            let what = format!("interface {} has MTU {}, expected at most {most}", link.name, link.mtu);
            Err(Error::check(what))
        }
    }
}

/// Checks the items that a pod can change itself: its end is up, and has the addresses of `prev` and these routes. A
/// repair puts them back. Does nothing if only the host is looked at.
pub fn inside_pod(
    call: &Call,
    inside: &mut Netlink,
    pod: &Link,
    prev: &CniResult,
    routes: &[route::NewRoute],
) -> Result<(), Error> {
    if !call.covers_pod() {
        return Ok(());
    }
    call.wants(Place::Pod, inside, |inside| verify_up(call, inside, pod), |inside| switch_on(inside, pod))?;
    call.wants(
        Place::Pod,
        inside,
        |inside| addresses(inside, pod, prev),
        |inside| put_addresses(inside, pod, prev.ips.iter().map(|ip| ip.address)),
    )?;
    // The pod may have interfaces and default routes of other networks.
    call.wants(
        Place::Pod,
        inside,
        |inside| self::routes(inside, pod, routes, "in the pod"),
        |inside| put_all(inside, routes.iter().map(|wanted| route::prepend(wanted, &pod.name))),
    )
}

/// Fails with code 103 if the pod's end is down.
fn verify_up(call: &Call, inside: &mut Netlink, pod: &Link) -> Result<(), Error> {
    if inside.link_at(pod.index)?.up {
        Ok(())
    } else {
        Err(Error::check(format!("interface {} in {} is down", pod.name, call.netns)))
    }
}

/// Brings a link up.
///
/// # Errors
/// Fails if the kernel refuses the request.
pub fn switch_on(netlink: &mut Netlink, link: &Link) -> Result<(), Error> {
    let up = Change { up: Some(true), ..Change::default() };
    Ok(netlink.execute(link::set(link.index, &link.name, &up))?)
}

/// Adds the addresses that the link lacks.
///
/// # Errors
/// Fails if the kernel refuses the request.
pub fn put_addresses(
    netlink: &mut Netlink,
    link: &Link,
    addrs: impl IntoIterator<Item = IpNetwork>,
) -> Result<(), Error> {
    put_all(netlink, addrs.into_iter().map(|net| addr::add(link.index, &link.name, net)))
}

/// Executes requests that add objects. An object that exists already is no error.
pub fn put_all(netlink: &mut Netlink, requests: impl Iterator<Item = Request>) -> Result<(), Error> {
    for request in requests {
        netlink.execute(request).default_for(&[Errno::EEXIST])?;
    }
    Ok(())
}

/// Returns the host's end of `pod`, an interface in `netns`, if the host proves that it is the attachment's
/// ([`Netlink::host_end`]). Without a proof no link of the host is the attachment's, and a repair changes none. An
/// examination then notes that and gets `None`; otherwise it is an error.
///
/// # Errors
/// Fails with the codes of the module.
pub fn host_end(
    call: &Call,
    host: &mut Netlink,
    netns: &NetNs,
    pod: &Link,
    prev: &CniResult,
) -> Result<Option<Link>, Error> {
    let on_host = prev.interfaces.iter().filter(|interface| interface.sandbox.is_empty());
    let known: Vec<&str> = on_host.map(|interface| interface.name.as_str()).collect();
    let end = host.host_end(&call.owner(), &known, pod, netns)?;
    if end.is_none() {
        let what = format!("the host's end of {} is missing, or another than ADD made", pod.name);
        call.leaves_alone(Place::Host, Error::check(what))?;
    }
    Ok(end)
}

/// Reads the proven host's end again. Its kind, its alias and its other end must be the same.
///
/// # Errors
/// Fails with the codes of the module.
pub fn host_end_again(host: &mut Netlink, end: &Link) -> Result<Link, Error> {
    let now = host.link_at(end.index).if_present()?;
    let same = now.filter(|now| {
        (&now.kind, &now.alias, now.peer, now.peer_netnsid)
            == (&end.kind, &end.alias, end.peer, end.peer_netnsid)
    });
    same.ok_or_else(|| Error::check(format!("the host's end {} is missing, or another one by now", end.name)))
}

/// Checks that the host's end is up.
///
/// # Errors
/// Fails with the codes of the module.
pub fn host_end_is_up(end: &Link) -> Result<(), Error> {
    if end.up { Ok(()) } else { Err(Error::check(format!("{} on the host is down", end.name))) }
}

/// Checks that the host's end has the hardware address of the result. No plugin puts it back.
///
/// # Errors
/// Fails with the codes of the module.
pub fn host_end_mac(end: &Link, prev: &CniResult) -> Result<(), Error> {
    match prev.interfaces.iter().find(|i| i.sandbox.is_empty() && i.name == end.name) {
        Some(told) => same_mac(end, told),
        None => Ok(()),
    }
}

/// Checks that the pod's end has the result's addresses.
///
/// # Errors
/// Fails with the codes of the module.
pub fn addresses(inside: &mut Netlink, pod: &Link, prev: &CniResult) -> Result<(), Error> {
    let present = inside.addrs(pod.index)?;
    for ip in &prev.ips {
        if !present.iter().any(|addr| addr.net == ip.address) {
            return Err(Error::check(format!("interface {} lacks address {}", pod.name, ip.address)));
        }
    }
    Ok(())
}

/// Returns the first of the `wanted` routes that is not among `present`, or `None` if all are there.
fn find_missing<'a>(
    wanted: &'a [route::NewRoute],
    present: &[route::NewRoute],
) -> Option<&'a route::NewRoute> {
    wanted.iter().find(|then| !present.iter().any(|now| is_same_route(now, then)))
}

/// Returns whether the present route `now` is the wanted route `then`, as far as [`routes`] compares them.
fn is_same_route(now: &route::NewRoute, then: &route::NewRoute) -> bool {
    now.dst == then.dst
        && now.via == then.via
        && (then.priority.is_none() || now.priority.unwrap_or(0) == then.priority.unwrap_or(0))
        && (then.mtu.is_none() || now.mtu.is_none() || now.mtu == then.mtu)
        && (then.advmss.is_none() || now.advmss.is_none() || now.advmss == then.advmss)
}

/// Checks that the link has all `wanted` routes. `place` ends the sentence of the error.
///
/// A route without a table is looked for in the table of the link's VRF or in the main table. If it is not there, any
/// table will do, because a later sbr may have moved it. A route without MTU and MSS matches, as those of the Go
/// plugins have none.
///
/// # Errors
/// Fails with the codes of the module.
pub fn routes(
    netlink: &mut Netlink,
    link: &Link,
    wanted: &[route::NewRoute],
    place: &str,
) -> Result<(), Error> {
    let own = netlink.vrf_table(link)?;
    let mut tables: Vec<Option<u32>> = wanted.iter().map(|route| route.table.or(own)).collect();
    tables.sort_unstable();
    tables.dedup();
    let mut present = Vec::new();
    for table in tables {
        present.extend(netlink.routes(link.index, table)?);
    }
    if find_missing(wanted, &present).is_some_and(|then| then.table.is_none()) {
        present.extend(netlink.routes(link.index, Some(route::ANY_TABLE))?);
    }
    match find_missing(wanted, &present) {
        None => Ok(()),
        Some(then) => {
            let via = then.via.map(|via| format!(" via {via}")).unwrap_or_default();
            Err(Error::check(format!("route {}{via} is missing {place}", then.dst)))
        }
    }
}
