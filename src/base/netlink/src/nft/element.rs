//! Elements of sets and maps.

use super::key::Key;
use super::udata::comment;
use crate::uapi::nf_tables::{
    NFTA_DATA_VALUE, NFTA_SET_ELEM_DATA, NFTA_SET_ELEM_KEY, NFTA_SET_ELEM_LIST_ELEMENTS,
    NFTA_SET_ELEM_USERDATA,
};
use crate::wire::Attributes;

/// An element of a set or map.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Element {
    /// The key of the element.
    pub key: Key,
    /// The key's value in a map, made like a key. `None` for an element of a set.
    pub data: Option<Key>,
    /// The comment, or an empty text for none. The nft command allows 128 bytes.
    pub comment: String,
}

impl Element {
    /// An element of a set.
    pub fn new(key: Key, comment: impl Into<String>) -> Self {
        Element { key, data: None, comment: comment.into() }
    }

    /// An element of a map with values.
    pub fn mapped(key: Key, data: Key, comment: impl Into<String>) -> Self {
        Element { data: Some(data), ..Element::new(key, comment) }
    }

    /// Reads the attributes of an element in a reply (`NFTA_SET_ELEM_*`). `None` if it has no key.
    pub(crate) fn parse(attrs: Attributes<'_>) -> Option<Self> {
        let key = attrs.nested(NFTA_SET_ELEM_KEY)?.get(NFTA_DATA_VALUE)?;
        let data = attrs.nested(NFTA_SET_ELEM_DATA).unwrap_or_default();
        Some(Element {
            key: Key::from_kernel(key),
            data: data.get(NFTA_DATA_VALUE).map(Key::from_kernel),
            comment: attrs.get(NFTA_SET_ELEM_USERDATA).and_then(comment).unwrap_or_default(),
        })
    }

    /// Reads the elements in a reply. Leaves out those without a key.
    pub(crate) fn parse_list(attrs: Attributes<'_>) -> Vec<Self> {
        let list = attrs.nested(NFTA_SET_ELEM_LIST_ELEMENTS).unwrap_or_default();
        list.flatten().filter_map(|(_, element)| Element::parse(Attributes::new(element))).collect()
    }
}
