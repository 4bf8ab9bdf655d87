//! The CNI plugin `dummy`: an interface in the pod without a network behind it. It holds addresses that
//! belong to the pod alone (`ip link add eth0 type dummy`).
//!
//! ADD takes these steps in order, each with its undo:
//!
//! 1. Make the interface in the pod ([`cnimble_plugin::interface::alone`]).
//! 2. Get at least one address from IPAM.
//! 3. Add the addresses, set the interface up and add the routes.
//!
//! DEL removes the interface and then releases the addresses. GC does the same for attachments that
//! aren't valid, in namespaces that are pinned by a mount. The kernel removes all other interfaces with
//! their namespaces.

mod config;

use cnimble_cni::{Attachment, CniResult, Code, Error};
use cnimble_netlink::kind::Kind;
use cnimble_plugin::interface::alone::{self, NewInterface};
use cnimble_plugin::interface::{completed, remove};
use cnimble_plugin::{Call, Caps, Command, Plugin, delegate};

use config::Config;

/// The index of the pod's interface in the result.
const POD_INTERFACE: u32 = 0;

/// The implementation of the `dummy` plugin.
pub static PLUGIN: &dyn Plugin = &Dummy;

struct Dummy;

impl Plugin for Dummy {
    fn name(&self) -> &'static str {
        "dummy"
    }

    fn needs(&self) -> Caps {
        Caps::NET_ADMIN.and(Caps::SYS_ADMIN)
    }

    fn read_config(&self, call: &Call) -> Result<(), Error> {
        Config::read(&call.config).map(drop)
    }

    fn add(&self, call: &Call) -> Result<CniResult, Error> {
        let config = Config::read(&call.config)?;
        let netns = call.open_netns()?;
        let new = NewInterface { kind: Kind::Dummy, master: None, mtu: None, mac: None };
        let what = format!("make dummy {} in the pod", call.ifname);
        let (link, mut inside) = call.step(&what, || alone::create(call, &netns, new))?;
        let mut result = delegate::add(call, &config.ipam)?;
        if result.ips.is_empty() {
            return Err(Error::new(Code::DELEGATE, "IPAM plugin returned missing IP config")
                .details(format!("IPAM plugin {}", config.ipam)));
        }
        for ip in &mut result.ips {
            ip.interface = Some(POD_INTERFACE);
        }
        call.step(&format!("configure {} in the pod", call.ifname), || {
            alone::configure(call, &netns, &mut inside, &link, &result, false)
        })?;
        Ok(completed(result, vec![alone::described(call, &link)], None))
    }

    fn del(&self, call: &Call) -> Result<(), Error> {
        let interface = alone::delete(call, Kind::Dummy);
        let lease = delegate::release(call, &interface, Command::Del);
        remove::all([interface, lease])
    }

    fn check(&self, call: &Call, prev: &CniResult) -> Result<(), Error> {
        let config = Config::read(&call.config)?;
        alone::check(call, Kind::Dummy, prev).map(drop)?;
        delegate::call(call, &config.ipam, Command::Check)
    }

    fn gc(&self, call: &Call, valid: &[Attachment]) -> Result<(), Error> {
        let interfaces = alone::stale(call, Kind::Dummy, valid);
        let leases = delegate::release(call, &interfaces, Command::Gc);
        remove::all([interfaces, leases])
    }

    fn status(&self, call: &Call) -> Result<(), Error> {
        let config = Config::read(&call.config)?;
        alone::status(Kind::Dummy)?;
        delegate::call(call, &config.ipam, Command::Status)
    }
}
