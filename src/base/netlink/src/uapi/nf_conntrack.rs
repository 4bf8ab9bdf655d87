//! Constants of linux/netfilter/nfnetlink_conntrack.h.

pub(crate) const IPCTNL_MSG_CT_NEW: u16 = 0;
pub(crate) const IPCTNL_MSG_CT_GET: u16 = 1;
pub(crate) const IPCTNL_MSG_CT_DELETE: u16 = 2;
pub(crate) const IPCTNL_MSG_CT_GET_STATS: u16 = 5;

pub(crate) const CTA_TUPLE_ORIG: u16 = 1;
pub(crate) const CTA_TUPLE_REPLY: u16 = 2;
pub(crate) const CTA_ID: u16 = 12;
pub(crate) const CTA_ZONE: u16 = 18;
/// Exists since Linux 5.8.
pub(crate) const CTA_FILTER: u16 = 25;

pub(crate) const CTA_TUPLE_IP: u16 = 1;
pub(crate) const CTA_TUPLE_PROTO: u16 = 2;

pub(crate) const CTA_IP_V4_SRC: u16 = 1;
pub(crate) const CTA_IP_V4_DST: u16 = 2;
pub(crate) const CTA_IP_V6_SRC: u16 = 3;
pub(crate) const CTA_IP_V6_DST: u16 = 4;

pub(crate) const CTA_PROTO_NUM: u16 = 1;
pub(crate) const CTA_PROTO_SRC_PORT: u16 = 2;
pub(crate) const CTA_PROTO_DST_PORT: u16 = 3;
pub(crate) const CTA_PROTO_ICMP_ID: u16 = 4;
pub(crate) const CTA_PROTO_ICMP_TYPE: u16 = 5;
pub(crate) const CTA_PROTO_ICMP_CODE: u16 = 6;
pub(crate) const CTA_PROTO_ICMPV6_ID: u16 = 7;
pub(crate) const CTA_PROTO_ICMPV6_TYPE: u16 = 8;
pub(crate) const CTA_PROTO_ICMPV6_CODE: u16 = 9;

pub(crate) const CTA_STATS_GLOBAL_ENTRIES: u16 = 1;

pub(crate) const CTA_FILTER_ORIG_FLAGS: u16 = 1;
pub(crate) const CTA_FILTER_REPLY_FLAGS: u16 = 2;
/// Compares the protocol only: `CTA_FILTER_FLAG(CTA_PROTO_NUM)` in the kernel's net/netfilter/nf_conntrack_netlink.c. No
/// header of user space has it.
pub(crate) const CTA_FILTER_F_CTA_PROTO_NUM: u32 = 1 << 3;
