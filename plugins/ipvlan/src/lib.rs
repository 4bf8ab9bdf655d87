//! The CNI plugin `ipvlan`: a pod on the network of one of the host's interfaces, the master, with
//! the master's hardware address (`ip link add eth0 link MASTER type ipvlan`).
//!
//! ADD, DEL and the rest are those of every interface that is made on a master
//! ([`cnimble_plugin::interface::upper`]). It also works behind another plugin, on the interface
//! and with the addresses of that one.

mod config;

use cnimble_cni::{Attachment, CniResult, Error};
use cnimble_netlink::kind::{IpvlanMode, Kind};
use cnimble_plugin::interface::upper;
use cnimble_plugin::{Call, Caps, Plugin};

/// Any ipvlan, whatever its settings.
const ANY: Kind = Kind::Ipvlan(IpvlanMode::L2);

/// The plugin.
pub static PLUGIN: &dyn Plugin = &Ipvlan;

struct Ipvlan;

impl Plugin for Ipvlan {
    fn name(&self) -> &'static str {
        "ipvlan"
    }

    fn needs(&self) -> Caps {
        Caps::NET_ADMIN.and(Caps::SYS_ADMIN)
    }

    fn read_config(&self, call: &Call) -> Result<(), Error> {
        config::read_for_add(&call.config).map(drop)
    }

    fn add(&self, call: &Call) -> Result<CniResult, Error> {
        upper::add(call, config::read_for_add(&call.config)?)
    }

    fn del(&self, call: &Call) -> Result<(), Error> {
        upper::del(call, ANY)
    }

    fn check(&self, call: &Call, prev: &CniResult) -> Result<(), Error> {
        upper::check(call, &config::read(&call.config)?, prev)
    }

    fn gc(&self, call: &Call, valid: &[Attachment]) -> Result<(), Error> {
        upper::gc(call, ANY, valid)
    }

    fn status(&self, call: &Call) -> Result<(), Error> {
        upper::status(call, &config::read(&call.config)?)
    }
}
