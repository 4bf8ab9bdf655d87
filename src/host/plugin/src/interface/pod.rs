//! Sets the switches and the routes of the interface in the pod.

use std::net::IpAddr;
use std::path::Path;
use std::time::Duration;

use nix::errno::Errno;

use cnimble_cni::reach::{self, Gateways};
use cnimble_cni::{CniResult, Code, Error, cidr};
use cnimble_netlink::link::{self, Change, Mac};
use cnimble_netlink::{self as netlink, IfPresent, NetNs, Netlink, Request, addr, route, sysctl};

use crate::{Call, Place};

/// Returns the routes of the result for the interface with this index. A route without a gateway uses the first gateway
/// of its family. Equal routes, such as a default route of IPAM's and one of the plugin's, become one.
pub fn routes(index: u32, result: &CniResult) -> Vec<route::NewRoute> {
    let mut routes: Vec<route::NewRoute> = Vec::with_capacity(result.routes.len());
    for wanted in &result.routes {
        let via = reach::next_hop(wanted, &result.ips);
        let route = route::NewRoute {
            dst: cidr::network_of(wanted.dst),
            via,
            index,
            src: None,
            mtu: wanted.mtu,
            advmss: wanted.advmss,
            priority: wanted.priority,
            table: wanted.table,
            scope: wanted.scope,
            onlink: via.is_some_and(|via| reach::is_on_link(via, &result.ips, &result.routes)),
        };
        if !routes.contains(&route) {
            routes.push(route);
        }
    }
    routes
}

/// Adds to the kernel's error for a route of the result which next hop is in no network of the pod. The kernel does not
/// say that. Other errors stay as they are.
pub fn explained(result: &CniResult, gateways: Gateways, err: netlink::Error) -> Error {
    let is_unreachable = err.is(Errno::ENETUNREACH) || err.is(Errno::EHOSTUNREACH);
    let hop = reach::unreachable(&result.ips, &result.routes, gateways);
    let Some((_, via)) = hop.filter(|_| is_unreachable) else { return err.into() };
    let networks: Vec<String> = result.ips.iter().map(|ip| ip.address.to_string()).collect();
    Error::from(err).details(format!(
        "the next hop {via} is in no network of the pod ({}); hint: change the prefix length or the gateway",
        networks.join(", ")
    ))
}

/// Duplicate address detection for the IPv6 addresses of an interface.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Detection {
    /// The addresses are known to be free.
    #[default]
    Off,
    /// Other hosts may have the addresses, so the kernel probes for them first.
    On,
}

/// How the interface starts.
#[derive(Debug, Clone, Default)]
pub struct Start {
    /// The hardware address to set, or `None` to keep it.
    pub mac: Option<Mac>,
    pub detection: Detection,
    /// Whether the kernel announces its IPv4 addresses (`arp_notify`).
    pub announced: bool,
}

/// Returns the requests that give the interface its addresses and bring it up. The caller adds the routes behind them.
pub fn up(index: u32, name: &str, result: &CniResult, start: &Start) -> Vec<Request> {
    let announce = start.announced.then(|| link::set_arp(index, name, link::ArpSwitch::Notify));
    let add = match start.detection {
        Detection::Off => addr::add,
        Detection::On => addr::add_probed,
    };
    let addresses = result.ips.iter().map(|ip| add(index, name, ip.address));
    let up = link::set(index, name, &Change { up: Some(true), mac: start.mac, ..Change::default() });
    announce.into_iter().chain(addresses).chain([up]).collect()
}

/// Sets the switches of the interface, in the namespace of this thread. `peer_netnsid` is the number of the namespace
/// on the host, if it is known. IPAM owns the addresses, so there is no duplicate address detection, unless `detection`
/// is on.
///
/// Fails if `disable_ipv6` can't be switched off for an IPv6 address. Other switches may be missing or read-only.
pub fn switches(
    call: &Call,
    name: &str,
    peer_netnsid: Option<i32>,
    result: &CniResult,
    detection: Detection,
) -> Result<(), Error> {
    let key = format!("net/ipv6/conf/{name}");
    // The kernel lacks the family. An IPv6 address would fail later.
    let Some(conf) = sysctl::Dir::open(&key, peer_netnsid).if_present()? else {
        return Ok(());
    };
    let mut wanted = Vec::with_capacity(4);
    if result.ips.iter().any(|ip| ip.address.is_ipv6()) {
        // A write retries for the lock of all network configuration, while concurrent ADDs hold it. The value is
        // already 0 on nearly all hosts.
        if let Some(Some(_)) = conf.ensure("disable_ipv6", "0").if_present()? {
            enable_loopback(call)?;
        }
        wanted.push(("keep_addr_on_down", "1"));
        // Only IPAM's addresses are used, and none from a router or a lying neighbour. If IPAM has no routes, a router
        // may add them.
        let routed = result.routes.iter().any(|route| route.dst.is_ipv6());
        wanted.push((if routed { "accept_ra" } else { "autoconf" }, "0"));
    }
    if detection == Detection::On {
        // The address is announced once it is known to be free.
        wanted.extend([("enhanced_dad", "1"), ("ndisc_notify", "1")]);
    }
    wanted.push(("accept_dad", if detection == Detection::On { "1" } else { "0" }));
    set_if_possible(&conf, name, &wanted)
}

/// Makes the interface, which is down, ignore router advertisements if the configuration has `"acceptRA": false`.
/// `peer_netnsid` is as in [`switches`]. An interface without IPv6 has no such switch.
///
/// Fails if the switch is read-only: the owner of the network relies on it.
pub fn ignore_routers(
    call: &Call,
    netns: &NetNs,
    name: &str,
    peer_netnsid: Option<i32>,
) -> Result<(), Error> {
    if hears_routers(call)? {
        return Ok(());
    }
    netns.enter(|| {
        let Some(conf) = sysctl::Dir::open(&format!("net/ipv6/conf/{name}"), peer_netnsid).if_present()?
        else {
            return Ok(());
        };
        conf.write("accept_ra", "0").if_present()?;
        Ok(())
    })?
}

/// Returns whether the pod may accept router advertisements (`acceptRA`), as it may by default.
fn hears_routers(call: &Call) -> Result<bool, Error> {
    Ok(super::flag(&call.config, "acceptRA")?.unwrap_or(true))
}

/// Does CHECK of [`ignore_routers`]. A repair switches them off again.
pub fn check_routers(call: &Call, inside: &mut Netlink) -> Result<(), Error> {
    if hears_routers(call)? {
        return Ok(());
    }
    call.wants(
        Place::Pod,
        inside,
        |inside| verify_ignores_routers(call, inside),
        |_| ignore_routers(call, &call.open_netns()?, &call.ifname, None),
    )
}

/// Fails with code 103 if the pod's end accepts router advertisements.
fn verify_ignores_routers(call: &Call, inside: &mut Netlink) -> Result<(), Error> {
    match inside.link(&call.ifname)?.accept_ra {
        None | Some(0) => Ok(()),
        Some(now) => Err(Error::check(format!("interface {} has accept_ra {now}, expected 0", call.ifname))),
    }
}

/// Sets the switches of an interface that is about to request IPv6 addresses on its link, before it is up. Its
/// link-local address is usable at once: its hardware address is unique on the link, so it needs no detection. Routers
/// are asked without a pause for prefixes and routes, which DHCPv6 lacks. Fails on a kernel without IPv6.
pub fn before_dhcp(call: &Call, name: &str) -> Result<(), Error> {
    let conf = sysctl::Dir::open(&format!("net/ipv6/conf/{name}"), None)?;
    let wanted = [("autoconf", "0"), ("accept_dad", "0"), ("router_solicitation_delay", "0")];
    set_if_possible(&conf, name, &wanted)?;
    if conf.ensure("disable_ipv6", "0")?.is_some() {
        enable_loopback(call)?;
    }
    Ok(())
}

/// Sets switches. Skips missing ones, and warns of read-only ones.
fn set_if_possible(conf: &sysctl::Dir, name: &str, wanted: &[(&str, &str)]) -> Result<(), Error> {
    let mut unwritable = Vec::new();
    for (key, value) in wanted {
        match conf.write(key, value) {
            Err(err) if err.is_missing() => {}
            Err(err) if err.is(Errno::EROFS) => unwritable.push(format!("{key}={value}")),
            outcome => outcome?,
        }
    }
    if !unwritable.is_empty() {
        log::warn!("{name} does without {}: /proc/sys is read-only", unwritable.join(", "));
    }
    Ok(())
}

/// The time to wait for duplicate address detection. The kernel's one probe takes one to two seconds. These are a
/// random delay of up to a second, and a second for the probe (RFC 4862, section 5.4.2).
const DAD_TIMEOUT: Duration = Duration::from_secs(5);

/// Waits until the result's IPv6 addresses are known to be free. Warns if that remains unknown: at once without a
/// carrier, or after five seconds. Fails with code 102 and the address that another host has.
pub fn wait_for_addresses(inside: &mut Netlink, index: u32, result: &CniResult) -> Result<(), Error> {
    let ips: Vec<IpAddr> = result.ips.iter().map(|ip| ip.address.ip()).filter(IpAddr::is_ipv6).collect();
    if ips.is_empty() {
        return Ok(());
    }
    let link = inside.link_at(index)?;
    if !link.carrier {
        warn_unknown(&ips, &link.name, "has no carrier");
        return Ok(());
    }
    match inside.wait_addrs_settled(index, DAD_TIMEOUT) {
        Err(err) if err.is(Errno::ETIMEDOUT) => {
            warn_unknown(&ips, &link.name, "has not finished duplicate address detection in 5 s");
            Ok(())
        }
        Err(err) if err.is(Errno::EADDRINUSE) => Err(taken(err)),
        outcome => Ok(outcome?),
    }
}

/// Warns that nobody knows whether another host has the addresses. `why` goes on after the name of the link.
fn warn_unknown(ips: &[IpAddr], link: &str, why: &str) {
    log::warn!("whether another host has {ips:?} is unknown: {link} {why}");
}

/// Returns the error for an address that another host has (code 102).
pub(super) fn taken(err: netlink::Error) -> Error {
    Error::from(err)
        .with_code(Code::CONFLICT)
        .details("hint: take the address out of the IPAM plugin's range, or remove it from that host")
}

/// Enables IPv6 on lo, which lacks it if new interfaces lack it. The pod's own addresses are reached through lo.
fn enable_loopback(call: &Call) -> Result<(), Error> {
    const KEY: &str = "net/ipv6/conf/lo/disable_ipv6";
    if let Some(Some(old)) = sysctl::ensure(KEY, "0").if_present()? {
        let netns = call.netns.clone();
        call.undo.push("switch IPv6 of lo in the pod off again", move || {
            Ok(NetNs::open(Path::new(&netns))?.enter(|| sysctl::write(KEY, &old))??)
        });
    }
    Ok(())
}
