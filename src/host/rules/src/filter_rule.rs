//! What a rule does with packets, and whether it has conditions. Nothing evaluates the conditions themselves.

use cnimble_netlink::nft::{Rule, Verdict};

/// A rule of nf_tables or iptables, as far as a walk through its chain needs it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct FilterRule {
    /// Whether some packets may not match it.
    pub(crate) conditional: bool,
    /// What it does with packets that match. `None` for a rule that decides nothing.
    pub(crate) verdict: Option<Verdict>,
}

impl From<&Rule> for FilterRule {
    fn from(rule: &Rule) -> Self {
        // Where a verdict map leads isn't known. An accept is assumed, which only makes the result unsure, because a
        // lookup is a condition. A lookup in a set without a verdict can't be told from that, and counts the same.
        let verdict = rule.verdict().or_else(|| rule.has("lookup").then_some(Verdict::Accept));
        FilterRule { conditional: !rule.matches_all(), verdict }
    }
}
