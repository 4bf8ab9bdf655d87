//! The CNI plugin `vlan`: connects a pod to a VLAN (802.1Q) of one of the host's interfaces, the master (`ip link add
//! eth0 link MASTER type vlan id ID`). [`cnimble_plugin::interface::upper`] implements the verbs.

mod config;

use cnimble_netlink::kind::{Kind, Vlan};
use cnimble_plugin::Plugin;
use cnimble_plugin::interface::upper::UpperPlugin;

pub static PLUGIN: &dyn Plugin = &UpperPlugin {
    name: "vlan",
    any: Kind::Vlan(Vlan { id: 0 }),
    read: config::read,
    read_for_add: |call| config::read(&call.config),
};
