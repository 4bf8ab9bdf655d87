//! Devices of the host that the plugin host-device moves to a pod. Their alias is their name on the host, and not their
//! owner.

use cnimble_cni::{NetworkList, Owner, names};
use cnimble_netlink::link::Link;

const MOVED_BY: &str = "host-device";

/// Returns the name that a pod's interface has on the host. Returns `None` if the network has no plugin host-device, or
/// if the alias is no name of an interface.
pub fn name_on_host(list: &NetworkList, link: &Link) -> Option<String> {
    let moves = list.plugins.iter().any(|plugin| plugin.plugin_type == MOVED_BY);
    let is_name = names::new_interface_problem(&link.alias).is_none() && Owner::named(&link.alias).is_none();
    (moves && is_name).then(|| link.alias.clone())
}
