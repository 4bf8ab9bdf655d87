//! The interface that a plugin gives a pod, under CNI_IFNAME: code that such plugins share.
//!
//! A veth pair has a host's end, which is the pod's record on the host. Its name is made from the
//! attachment and its alias names the owner, so that DEL and GC find it without a namespace and
//! without an earlier result. What the host's end is for (a port of a bridge, a router's
//! interface) is the plugin's own.
//!
//! An interface without a host's end ([`alone`]) carries its owner in its own alias. The kernel
//! removes it with the namespace, so DEL without one has nothing to remove, and GC looks into the
//! namespaces that are pinned by a mount. It may be made on a link of the host, its [`master`]; what
//! the plugins of such kinds do alike is in [`upper`].
//!
//! - [`pair`]: a veth pair is made;
//! - [`alone`]: an interface without a host's end is made, found again and removed;
//! - [`master`]: what it is made on, for kinds that have such a thing;
//! - [`upper`]: the verbs of macvlan, ipvlan and vlan;
//! - [`arp`]: probes for addresses of IPv4, if they are asked for;
//! - [`mac`]: the hardware address that a configuration asks for;
//! - [`pod`]: the interface in the pod: its switches and routes;
//! - [`host`]: switches of the host, with their undo;
//! - [`check`]: what CHECK compares;
//! - [`remove`]: DEL and GC; `inside` finds the owner of an interface in the pod.

pub mod alone;
pub mod arp;
pub mod check;
pub mod host;
mod inside;
pub mod mac;
pub mod master;
pub mod pair;
pub mod pinned;
pub mod pod;
pub mod remove;
mod told;
pub mod upper;

use cnimble_cni::{CniResult, Code, Dns, Error, Interface};
use cnimble_netlink::Netlink;
use cnimble_netlink::link::Link;

/// A link of the host as it stands in a result. Without its MTU, which results of 1.1.0 could tell: the Go
/// plugins don't, and a plugin further down the chain may change it.
pub fn described(link: &Link) -> Interface {
    Interface {
        name: link.name.clone(),
        mac: link.mac.map(|mac| mac.to_string()).unwrap_or_default(),
        ..Interface::default()
    }
}

/// The result of an ADD: IPAM's, with the interfaces that were made, and with the configuration's
/// DNS where it has any.
pub fn completed(ipam: CniResult, interfaces: Vec<Interface>, dns: Option<Dns>) -> CniResult {
    let mut result = CniResult { interfaces, ..ipam };
    if let Some(dns) = dns {
        result.dns = dns;
    }
    result
}

/// The MTUs that the kernel takes for a veth and a bridge (ETH_MIN_MTU, ETH_MAX_MTU).
const MTU_RANGE: std::ops::RangeInclusive<i64> = 68..=65535;

/// The key `mtu` of a veth or a bridge; 0 is the kernel's. So is a negative number, as for the Go plugins.
///
/// # Errors
/// Code 7 for an MTU that no such interface can have.
pub fn mtu(configured: i64) -> Result<Option<u32>, Error> {
    let (first, last) = (MTU_RANGE.start(), MTU_RANGE.end());
    match any_mtu(configured)? {
        Some(_) if !MTU_RANGE.contains(&configured) => {
            Err(Error::config(format!("mtu: {configured} is outside {first} to {last} bytes")))
        }
        mtu => Ok(mtu),
    }
}

/// The key `mtu` of a kind of interface that the kernel itself bounds; 0 and negative numbers are as for [`mtu`].
///
/// # Errors
/// Code 7 for a number of more than 32 bits.
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

/// Opens the host's socket for STATUS.
///
/// # Errors
/// Code 50.
pub fn usable_netlink() -> Result<Netlink, Error> {
    Netlink::open().map_err(|err| unusable("netlink", &err))
}

/// The error of STATUS for something that ADD would need.
pub fn unusable(what: &str, why: &dyn std::fmt::Display) -> Error {
    Error::new(Code::NOT_AVAILABLE, format!("{what} can't be used")).details(why.to_string())
}
