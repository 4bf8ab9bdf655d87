//! One interface in a pod, with a client of one family, and the address and routes of its lease.

use std::net::IpAddr;
use std::path::Path;

use cnimble_cni::{Code, Error};
use cnimble_netlink::link::{Link, Mac};
use cnimble_netlink::{NetNs, addr};

use super::flags::Flags;
use super::follow;
use super::four::Four;
use super::place::{Event, Place, Speaker};
use super::six::Six;
use crate::held::Held;
use crate::talk::{Family, Wanted};

/// The reason that both clients report for an expired lease.
const EXPIRED: &str = "it has expired";

/// An interface with its client. See the module.
pub(super) struct Pod {
    pub(super) wanted: Wanted,
    pub(super) place: Place,
    /// The verb that waits for the lease, and its deadline.
    pub(super) waiting: Option<(u64, u64)>,
    pub(super) speaker: Box<dyn Speaker>,
    /// The lease that the interface's address and routes come from.
    applied: Option<Held>,
    /// Whether the kernel has been told the lifetime of the address.
    lent: bool,
    /// Whether that lifetime was finite.
    ends: bool,
    /// The address of the last lost lease, and the reason, until there is a new lease.
    lost: Option<(IpAddr, &'static str)>,
}

impl Pod {
    /// Finds the interface, for a first lease or for one from a file.
    ///
    /// # Errors
    /// Fails as [`Place::find`] does.
    pub(super) fn find(
        flags: &Flags,
        wanted: Wanted,
        now: u64,
        known: Option<(Mac, Option<Held>)>,
        sent: Option<NetNs>,
    ) -> Result<Pod, Error> {
        let (place, link) = Place::find(flags, &wanted, sent)?;
        if known.as_ref().is_some_and(|(before, _)| *before != place.mac) {
            // The interface is another pod's, in a namespace that has the number of an earlier one.
            return Err(place.missing());
        }
        let applied = known.and_then(|(_, lease)| lease);
        let speaker = speaker(flags, &wanted, &place, &link, now, applied.clone());
        Ok(Pod { wanted, place, waiting: None, speaker, applied, lent: false, ends: false, lost: None })
    }

    /// As [`Place::has_died`].
    pub(super) fn has_died(&self, flags: &Flags) -> bool {
        self.place.has_died(flags)
    }

    /// As [`Place::is_in`].
    pub(super) fn is_in(&self, path: &Path) -> bool {
        self.place.is_in(path)
    }

    /// As [`Speaker::hear`].
    pub(super) fn hear(&mut self, now: u64) -> Vec<Event> {
        self.speaker.hear(&self.place, now)
    }

    /// As [`Speaker::tick`].
    pub(super) fn tick(&mut self, now: u64) -> Vec<Event> {
        self.speaker.tick(&self.place, now)
    }

    /// As [`Speaker::release`].
    pub(super) fn release(&mut self, now: u64) -> Option<(String, std::io::Result<()>)> {
        self.speaker.release(&self.place, now)
    }

    /// Records the lease that the waiting verb receives and puts on the interface.
    pub(super) fn handed_over(&mut self, lease: &Held) {
        self.applied = Some(lease.clone());
        (self.lent, self.ends) = (false, false);
    }

    /// Applies a renewed lease to the interface. Returns a description of the changes, if there are any.
    ///
    /// # Errors
    /// Fails if the kernel refuses the request.
    pub(super) fn renewed(&mut self, lease: &Held, now: u64) -> Result<Option<String>, Error> {
        let of = |lease: &Held| (lease.net(), follow::routes(&self.place, lease, self.wanted.priority));
        let change = match &self.applied {
            Some(old) if of(old) == of(lease) => None,
            _ => Some(self.follow(lease)?),
        };
        self.ends &= self.applied.as_ref().is_some_and(|old| old.net() == lease.net());
        self.applied = Some(lease.clone());
        self.lent = false;
        self.lend(now)?;
        Ok(change)
    }

    /// Changes the interface, and returns a description of the changes.
    fn follow(&self, lease: &Held) -> Result<String, Error> {
        let old = self.applied.as_ref();
        let refused = follow::follow(&self.place, self.wanted.priority, old, Some(lease))?;
        let (ifname, to) = (&self.place.ifname, lease.net());
        let change = match old.map(Held::net) {
            Some(from) if from == to => format!("{ifname} has followed to other routes of {to}"),
            Some(from) => format!("{ifname} has followed from {from} to {to}"),
            None => format!("{ifname} has followed from nothing to {to}"),
        };
        Ok(match refused {
            None => change,
            Some(err) => format!("{change}, but not in all: {err}"),
        })
    }

    /// Tells the kernel the lifetime of the address, once the address exists: the verb adds it after the daemon's
    /// answer.
    ///
    /// # Errors
    /// Fails if the kernel refuses the request. A missing interface is no failure.
    pub(super) fn lend(&mut self, now: u64) -> Result<(), Error> {
        let Some(lease) = self.applied.as_ref().filter(|_| !self.lent) else { return Ok(()) };
        let (preferred, valid) = lease.lifetimes(now);
        let (mut inside, link) = match self.place.inside() {
            Err(err) if err.code == Code::UNKNOWN_CONTAINER => return Ok(()),
            inside => inside?,
        };
        let net = lease.net();
        let Some(present) = inside.addrs(link.index)?.into_iter().find(|addr| addr.net == net) else {
            return Ok(());
        };
        // A permanent address that had a lifetime before was made permanent by `cnimble hand-over`.
        if !(self.ends && present.permanent) {
            inside.execute(addr::set_lifetime(link.index, &link.name, net, preferred, valid))?;
            self.ends = valid != u32::MAX;
        }
        self.lent = true;
        Ok(())
    }

    /// Returns the lease for CHECK.
    ///
    /// # Errors
    /// Fails with code 103 and the reason if the lease has ended.
    pub(super) fn checked(&self, now: u64) -> Result<Held, Error> {
        let (ifname, lease) = (&self.place.ifname, self.speaker.lease());
        let (address, why) = match (lease, self.lost) {
            (Some(lease), _) if lease.expires() > now => return Ok(lease),
            (Some(lease), _) => (lease.address(), EXPIRED),
            (None, Some(lost)) => lost,
            (None, None) => return Err(Error::check(format!("dhcp: there is no lease for {ifname}"))),
        };
        Err(Error::check(format!("dhcp: {ifname} has no lease of {address} any more: {why}"))
            .details("no server has given another address yet"))
    }

    /// Removes a lost lease from the interface, and keeps the reason for CHECK.
    ///
    /// # Errors
    /// Fails as [`Pod::taken`] does.
    pub(super) fn lose(&mut self, lease: &Held, why: &'static str) -> Result<(), Error> {
        self.lost = Some((lease.address(), why));
        self.taken()
    }

    /// Removes the address and routes of the lease from the interface.
    ///
    /// # Errors
    /// Fails if the kernel refuses the request. A missing interface is no failure.
    pub(super) fn taken(&mut self) -> Result<(), Error> {
        if self.applied.is_none() {
            return Ok(());
        }
        let outcome = follow::follow(&self.place, self.wanted.priority, self.applied.as_ref(), None);
        self.applied = None;
        match outcome {
            Err(err) if err.code == Code::UNKNOWN_CONTAINER => Ok(()),
            outcome => outcome?.map_or(Ok(()), Err),
        }
    }
}

fn speaker(
    flags: &Flags,
    wanted: &Wanted,
    place: &Place,
    link: &Link,
    now: u64,
    lease: Option<Held>,
) -> Box<dyn Speaker> {
    match (wanted.family, lease) {
        (Family::Ipv4, Some(Held::Four(lease))) => {
            Box::new(Four::new(flags, wanted, link, place.mac, now, Some(lease)))
        }
        (Family::Ipv4, _) => Box::new(Four::new(flags, wanted, link, place.mac, now, None)),
        (Family::Ipv6, Some(Held::Six(lease))) => Box::new(Six::new(flags, &wanted.whose, now, Some(lease))),
        (Family::Ipv6, _) => Box::new(Six::new(flags, &wanted.whose, now, None)),
    }
}
