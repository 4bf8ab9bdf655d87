//! Switches of the host, with their undo.

use ipnetwork::IpNetwork;
use nix::errno::Errno;

use cnimble_cni::Error;
use cnimble_netlink::link::{Filter, Link};
use cnimble_netlink::{self as netlink, Netlink, sysctl};

use crate::{Call, Place};

/// Sets `accept_ra` to 0. A host without IPv6 has no such key.
///
/// # Errors
/// Fails if the kernel refuses the request.
pub fn ignore_router_advertisements(call: &Call, interface: &str) -> Result<(), Error> {
    let key = format!("net/ipv6/conf/{interface}/accept_ra");
    match sysctl::ensure(&key, "0") {
        Ok(None) => Ok(()),
        Ok(Some(old)) => {
            let name = interface.to_owned();
            call.undo.push(format!("restore {key}"), move || {
                let mut host = Netlink::open()?;
                // It goes with the link if the link was ours, and stays with a bridge that
                // other pods have come to.
                match host.find_link(&name)? {
                    Some(link)
                        if host.links(&Filter { master: Some(link.index), kind: None })?.is_empty() => {}
                    _ => return Ok(()),
                }
                match sysctl::write(&key, &old) {
                    Err(err) if !err.is_missing() => Err(err.into()),
                    _ => Ok(()),
                }
            });
            Ok(())
        }
        Err(err) => unless_read_only(interface, err),
    }
}

/// Sets `accept_ra` to 0 of a link that this ADD has just made, and with which the switch goes
/// again. To be done before the link is up. A host without IPv6 has no such key.
///
/// # Errors
/// Fails if the kernel refuses the request.
pub fn ignore_router_advertisements_on_new(link: &Link) -> Result<(), Error> {
    if link.accept_ra == Some(0) {
        return Ok(());
    }
    sysctl::write(&format!("net/ipv6/conf/{}/accept_ra", link.name), "0")
        .or_else(|err| unless_read_only(&link.name, err))
}

/// Returns success for an `accept_ra` that is missing or read-only. Warns if the host would believe a pod's
/// advertisements (CVE-2020-10749): an interface without IPv6 doesn't, nor does that of a router which takes
/// none (`accept_ra` 1).
fn unless_read_only(interface: &str, err: netlink::Error) -> Result<(), Error> {
    if err.is_missing() {
        return Ok(());
    }
    if !err.is(Errno::EROFS) {
        return Err(err.into());
    }
    let is = |key: &str, value: &str| {
        sysctl::read(&format!("net/ipv6/conf/{interface}/{key}")).is_ok_and(|now| now == value)
    };
    let is_deaf = is("disable_ipv6", "1") || (is("forwarding", "1") && is("accept_ra", "1"));
    if !is_deaf {
        log::warn!(
            "the host takes router advertisements from {interface}: /proc/sys is read-only; \
             hint: set net.ipv6.conf.default.accept_ra=0 on the host"
        );
    }
    Ok(())
}

/// The switches of forwarding, each with whether it is IPv4's.
const FORWARDING: [(bool, &str); 2] =
    [(true, "net/ipv4/ip_forward"), (false, "net/ipv6/conf/all/forwarding")];

/// The host forwards the families of `addrs`. Only a program that examines wants it: the Go plugins' CHECK
/// doesn't look at it.
///
/// # Errors
/// As those of [`Call::wants`].
pub fn forwards(call: &Call, host: &mut Netlink, addrs: &[IpNetwork]) -> Result<(), Error> {
    if !call.is_examined() {
        return Ok(());
    }
    let verify = |host: &mut Netlink| {
        for (v4, key) in FORWARDING {
            if addrs.iter().any(|addr| addr.is_ipv4() == v4) && !host.forwards(v4).unwrap_or(true) {
                return Err(Error::check(format!("{key} is 0: the host doesn't forward what pods send")));
            }
        }
        Ok(())
    };
    call.wants(Place::Host, host, verify, |host| forward(call, host, addrs))
}

/// Switches forwarding on for the families of `addrs`. It is switched off
/// again only if this pod is the only one on the host: any other, of whatever network, may
/// count on it by then.
///
/// # Errors
/// Fails if the kernel refuses the request.
pub fn forward(call: &Call, host: &mut Netlink, addrs: &[IpNetwork]) -> Result<(), Error> {
    for (v4, key) in FORWARDING {
        // A kernel that doesn't say, or not by netlink, may say it by sysctl.
        if !addrs.iter().any(|addr| addr.is_ipv4() == v4) || host.forwards(v4).unwrap_or(false) {
            continue;
        }
        let raised = if v4 { Vec::new() } else { hear_routers(host)? };
        let Some(old) = sysctl::ensure(key, "1").or_else(|err| {
            raised.iter().try_for_each(|key| believe(key, "1"))?;
            Err(unforwarded(key, err))
        })?
        else {
            continue;
        };
        call.undo.push(format!("restore {key}"), move || {
            let mut host = Netlink::open()?;
            if pods(&mut host)? > 1 {
                return Ok(());
            }
            sysctl::write(key, &old)?;
            raised.iter().try_for_each(|key| believe(key, "1"))?;
            // An ADD that found it on made its pod's link before it looked.
            if pods(&mut host)? > 1 {
                if !v4 {
                    hear_routers(&mut host)?;
                }
                sysctl::write(key, "1")?;
            }
            Ok(())
        });
    }
    Ok(())
}

/// The error of a host that doesn't forward and can't be told to.
fn unforwarded(key: &str, err: netlink::Error) -> Error {
    let is_read_only = err.is(Errno::EROFS);
    let err = Error::from(err);
    if is_read_only { err.details(format!("hint: set {}=1 on the host", key.replace('/', "."))) } else { err }
}

/// Lets the host's uplinks go on to hear their routers, which a host that forwards doesn't do with
/// `accept_ra` 1: its default route would go at once. Uplinks are those by which routers have told
/// routes. To be done before forwarding is on. Returns the keys that were raised.
fn hear_routers(host: &mut Netlink) -> Result<Vec<String>, Error> {
    let mut raised = Vec::new();
    for index in host.links_of_routers()? {
        let link = match host.link_at(index) {
            Ok(link) => link,
            Err(err) if err.is_missing() => continue,
            Err(err) => return Err(err.into()),
        };
        if link.accept_ra == Some(1) {
            let key = format!("net/ipv6/conf/{}/accept_ra", link.name);
            believe(&key, "2")?;
            raised.push(key);
        }
    }
    Ok(raised)
}

/// Writes an `accept_ra`, unless the link is gone. Where it is read-only, so is forwarding, which is written next.
fn believe(key: &str, value: &str) -> Result<(), Error> {
    match sysctl::write(key, value) {
        Err(err) if !err.is_missing() && !err.is(Errno::EROFS) => Err(err.into()),
        _ => Ok(()),
    }
}

/// How many pods there are on the host: ports of bridges, and what is named like a pod's veth.
fn pods(host: &mut Netlink) -> Result<usize, Error> {
    let veths = host.links(&Filter { master: None, kind: Some("veth") })?;
    // The other end of a pod's veth is in the pod, that of a vlan's gateway here.
    let both_here = |one: &Link| {
        veths.iter().any(|link| {
            link.master.is_some() != one.master.is_some()
                && Some(link.index) == one.peer
                && link.peer == Some(one.index)
        })
    };
    let is_pod = |link: &&Link| (link.master.is_some() || link.name.starts_with("veth")) && !both_here(link);
    Ok(veths.iter().filter(is_pod).count())
}
