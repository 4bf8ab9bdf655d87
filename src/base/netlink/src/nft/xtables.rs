//! The expressions of rules that iptables' nf_tables variant writes: its own matches, which the kernel keeps as C
//! structures, and a counter in each rule.

use super::expr::{Expr, Value};
use crate::uapi::nf_tables::{
    NFTA_COUNTER_BYTES, NFTA_COUNTER_PACKETS, NFTA_MATCH_INFO, NFTA_MATCH_NAME, NFTA_MATCH_REV,
};
use crate::uapi::xtables::{
    COMMENT_INFO, CONNTRACK_INFO, CONNTRACK_MATCH_FLAGS, CONNTRACK_STATE_MASK, ESTABLISHED_RELATED,
    XT_CONNTRACK_STATE,
};
use crate::wire::Attributes;

/// The name of iptables' match that holds a comment.
pub(super) const COMMENT: &str = "comment";

impl Expr {
    /// `counter pkts 0 bytes 0`. The variant of iptables has a counter in each rule.
    pub fn counter() -> Self {
        let counters = [NFTA_COUNTER_BYTES, NFTA_COUNTER_PACKETS];
        Expr::new("counter", counters.map(|counter| (counter, Value::Bytes(vec![0; 8]))))
    }

    /// `-m comment --comment TEXT`: `struct xt_comment_info`, which has room for 255 bytes. A longer text is cut.
    pub fn xtables_comment(text: &str) -> Self {
        let mut info: Vec<u8> = text.bytes().take(COMMENT_INFO - 1).collect();
        info.resize(COMMENT_INFO, 0);
        Expr::xtables_match(COMMENT, 0, info)
    }

    /// `-m conntrack --ctstate RELATED,ESTABLISHED`: `struct xt_conntrack_mtinfo3`. Its revision, 3, exists since Linux
    /// 2.6.38.
    pub fn xtables_answers() -> Self {
        let mut info = vec![0; CONNTRACK_INFO];
        for (at, value) in
            [(CONNTRACK_MATCH_FLAGS, XT_CONNTRACK_STATE), (CONNTRACK_STATE_MASK, ESTABLISHED_RELATED)]
        {
            for (byte, value) in info.iter_mut().skip(at).zip(value.to_ne_bytes()) {
                *byte = value;
            }
        }
        Expr::xtables_match("conntrack", 3, info)
    }

    fn xtables_match(name: &str, revision: u32, info: Vec<u8>) -> Self {
        let name = (NFTA_MATCH_NAME, Value::Text(name.to_owned()));
        Expr::new(
            "match",
            [name, (NFTA_MATCH_REV, Value::Number(revision)), (NFTA_MATCH_INFO, Value::Bytes(info))],
        )
    }
}

/// Returns the text of iptables' match `comment` from its data. `None` for any other match.
pub(super) fn comment_of(data: Attributes<'_>) -> Option<String> {
    (data.text(NFTA_MATCH_NAME)? == COMMENT).then(|| data.text(NFTA_MATCH_INFO))?
}
