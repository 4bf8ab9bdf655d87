//! The readers of nf_tables' objects, for [`crate::fuzzing`].

use super::{Element, Rule};
use crate::uapi::nfnetlink::NFGENMSG;
use crate::wire::{Attributes, Message};

/// Every reader on one message.
pub(crate) fn read(message: &Message<'_>) {
    let attrs = Attributes::behind(message.body, NFGENMSG);
    if let Some(rule) = Rule::parse(attrs) {
        let _ = (rule.target(), rule.uses_set("x"), rule.has("masq"), rule.constants().count());
        let _ = rule.immediates().count();
    }
    let listed = Element::parse_list(attrs);
    for element in listed.into_iter().chain(Element::parse(attrs)) {
        let _ = (element.key.to_string(), element.data.map(|data| data.to_string()));
    }
    // Tables, chains and sets are looked at by their attributes alone.
    for kind in 1..8 {
        let _ = (attrs.text(kind), attrs.u32_be(kind));
    }
}
