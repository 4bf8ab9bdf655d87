//! Constants of linux/xfrm.h.

pub(crate) const XFRM_MSG_NEWPOLICY: u16 = 0x13;
pub(crate) const XFRM_MSG_GETPOLICY: u16 = 0x15;

/// `sizeof(struct xfrm_userpolicy_id)`
pub(crate) const XFRM_USERPOLICY_ID: usize = 64;
/// `sizeof(struct xfrm_userpolicy_info)`
pub(crate) const XFRM_USERPOLICY_INFO: usize = 168;

pub(crate) const XFRM_POLICY_IN: u8 = 0;
pub(crate) const XFRM_POLICY_OUT: u8 = 1;
pub(crate) const XFRM_POLICY_FWD: u8 = 2;
pub(crate) const XFRM_POLICY_BLOCK: u8 = 1;

pub(crate) const XFRMA_TMPL: u16 = 5;
