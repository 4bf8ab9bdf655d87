//! The pod's interface under CNI_IFNAME: code that plugins with such an interface share.
//!
//! A veth pair has a host's end, which is the pod's record on the host. Its name is made from the attachment, and its
//! alias names the owner. DEL and GC thus find it without a namespace and without an earlier result. The plugin decides
//! the use of the host's end: a port of a bridge, or a router's interface.
//!
//! An interface without a host's end ([`alone`]) has its owner in its own alias. The kernel removes it with the
//! namespace, so DEL without one has nothing to remove. GC looks into the namespaces that are pinned by a mount. The
//! interface may have a [`master`], which is a link of the host.
//!
//! - [`pair`] creates a veth pair.
//! - [`upper`] has the verbs of macvlan, ipvlan, vlan and dummy.
//! - [`arp`] probes for IPv4 addresses, if the configuration asks for it.
//! - [`pod`] and [`host`] set the switches and routes of the pod's interface and of the host, with their undo.
//! - [`pair_mtu`] chooses the MTU of a pair, also of one that follows the host's default route.
//! - [`check`] compares the state with the result, for CHECK.
//! - [`protected`] knows the addresses that no route of a pod may take from the host.
//! - [`shim`] leads the host to a pod on a macvlan or an ipvlan.
//! - [`remove`] implements DEL and GC. `inside` finds the owner of an interface in the pod.

pub mod alone;
pub mod arp;
pub mod check;
pub mod host;
mod inside;
pub mod mac;
pub mod master;
pub mod pair;
pub mod pair_mtu;
pub mod pinned;
pub mod pod;
pub mod protected;
pub mod remove;
mod result;
pub mod shim;
pub mod upper;

pub use inside::{find_own, is_own};

use std::net::IpAddr;

use serde_json::Value;

use cnimble_cni::mtu::ipv6_problem;
use cnimble_cni::{CniResult, Code, Dns, Error, Interface, PluginConfig, json, names};
use cnimble_netlink::Netlink;
use cnimble_netlink::link::Link;

/// Returns a link of the host in the form of a result. The MTU, which results of 1.1.0 may have, is left out: the Go
/// plugins do the same, and a later plugin may change it.
pub fn described(link: &Link) -> Interface {
    Interface::new(link.name.as_str(), link.mac.map(|mac| mac.to_string()).unwrap_or_default(), "")
}

/// Returns IPAM's result with the interfaces that were made, and with the configuration's DNS if it has any. The
/// addresses belong to the first interface in a sandbox.
pub fn completed(mut ipam: CniResult, interfaces: Vec<Interface>, dns: Option<Dns>) -> CniResult {
    let pod = interfaces.iter().zip(0..).find(|(interface, _)| !interface.sandbox.is_empty());
    for ip in &mut ipam.ips {
        ip.interface = pod.map(|(_, place)| place);
    }
    ipam.interfaces = interfaces;
    if let Some(dns) = dns {
        ipam.dns = dns;
    }
    ipam
}

/// Reads a key with the name of an interface; `None` if it is empty. Fails with code 7 for a name that none can have. No
/// existing interface has a `%` in its name, and a new one would get another name.
pub fn named(key: &str, name: &str) -> Result<Option<String>, Error> {
    match names::new_interface_problem(name) {
        _ if name.is_empty() => Ok(None),
        Some(problem) => Err(Error::config(format!("{key}: invalid name \"{name}\"")).details(problem)),
        None => Ok(Some(name.to_owned())),
    }
}

/// The MTUs that the kernel accepts for a veth and a bridge (ETH_MIN_MTU, ETH_MAX_MTU).
const MTU_RANGE: std::ops::RangeInclusive<i64> = 68..=65535;

/// Reads the key `mtu` of a veth or a bridge. For 0 or a negative number the kernel chooses, as with the Go plugins.
/// Fails with code 7 for an MTU that no such interface can have.
pub fn mtu(configured: i64) -> Result<Option<u32>, Error> {
    let (first, last) = (MTU_RANGE.start(), MTU_RANGE.end());
    match any_mtu(configured)? {
        Some(_) if !MTU_RANGE.contains(&configured) => {
            Err(Error::config(format!("mtu: {configured} is outside {first} to {last} bytes")))
        }
        mtu => Ok(mtu),
    }
}

/// Does what [`mtu`] does, for an interface with bounds of its own, which the kernel checks.
pub fn any_mtu(configured: i64) -> Result<Option<u32>, Error> {
    if configured < 0 {
        log::warn!("mtu: {configured} is negative and counts as none");
    }
    if configured <= 0 {
        return Ok(None);
    }
    let mtu = u32::try_from(configured);
    mtu.map(Some).map_err(|_| Error::config(format!("mtu: {configured} is above {} bytes", u32::MAX)))
}

/// Fails with code 100 if the link's MTU is too small for one of these addresses. The kernel would refuse the address
/// with EINVAL alone.
pub fn carries(link: &Link, addrs: impl IntoIterator<Item = IpAddr>) -> Result<(), Error> {
    let has_ipv6 = addrs.into_iter().any(|addr| addr.is_ipv6());
    match ipv6_problem(link.mtu).filter(|_| has_ipv6) {
        None => Ok(()),
        Some(problem) => Err(Error::new(Code::KERNEL, format!("{} can have no IPv6 address", link.name))
            .details(format!("its MTU of {problem}"))),
    }
}

/// Reads a boolean key, or `None` if it is missing. Fails with code 7 if it is no boolean.
pub(crate) fn flag(config: &PluginConfig, key: &str) -> Result<Option<bool>, Error> {
    match json::get(config.document(), key) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::Bool(value)) => Ok(Some(*value)),
        Some(other) => Err(Error::config(format!("{key}: invalid type: {other}, expected a boolean"))),
    }
}

/// Opens the host's socket for STATUS.
///
/// # Errors
/// Fails with code 50 if the socket cannot be opened.
pub fn usable_netlink() -> Result<Netlink, Error> {
    Netlink::open().map_err(|err| unusable("netlink", &err))
}

/// Returns the error of STATUS for something that ADD would need.
pub fn unusable(what: &str, why: &dyn std::fmt::Display) -> Error {
    Error::new(Code::NOT_AVAILABLE, format!("{what} can't be used")).details(why.to_string())
}
