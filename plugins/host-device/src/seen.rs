//! A link as it is compared with a record.

use cnimble_netlink::details::Details;
use cnimble_netlink::link::Link;
use cnimble_netlink::sysfs::Device;

/// A link with the properties that prove which device it is.
#[derive(Debug, Clone, Default)]
pub(crate) struct Seen {
    pub(crate) link: Link,
    /// The link's directory in sysfs. `None` without a sysfs.
    pub(crate) device: Option<Device>,
    /// The kernel's details. They are read only for links without a kind: hardware and lo.
    pub(crate) details: Option<Details>,
}
