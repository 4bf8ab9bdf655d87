//! Looks for the device in one namespace, that of the host or of a pod.

use cnimble_cni::Error;
use cnimble_netlink::link::{Filter, Link};
use cnimble_netlink::sysfs::Sysfs;
use cnimble_netlink::{IfPresent, NetNs, Netlink};

use crate::record::DeviceRecord;
use crate::seen::DeviceProof;

/// The most looks at a link that has another name each time. A rename takes the kernel longer than a look, so only a
/// pod that renames on purpose gets this far.
const LOOKS: usize = 16;

/// A namespace of the host or a pod, with its netlink socket and its sysfs.
#[derive(Debug)]
pub(crate) struct DeviceNamespace {
    pub(crate) netlink: Netlink,
    /// `None` if no sysfs can be mounted, as in a container without privileges.
    sysfs: Option<Sysfs>,
}

impl DeviceNamespace {
    /// Opens the namespace of this thread. A sysfs that cannot be mounted is only logged. Fails if the kernel refuses a
    /// socket.
    pub(crate) fn host() -> Result<Self, Error> {
        let sysfs = Sysfs::mount().inspect_err(|err| log::debug!("{err}"));
        Ok(DeviceNamespace { netlink: Netlink::open()?, sysfs: sysfs.ok() })
    }

    /// Opens the namespace of a pod. Fails with code 100 if the kernel refuses to enter it, or refuses a socket.
    pub(crate) fn pod(netns: &NetNs) -> Result<Self, Error> {
        netns.enter(DeviceNamespace::host)?
    }

    /// Reads what proves which device a link is. Returns `None` if the link is gone, or is renamed again and again
    /// while it is looked at.
    ///
    /// sysfs finds links by name only. Where there is a sysfs, a link without an inode must not count. A pod could
    /// rename the link at that moment, and have it recognized by properties that it has forged.
    pub(crate) fn read_properties(&mut self, mut link: Link) -> Result<Option<DeviceProof>, Error> {
        let details = match link.kind.as_str() {
            "" => match self.netlink.details(link.index).if_present()? {
                None => return Ok(None),
                details => details,
            },
            _ => None,
        };
        let Some(sysfs) = &self.sysfs else { return Ok(Some(DeviceProof { link, device: None, details })) };
        for _ in 0..LOOKS {
            if let Some(device) = sysfs.device(&link.name)?.filter(|device| device.index == link.index) {
                return Ok(Some(DeviceProof { link, device: Some(device), details }));
            }
            link = match self.netlink.link_at(link.index).if_present()? {
                Some(now) => now,
                None => return Ok(None),
            };
        }
        log::warn!("a link was renamed {LOOKS} times while it was looked at, and is not taken for a device");
        Ok(None)
    }

    /// Finds the recorded device in this namespace, under any name. `None` if it is elsewhere. If several links match
    /// without proof, the one with the recorded index is returned.
    pub(crate) fn find_device(&mut self, record: &DeviceRecord) -> Result<Option<Link>, Error> {
        // The device usually has its recorded name. That saves a list of all links, of which a host may have thousands.
        if let Some(link) = self.netlink.find_link(&record.name)?
            && let Some(seen) = self.read_properties(link)?
            && record.is_proven(&seen)
        {
            return Ok(Some(seen.link));
        }
        let kind = Some(record.kind.as_str()).filter(|kind| !kind.is_empty());
        let mut found = Vec::new();
        for link in self.netlink.links(&Filter { master: None, kind })? {
            if link.kind == record.kind
                && let Some(seen) = self.read_properties(link)?
                && record.is(&seen)
            {
                found.push(seen.link);
            }
        }
        // A move keeps the index if it is free in the other namespace.
        Ok(found.into_iter().max_by_key(|link| link.index == record.index))
    }
}
