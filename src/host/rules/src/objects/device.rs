//! Devices of the host that are moved to a pod. Their alias has no owner, but their name on the host.

use cnimble_cni::{NetworkList, Owner, names};
use cnimble_netlink::link::Link;

const MOVED_BY: &str = "host-device";

/// Returns the name that a pod's interface has on the host, if a plugin of the network has moved it from there.
pub fn name_on_host(list: &NetworkList, link: &Link) -> Option<String> {
    let moves = list.plugins.iter().any(|plugin| plugin.plugin_type == MOVED_BY);
    let is_name = names::new_interface_problem(&link.alias).is_none() && Owner::named(&link.alias).is_none();
    (moves && is_name).then(|| link.alias.clone())
}
