//! An interface that is made on a link, its master, and moved into the pod: the verbs of macvlan,
//! ipvlan and vlan, which differ in their keys only.
//!
//! ADD, in order, each step with its undo:
//!
//! 1. the master is found ([`master`]);
//! 2. the interface is made, in the pod ([`alone`]);
//! 3. addresses from IPAM, or from the plugin in front; none is a layer 2 network;
//! 4. addresses, up, routes; the addresses are announced.
//!
//! [`master`]: super::master

use cnimble_cni::{Attachment, CniResult, Code, Dns, Error};
use cnimble_netlink::kind::Kind;
use cnimble_netlink::link::Mac;

use super::alone::{self, NewInterface};
use super::{arp, completed, master, remove};
use crate::{Call, Command, delegate};

/// Where the interface stands in the result.
const POD_INTERFACE: u32 = 0;

/// An interface on a master, as its configuration wants it.
#[derive(Debug)]
pub struct Upper {
    /// The kind of link.
    pub kind: Kind,
    /// The master.
    pub master: master::Wanted,
    /// Bytes; `None` is the master's.
    pub mtu: Option<u32>,
    /// Whether the MTU may be larger than the master's.
    pub mtu_is_free: bool,
    /// `None` is the kernel's choice.
    pub mac: Option<Mac>,
    /// Where its addresses come from.
    pub addresses: Addresses,
    /// The configuration's DNS, which goes before IPAM's.
    pub dns: Option<Dns>,
}

/// Where addresses come from.
#[derive(Debug, PartialEq, Eq)]
pub enum Addresses {
    /// There are none.
    None,
    /// From this IPAM plugin, at least one.
    Ipam(String),
    /// From the plugin in front of this one in the chain.
    Previous,
}

impl Upper {
    /// The MTU that the master's bounds.
    fn bounded_mtu(&self) -> Option<u32> {
        self.mtu.filter(|_| !self.mtu_is_free)
    }
}

/// ADD.
///
/// # Errors
/// The failed step's.
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

/// DEL: the interface, and then its addresses, if they are IPAM's.
///
/// # Errors
/// If something is left.
pub fn del(call: &Call, kind: Kind) -> Result<(), Error> {
    let interface = alone::delete(call, kind);
    let lease = delegate::release(call, &interface, Command::Del);
    remove::all([interface, lease])
}

/// CHECK: all that ADD has made.
///
/// # Errors
/// Code 103 with what differs; IPAM's.
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
    // A result below 1.1.0 doesn't tell it. A smaller one may be that of a plugin further down.
    if let Some(mtu) = upper.mtu
        && link.mtu > mtu
    {
        let now = link.mtu;
        return Err(Error::check(format!("interface {} has MTU {now}, expected at most {mtu}", link.name)));
    }
    Ok(())
}

/// GC: interfaces of attachments that aren't `valid`, where they can be found, and then their addresses.
///
/// # Errors
/// After everything was tried.
pub fn gc(call: &Call, kind: Kind, valid: &[Attachment]) -> Result<(), Error> {
    let interfaces = alone::stale(call, kind, valid);
    let leases = delegate::release(call, &interfaces, Command::Gc);
    remove::all([interfaces, leases])
}

/// STATUS: the kernel has the kind, the master is there, IPAM can serve.
///
/// # Errors
/// Code 50 or 51.
pub fn status(call: &Call, upper: &Upper) -> Result<(), Error> {
    alone::status(upper.kind)?;
    upper.master.status(upper.kind, upper.bounded_mtu())?;
    match &upper.addresses {
        Addresses::Ipam(ipam) => delegate::call(call, ipam, Command::Status),
        Addresses::None | Addresses::Previous => Ok(()),
    }
}
