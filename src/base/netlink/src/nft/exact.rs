//! Whether a rule that the kernel lists is, but for its counter, one that we would write.

use super::Rule;
use super::expr::{self, Data, Expr, Lookup};
use crate::uapi::nf_tables::*;
use crate::wire::Attributes;

impl Rule {
    /// Returns true if and only if it consists of these expressions, in this order, and has no other comment than
    /// theirs. Counters don't count. Of a kind that isn't read here (`is`) no rule does.
    pub fn consists_of(&self, wanted: &[Expr]) -> bool {
        let comment = wanted.iter().find_map(Expr::comment).unwrap_or_default();
        // A comment of the nft command would be another difference.
        self.comment == comment && self.does(wanted)
    }

    /// Returns true if and only if it consists of these expressions, with any comment of the nft command.
    pub fn does(&self, wanted: &[Expr]) -> bool {
        let mut found = self.expressions.iter().filter(|(name, _)| name != "counter");
        let mut wanted = wanted.iter().filter(|expr| expr.data != Data::Counter);
        wanted.all(|expr| found.next().is_some_and(|(name, data)| expr.is(name, Attributes::new(data))))
            && found.next().is_none()
    }
}

impl Expr {
    fn comment(&self) -> Option<String> {
        let Data::Match { name: "comment", info, .. } = &self.data else { return None };
        Some(crate::wire::text(info))
    }

    /// Whether it is this expression of the kernel's.
    fn is(&self, name: &str, data: Attributes<'_>) -> bool {
        let number = |attribute, value: u32| data.u32_be(attribute) == Some(value);
        let register =
            |attribute, value: u32| data.u32_be(attribute).is_some_and(|found| same_register(found, value));
        // What newer kernels tell besides, and older ones only do.
        let unset = |attribute| data.u32_be(attribute).unwrap_or(0) == 0;
        let bytes = |attribute| data.nested(attribute).and_then(|data| data.get(NFTA_DATA_VALUE));
        let same = match &self.data {
            Data::Meta { key, register: to } => {
                register(NFTA_META_DREG, *to) && number(NFTA_META_KEY, *key as u32)
            }
            Data::Payload { header, offset, len, register: to } => {
                register(NFTA_PAYLOAD_DREG, *to)
                    && number(NFTA_PAYLOAD_BASE, *header as u32)
                    && number(NFTA_PAYLOAD_OFFSET, *offset)
                    && number(NFTA_PAYLOAD_LEN, *len)
            }
            Data::Bitwise { register: of, mask } => {
                register(NFTA_BITWISE_SREG, *of)
                    && register(NFTA_BITWISE_DREG, *of)
                    && unset(NFTA_BITWISE_OP)
                    && bytes(NFTA_BITWISE_MASK) == Some(mask)
                    && bytes(NFTA_BITWISE_XOR).is_some_and(|xor| xor.iter().all(|byte| *byte == 0))
            }
            Data::Cmp { register: of, equal, value } => {
                register(NFTA_CMP_SREG, *of)
                    && number(NFTA_CMP_OP, if *equal { NFT_CMP_EQ } else { NFT_CMP_NEQ })
                    && bytes(NFTA_CMP_DATA) == Some(value)
            }
            Data::Lookup { register: of, set, kind } => {
                let flags = data.u32_be(NFTA_LOOKUP_FLAGS).unwrap_or(0);
                let into = data.u32_be(NFTA_LOOKUP_DREG);
                data.text(NFTA_LOOKUP_SET).as_ref() == Some(set)
                    && register(NFTA_LOOKUP_SREG, *of)
                    && match kind {
                        Lookup::In => flags == 0 && into.is_none(),
                        Lookup::NotIn => flags == NFT_LOOKUP_F_INV && into.is_none(),
                        Lookup::Value(to) => {
                            flags == 0 && into.is_some_and(|found| same_register(found, *to))
                        }
                    }
            }
            Data::CtState { register: to } => {
                register(NFTA_CT_DREG, *to) && number(NFTA_CT_KEY, NFT_CT_STATE)
            }
            Data::Verdict(verdict) => {
                number(NFTA_IMMEDIATE_DREG, NFT_REG_VERDICT)
                    && expr::immediate_verdict(data).as_ref() == Some(verdict)
            }
            Data::Match { name, revision, info } => {
                data.text(NFTA_MATCH_NAME).as_deref() == Some(name)
                    && number(NFTA_MATCH_REV, *revision)
                    && data.get(NFTA_MATCH_INFO) == Some(info)
            }
            // `masq` with flags or ports is another.
            Data::None => data
                .into_iter()
                .all(|found| found.is_ok_and(|(_, value)| value.iter().all(|byte| *byte == 0))),
            _ => false,
        };
        self.name == name && same
    }
}

/// The kernel tells of the four words that a register of 16 bytes begins with by the register's number.
fn same_register(found: u32, ours: u32) -> bool {
    let whole = |number: u32| match number.checked_sub(NFT_REG32_00) {
        Some(word) if word % 4 == 0 => NFT_REG_1 + word / 4,
        _ => number,
    };
    whole(found) == whole(ours)
}
