//! Constants of linux/nexthop.h, and the messages of linux/rtnetlink.h about nexthop objects.

/// `sizeof(struct nhmsg)`
pub(crate) const NHMSG: usize = 8;
pub(crate) const NHA_OIF: u16 = 5;
pub(crate) const NHA_GATEWAY: u16 = 6;
pub(crate) const RTM_NEWNEXTHOP: u16 = 104;
pub(crate) const RTM_GETNEXTHOP: u16 = 106;
