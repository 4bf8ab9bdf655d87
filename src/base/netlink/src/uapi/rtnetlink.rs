//! linux/rtnetlink.h; rtnetlink(7). NUD_NOARP is for addresses that need no resolution, such as multicast ones.

pub(crate) use libc::{
    NTF_ROUTER, NUD_FAILED, NUD_INCOMPLETE, NUD_NOARP, NUD_PERMANENT, NUD_REACHABLE, NUD_STALE, RTM_DELADDR,
    RTM_DELLINK, RTM_DELQDISC, RTM_DELROUTE, RTM_DELTCLASS, RTM_DELTFILTER, RTM_F_CLONED, RTM_GETNETCONF,
    RTM_GETNSID, RTM_GETQDISC, RTM_GETTCLASS, RTM_GETTFILTER, RTM_NEWADDR, RTM_NEWLINK, RTM_NEWNEIGH,
    RTM_NEWNETCONF, RTM_NEWNSID, RTM_NEWQDISC, RTM_NEWROUTE, RTM_NEWRULE, RTM_NEWTCLASS, RTM_NEWTFILTER,
    RTN_LOCAL, RTN_UNICAST, RTNLGRP_IPV4_IFADDR, RTNLGRP_IPV4_NETCONF, RTNLGRP_IPV4_ROUTE,
    RTNLGRP_IPV6_IFADDR, RTNLGRP_IPV6_NETCONF, RTNLGRP_IPV6_ROUTE, RTNLGRP_LINK, RTNLGRP_TC, TCA_KIND,
    TCA_OPTIONS, TCA_STATS2,
};

pub(crate) const RTM_NEWSTATS: u16 = 92;
pub(crate) const RTM_GETSTATS: u16 = 94;
pub(crate) const RTM_NEWVLAN: u16 = 112;
pub(crate) const RTM_GETVLAN: u16 = 114;

/// `sizeof(struct ifinfomsg)`
pub(crate) const IFINFOMSG: usize = 16;
/// `sizeof(struct ifaddrmsg)`
pub(crate) const IFADDRMSG: usize = 8;
pub(crate) const IFA_FLAGS: u16 = 8;

/// `sizeof(struct ndmsg)`
pub(crate) const NDMSG: usize = 12;

/// `sizeof(struct rtmsg)`
pub(crate) const RTMSG: usize = 12;
/// `sizeof(struct rtgenmsg)`
pub(crate) const RTGENMSG: usize = 1;
/// `sizeof(struct rtnexthop)`
pub(crate) const RTNEXTHOP: usize = 8;
pub(crate) const RTA_VIA: u16 = 18;
pub(crate) const RTAX_MTU: u16 = 2;
pub(crate) const RTAX_ADVMSS: u16 = 8;
pub(crate) const RTNH_F_ONLINK: u32 = 4;
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

pub(crate) const RTM_GETRULE: u16 = 34;
pub(crate) const RTM_F_LOOKUP_TABLE: u32 = 0x1000;
pub(crate) const RTA_IP_PROTO: u16 = 27;
pub(crate) const RTA_SPORT: u16 = 28;
pub(crate) const RTA_DPORT: u16 = 29;
pub(crate) const RTN_BROADCAST: u8 = 3;
pub(crate) const RTN_MULTICAST: u8 = 5;
pub(crate) const RTN_BLACKHOLE: u8 = 6;
pub(crate) const RTN_UNREACHABLE: u8 = 7;
pub(crate) const RTN_PROHIBIT: u8 = 8;
pub(crate) const RTN_THROW: u8 = 9;
