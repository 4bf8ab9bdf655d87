//! An interface on a master that is moved into the pod: the verbs of macvlan, ipvlan and vlan, which differ only in
//! their keys.
//!
//! The steps of ADD, each with its undo:
//!
//! 1. find the master ([`master`]);
//! 2. create the interface in the pod ([`alone`]);
//! 3. get addresses from IPAM or from the previous plugin, unless it is a layer 2 network;
//! 4. add the addresses, bring it up, add the routes, and announce the addresses.
//!
//! [`master`]: super::master

use cnimble_cni::{Attachment, CniResult, Code, Dns, Error};
use cnimble_netlink::kind::Kind;
use cnimble_netlink::link::Mac;

use super::alone::{self, NewInterface};
use super::{arp, completed, master, remove};
use crate::{Call, Command, delegate};

/// The index of the interface in the result.
const POD_INTERFACE: u32 = 0;

/// The wanted interface on a master, from a configuration.
#[derive(Debug)]
pub struct Upper {
    /// The kind of link.
    pub kind: Kind,
    /// The master in the configuration.
    pub master: master::Wanted,
    /// The MTU in bytes, or `None` for the master's.
    pub mtu: Option<u32>,
    /// Whether the MTU may be larger than the master's.
    pub mtu_is_free: bool,
    /// The hardware address, or `None` for the kernel's choice.
    pub mac: Option<Mac>,
    /// The source of its addresses.
    pub addresses: Addresses,
    /// The configuration's DNS, which replaces IPAM's.
    pub dns: Option<Dns>,
}

/// The source of the addresses.
#[derive(Debug, PartialEq, Eq)]
pub enum Addresses {
    /// The interface has no addresses.
    None,
    /// This IPAM plugin assigns at least one.
    Ipam(String),
    /// The previous plugin in the chain assigns them.
    Previous,
}

impl Upper {
    /// Returns the MTU if the master limits it.
    fn bounded_mtu(&self) -> Option<u32> {
        self.mtu.filter(|_| !self.mtu_is_free)
    }
}

/// Implements ADD for an interface on a master.
///
/// # Errors
/// Returns the error of the failed step.
pub fn add(call: &Call, upper: Upper) -> Result<CniResult, Error> {
    let netns = call.open_netns()?;
    let master = upper.master.find(&netns)?;
    if !upper.mtu_is_free {
        master.allows(upper.mtu)?;
    }
    let Upper { kind, mtu, mac, .. } = upper;
    let (asked, in_pod) = (master.link.clone(), upper.master.in_pod);
    let new = NewInterface { kind, master: Some(master), mtu, mac };
    let what = format!("make {} {} in the pod", kind.name(), call.ifname);
    let (link, mut inside) = call.step(&what, || alone::create(call, &netns, new))?;
    let mut result = match &upper.addresses {
        Addresses::None => CniResult::default(),
        Addresses::Ipam(ipam) => with_addresses(delegate::add(call, ipam)?, ipam)?,
        Addresses::Previous => call.previous()?.clone(),
    };
    for ip in &mut result.ips {
        ip.interface = Some(POD_INTERFACE);
    }
    call.step(&format!("configure {} in the pod", call.ifname), || {
        if matches!(kind, Kind::Ipvlan(_)) {
            arp::probe_on_master(call, Some(&netns).filter(|_| in_pod), &asked, &result)?;
        }
        alone::configure(call, &netns, &mut inside, &link, &result, kind.has_parent())
    })?;
    Ok(completed(result, vec![alone::described(call, &link)], upper.dns))
}

fn with_addresses(result: CniResult, ipam: &str) -> Result<CniResult, Error> {
    if result.ips.is_empty() {
        return Err(Error::new(Code::DELEGATE, "IPAM plugin returned missing IP config")
            .details(format!("IPAM plugin {ipam}")));
    }
    Ok(result)
}

/// Implements DEL: removes the interface, and then releases its addresses if they are IPAM's.
///
/// # Errors
/// Fails if something remains.
pub fn del(call: &Call, kind: Kind) -> Result<(), Error> {
    let interface = alone::delete(call, kind);
    let lease = delegate::release(call, &interface, Command::Del);
    remove::all([interface, lease])
}

/// Implements CHECK of everything that ADD has made.
///
/// # Errors
/// Fails with code 103 and the difference, or with IPAM's error.
pub fn check(call: &Call, upper: &Upper, prev: &CniResult) -> Result<(), Error> {
    let own = check_interface(call, upper, prev);
    match &upper.addresses {
        Addresses::Ipam(ipam) => delegate::check(call, ipam, own),
        Addresses::None | Addresses::Previous => own,
    }
}

fn check_interface(call: &Call, upper: &Upper, prev: &CniResult) -> Result<(), Error> {
    let (link, mut inside) = alone::check(call, upper.kind, prev)?;
    upper.master.check(&mut inside, &link)?;
    // A result below 1.1.0 has no MTU. A later plugin in the chain may have set a smaller one.
    if let Some(mtu) = upper.mtu
        && link.mtu > mtu
    {
        let now = link.mtu;
        return Err(Error::check(format!("interface {} has MTU {now}, expected at most {mtu}", link.name)));
    }
    Ok(())
}

/// Implements GC: removes stale interfaces in reachable namespaces, and then releases their addresses.
///
/// # Errors
/// Fails after everything was tried.
pub fn gc(call: &Call, kind: Kind, valid: &[Attachment]) -> Result<(), Error> {
    let interfaces = alone::stale(call, kind, valid);
    let leases = delegate::release(call, &interfaces, Command::Gc);
    remove::all([interfaces, leases])
}

/// Implements STATUS: the kernel has the kind, the master exists, and IPAM can serve.
///
/// # Errors
/// Fails with code 50 or 51.
pub fn status(call: &Call, upper: &Upper) -> Result<(), Error> {
    alone::status(upper.kind)?;
    upper.master.status(upper.kind, upper.bounded_mtu())?;
    match &upper.addresses {
        Addresses::Ipam(ipam) => delegate::call(call, ipam, Command::Status),
        Addresses::None | Addresses::Previous => Ok(()),
    }
}
