//! Removes bridges with their last pod (`removeUnusedBridge`), and the gateway interfaces of VLANs on them.
//!
//! The kernel deletes even a bridge that has ports, so a DEL could delete the bridge that a concurrent ADD has found.
//! One lock for all bridges of the host prevents that:
//!
//! - ADD holds it from the look for the bridge until its port exists. Such a bridge is marked by its alias, which
//!   decides even if the ADD has another configuration.
//! - DEL and GC hold it from the look for ports until the bridge is gone.
//! - Any ADD that makes a bridge holds it until the bridge is complete. An ADD that gets the lock and finds an
//!   unfinished bridge thus knows that its maker was killed.

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

/// The most attempts to list the links while concurrent DELs remove some of them.
const ATTEMPTS: usize = 20;

/// Waits for the lock of all bridges. Fails with code 5 if it cannot be taken, and with the error of the signal that
/// ends the wait.
pub(crate) fn lock() -> Result<Lock, Error> {
    wait().map_err(|why| match why {
        LockError::Stopped(err) => err,
        LockError::Io(err) => Error::new(Code::IO, format!("lock {LOCK}")).details(err.to_string()),
    })
}

/// Waits for the lock as [`lock`] does. Returns `None` with a warning where it cannot be taken, for example because
/// `/run` is read-only. A bridge can be made without it.
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

/// Returns true if no link of the host has the index of the bridge.
pub(crate) fn is_gone(host: &mut Netlink, bridge: &Link) -> Result<bool, Error> {
    Ok(host.link_at(bridge.index).if_present()?.is_none())
}

/// Removes the bridge and the VLAN's gateway interface if no pod uses them ([`unused`]). Sets an uplink down again that
/// was down before.
///
/// DEL does nothing unless the configuration has `removeUnusedBridge`. GC removes an unfinished bridge in any case.
/// With an invalid configuration, nothing is removed and the outcome is `Ok`.
pub(crate) fn remove(call: &Call, host: &mut Netlink) -> Result<(), Error> {
    let Ok(config) = Config::read(&call.config) else { return Ok(()) };
    if !config.remove_unused && call.command != Command::Gc {
        return Ok(());
    }
    // This first look is made without the lock, so other DELs may remove ports meanwhile.
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

/// Returns the links that no pod uses any more, in the order of their removal. The first is the port of the VLAN's
/// gateway interface, whose removal deletes both ends. The bridge follows, if its only other port is the uplink. An
/// unfinished bridge is returned with any configuration.
///
/// Any other bridge needs `removeUnusedBridge` twice: in the configuration, and in its alias ([`ours::is_removable`]).
/// So a bridge that an administrator or a Go plugin has made always stays.
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
    // The uplink is no user: the kernel releases it when the bridge is deleted.
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
            // The gateway interface is the other end of this veth pair.
            unused.push(ports.remove(at));
        }
    }
    if ports.is_empty() && is_plain(host, &bridge, &gateways)? {
        unused.push(bridge);
    }
    Ok(unused)
}

/// Returns true if one of the ports is in the VLAN.
fn is_in<'l>(host: &mut Netlink, vlan: u16, ports: impl Iterator<Item = &'l Link>) -> netlink::Result<bool> {
    for port in ports {
        if host.vlans(port.index)?.iter().any(|of| of.id == vlan) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Returns true if nothing but pods needs the link. It then has only the gateways and link-local addresses of IPv6, and
/// no VLAN or other link of the host's namespace is on top of it. Links in other namespaces are not seen.
fn is_plain(host: &mut Netlink, link: &Link, gateways: &[IpNetwork]) -> netlink::Result<bool> {
    for addr in host.addrs(link.index)? {
        let is_own = match addr.net {
            IpNetwork::V6(net) if net.ip().is_unicast_link_local() => true,
            net => gateways.contains(&net),
        };
        if !is_own {
            return Ok(false);
        }
    }
    let all = host.links(&Filter { master: None, kind: None })?;
    Ok(!all
        .iter()
        .any(|other| other.peer == Some(link.index) && other.peer_netnsid.is_none() && other.kind != "veth"))
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

/// An item of `ipam.ranges` or `ipam.addresses`, or `ipam` itself.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Range {
    #[serde(alias = "address")]
    subnet: String,
    /// Empty for the first address of the subnet.
    gateway: String,
}

impl Range {
    /// Returns the gateway with the prefix length of the subnet. Without the key it is the first address. `None` if the
    /// subnet is invalid.
    fn gateway(&self) -> Option<IpNetwork> {
        let net: IpNetwork = self.subnet.parse().ok()?;
        let gateway = self.gateway.parse().unwrap_or_else(|_| cidr::first_address(net));
        IpNetwork::new(gateway, net.prefix()).ok()
    }
}

/// Returns the gateways that an ADD of this network may have given to the bridge: those of prevResult, and those of the
/// ranges and addresses in the configuration's `ipam`. An `ipam` that cannot be read adds none.
fn gateways(call: &Call) -> Vec<IpNetwork> {
    let ips = call.config.prev_result.iter().flat_map(|prev| &prev.ips);
    let assigned = ips.filter_map(|ip| IpNetwork::new(ip.gateway?, ip.address.prefix()).ok());
    let Keys { ipam } = call.config.decode().unwrap_or_default();
    let ranges = ipam.ranges.iter().flatten().chain(&ipam.addresses).chain([&ipam.single]);
    assigned.chain(ranges.filter_map(Range::gateway)).collect()
}
