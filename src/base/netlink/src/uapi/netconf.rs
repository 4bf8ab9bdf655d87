//! Constants of linux/netconf.h.

/// `NLMSG_ALIGN(sizeof(struct netconfmsg))`
pub(crate) const NETCONFMSG: usize = 4;
pub(crate) const NETCONFA_IFINDEX: u16 = 1;
pub(crate) const NETCONFA_FORWARDING: u16 = 2;
/// All links, present and future: the sysctls `net/ipv4/ip_forward`, `net/ipv6/conf/all/…`.
pub(crate) const NETCONFA_IFINDEX_ALL: i32 = -1;
