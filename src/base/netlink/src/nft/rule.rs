//! Rules as the kernel lists them.

use super::expr::{self, Verdict};
use super::udata::comment;
use super::xtables;
use crate::uapi::nf_tables::{
    NFT_NAT_DNAT, NFTA_CMP_DATA, NFTA_DATA_VALUE, NFTA_EXPR_DATA, NFTA_EXPR_NAME, NFTA_IMMEDIATE_DATA,
    NFTA_LOOKUP_SET, NFTA_NAT_TYPE, NFTA_RULE_CHAIN, NFTA_RULE_EXPRESSIONS, NFTA_RULE_HANDLE,
    NFTA_RULE_USERDATA, NFTA_TARGET_NAME,
};
use crate::wire::Attributes;

/// A rule as the kernel lists it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rule {
    /// The chain of the rule.
    pub chain: String,
    /// The number by which the rule is deleted.
    pub handle: u64,
    /// The comment, or an empty text for none. A comment given to iptables counts, too, if the rule has none of nft.
    pub comment: String,
    /// The expressions in order, by their names, with their attributes as the kernel sent them.
    pub(super) expressions: Vec<(String, Vec<u8>)>,
}

impl Rule {
    /// Reads the attributes of a reply (`NFTA_RULE_*`). `None` if the chain or the handle is missing.
    pub(crate) fn parse(attrs: Attributes<'_>) -> Option<Self> {
        let list = attrs.nested(NFTA_RULE_EXPRESSIONS).unwrap_or_default();
        let expressions: Vec<(String, Vec<u8>)> = list
            .flatten()
            .filter_map(|(_, expression)| {
                let expression = Attributes::new(expression);
                let data = expression.get(NFTA_EXPR_DATA).unwrap_or_default();
                Some((expression.text(NFTA_EXPR_NAME)?, data.to_vec()))
            })
            .collect();
        let mut rule = Rule {
            chain: attrs.text(NFTA_RULE_CHAIN)?,
            handle: attrs.u64_be(NFTA_RULE_HANDLE)?,
            comment: String::new(),
            expressions,
        };
        let own = attrs.get(NFTA_RULE_USERDATA).and_then(comment);
        rule.comment =
            own.or_else(|| rule.data_of("match").find_map(xtables::comment_of)).unwrap_or_default();
        Some(rule)
    }

    /// Returns the attributes of all expressions with this name.
    fn data_of(&self, expression: &'static str) -> impl Iterator<Item = Attributes<'_>> {
        let named = self.expressions.iter().filter(move |(name, _)| name == expression);
        named.map(|(_, data)| Attributes::new(data))
    }

    /// Returns the chain that the rule jumps or goes to, or `None` if it does neither.
    pub fn target(&self) -> Option<String> {
        self.data_of("immediate").find_map(|data| match expr::immediate_verdict(data)? {
            Verdict::Jump(chain) | Verdict::Goto(chain) => Some(chain),
            _ => None,
        })
    }

    /// Returns the name of the target of iptables, or `None` if the rule has none.
    pub fn target_name(&self) -> Option<String> {
        self.data_of("target").find_map(|data| data.text(NFTA_TARGET_NAME))
    }

    /// Returns the verdict about matched packets, or the jump. A rejection counts as a drop. `None` if the rule has
    /// neither.
    pub fn verdict(&self) -> Option<Verdict> {
        self.expressions.iter().find_map(|(name, data)| match name.as_str() {
            "immediate" => expr::immediate_verdict(Attributes::new(data)),
            "reject" => Some(Verdict::Drop),
            // The target of iptables is an expression of its own.
            "target" if Attributes::new(data).text(NFTA_TARGET_NAME).as_deref() == Some("REJECT") => {
                Some(Verdict::Drop)
            }
            _ => None,
        })
    }

    /// Returns what translates matched packets, by the name of iptables' target for it. `None` if the rule translates
    /// nothing.
    pub fn translation(&self) -> Option<String> {
        const TARGETS: [&str; 5] = ["SNAT", "DNAT", "MASQUERADE", "REDIRECT", "NETMAP"];
        self.expressions.iter().find_map(|(name, data)| {
            let data = Attributes::new(data);
            match name.as_str() {
                "masq" => Some("MASQUERADE".to_owned()),
                "redir" => Some("REDIRECT".to_owned()),
                "nat" if data.u32_be(NFTA_NAT_TYPE) == Some(NFT_NAT_DNAT) => Some("DNAT".to_owned()),
                "nat" => Some("SNAT".to_owned()),
                "target" => data.text(NFTA_TARGET_NAME).filter(|target| TARGETS.contains(&target.as_str())),
                _ => None,
            }
        })
    }

    /// Whether the rule matches all packets of its chain. A comment is no condition.
    pub fn matches_all(&self) -> bool {
        self.expressions.iter().all(|(name, data)| match name.as_str() {
            "immediate" | "reject" | "target" | "counter" | "log" => true,
            "match" => xtables::comment_of(Attributes::new(data)).is_some(),
            _ => false,
        })
    }

    /// Whether it looks something up in this set.
    pub fn uses_set(&self, set: &str) -> bool {
        self.data_of("lookup").any(|data| data.text(NFTA_LOOKUP_SET).as_deref() == Some(set))
    }

    /// Returns the sets that the rule looks something up in.
    pub fn sets(&self) -> impl Iterator<Item = String> {
        self.data_of("lookup").filter_map(|data| data.text(NFTA_LOOKUP_SET))
    }

    /// Whether it has an expression of this name (`masq`, `payload` …).
    pub fn has(&self, expression: &str) -> bool {
        self.expressions.iter().any(|(name, _)| name == expression)
    }

    /// Whether these bytes are anywhere in what it matches, or in what it does.
    pub fn mentions(&self, bytes: &[u8]) -> bool {
        !bytes.is_empty()
            && self.expressions.iter().any(|(_, data)| data.windows(bytes.len()).any(|part| part == bytes))
    }

    /// Returns the constants that the rule compares with.
    pub fn constants(&self) -> impl Iterator<Item = &[u8]> {
        self.data_of("cmp").filter_map(|data| data.nested(NFTA_CMP_DATA)?.get(NFTA_DATA_VALUE))
    }

    /// Returns the values that the rule loads as they stand, such as the address and the port of `dnat to`.
    pub fn immediates(&self) -> impl Iterator<Item = &[u8]> {
        self.data_of("immediate").filter_map(|data| data.nested(NFTA_IMMEDIATE_DATA)?.get(NFTA_DATA_VALUE))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Truncated or changed bytes of the kernel give fewer attributes, and never a panic.
    #[test]
    fn broken_objects_can_be_read() {
        use crate::nft::element::Element;
        use crate::nft::expr::{Expr, REG1};
        use crate::nft::udata::comment_userdata;
        use crate::uapi::nf_tables::{NFTA_SET_ELEM_DATA, NFTA_SET_ELEM_KEY, NFTA_SET_ELEM_USERDATA};
        use crate::wire::{Messages, Writer};
        let mut w = Writer::default();
        w.message(0, 0, &[0; 4], |w| {
            w.text(NFTA_RULE_CHAIN, "chain");
            w.u64_be(NFTA_RULE_HANDLE, 7);
            let rule = [
                Expr::equal(REG1, b"abc"),
                Expr::in_set(REG1, "s"),
                Expr::verdict(Verdict::Jump("c".into())),
            ];
            w.nest(NFTA_RULE_EXPRESSIONS, |w| rule.iter().for_each(|expr| expr.write(w)));
            w.bytes(NFTA_RULE_USERDATA, &comment_userdata("a comment"));
        });
        w.message(0, 0, &[0; 4], |w| {
            w.nest(NFTA_SET_ELEM_KEY, |w| w.bytes(NFTA_DATA_VALUE, &[10, 0, 0, 1]));
            w.nest(NFTA_SET_ELEM_DATA, |w| w.bytes(NFTA_DATA_VALUE, &[10, 0, 0, 2]));
            w.bytes(NFTA_SET_ELEM_USERDATA, &comment_userdata("another"));
        });
        let bytes = w.finish().unwrap();
        let attributes = |bytes: &[u8]| -> Vec<Vec<u8>> {
            Messages::new(bytes)
                .flatten()
                .map(|message| message.body.get(4..).unwrap_or_default().to_vec())
                .collect()
        };
        let read = |bytes: &[u8]| {
            for attrs in attributes(bytes) {
                let attrs = Attributes::new(&attrs);
                if let Some(rule) = Rule::parse(attrs) {
                    let _ = (
                        rule.target(),
                        rule.uses_set("s"),
                        rule.constants().count(),
                        rule.immediates().count(),
                    );
                }
                let _ = Element::parse(attrs).map(|element| element.key.to_string());
            }
        };
        let whole = attributes(&bytes);
        let rule = Rule::parse(Attributes::new(&whole[0])).unwrap();
        assert_eq!((rule.handle, rule.comment.as_str()), (7, "a comment"));
        assert_eq!(rule.target().as_deref(), Some("c"));
        assert!(rule.uses_set("s") && !rule.uses_set("t"));
        assert_eq!(rule.constants().collect::<Vec<_>>(), [b"abc"]);
        let element = Element::parse(Attributes::new(&whole[1])).unwrap();
        assert_eq!((element.key.to_string().as_str(), element.comment.as_str()), ("10.0.0.1", "another"));
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
