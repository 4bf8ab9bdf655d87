//! linux/pkt_sched.h: qdiscs and classes.

pub(crate) const TC_H_UNSPEC: u32 = 0;
pub(crate) const TC_H_ROOT: u32 = 0xffff_ffff;
pub(crate) const TC_H_INGRESS: u32 = 0xffff_fff1;

pub(crate) const TCA_TBF_PARMS: u16 = 1;
pub(crate) const TCA_TBF_RATE64: u16 = 4;
/// `offsetof(struct tc_tbf_qopt, rate.rate)`
pub(crate) const TC_TBF_QOPT_RATE: usize = 8;
/// `offsetof(struct tc_tbf_qopt, limit)`
pub(crate) const TC_TBF_QOPT_LIMIT: usize = 24;
/// `offsetof(struct tc_tbf_qopt, buffer)`
pub(crate) const TC_TBF_QOPT_BUFFER: usize = 28;

pub(crate) const TCA_HTB_PARMS: u16 = 1;
pub(crate) const TCA_HTB_INIT: u16 = 2;
pub(crate) const TCA_HTB_RATE64: u16 = 6;
pub(crate) const TCA_HTB_CEIL64: u16 = 7;
/// `offsetof(struct tc_htb_opt, rate.rate)`
pub(crate) const TC_HTB_OPT_RATE: usize = 8;
/// `offsetof(struct tc_htb_opt, buffer)`
pub(crate) const TC_HTB_OPT_BUFFER: usize = 24;
/// `TC_HTB_PROTOVER`
pub(crate) const TC_HTB_PROTOVER: u32 = 3;
/// `offsetof(struct tc_htb_glob, defcls)`
pub(crate) const TC_HTB_GLOB_DEFCLS: usize = 8;
pub(crate) const TC_H_MIN_INGRESS: u16 = 0xfff2;
pub(crate) const TC_H_MIN_EGRESS: u16 = 0xfff3;
