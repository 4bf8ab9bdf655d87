//! Bridges that are removed with their last pod (`removeUnusedBridge`), and the vlans' gateways on them.
//!
//! The kernel deletes a bridge that has ports, so an ADD could lose the bridge that it has found. So ADD holds a lock
//! from the look for the bridge until its port exists, and DEL and GC from the look for ports until it is gone. Such a
//! bridge, marked by its alias, needs it with any configuration of the ADD. Any ADD that makes a bridge holds it, too,
//! until the bridge is complete: one that finds an unfinished bridge knows then that its maker was killed.

use ipnetwork::IpNetwork;
use serde::Deserialize;

use cnimble_cni::{Code, Error, cidr};
use cnimble_leases::lock::{Lock, LockError};
use cnimble_netlink::link::{Filter, Link};
use cnimble_netlink::{self as netlink, IfPresent, Netlink};
use cnimble_plugin::interface::remove;
use cnimble_plugin::{Call, Command};
use cnimble_rules::objects::bridge::{LOCK, is_left_over, open_lock};

use crate::config::{Config, vlan_gateway_name};
use crate::{ours, uplink, vlan_gateway};

/// Tries while concurrent DELs remove the listed links.
const ATTEMPTS: usize = 20;

/// Waits for the lock of all bridges.
pub(crate) fn lock() -> Result<Lock, Error> {
    wait().map_err(|why| match why {
        LockError::Stopped(err) => err,
        LockError::Io(err) => Error::new(Code::IO, format!("lock {LOCK}")).details(err.to_string()),
    })
}

/// Waits for the lock as [`lock`] does. Returns `None` with a warning where the lock can't be taken (`/run` is
/// read-only): a bridge can be made without it.
pub(crate) fn lock_if_possible() -> Result<Option<Lock>, Error> {
    match wait() {
        Ok(lock) => Ok(Some(lock)),
        Err(LockError::Stopped(err)) => Err(err),
        Err(LockError::Io(err)) => {
            log::warn!("lock {LOCK}: {err}");
            Ok(None)
        }
    }
}

fn wait() -> Result<Lock, LockError> {
    open_lock().map_err(LockError::Io).and_then(Lock::wait)
}

pub(crate) fn is_gone(host: &mut Netlink, bridge: &Link) -> Result<bool, Error> {
    Ok(host.link_at(bridge.index).if_present()?.is_none())
}

/// Removes them if that is configured, and they are unused. GC also removes a bridge that a killed ADD has left.
pub(crate) fn remove(call: &Call, host: &mut Netlink) -> Result<(), Error> {
    let is_asked = |config: &Config| config.remove_unused || call.command == Command::Gc;
    let Some(config) = Config::read(&call.config).ok().filter(is_asked) else {
        return Ok(());
    };
    // Other DELs remove their ports, and the first look is done, without the lock.
    if unused(call, host, &config).if_present()?.is_some_and(|links| links.is_empty()) {
        return Ok(());
    }
    let _alone = lock()?;
    let mut links = unused(call, host, &config);
    for _ in 0..ATTEMPTS {
        match links {
            Err(err) if err.is_missing() => links = unused(call, host, &config),
            _ => break,
        }
    }
    for link in links? {
        remove::delete(host, &link)?;
        if ours::wakes_uplink(&link)
            && let Some(uplink) = &config.uplink
        {
            uplink::take_down(host, uplink)?;
        }
    }
    Ok(())
}

/// Returns the links that no pod uses any more, in the order of their removal: the vlan's gateway and then the bridge.
fn unused(call: &Call, host: &mut Netlink, config: &Config) -> netlink::Result<Vec<Link>> {
    let mut unused = Vec::new();
    let bridge = host.find_link(&config.bridge)?;
    let Some(bridge) = bridge.filter(|link| link.kind == "bridge") else { return Ok(unused) };
    if is_left_over(host, &bridge)? {
        return Ok(vec![bridge]);
    }
    if !config.remove_unused || !ours::is_removable(&bridge) {
        return Ok(unused);
    }
    let gateways = gateways(call);
    let mut ports = host.links(&Filter { master: Some(bridge.index), kind: None })?;
    // The kernel takes it off with the bridge.
    ports.retain(|port| config.uplink.as_ref() != Some(&port.name));
    if let Some(vlan) = config.vlan {
        let name = vlan_gateway_name(&bridge.name, vlan);
        let port = vlan_gateway::port_name(&name);
        let gateway = host.find_link(&name)?;
        let gateway =
            gateway.filter(|link| vlan_gateway::may_be_removed(link, vlan) && link.master.is_none());
        if let Some(gateway) = gateway
            && let Some(at) = ports.iter().position(|link| link.name == port)
            && !is_in(host, vlan, ports.iter().filter(|link| link.name != port))?
            && is_plain(host, &gateway, &gateways)?
        {
            // The gateway is its other end.
            unused.push(ports.remove(at));
        }
    }
    if ports.is_empty() && is_plain(host, &bridge, &gateways)? {
        unused.push(bridge);
    }
    Ok(unused)
}

fn is_in<'l>(host: &mut Netlink, vlan: u16, ports: impl Iterator<Item = &'l Link>) -> netlink::Result<bool> {
    for port in ports {
        if host.vlans(port.index)?.iter().any(|of| of.id == vlan) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Whether a link has only the gateways as addresses, and is no link's parent.
fn is_plain(host: &mut Netlink, link: &Link, gateways: &[IpNetwork]) -> netlink::Result<bool> {
    let own = |net: IpNetwork| match net {
        IpNetwork::V6(net) if net.ip().is_unicast_link_local() => true,
        net => gateways.contains(&net),
    };
    if host.addrs(link.index)?.into_iter().any(|addr| !own(addr.net)) {
        return Ok(false);
    }
    let all = host.links(&Filter { master: None, kind: None })?;
    Ok(!all.iter().any(|other| other.peer == Some(link.index) && other.far.is_none() && other.kind != "veth"))
}

/// The keys that name gateways, for a DEL whose prevResult does not.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Keys {
    ipam: Ipam,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Ipam {
    #[serde(flatten)]
    single: Range,
    /// The key of host-local.
    ranges: Vec<Vec<Range>>,
    /// The key of static.
    addresses: Vec<Range>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Range {
    #[serde(alias = "address")]
    subnet: String,
    gateway: String,
}

impl Range {
    fn gateway(&self) -> Option<IpNetwork> {
        let net: IpNetwork = self.subnet.parse().ok()?;
        let gateway = self.gateway.parse().unwrap_or_else(|_| cidr::first_address(net));
        IpNetwork::new(gateway, net.prefix()).ok()
    }
}

/// Returns the gateways that an ADD of this network may have given to the bridge: those of prevResult, and those of the
/// ranges and addresses in the configuration's `ipam`.
fn gateways(call: &Call) -> Vec<IpNetwork> {
    let ips = call.config.prev_result.iter().flat_map(|prev| &prev.ips);
    let assigned = ips.filter_map(|ip| IpNetwork::new(ip.gateway?, ip.address.prefix()).ok());
    let Keys { ipam } = call.config.decode().unwrap_or_default();
    let ranges = ipam.ranges.iter().flatten().chain(&ipam.addresses).chain([&ipam.single]);
    assigned.chain(ranges.filter_map(Range::gateway)).collect()
}
