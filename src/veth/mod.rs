//! What plugins share that join a pod to the host by a veth pair: one end in the pod, under
//! CNI_IFNAME, the other on the host.
//!
//! The host's end is the pod's record on the host. Its name is made from the attachment and
//! its alias says whose it is, so that DEL and GC find it without a namespace and without
//! an earlier result. What the host's end is for (a port of a bridge, a router's interface)
//! is the plugin's own.
//!
//! - [`pair`]: the pair is made;
//! - [`pod`]: the interface in the pod: its switches and routes;
//! - [`host`]: switches of the host, with their undo;
//! - [`check`]: what CHECK compares;
//! - [`remove`]: DEL and GC.

pub mod check;
pub mod host;
pub mod pair;
pub mod pod;
pub mod remove;

use crate::net::link::Link;
use crate::spec::Interface;

/// A link of the host as it stands in a result.
pub fn described(link: &Link) -> Interface {
    Interface {
        name: link.name.clone(),
        mac: link.mac.map(|mac| mac.to_string()).unwrap_or_default(),
        mtu: Some(link.mtu),
        ..Interface::default()
    }
}
