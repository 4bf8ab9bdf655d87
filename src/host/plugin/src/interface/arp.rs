//! Probes for the result's IPv4 addresses (RFC 5227), if the configuration has `"arpProbe": true`.

use std::net::{IpAddr, Ipv4Addr};

use nix::errno::Errno;

use cnimble_cni::{CniResult, Error, PluginConfig};
use cnimble_netlink::arp::Asking;
use cnimble_netlink::link::{self, Change, Link, Mac};
use cnimble_netlink::{self as netlink, NetNs, Netlink};

use super::pod;
use crate::Call;

/// The hardware address of a link without one. No host answers to it.
const NO_MAC: Mac = Mac([0; 6]);

/// The key that asks for probes.
const KEY: &str = "arpProbe";

/// Returns whether the configuration asks for probes. Fails with code 7 if the key is no boolean.
pub(crate) fn is_wanted(config: &PluginConfig) -> Result<bool, Error> {
    Ok(super::flag(config, KEY)?.unwrap_or_default())
}

/// Probes on the pod's interface, which has no addresses yet, and is up afterwards. Returns a socket for the
/// announcement, because the kernel announces only when an interface comes up. Returns `None` if nothing was probed:
/// probes are not wanted, the result has no IPv4 address, or the interface has no carrier. Fails with code 102 and the
/// address that another host has.
pub fn probe_in_pod(
    call: &Call,
    netns: &NetNs,
    inside: &mut Netlink,
    link: &Link,
    result: &CniResult,
) -> Result<Option<Asking>, Error> {
    if !is_wanted(&call.config)? {
        return Ok(None);
    }
    inside.execute(link::set(link.index, &link.name, &Change { up: Some(true), ..Change::default() }))?;
    let link = inside.link_at(link.index)?;
    probe(&link, result, |ips| netns.enter(|| Asking::open(link.index, link.mac.unwrap_or(NO_MAC), ips))?)
}

/// Probes on the `master` of an ipvlan, because an interface without the address does not receive answers to its
/// hardware address. `netns` is the namespace of the master, if that is not the host.
pub fn probe_on_master(
    call: &Call,
    netns: Option<&NetNs>,
    master: &Link,
    result: &CniResult,
) -> Result<(), Error> {
    if !is_wanted(&call.config)? {
        return Ok(());
    }
    let mac = master.mac.unwrap_or(NO_MAC);
    let asked = probe(master, result, |ips| match netns {
        Some(netns) => netns.enter(|| Asking::open(master.index, mac, ips))?,
        None => Asking::open(master.index, mac, ips),
    });
    asked.map(drop)
}

/// Probes with the socket that `open` returns. Returns `None` without IPv4 addresses, and with a warning without a
/// carrier.
fn probe(
    link: &Link,
    result: &CniResult,
    open: impl FnOnce(Vec<Ipv4Addr>) -> netlink::Result<Asking>,
) -> Result<Option<Asking>, Error> {
    let ips: Vec<Ipv4Addr> = result.ips.iter().filter_map(|ip| v4(ip.address.ip())).collect();
    if ips.is_empty() {
        return Ok(None);
    }
    if !link.carrier {
        log::warn!("whether another host has {ips:?} is unknown: {} has no carrier", link.name);
        return Ok(None);
    }
    let asking = open(ips)?;
    match asking.probe() {
        Err(err) if err.is(Errno::EADDRINUSE) => Err(pod::taken(err)),
        probed => Ok(probed.map(|()| Some(asking))?),
    }
}

fn v4(ip: IpAddr) -> Option<Ipv4Addr> {
    match ip {
        IpAddr::V4(ip) => Some(ip),
        IpAddr::V6(_) => None,
    }
}
