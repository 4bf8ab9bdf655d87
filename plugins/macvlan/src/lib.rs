//! The CNI plugin `macvlan`: connects a pod to the network of one of the host's interfaces, the master. The pod has its
//! own hardware address (`ip link add eth0 link MASTER type macvlan`). [`cnimble_plugin::interface::upper`] implements
//! the verbs.

mod config;

use cnimble_netlink::kind::{Kind, Macvlan, MacvlanMode};
use cnimble_plugin::Plugin;
use cnimble_plugin::interface::upper::UpperPlugin;

pub static PLUGIN: &dyn Plugin = &UpperPlugin {
    name: "macvlan",
    any: Kind::Macvlan(Macvlan { mode: MacvlanMode::Bridge, bcqueuelen: None }),
    read: config::read,
    read_for_add: config::read_for_add,
};
