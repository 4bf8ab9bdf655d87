//! One interface in a pod, with a client of one family and its lease.

use std::net::IpAddr;

use cnimble_cni::{Code, Error};
use cnimble_netlink::link::{Link, Mac};
use cnimble_netlink::route::NewRoute;
use cnimble_netlink::{NetNs, addr};

use super::apply;
use super::flags::Flags;
use super::interface::Interface;
use super::speaker::{Driver, Speaker, Transport};
use super::{four, six};
use crate::client::{Client, EXPIRED, Lease};
use crate::held::AnyLease;
use crate::ipc::{self, Family, LeaseRequest};

/// An interface of a pod with a client of one family.
pub(super) struct Pod {
    pub(super) wanted: LeaseRequest,
    pub(super) interface: Interface,
    /// The number of the connection of the waiting ADD, and its deadline.
    pub(super) waiting: Option<(u64, u64)>,
    pub(super) speaker: Box<dyn Speaker>,
    /// The lease whose address and routes are on the interface.
    applied: Option<AnyLease>,
    /// Whether this process has dealt with the lifetime of the address for the present lease. False after a restart.
    has_lifetime: bool,
    /// Whether this process has given the address a finite lifetime. False after a restart, so the first round then
    /// gives a lifetime even to an address that `cnimble hand-over` has made permanent.
    is_temporary: bool,
    /// The lost address with the reason, until there is a new lease.
    lost: Option<(IpAddr, &'static str)>,
}

impl Pod {
    /// Finds the pod's interface, and makes its client. `known` is the hardware address and the lease from a file,
    /// which the client resumes. `None` is for a first lease.
    ///
    /// Fails as [`Interface::find_interface`] does. Fails with code 3 if neither the hardware address nor the address
    /// of the lease is on the interface.
    pub(super) fn find_pod(
        flags: &Flags,
        wanted: LeaseRequest,
        now: u64,
        known: Option<(Mac, Option<AnyLease>)>,
        sent: Option<NetNs>,
    ) -> Result<Pod, Error> {
        let interface = Interface::find_interface(flags, &wanted, sent)?;
        if let Some((before, lease)) = &known
            && *before != interface.mac
            && !interface.has(lease.as_ref())?
        {
            // A later namespace may have the number of an earlier one, so this is the interface of another pod.
            return Err(interface.missing());
        }
        let applied = known.and_then(|(_, lease)| lease);
        let speaker = speaker(flags, &wanted, &interface, now, applied.clone());
        Ok(Pod {
            wanted,
            interface,
            waiting: None,
            speaker,
            applied,
            has_lifetime: false,
            is_temporary: false,
            lost: None,
        })
    }

    /// Notes the lease that the waiting ADD receives. The plugin that called IPAM puts it on the interface.
    pub(super) fn returned(&mut self, lease: &AnyLease) {
        self.applied = Some(lease.clone());
        (self.has_lifetime, self.is_temporary) = (false, false);
    }

    /// Applies a lease without a waiting ADD. Returns a description of the changes, or `None` if addresses and routes
    /// are the same. Fails if the interface could not be changed.
    pub(super) fn renewed(&mut self, lease: &AnyLease, now: u64) -> Result<Option<String>, Error> {
        let change = match &self.applied {
            Some(old) if old.net() == lease.net() && self.routes(old) == self.routes(lease) => None,
            _ => Some(self.apply(lease)?),
        };
        self.is_temporary &= self.applied.as_ref().is_some_and(|old| old.net() == lease.net());
        self.applied = Some(lease.clone());
        self.has_lifetime = false;
        self.set_lifetime(now)?;
        Ok(change)
    }

    /// Returns the routes that the interface has by the lease.
    fn routes(&self, lease: &AnyLease) -> Vec<NewRoute> {
        apply::routes(&self.interface, lease, self.wanted.priority)
    }

    /// Changes the interface to the lease and describes that. The description includes what the kernel has refused.
    fn apply(&self, lease: &AnyLease) -> Result<String, Error> {
        let old = self.applied.as_ref();
        let refused = apply::apply(&self.interface, self.wanted.priority, old, Some(lease))?;
        let (ifname, to) = (&self.interface.ifname, lease.net());
        let change = match old.map(AnyLease::net) {
            Some(from) if from == to => format!("{ifname} has followed to other routes of {to}"),
            Some(from) => format!("{ifname} has followed from {from} to {to}"),
            None => format!("{ifname} has followed from nothing to {to}"),
        };
        Ok(match refused {
            None => change,
            Some(err) => format!("{change}, but not in all: {err}"),
        })
    }

    /// Gives the address its lifetime in the kernel, once for each lease. The ADD adds the address only after the
    /// daemon's answer, so this is tried again until the address exists.
    ///
    /// An address that has had a lifetime is added again if it is missing. The kernel removes such an IPv6 address from
    /// an interface that goes down. A missing interface is no failure.
    pub(super) fn set_lifetime(&mut self, now: u64) -> Result<(), Error> {
        let Some(lease) = self.applied.as_ref().filter(|_| !self.has_lifetime) else { return Ok(()) };
        let (preferred, valid) = lease.lifetimes(now);
        let (mut inside, link) = match self.interface.inside() {
            Err(err) if err.code == Code::UNKNOWN_CONTAINER => return Ok(()),
            inside => inside?,
        };
        let net = lease.net();
        match inside.addrs(link.index)?.into_iter().find(|addr| addr.net == net) {
            None if !self.is_temporary => return Ok(()),
            // `cnimble hand-over` has made the address permanent, so it stays so until this daemon is restarted.
            Some(present) if self.is_temporary && present.permanent => {}
            _ => {
                inside.execute(addr::set_lifetime(link.index, &link.name, net, preferred, valid))?;
                self.is_temporary = valid != u32::MAX;
            }
        }
        self.has_lifetime = true;
        Ok(())
    }

    /// Returns the lease for CHECK. Fails with code 103 and the reason if it has ended.
    pub(super) fn checked(&self, now: u64) -> Result<AnyLease, Error> {
        let (ifname, lease) = (&self.interface.ifname, self.speaker.lease());
        let (address, why) = match (lease, self.lost) {
            (Some(lease), _) if lease.expires() > now => return Ok(lease),
            (Some(lease), _) => (lease.address(), EXPIRED),
            (None, Some(lost)) => lost,
            (None, None) => return Err(ipc::no_lease(ifname)),
        };
        Err(Error::check(format!("dhcp: {ifname} has no lease of {address} any more: {why}"))
            .details("no server has given another address yet; hint: look for a DHCP server on this link"))
    }

    /// Removes the lost lease from the interface, and keeps the reason for CHECK. Also reads the hardware address
    /// again, because tuning may have set another one since ADD. The next server answers to the present one.
    pub(super) fn lose(&mut self, lease: &AnyLease, why: &'static str) -> Result<(), Error> {
        self.lost = Some((lease.address(), why));
        if let Ok((_, Link { mac: Some(mac), .. })) = self.interface.inside() {
            self.interface.mac = mac;
        }
        self.remove_lease()
    }

    /// Removes the address and the routes of the lease from the interface. A missing interface is no failure.
    pub(super) fn remove_lease(&mut self) -> Result<(), Error> {
        if self.applied.is_none() {
            return Ok(());
        }
        let outcome = apply::apply(&self.interface, self.wanted.priority, self.applied.as_ref(), None);
        self.applied = None;
        match outcome {
            Err(err) if err.code == Code::UNKNOWN_CONTAINER => Ok(()),
            outcome => outcome?.map_or(Ok(()), Err),
        }
    }
}

/// Makes the client of the family that is wanted. It resumes `lease` if that is of this family.
fn speaker(
    flags: &Flags,
    wanted: &LeaseRequest,
    interface: &Interface,
    now: u64,
    lease: Option<AnyLease>,
) -> Box<dyn Speaker> {
    fn driver<T: Transport + 'static>(client: Client<T>, lease: Option<AnyLease>) -> Box<dyn Speaker> {
        Box::new(Driver::new(match lease.and_then(T::Lease::from_held) {
            Some(lease) => client.resume(lease),
            None => client,
        }))
    }
    let pause = flags.timeout.min(flags.resend_max);
    match wanted.family {
        Family::Ipv4 => driver(Client::new(four::protocol(flags, wanted, interface), pause, now), lease),
        Family::Ipv6 => driver(Client::new(six::protocol(&wanted.owner), pause, now), lease),
    }
}
