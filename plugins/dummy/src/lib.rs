//! The CNI plugin `dummy`: an interface without a network behind it, for addresses of the pod alone (`ip link add eth0
//! type dummy`). [`cnimble_plugin::interface::upper`] implements the verbs.

mod config;

use cnimble_netlink::kind::Kind;
use cnimble_plugin::Plugin;
use cnimble_plugin::interface::upper::UpperPlugin;

pub static PLUGIN: &dyn Plugin = &UpperPlugin {
    name: "dummy",
    any: Kind::Dummy,
    read: config::read,
    read_for_add: |call| config::read(&call.config),
};
