//! A link and the properties that tell it from other links.

use cnimble_netlink::details::Details;
use cnimble_netlink::link::Link;
use cnimble_netlink::sysfs::Device;

/// A link with its identification.
#[derive(Debug, Clone, Default)]
pub(crate) struct Seen {
    pub(crate) link: Link,
    /// `None` without a sysfs.
    pub(crate) device: Option<Device>,
    /// Only of hardware and of lo, which have no kind.
    pub(crate) details: Option<Details>,
}
