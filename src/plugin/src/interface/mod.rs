//! What plugins share that give a pod an interface, under CNI_IFNAME.
//!
//! A veth pair has a host's end, which is the pod's record on the host. Its name is made from the
//! attachment and its alias names the owner, so that DEL and GC find it without a namespace and
//! without an earlier result. What the host's end is for (a port of a bridge, a router's
//! interface) is the plugin's own.
//!
//! An interface without a host's end ([`alone`]) carries its owner in its own alias. The kernel
//! removes it with the namespace, so DEL without one has nothing to remove, and GC looks into the
//! namespaces that can be found.
//!
//! - [`pair`]: a veth pair is made;
//! - [`alone`]: an interface without a host's end is made, found again and removed;
//! - [`pod`]: the interface in the pod: its switches and routes;
//! - [`host`]: switches of the host, with their undo;
//! - [`check`]: what CHECK compares;
//! - [`remove`]: DEL and GC.

pub mod alone;
pub mod check;
pub mod host;
pub mod pair;
pub mod pod;
pub mod remove;

use cnimble_cni::{CniResult, Code, Dns, Error, Interface, Version};
use cnimble_netlink::Netlink;
use cnimble_netlink::link::Link;

use crate::Call;

/// A link of the host as it stands in a result.
pub fn described(link: &Link) -> Interface {
    Interface {
        name: link.name.clone(),
        mac: link.mac.map(|mac| mac.to_string()).unwrap_or_default(),
        mtu: Some(link.mtu),
        ..Interface::default()
    }
}

/// The result of an ADD: IPAM's, with the interfaces that were made, and with the configuration's
/// DNS where it has any. Results below 1.1.0 don't tell the MTU, as those of the Go plugins.
pub fn completed(call: &Call, ipam: CniResult, interfaces: Vec<Interface>, dns: Dns) -> CniResult {
    let mut result = CniResult { interfaces, ..ipam };
    if call.config.version < Version::V1_1_0 {
        for interface in &mut result.interfaces {
            interface.mtu = None;
        }
    }
    if !dns.is_empty() {
        result.dns = dns;
    }
    result
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
