//! Whether a rule that the kernel lists is, but for its counter, one that we would write.

use super::Rule;
use super::expr::{Expr, Value, Verdict};
use super::xtables;
use crate::uapi::nf_tables::{NFT_REG_1, NFT_REG32_00, NFTA_DATA_VALUE, NFTA_DATA_VERDICT};
use crate::wire::Attributes;

impl Rule {
    /// Returns true if the rule consists of these expressions, in this order, and has no comment but theirs. Counters
    /// don't count.
    pub fn consists_of(&self, wanted: &[Expr]) -> bool {
        let comment = wanted.iter().find_map(Expr::comment).unwrap_or_default();
        // A comment of the nft command would be another difference.
        self.comment == comment && self.does(wanted)
    }

    /// Returns true if the rule consists of these expressions, in this order, whatever its comment of the nft command
    /// is. Counters don't count.
    pub fn does(&self, wanted: &[Expr]) -> bool {
        let mut found = self.expressions.iter().filter(|(name, _)| name != "counter");
        let mut wanted = wanted.iter().filter(|expr| expr.name != "counter");
        wanted.all(|expr| found.next().is_some_and(|(name, data)| expr.is(name, Attributes::new(data))))
            && found.next().is_none()
    }
}

impl Expr {
    /// Returns the text of a comment of iptables, if the expression is one.
    fn comment(&self) -> Option<String> {
        match &self.attributes[..] {
            [(_, Value::Text(name)), _, (_, Value::Bytes(info))] if name == xtables::COMMENT => {
                Some(crate::wire::text(info))
            }
            _ => None,
        }
    }

    /// Whether an expression of the kernel, with this name and these attributes, is this one.
    fn is(&self, name: &str, data: Attributes<'_>) -> bool {
        self.name == name
            && self.attributes.iter().all(|(kind, value)| value.is(data, *kind))
            && (!self.attributes.is_empty() || are_zero(data))
    }
}

/// Returns whether all attributes can be read and have no bit set. `masq` with flags or ports is another expression
/// than without.
fn are_zero(mut attributes: Attributes<'_>) -> bool {
    attributes.all(|found| found.is_ok_and(|(_, value)| value.iter().all(|byte| *byte == 0)))
}

impl Value {
    /// Whether the attribute `kind` among those of the kernel has this value.
    fn is(&self, data: Attributes<'_>, kind: u16) -> bool {
        match self {
            Value::Number(number) => data.u32_be(kind) == Some(*number),
            Value::Register(number) => data.u32_be(kind).is_some_and(|found| same_register(found, *number)),
            Value::Data(bytes) => data.nested(kind).and_then(|data| data.get(NFTA_DATA_VALUE)) == Some(bytes),
            Value::Verdict(verdict) => {
                let found = data.nested(kind).and_then(|data| data.nested(NFTA_DATA_VERDICT));
                found.and_then(Verdict::parse).as_ref() == Some(verdict)
            }
            Value::Text(text) => data.text(kind).as_ref() == Some(text),
            Value::Bytes(bytes) => data.get(kind) == Some(bytes),
            Value::Zero => data.u32_be(kind).unwrap_or(0) == 0,
            Value::Absent => data.get(kind).is_none(),
        }
    }
}

/// The kernel reports the first four words of a 16-byte register by the register's number.
fn same_register(found: u32, ours: u32) -> bool {
    whole_register(found) == whole_register(ours)
}

/// Returns the number of the 16-byte register that begins with a word, or `number` itself if none does.
fn whole_register(number: u32) -> u32 {
    match number.checked_sub(NFT_REG32_00) {
        Some(word) if word % 4 == 0 => NFT_REG_1 + word / 4,
        _ => number,
    }
}
