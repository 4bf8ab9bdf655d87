//! Elements of sets and maps.

use super::attr;
use super::comment::comment;
use super::expr::Verdict;
use super::key::Key;

/// An element of a set or map.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Element {
    /// Key.
    pub key: Key,
    /// What a verdict map says for the key; `None` in a set.
    pub verdict: Option<Verdict>,
    /// What another map says for the key; made like a key.
    pub data: Option<Key>,
    /// Comment, at most 128 bytes; empty for none.
    pub comment: String,
}

impl Element {
    /// An element of a set.
    pub fn new(key: Key, comment: impl Into<String>) -> Self {
        Element { key, verdict: None, data: None, comment: comment.into() }
    }

    /// An element of a map with values.
    pub fn mapped(key: Key, data: Key, comment: impl Into<String>) -> Self {
        Element { data: Some(data), ..Element::new(key, comment) }
    }

    /// From the attributes of an element in a reply (`NFTA_SET_ELEM_*`).
    pub(super) fn parse(attrs: &[u8]) -> Option<Self> {
        let key = attr::find(attr::find(attrs, 1)?, 1)?;
        let data = attr::find(attrs, 2).unwrap_or_default();
        Some(Element {
            key: Key::from_kernel(key),
            verdict: attr::find(data, 2).and_then(Verdict::parse),
            data: attr::find(data, 1).map(Key::from_kernel),
            comment: attr::find(attrs, 6).and_then(comment).unwrap_or_default(),
        })
    }
}
