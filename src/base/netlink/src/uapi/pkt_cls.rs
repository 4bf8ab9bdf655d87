//! linux/pkt_cls.h and linux/tc_act/tc_mirred.h: filters and their actions.

pub(crate) const TCA_U32_CLASSID: u16 = 1;
pub(crate) const TCA_U32_SEL: u16 = 5;
pub(crate) const TCA_U32_ACT: u16 = 7;
pub(crate) const TC_U32_TERMINAL: u8 = 1;
/// `sizeof(struct tc_u32_sel)`
pub(crate) const TC_U32_SEL: usize = 16;
/// `offsetof(struct tc_u32_sel, nkeys)`
pub(crate) const TC_U32_SEL_NKEYS: usize = 2;
/// `sizeof(struct tc_u32_key)`
pub(crate) const TC_U32_KEY: usize = 16;
/// `offsetof(struct tc_u32_key, mask)`
pub(crate) const TC_U32_KEY_MASK: usize = 0;
/// `offsetof(struct tc_u32_key, val)`
pub(crate) const TC_U32_KEY_VAL: usize = 4;
/// `offsetof(struct tc_u32_key, off)`
pub(crate) const TC_U32_KEY_OFF: usize = 8;

pub(crate) const TCA_ACT_KIND: u16 = 1;
pub(crate) const TCA_ACT_OPTIONS: u16 = 2;
pub(crate) const TC_ACT_STOLEN: u32 = 4;
pub(crate) const TCA_MIRRED_PARMS: u16 = 2;
pub(crate) const TCA_EGRESS_REDIR: u32 = 1;
pub(crate) const TCA_INGRESS_REDIR: u32 = 3;
/// `offsetof(struct tc_mirred, eaction)`
pub(crate) const TC_MIRRED_EACTION: usize = 20;
/// `offsetof(struct tc_mirred, ifindex)`
pub(crate) const TC_MIRRED_IFINDEX: usize = 24;
pub(crate) const TCA_BPF_NAME: u16 = 7;
