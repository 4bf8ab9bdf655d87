//! The CNI plugin `vlan`: connects a pod to a VLAN (802.1Q) of one of the host's interfaces, the master
//! (`ip link add eth0 link MASTER type vlan id ID`).
//!
//! [`cnimble_plugin::interface::upper`] implements the verbs for every interface on top of a master.

mod config;

use cnimble_cni::{Attachment, CniResult, Error};
use cnimble_netlink::kind::{self, Kind};
use cnimble_plugin::interface::upper;
use cnimble_plugin::{Call, Caps, Plugin};

/// Matches a VLAN with any ID.
const ANY: Kind = Kind::Vlan(kind::Vlan { id: 0 });

/// The implementation of the `vlan` plugin.
pub static PLUGIN: &dyn Plugin = &Vlan;

struct Vlan;

impl Plugin for Vlan {
    fn name(&self) -> &'static str {
        "vlan"
    }

    fn needs(&self) -> Caps {
        Caps::NET_ADMIN.and(Caps::SYS_ADMIN)
    }

    fn read_config(&self, call: &Call) -> Result<(), Error> {
        config::read(&call.config).map(drop)
    }

    fn add(&self, call: &Call) -> Result<CniResult, Error> {
        upper::add(call, config::read(&call.config)?)
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
