//! The readers of nf_tables' objects, for [`crate::fuzzing`].

use super::attr::{self, Message};
use super::look::elements;
use super::{Element, Rule, socket};

/// Every reader on one message.
pub(crate) fn read(message: Message<'_>) {
    if let Some(rule) = Rule::parse(message.attrs()) {
        let _ = (rule.target(), rule.uses_set("x"), rule.has("masq"), rule.constants().count());
        let _ = rule.immediates().count();
    }
    let listed = elements(message.attrs());
    for element in listed.into_iter().chain(Element::parse(message.attrs())) {
        let _ = (element.key.to_string(), element.data.map(|data| data.to_string()));
    }
    // Tables, chains and sets are looked at by their attributes alone.
    for kind in 1..8 {
        let _ = (attr::find_text(message.attrs(), kind), attr::find_u32(message.attrs(), kind));
    }
    let _ = socket::answer(message);
}
