//! A link as it is compared with a record.

use cnimble_netlink::details::Details;
use cnimble_netlink::link::Link;
use cnimble_netlink::sysfs::Device;

/// A link with the properties that prove which device it is.
#[derive(Debug, Clone, Default)]
pub(crate) struct DeviceProof {
    pub(crate) link: Link,
    /// The link's directory in sysfs. `None` without a sysfs.
    pub(crate) device: Option<Device>,
    /// The kernel's details. They are read only for links without a kind: hardware and lo.
    pub(crate) details: Option<Details>,
}

impl DeviceProof {
    /// Returns true if the link has the MAC address that its hardware gives it. False without the kernel's details.
    pub(crate) fn has_permanent_mac(&self) -> bool {
        let Some(details) = &self.details else { return false };
        self.link.mac.is_some_and(|mac| details.permanent == mac.0)
    }
}
