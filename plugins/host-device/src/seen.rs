use cnimble_netlink::details::Details;
use cnimble_netlink::link::Link;
use cnimble_netlink::sysfs::Device;

/// A link with the properties that tell it from others.
#[derive(Debug, Clone, Default)]
pub(crate) struct Seen {
    pub(crate) link: Link,
    /// `None` without a sysfs.
    pub(crate) device: Option<Device>,
    /// The kernel's details, only for hardware and lo, which have no kind.
    pub(crate) details: Option<Details>,
}
