//! Constants of linux/fib_rules.h.

/// `sizeof(struct fib_rule_hdr)`
pub(crate) const FIB_RULE_HDR: usize = 12;
pub(crate) const FRA_SRC: u16 = 2;
pub(crate) const FRA_IIFNAME: u16 = 3;
pub(crate) const FRA_PRIORITY: u16 = 6;
pub(crate) const FRA_SUPPRESS_PREFIXLEN: u16 = 14;
pub(crate) const FRA_TABLE: u16 = 15;
pub(crate) const FRA_OIFNAME: u16 = 17;
pub(crate) const FRA_PROTOCOL: u16 = 21;
pub(crate) const FR_ACT_TO_TBL: u8 = 1;

pub(crate) const FRA_DST: u16 = 1;
pub(crate) const FRA_FWMARK: u16 = 10;
pub(crate) const FRA_FWMASK: u16 = 16;
pub(crate) const FRA_L3MDEV: u16 = 19;
pub(crate) const FIB_RULE_INVERT: u32 = 2;
pub(crate) const FR_ACT_BLACKHOLE: u8 = 6;
pub(crate) const FR_ACT_UNREACHABLE: u8 = 7;
pub(crate) const FR_ACT_PROHIBIT: u8 = 8;
