//! A namespace in which a device may be: the host's or a pod's.

use cnimble_cni::Error;
use cnimble_netlink::details::Details;
use cnimble_netlink::link::{Filter, Link};
use cnimble_netlink::sysfs::{Device, Sysfs};
use cnimble_netlink::{NetNs, Netlink};

use crate::record::Record;

/// An open namespace, with a netlink socket and a sysfs of its own.
#[derive(Debug)]
pub(crate) struct Place {
    pub(crate) netlink: Netlink,
    /// `None` where none can be mounted, as in a container without privileges.
    sysfs: Option<Sysfs>,
}

/// A link with what tells it from others.
#[derive(Debug, Clone, Default)]
pub(crate) struct Seen {
    pub(crate) link: Link,
    /// `None` without a sysfs.
    pub(crate) device: Option<Device>,
    /// Only of hardware and of lo, which have no kind.
    pub(crate) details: Option<Details>,
}

impl Place {
    /// Opens the namespace of this thread.
    ///
    /// # Errors
    /// Code 100 if the kernel refuses a socket.
    pub(crate) fn host() -> Result<Self, Error> {
        let sysfs = Sysfs::mount().inspect_err(|err| log::debug!("{err}"));
        Ok(Place { netlink: Netlink::open()?, sysfs: sysfs.ok() })
    }

    /// Opens the namespace of a pod.
    ///
    /// # Errors
    /// Code 100 if the kernel refuses to enter it, or a socket.
    pub(crate) fn pod(netns: &NetNs) -> Result<Self, Error> {
        netns.enter(Place::host)?
    }

    /// Reads what tells a link from others; `None` if the link has gone.
    ///
    /// # Errors
    /// Code 100 if the kernel refuses the request.
    pub(crate) fn see(&mut self, link: Link) -> Result<Option<Seen>, Error> {
        let details = match link.kind.as_str() {
            "" => match self.netlink.details(link.index) {
                Err(err) if err.is_missing() => return Ok(None),
                details => Some(details?),
            },
            _ => None,
        };
        let device = match &self.sysfs {
            Some(sysfs) => sysfs.device(&link.name)?.filter(|device| device.index == link.index),
            None => None,
        };
        Ok(Some(Seen { link, device, details }))
    }

    /// Finds the device of a record; `None` if it is elsewhere.
    ///
    /// # Errors
    /// Code 100 if the kernel refuses a request.
    pub(crate) fn find(&mut self, record: &Record) -> Result<Option<Link>, Error> {
        // A host may have thousands of links. There the device has its own name as a rule.
        if let Some(link) = self.netlink.find_link(&record.name)?
            && let Some(seen) = self.see(link)?
            && record.is_proven(&seen)
        {
            return Ok(Some(seen.link));
        }
        let kind = Some(record.kind.as_str()).filter(|kind| !kind.is_empty());
        let mut found = Vec::new();
        for link in self.netlink.links(&Filter { master: None, kind })? {
            if link.kind == record.kind
                && let Some(seen) = self.see(link)?
                && record.is(&seen)
            {
                found.push(seen.link);
            }
        }
        // Of several that can't be told apart, the one with the index, which the kernel keeps where it is free.
        Ok(found.into_iter().max_by_key(|link| link.index == record.index))
    }
}
