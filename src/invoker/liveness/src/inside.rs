//! The interface that a cache entry leads to. It can be another attachment's: a process ID is used again, or a named
//! namespace made again, after a pod that ended without a DEL. A DEL judges alike (`inside.rs` of `cnimble_plugin`).

use cnimble_cni::{Error, Interface, IpConfig, Owner};
use cnimble_netlink::link::{Link, Mac};
use cnimble_netlink::{NetNs, Netlink};
use cnimble_rules::objects::pair;
use cnimble_rules::survey;
use cnimble_runtime::Entry;

use super::cache_entries::owner_of;

/// Why the interface in `ns`, which the entry's path leads to, is not surely the entry's.
pub fn doubt(entry: &Entry, ns: &NetNs, host: &mut Netlink) -> Result<Option<String>, Error> {
    let (name, mut inside) = (&entry.ifname, Netlink::open_bounded(ns)?);
    Ok(match inside.find_link(name)? {
        None => Some(lost(entry)),
        Some(link) if is_anothers(entry, &link, &mut inside, host, ns)? => {
            Some(format!(
                "the {name} in its namespace is not as ADD made it: it is another attachment's, or was changed since"
            ))
        }
        Some(_) => None,
    })
}

/// Whether the namespace has lost the interface that ADD made in it. A device that a program of the pod drives itself
/// (DPDK) is no interface of the kernel, and the result of its ADD tells no MAC.
pub fn has_lost_interface(entry: &Entry, ns: &NetNs) -> Result<bool, Error> {
    let result = entry.cni_result().ok().flatten().unwrap_or_default();
    let made = |of: &Interface| of.name == entry.ifname && !of.sandbox.is_empty() && !of.mac.is_empty();
    Ok(result.interfaces.iter().any(made) && Netlink::open_bounded(ns)?.find_link(&entry.ifname)?.is_none())
}

/// Returns the text about a namespace that exists without the interface of the cache entry.
pub fn lost(entry: &Entry) -> String {
    format!("its namespace is there, but has no {}", entry.ifname)
}

/// `link` is an interface in `ns`, which the socket `pod` is of.
fn is_anothers(
    entry: &Entry,
    link: &Link,
    pod: &mut Netlink,
    host: &mut Netlink,
    ns: &NetNs,
) -> Result<bool, Error> {
    let end = host.other_end(link, ns)?;
    let alias = match (&end, link.kind.as_str()) {
        (Some(end), _) => end.alias.as_str(),
        // A pod writes aliases of its own.
        (None, pair::KIND) => "",
        (None, _) => link.alias.as_str(),
    };
    let owner = owner_of(entry);
    if survey::tag(alias).is_some() {
        if owner.owns(alias) {
            return Ok(false);
        }
        // A plugin that delegates gives an interface to the same container in the name of another network.
        if !Owner::is_of_container(alias, &entry.container_id) {
            return Ok(true);
        }
    }
    let result = entry.cni_result().ok().flatten().unwrap_or_default();
    // All ipvlans have their master's MAC.
    if link.kind == "ipvlan" {
        let present = pod.addrs(link.index)?;
        let has = |ip: &IpConfig| present.iter().any(|addr| addr.net.ip() == ip.address.ip());
        return Ok(!result.ips.is_empty() && !result.ips.iter().any(has));
    }
    let (inside, on_host): (Vec<_>, Vec<_>) = result.interfaces.iter().partition(|of| !of.sandbox.is_empty());
    // The pod can have changed its MAC, and not the name of the host's end.
    let is_known = end.is_some_and(|end| on_host.iter().any(|of| of.name == end.name));
    let told = inside.iter().find(|of| of.name == entry.ifname).and_then(|of| Mac::parse(&of.mac));
    Ok(!is_known && told.is_some_and(|mac| link.mac != Some(mac)))
}
