//! The CNI plugin `macvlan`: connects a pod to the network of one of the host's interfaces, the master.
//! The pod has its own hardware address (`ip link add eth0 link MASTER type macvlan`).
//!
//! [`cnimble_plugin::interface::upper`] implements the verbs for every interface on top of a master.

mod config;

use cnimble_cni::{Attachment, CniResult, Error};
use cnimble_netlink::kind::{self, Kind, MacvlanMode};
use cnimble_plugin::interface::upper::{self, Upper};
use cnimble_plugin::{Call, Caps, Plugin};

use config::Config;

/// Matches every macvlan, with any settings.
const ANY: Kind = Kind::Macvlan(kind::Macvlan { mode: MacvlanMode::Bridge, bcqueuelen: None });

/// The implementation of the `macvlan` plugin.
pub static PLUGIN: &dyn Plugin = &Macvlan;

struct Macvlan;

impl Plugin for Macvlan {
    fn name(&self) -> &'static str {
        "macvlan"
    }

    fn needs(&self) -> Caps {
        Caps::NET_ADMIN.and(Caps::SYS_ADMIN)
    }

    fn read_config(&self, call: &Call) -> Result<(), Error> {
        Config::read(&call.config)?.requested_mac(call).map(drop)
    }

    fn add(&self, call: &Call) -> Result<CniResult, Error> {
        let config = Config::read(&call.config)?;
        let mac = config.requested_mac(call)?;
        upper::add(call, Upper { mac, ..config.upper() })
    }

    fn del(&self, call: &Call) -> Result<(), Error> {
        upper::del(call, ANY)
    }

    fn check(&self, call: &Call, prev: &CniResult) -> Result<(), Error> {
        upper::check(call, &Config::read(&call.config)?.upper(), prev)
    }

    fn gc(&self, call: &Call, valid: &[Attachment]) -> Result<(), Error> {
        upper::gc(call, ANY, valid)
    }

    fn status(&self, call: &Call) -> Result<(), Error> {
        upper::status(call, &Config::read(&call.config)?.upper())
    }
}
