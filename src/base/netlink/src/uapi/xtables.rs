//! linux/netfilter/xt_comment.h and xt_conntrack.h: the information of two of iptables' matches.

/// `sizeof(struct xt_comment_info)`
pub(crate) const COMMENT_INFO: usize = 256;

/// `(sizeof(struct xt_conntrack_mtinfo3) + 7) / 8 * 8`
pub(crate) const CONNTRACK_INFO: usize = 168;
/// `offsetof(struct xt_conntrack_mtinfo3, match_flags)`
pub(crate) const CONNTRACK_MATCH_FLAGS: usize = 146;
/// `offsetof(struct xt_conntrack_mtinfo3, state_mask)`
pub(crate) const CONNTRACK_STATE_MASK: usize = 150;
pub(crate) const XT_CONNTRACK_STATE: u16 = 0x1;
/// `XT_CONNTRACK_STATE_BIT(0) | XT_CONNTRACK_STATE_BIT(1)`
pub(crate) const ESTABLISHED_RELATED: u16 = 0x6;
