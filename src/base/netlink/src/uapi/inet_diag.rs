//! Constants of linux/sock_diag.h and linux/inet_diag.h.

pub(crate) const SOCK_DIAG_BY_FAMILY: u16 = 20;
/// `sizeof(struct inet_diag_req_v2)`
pub(crate) const INET_DIAG_REQ_V2: usize = 56;
/// `sizeof(struct inet_diag_msg)`
pub(crate) const INET_DIAG_MSG: usize = 72;
pub(crate) const INET_DIAG_SKV6ONLY: u16 = 11;
