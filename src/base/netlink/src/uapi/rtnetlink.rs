//! linux/rtnetlink.h; rtnetlink(7).

pub(crate) const RTM_NEWLINK: u16 = 16;
pub(crate) const RTM_DELLINK: u16 = 17;
pub(crate) const RTM_SETLINK: u16 = 19;
pub(crate) const RTM_NEWADDR: u16 = 20;
pub(crate) const RTM_NEWROUTE: u16 = 24;
pub(crate) const RTM_DELROUTE: u16 = 25;
pub(crate) const RTM_GETROUTE: u16 = 26;
pub(crate) const RTM_NEWNEIGH: u16 = 28;
pub(crate) const RTM_NEWRULE: u16 = 32;
pub(crate) const RTM_DELRULE: u16 = 33;
pub(crate) const RTM_GETRULE: u16 = 34;
pub(crate) const RTM_NEWQDISC: u16 = 36;
pub(crate) const RTM_DELQDISC: u16 = 37;
pub(crate) const RTM_GETQDISC: u16 = 38;
pub(crate) const RTM_NEWTCLASS: u16 = 40;
pub(crate) const RTM_GETTCLASS: u16 = 42;
pub(crate) const RTM_NEWTFILTER: u16 = 44;
pub(crate) const RTM_GETTFILTER: u16 = 46;
pub(crate) const RTM_NEWNETCONF: u16 = 80;
pub(crate) const RTM_GETNETCONF: u16 = 82;
pub(crate) const RTM_NEWSTATS: u16 = 92;
pub(crate) const RTM_GETSTATS: u16 = 94;
pub(crate) const RTM_NEWLINKPROP: u16 = 108;
pub(crate) const RTM_DELLINKPROP: u16 = 109;
pub(crate) const RTM_NEWVLAN: u16 = 112;
pub(crate) const RTM_GETVLAN: u16 = 114;

pub(crate) const RTNLGRP_LINK: u32 = 1;
pub(crate) const RTNLGRP_IPV4_ROUTE: u32 = 7;
pub(crate) const RTNLGRP_IPV6_ROUTE: u32 = 11;
pub(crate) const RTNLGRP_IPV6_IFADDR: u32 = 9;

/// `sizeof(struct ifinfomsg)`
pub(crate) const IFINFOMSG: usize = 16;
/// `sizeof(struct ifaddrmsg)`
pub(crate) const IFADDRMSG: usize = 8;
pub(crate) const IFA_FLAGS: u16 = 8;

/// `sizeof(struct ndmsg)`
pub(crate) const NDMSG: usize = 12;
/// Addresses that need no resolution, such as multicast ones.
pub(crate) const NUD_NOARP: u16 = 0x40;

/// `sizeof(struct rtmsg)`
pub(crate) const RTMSG: usize = 12;
/// `sizeof(struct rtnexthop)`
pub(crate) const RTNEXTHOP: usize = 8;
pub(crate) const RTA_VIA: u16 = 18;
pub(crate) const RTAX_MTU: u16 = 2;
pub(crate) const RTAX_ADVMSS: u16 = 8;
pub(crate) const RTM_F_CLONED: u32 = 0x200;
pub(crate) const RTNH_F_ONLINK: u32 = 4;
pub(crate) const RTN_UNICAST: u8 = 1;
pub(crate) const RTPROT_RA: u8 = 9;
pub(crate) const RT_TABLE_UNSPEC: u32 = 0;
pub(crate) const RT_TABLE_MAIN: u32 = 254;
pub(crate) const RT_TABLE_LOCAL: u32 = 255;

/// `sizeof(struct tcmsg)`
pub(crate) const TCMSG: usize = 20;
/// `offsetof(struct tcmsg, tcm_ifindex)`
pub(crate) const TCM_IFINDEX: usize = 4;
/// `offsetof(struct tcmsg, tcm_handle)`
pub(crate) const TCM_HANDLE: usize = 8;
/// `offsetof(struct tcmsg, tcm_parent)`
pub(crate) const TCM_PARENT: usize = 12;
/// `offsetof(struct tcmsg, tcm_info)`
pub(crate) const TCM_INFO: usize = 16;
pub(crate) const TCA_KIND: u16 = 1;
pub(crate) const TCA_OPTIONS: u16 = 2;
pub(crate) const TCA_STATS2: u16 = 7;
