//! Compares a cache entry with the interface to which its namespace path leads. The interface can belong to another
//! attachment: after a pod that ended without a DEL, a process ID is reused, or a named namespace is made again. DEL
//! uses the same evidence (`inside.rs` of `cnimble_plugin`).

use cnimble_cni::{Error, Owner};
use cnimble_netlink::link::{Link, Mac};
use cnimble_netlink::{NetNs, Netlink};
use cnimble_rules::objects::pair;
use cnimble_rules::survey;
use cnimble_runtime::Entry;

use super::cache_entries::owner_of;

/// Returns why the interface in `ns` may not be the entry's, or `None` if nothing speaks against it. The caller opens
/// `ns` by the entry's path. `host` is a socket in the host's namespace.
///
/// # Errors
/// Fails if the kernel can't be asked; then nothing is known.
pub fn doubt(entry: &Entry, ns: &NetNs, host: &mut Netlink) -> Result<Option<String>, Error> {
    let (name, mut inside) = (&entry.ifname, Netlink::open_bounded(ns)?);
    Ok(match inside.find_link(name)? {
        None => Some(lost(entry)),
        Some(link) if is_anothers(entry, &link, &mut inside, host, ns)? => Some(format!(
            "the {name} in its namespace is not as ADD made it: it is another attachment's, or was changed since"
        )),
        Some(_) => None,
    })
}

/// Returns whether ADD made the interface in the pod, and `ns` has none of that name any more. Returns false if the
/// result has no MAC for it: a device that a program of the pod drives itself (DPDK) is no interface of the kernel.
pub fn has_lost_interface(entry: &Entry, ns: &NetNs) -> Result<bool, Error> {
    let result = entry.cni_result().ok().flatten().unwrap_or_default();
    let was_made = result
        .interfaces
        .iter()
        .any(|of| of.name == entry.ifname && !of.sandbox.is_empty() && !of.mac.is_empty());
    Ok(was_made && Netlink::open_bounded(ns)?.find_link(&entry.ifname)?.is_none())
}

/// Returns whether the result names the interface in the pod without a MAC, as for a device that is no interface of the
/// kernel.
pub fn is_without_mac(entry: &Entry) -> bool {
    let result = entry.cni_result().ok().flatten().unwrap_or_default();
    let mut interfaces = result.interfaces.iter();
    interfaces
        .find(|of| of.name == entry.ifname && !of.sandbox.is_empty())
        .is_some_and(|of| of.mac.is_empty())
}

/// Returns the text about a namespace that exists without the interface of the cache entry.
pub fn lost(entry: &Entry) -> String {
    format!("its namespace is there, but has no {}", entry.ifname)
}

/// Returns whether `link` belongs to another attachment. `link` is in `ns`, `pod` is a socket in `ns`, and `host` is
/// one in the host's namespace. Without evidence the answer is false.
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
        // The pod can write the alias of its own end, so that alias proves nothing.
        (None, pair::KIND) => "",
        (None, _) => link.alias.as_str(),
    };
    let owner = owner_of(entry);
    if survey::tag(alias).is_some() {
        if owner.owns(alias) {
            return Ok(false);
        }
        // A delegating plugin adds an interface for the same container under another network's name.
        if !Owner::is_of_container(alias, &entry.container_id) {
            return Ok(true);
        }
    }
    let result = entry.cni_result().ok().flatten().unwrap_or_default();
    // All ipvlans have their master's MAC, so their addresses are compared.
    if link.kind == "ipvlan" {
        let present = pod.addrs(link.index)?;
        let has_one = result.ips.iter().any(|ip| present.iter().any(|addr| addr.net.ip() == ip.address.ip()));
        return Ok(!result.ips.is_empty() && !has_one);
    }
    let (inside, on_host): (Vec<_>, Vec<_>) = result.interfaces.iter().partition(|of| !of.sandbox.is_empty());
    // A pod can change its own MAC, but not the name of the host's end. So a known host's end is enough.
    let is_known = end.is_some_and(|end| on_host.iter().any(|of| of.name == end.name));
    let told = inside.iter().find(|of| of.name == entry.ifname).and_then(|of| Mac::parse(&of.mac));
    Ok(!is_known && told.is_some_and(|mac| link.mac != Some(mac)))
}
