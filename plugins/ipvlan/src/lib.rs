//! The CNI plugin `ipvlan`: connects a pod to the network of one of the host's interfaces, the master. The pod has the
//! master's hardware address (`ip link add eth0 link MASTER type ipvlan`). [`cnimble_plugin::interface::upper`]
//! implements the verbs, also in a chain, with the previous plugin's interface and addresses.

mod config;

use cnimble_netlink::kind::{IpvlanMode, Kind};
use cnimble_plugin::Plugin;
use cnimble_plugin::interface::upper::UpperPlugin;

pub static PLUGIN: &dyn Plugin = &UpperPlugin {
    name: "ipvlan",
    any: Kind::Ipvlan(IpvlanMode::L2),
    read: config::read,
    read_for_add: |call| config::read_for_add(&call.config),
};
