//! Rules as the kernel lists them.

use super::attr;
use super::comment::comment;
use super::expr::{self, Verdict};

/// A rule as the kernel lists it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rule {
    /// The chain it is in.
    pub chain: String,
    /// What it is deleted by.
    pub handle: u64,
    /// Comment; empty for none. A comment given to iptables counts as well.
    pub comment: String,
    expressions: Vec<(String, Vec<u8>)>,
}

impl Rule {
    /// From the attributes of a reply (`NFTA_RULE_*`).
    pub(super) fn parse(attrs: &[u8]) -> Option<Self> {
        let expressions: Vec<(String, Vec<u8>)> = attr::find(attrs, 4)
            .map(|list| {
                attr::attrs(list)
                    .filter_map(|(_, expression)| {
                        let data = attr::find(expression, 2).unwrap_or_default();
                        Some((attr::find_text(expression, 1)?, data.to_vec()))
                    })
                    .collect()
            })
            .unwrap_or_default();
        let own = attr::find(attrs, 7).and_then(comment);
        let comment = own.or_else(|| {
            expressions.iter().find_map(|(name, data)| match name.as_str() {
                "match" => expr::xtables_comment(data),
                _ => None,
            })
        });
        Some(Rule {
            chain: attr::find_text(attrs, 2)?,
            handle: attr::find_u64(attrs, 3)?,
            comment: comment.unwrap_or_default(),
            expressions,
        })
    }

    /// The chain that it jumps or goes to.
    pub fn target(&self) -> Option<String> {
        self.expressions.iter().filter(|(name, _)| name == "immediate").find_map(|(_, data)| {
            match expr::immediate_verdict(data)? {
                Verdict::Jump(chain) | Verdict::Goto(chain) => Some(chain),
                _ => None,
            }
        })
    }

    /// What it does with the packets that it matches, if that decides about them or leads them
    /// elsewhere. A rejection is a drop.
    pub fn verdict(&self) -> Option<Verdict> {
        self.expressions.iter().find_map(|(name, data)| match name.as_str() {
            "immediate" => expr::immediate_verdict(data),
            "reject" => Some(Verdict::Drop),
            // iptables' targets; NFTA_TARGET_NAME
            "target" if attr::find_text(data, 1).as_deref() == Some("REJECT") => Some(Verdict::Drop),
            _ => None,
        })
    }

    /// Whether it matches all packets of its chain.
    pub fn matches_all(&self) -> bool {
        self.expressions.iter().all(|(name, data)| match name.as_str() {
            "immediate" | "reject" | "target" | "counter" | "log" => true,
            "match" => expr::xtables_comment(data).is_some(),
            _ => false,
        })
    }

    /// Whether it looks something up in this set.
    pub fn uses_set(&self, set: &str) -> bool {
        self.expressions
            .iter()
            .any(|(name, data)| name == "lookup" && attr::find_text(data, 1).as_deref() == Some(set))
    }

    /// Whether it has an expression of this name (`masq`, `payload` …).
    pub fn has(&self, expression: &str) -> bool {
        self.expressions.iter().any(|(name, _)| name == expression)
    }

    /// The constants that it compares with.
    pub fn constants(&self) -> impl Iterator<Item = &[u8]> {
        self.expressions
            .iter()
            .filter(|(name, _)| name == "cmp")
            .filter_map(|(_, data)| attr::find(attr::find(data, 3)?, 1))
    }

    /// The values that it loads as they stand, say the address and the port of `dnat to`.
    pub fn immediates(&self) -> impl Iterator<Item = &[u8]> {
        self.expressions
            .iter()
            .filter(|(name, _)| name == "immediate")
            .filter_map(|(_, data)| attr::find(attr::find(data, 2)?, 1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What the kernel sends is read without trust: bytes cut off or changed anywhere give
    /// fewer attributes, never a panic.
    #[test]
    fn broken_objects_can_be_read() {
        use super::super::comment::comment_userdata;
        use super::super::element::Element;
        use super::super::expr::{Expr, REG1};
        let mut w = attr::Writer::default();
        w.message(0, 0, 0, 0, |w| {
            w.text(2, "chain");
            w.u64(3, 7);
            let rule = [
                Expr::equal(REG1, b"abc"),
                Expr::in_set(REG1, "s"),
                Expr::verdict(Verdict::Jump("c".into())),
            ];
            w.nest(4, |w| rule.iter().for_each(|expr| expr.write(w)));
            w.attr(7, &comment_userdata("a comment"));
        });
        w.message(0, 0, 0, 0, |w| {
            w.nest(1, |w| w.attr(1, &[10, 0, 0, 1]));
            w.nest(2, |w| Verdict::Goto("c".into()).write(w));
            w.attr(6, &comment_userdata("another"));
        });
        let bytes = w.finished().unwrap().to_vec();
        let read = |bytes: &[u8]| {
            for message in attr::messages(bytes) {
                if let Some(rule) = Rule::parse(message.attrs()) {
                    let _ = (
                        rule.target(),
                        rule.uses_set("s"),
                        rule.constants().count(),
                        rule.immediates().count(),
                    );
                }
                let _ = Element::parse(message.attrs()).map(|element| element.key.to_string());
            }
        };
        let whole: Vec<_> = attr::messages(&bytes).collect();
        let rule = Rule::parse(whole[0].attrs()).unwrap();
        assert_eq!((rule.handle, rule.comment.as_str()), (7, "a comment"));
        assert_eq!(rule.target().as_deref(), Some("c"));
        assert_eq!(Element::parse(whole[1].attrs()).unwrap().key.to_string(), "10.0.0.1");
        for at in 0..bytes.len() {
            read(&bytes[..at]);
            for value in [0, 1, 2, 5, 0x7f, 0x80, 0xff] {
                let mut broken = bytes.clone();
                broken[at] = value;
                read(&broken);
            }
        }
    }
}
