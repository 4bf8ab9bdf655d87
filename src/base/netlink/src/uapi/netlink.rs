//! Constants of linux/netlink.h; see netlink(7).

/// `sizeof(struct nlmsghdr)`
pub(crate) const NLMSGHDR: usize = 16;
/// `sizeof(struct nlattr)`
pub(crate) const NLATTR: usize = 4;

pub(crate) const NLMSG_ERROR: u16 = 2;
pub(crate) const NLMSG_DONE: u16 = 3;
pub(crate) const NLMSG_OVERRUN: u16 = 4;

pub(crate) const NLM_F_REQUEST: u16 = 0x1;
pub(crate) const NLM_F_ACK: u16 = 0x4;
pub(crate) const NLM_F_ECHO: u16 = 0x8;
/// The list changed while the kernel wrote it.
pub(crate) const NLM_F_DUMP_INTR: u16 = 0x10;
pub(crate) const NLM_F_DUMP: u16 = 0x300;
pub(crate) const NLM_F_REPLACE: u16 = 0x100;
pub(crate) const NLM_F_EXCL: u16 = 0x200;
pub(crate) const NLM_F_CREATE: u16 = 0x400;
pub(crate) const NLM_F_APPEND: u16 = 0x800;
/// Refuses to delete a non-empty object.
pub(crate) const NLM_F_NONREC: u16 = 0x100;
pub(crate) const NLM_F_CAPPED: u16 = 0x100;
pub(crate) const NLM_F_ACK_TLVS: u16 = 0x200;

pub(crate) const NLMSGERR_ATTR_MSG: u16 = 1;
pub(crate) const NLMSGERR_ATTR_OFFS: u16 = 2;

pub(crate) const NLA_F_NESTED: u16 = 0x8000;
/// `(__u16)NLA_TYPE_MASK`
pub(crate) const NLA_TYPE_MASK: u16 = 0x3fff;
