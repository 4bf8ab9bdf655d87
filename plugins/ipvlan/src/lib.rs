//! The CNI plugin `ipvlan`: connects a pod to the network of one of the host's interfaces, the master.
//! The pod has the master's hardware address (`ip link add eth0 link MASTER type ipvlan`).
//!
//! [`cnimble_plugin::interface::upper`] implements the verbs for every interface on top of a master. The
//! plugin also works in a chain, on the interface and with the addresses of the previous plugin.

mod config;

use cnimble_cni::{Attachment, CniResult, Error};
use cnimble_netlink::kind::{IpvlanMode, Kind};
use cnimble_plugin::interface::upper;
use cnimble_plugin::{Call, Caps, Plugin};

/// Matches every ipvlan, with any settings.
const ANY: Kind = Kind::Ipvlan(IpvlanMode::L2);

/// The implementation of the `ipvlan` plugin.
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
