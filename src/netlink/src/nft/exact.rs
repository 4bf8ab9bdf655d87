//! Whether a rule that the kernel lists is, but for its counter, one that we would write.

use super::Rule;
use super::expr::{self, Data, Expr};
use crate::uapi::nf_tables::*;
use crate::wire::Attributes;

impl Rule {
    /// Returns true if and only if it consists of these expressions, in this order. Counters don't count. Of a
    /// kind that isn't read here (`is`) no rule does.
    pub fn consists_of(&self, wanted: &[Expr]) -> bool {
        let mut found = self.expressions.iter().filter(|(name, _)| name != "counter");
        let mut wanted = wanted.iter().filter(|expr| expr.data != Data::Counter);
        let comment = wanted.clone().find_map(Expr::comment).unwrap_or_default();
        // A comment of the nft command would be another difference.
        self.comment == comment
            && wanted
                .all(|expr| found.next().is_some_and(|(name, data)| expr.is(name, Attributes::new(data))))
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
        let same = match &self.data {
            Data::Payload { header, offset, len, register } => {
                number(NFTA_PAYLOAD_DREG, *register)
                    && number(NFTA_PAYLOAD_BASE, *header as u32)
                    && number(NFTA_PAYLOAD_OFFSET, *offset)
                    && number(NFTA_PAYLOAD_LEN, *len)
            }
            Data::Cmp { register, equal, value } => {
                number(NFTA_CMP_SREG, *register)
                    && number(NFTA_CMP_OP, if *equal { NFT_CMP_EQ } else { NFT_CMP_NEQ })
                    && data.nested(NFTA_CMP_DATA).and_then(|data| data.get(NFTA_DATA_VALUE)) == Some(value)
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
            _ => false,
        };
        self.name == name && same
    }
}
