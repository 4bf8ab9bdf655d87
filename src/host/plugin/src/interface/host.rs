//! Switches of the host, with their undo.

use ipnetwork::IpNetwork;
use nix::errno::Errno;

use cnimble_cni::Error;
use cnimble_netlink::link::{Filter, Link};
use cnimble_netlink::{self as netlink, IfPresent, Netlink, sysctl};

use crate::{Call, Place};

/// Makes an interface of the host ignore router advertisements, with an undo. A host without IPv6 has no such switch,
/// which is no error.
pub fn ignore_router_advertisements(call: &Call, interface: &str) -> Result<(), Error> {
    let key = format!("net/ipv6/conf/{interface}/accept_ra");
    match sysctl::ensure(&key, "0") {
        Ok(None) => Ok(()),
        Ok(Some(old)) => {
            let name = interface.to_owned();
            call.undo.push(format!("restore {key}"), move || {
                let mut host = Netlink::open()?;
                // If this ADD has made the link, its deletion ends the setting. A bridge that has got other pods since
                // keeps it.
                match host.find_link(&name)? {
                    Some(link)
                        if host.links(&Filter { master: Some(link.index), kind: None })?.is_empty() => {}
                    _ => return Ok(()),
                }
                sysctl::write(&key, &old).if_present()?;
                Ok(())
            });
            Ok(())
        }
        Err(err) => unless_read_only(interface, err),
    }
}

/// Makes a link of this ADD ignore router advertisements, before it is up. It needs no undo, because the setting ends
/// with the link.
pub fn ignore_router_advertisements_on_new(link: &Link) -> Result<(), Error> {
    if link.accept_ra == Some(0) {
        return Ok(());
    }
    sysctl::write_among(link.peer_netnsid, &format!("net/ipv6/conf/{}/accept_ra", link.name), "0")
        .or_else(|err| unless_read_only(&link.name, err))
}

/// Switches IPv6 on for a link of ours that gets an IPv6 address, on a host whose links are born without
/// (`net.ipv6.conf.default.disable_ipv6`). The kernel refuses the address otherwise. Returns the key and its old value
/// if it was off.
pub fn switch_ipv6_on(link: &Link) -> Result<Option<(String, String)>, Error> {
    if link.disable_ipv6 != Some(true) {
        return Ok(None);
    }
    let key = format!("net/ipv6/conf/{}/disable_ipv6", link.name);
    let old = sysctl::ensure(&key, "0")?;
    Ok(old.map(|old| (key, old)))
}

/// Accepts that `accept_ra` is missing or read-only. If it is read-only, warns if the host would accept a pod's
/// advertisements (CVE-2020-10749). An interface without IPv6 accepts none, nor does one that forwards with `accept_ra`
/// 1.
fn unless_read_only(interface: &str, err: netlink::Error) -> Result<(), Error> {
    if err.is_missing() {
        return Ok(());
    }
    if !err.is(Errno::EROFS) {
        return Err(err.into());
    }
    let is_deaf = is_one(interface, "disable_ipv6")
        || (is_one(interface, "forwarding") && is_one(interface, "accept_ra"));
    if !is_deaf {
        log::warn!(
            "the host takes router advertisements from {interface}: /proc/sys is read-only; \
             hint: set net.ipv6.conf.default.accept_ra=0 on the host"
        );
    }
    Ok(())
}

/// The sysctls that switch forwarding on for the host, of IPv4 (true) and IPv6.
const FORWARDING: [(bool, &str); 2] =
    [(true, "net/ipv4/ip_forward"), (false, "net/ipv6/conf/all/forwarding")];

/// Returns whether a sysctl of an interface for IPv6 is 1. Returns false if it can't be read.
fn is_one(interface: &str, key: &str) -> bool {
    sysctl::read(&format!("net/ipv6/conf/{interface}/{key}")).is_ok_and(|now| now == "1")
}

/// Checks that the host forwards packets of the families of `addrs` from the link `gateway`. Only an examination does,
/// because the Go plugins' CHECK does not. For IPv4 the kernel goes by the link alone, for IPv6 by the host.
pub fn forwards(call: &Call, host: &mut Netlink, gateway: &Link, addrs: &[IpNetwork]) -> Result<(), Error> {
    if !call.is_examined() {
        return Ok(());
    }
    let of_link = forwarding_of(gateway);
    call.wants(
        Place::Host,
        host,
        |host| verify_forwarding(host, gateway, &of_link, addrs),
        |host| {
            forward(call, host, addrs)?;
            // It writes nothing if the host forwards from other links.
            if addrs.iter().any(IpNetwork::is_ipv4) {
                sysctl::write(&of_link, "1")?;
            }
            Ok(())
        },
    )
}

/// Fails with code 103 if the host surely forwards no packets of a family of `addrs` from the link `gateway`. `of_link`
/// is the link's sysctl for IPv4.
fn verify_forwarding(
    host: &mut Netlink,
    gateway: &Link,
    of_link: &str,
    addrs: &[IpNetwork],
) -> Result<(), Error> {
    for (v4, of_host) in FORWARDING {
        let (answer, key) = if v4 {
            (host.link_at(gateway.index).map(|link| link.forwards), of_link)
        } else {
            (host.forwards(v4).map(Some), of_host)
        };
        if addrs.iter().any(|addr| addr.is_ipv4() == v4) && answer == Ok(Some(false)) {
            return Err(Error::check(format!("{key} is 0: the host doesn't forward what pods send")));
        }
    }
    Ok(())
}

/// Switches forwarding on for the families of `addrs`, if it is off. The undo switches it off again only if the host
/// has no other pod.
pub fn forward(call: &Call, host: &mut Netlink, addrs: &[IpNetwork]) -> Result<(), Error> {
    for (v4, key) in FORWARDING {
        // If the kernel does not report it by netlink, the sysctl is read.
        if !addrs.iter().any(|addr| addr.is_ipv4() == v4) || host.forwards(v4).unwrap_or(false) {
            continue;
        }
        let raised = if v4 { Vec::new() } else { accept_router_advertisements(host)? };
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
            // A concurrent ADD that found forwarding on has made its pod's link before.
            if pods(&mut host)? > 1 {
                if !v4 {
                    accept_router_advertisements(&mut host)?;
                }
                sysctl::write(key, "1")?;
            }
            Ok(())
        });
    }
    Ok(())
}

/// Returns the sysctl that switches IPv4 forwarding on for packets from a link.
fn forwarding_of(link: &Link) -> String {
    format!("net/ipv4/conf/{}/forwarding", link.name)
}

/// Forwards IPv4 from a link of ours, after [`forward`]. A link is born with `net.ipv4.conf.default.forwarding`, which
/// is 0 on a hardened host. The setting ends with the link.
pub fn forward_from(link: &Link, addrs: &[IpNetwork]) -> Result<(), Error> {
    if link.forwards != Some(false) || !addrs.iter().any(IpNetwork::is_ipv4) {
        return Ok(());
    }
    let key = forwarding_of(link);
    sysctl::write_among(link.peer_netnsid, &key, "1").map_err(|err| unforwarded(&key, err))
}

/// Returns the error for a host that does not forward and cannot be changed.
fn unforwarded(key: &str, err: netlink::Error) -> Error {
    let is_read_only = err.is(Errno::EROFS);
    let err = Error::from(err);
    if is_read_only { err.details(format!("hint: set {}=1 on the host", key.replace('/', "."))) } else { err }
}

/// Keeps the default route of the host's uplinks, which are the links with routes from routers. A forwarding host
/// ignores routers with `accept_ra` 1, and would lose such a route at once. So it is set to 2. Call this before
/// forwarding is switched on. Returns the changed keys.
fn accept_router_advertisements(host: &mut Netlink) -> Result<Vec<String>, Error> {
    let mut raised = Vec::new();
    for index in host.links_of_routers()? {
        let Some(link) = host.link_at(index).if_present()? else { continue };
        if link.accept_ra == Some(1) {
            let key = format!("net/ipv6/conf/{}/accept_ra", link.name);
            believe(&key, "2")?;
            raised.push(key);
        }
    }
    Ok(raised)
}

/// Writes an `accept_ra`. It is no error if the link has gone. Nor is it one if the key is read-only: then forwarding,
/// which is written next, is read-only, too, and says so.
fn believe(key: &str, value: &str) -> Result<(), Error> {
    sysctl::write(key, value).default_for(&[Errno::EROFS]).if_present()?;
    Ok(())
}

/// Returns the number of pods' links on the host. These are veths that are ports of bridges or have the name of a pod's
/// veth, and that lead to another namespace.
fn pods(host: &mut Netlink) -> Result<usize, Error> {
    let veths = host.links(&Filter { master: None, kind: Some("veth") })?;
    let named = veths.iter().filter(|link| link.master.is_some() || link.name.starts_with("veth"));
    // The other end of a pod's veth is in the pod. The other end of a vlan's gateway is on the host.
    Ok(named.filter(|link| !has_other_end(&veths, link)).count())
}

/// Returns whether the other end of a veth is among `veths`, and only one of the ends is a port of a bridge.
fn has_other_end(veths: &[Link], one: &Link) -> bool {
    veths.iter().any(|link| {
        link.master.is_some() != one.master.is_some()
            && Some(link.index) == one.peer
            && link.peer == Some(one.index)
    })
}
