//! Constants of linux/netconf.h.

/// The aligned size of `struct netconfmsg` in bytes.
pub(crate) const NETCONFMSG: usize = 4;
pub(crate) const NETCONFA_IFINDEX: u16 = 1;
pub(crate) const NETCONFA_FORWARDING: u16 = 2;
/// All links, present and future: the sysctls `net/ipv4/ip_forward`, `net/ipv6/conf/all/…`.
pub(crate) const NETCONFA_IFINDEX_ALL: i32 = -1;
