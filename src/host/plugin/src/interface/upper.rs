//! The verbs of macvlan, ipvlan, vlan and dummy. The interface is made in the pod, on a master or alone. The plugins
//! differ only in their keys. A failed ADD and DEL remove the interface before they release the addresses of IPAM. GC
//! does the same for attachments that are not valid, in namespaces that are pinned by a mount.

use cnimble_cni::{Attachment, CniResult, Dns, Error, PluginConfig};
use cnimble_netlink::Netlink;
use cnimble_netlink::kind::Kind;
use cnimble_netlink::link::Mac;

use super::alone::{self, NewInterface};
use super::shim::{self, Shim};
use super::{arp, check, completed, master, pod, remove};
use crate::{Call, Command, Place, Plugin, Role, delegate};

/// The wanted interface, from a configuration.
#[derive(Debug)]
pub struct Upper {
    pub kind: Kind,
    /// The master, or `None` for a kind without one.
    pub master: Option<master::MasterSelector>,
    /// The MTU in bytes, or `None` for the master's.
    pub mtu: Option<u32>,
    /// Whether the MTU may be larger than the master's.
    pub mtu_is_free: bool,
    /// The hardware address, or `None` for the kernel's choice.
    pub mac: Option<Mac>,
    /// Whether the addresses are those of the previous plugin's result instead of IPAM's.
    pub takes_previous: bool,
    /// The link that leads the host to the pod (`hostShim`).
    pub shim: Option<Shim>,
    /// The configuration's DNS, which replaces IPAM's.
    pub dns: Option<Dns>,
}

impl Upper {
    /// Returns an interface of this kind without other settings.
    pub fn new(kind: Kind) -> Upper {
        let (master, mtu, mac, shim, dns) = (None, None, None, None, None);
        Upper { kind, master, mtu, mtu_is_free: false, mac, takes_previous: false, shim, dns }
    }

    /// Returns the MTU if the master's bounds it.
    fn bounded_mtu(&self) -> Option<u32> {
        self.mtu.filter(|_| !self.mtu_is_free)
    }
}

/// One of these plugins.
pub struct UpperPlugin {
    pub name: &'static str,
    /// Matches every interface of the plugin, with any settings.
    pub any: Kind,
    /// Reads the configuration for all verbs but ADD.
    pub read: fn(&PluginConfig) -> Result<Upper, Error>,
    /// Reads the configuration for ADD, with what the runtime asks for.
    pub read_for_add: fn(&Call) -> Result<Upper, Error>,
}

impl UpperPlugin {
    fn may_have_shim(&self) -> bool {
        matches!(self.any, Kind::Macvlan(_) | Kind::Ipvlan(_))
    }
}

impl Plugin for UpperPlugin {
    fn name(&self) -> &'static str {
        self.name
    }

    fn role(&self) -> Role {
        Role::Main
    }

    fn read_config(&self, call: &Call) -> Result<(), Error> {
        (self.read_for_add)(call).map(drop)
    }

    fn add(&self, call: &Call) -> Result<CniResult, Error> {
        let upper = (self.read_for_add)(call)?;
        let netns = call.open_netns()?;
        let master = upper.master.as_ref().map(|wanted| wanted.find(&netns)).transpose()?;
        if let Some(master) = master.as_ref().filter(|_| !upper.mtu_is_free) {
            master.allows(upper.mtu)?;
        }
        let (kind, mtu, mac) = (upper.kind, upper.mtu, upper.mac);
        let asked = master.as_ref().map(|master| (master.link.clone(), master.in_pod));
        let new = NewInterface { kind, master, mtu, mac };
        let what = format!("make {} {} in the pod", kind.name(), call.ifname);
        let (link, mut inside) = call.step(&what, || alone::create(call, &netns, new))?;
        let result = if upper.takes_previous { call.previous()?.clone() } else { delegate::add_ipam(call)? };
        call.step(&format!("configure {} in the pod", call.ifname), || {
            if let (Kind::Ipvlan(_), Some((link, in_pod))) = (kind, &asked) {
                arp::probe_on_master(call, Some(&netns).filter(|_| *in_pod), link, &result)?;
            }
            alone::configure(call, &netns, &mut inside, &link, &result, kind.has_parent())
        })?;
        if let (Some(shim), Some((master, _))) = (upper.shim, &asked) {
            call.step("add the host's route to the pod", || {
                shim::add(call, shim, master, link.mac, &result)
            })?;
        }
        Ok(completed(result, vec![alone::described(call, &link)], upper.dns))
    }

    fn del(&self, call: &Call) -> Result<(), Error> {
        let interface = alone::delete(call, self.any);
        let shim = self.may_have_shim().then(|| shim::delete(&mut Netlink::open()?, &call.owner()));
        let interface = remove::all(shim.into_iter().chain([interface]));
        let lease = delegate::release(call, &interface, Command::Del);
        remove::all([interface, lease])
    }

    fn check(&self, call: &Call, prev: &CniResult) -> Result<(), Error> {
        let upper = (self.read)(&call.config)?;
        let interface = call.expects(Place::Pod, check_interface(call, &upper, prev));
        let own = interface.and_then(|()| match (upper.shim, &upper.master) {
            (Some(shim), Some(master)) => shim::check(call, shim, master, prev),
            _ => Ok(()),
        });
        delegate::check_ipam(call, own)
    }

    fn gc(&self, call: &Call, valid: &[Attachment]) -> Result<(), Error> {
        let shims = self.may_have_shim().then(|| shim::stale(call, self.any, valid));
        let interfaces = remove::all(shims.into_iter().chain([alone::stale(call, self.any, valid)]));
        let leases = delegate::release(call, &interfaces, Command::Gc);
        remove::all([interfaces, leases])
    }

    fn status(&self, call: &Call) -> Result<(), Error> {
        let upper = (self.read)(&call.config)?;
        alone::status(upper.kind)?;
        if let Some(master) = &upper.master {
            master.status(upper.kind, upper.bounded_mtu())?;
        }
        delegate::call_ipam(call, Command::Status)
    }
}

/// CHECK of the pod's interface, without shim and IPAM.
fn check_interface(call: &Call, upper: &Upper, prev: &CniResult) -> Result<(), Error> {
    let (link, mut inside) = alone::check(call, upper.kind, prev)?;
    pod::check_routers(call, &mut inside)?;
    if let Some(master) = &upper.master {
        master.check(&mut inside, &link)?;
    }
    // A result below 1.1.0 has no MTU. A later plugin in the chain may have set a smaller one.
    check::mtu(&link, upper.mtu)
}
