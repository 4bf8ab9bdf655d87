//! The writer of messages. What doesn't fit into its length field makes the whole message unusable, so that a message
//! with a wrong length is never sent.

use super::{align, u16_ne, u32_ne};
use crate::uapi::netlink::{NLA_F_NESTED, NLM_F_DUMP, NLM_F_REQUEST, NLMSGHDR};

/// A buffer of messages under construction.
#[derive(Debug, Clone, Default)]
pub(crate) struct Writer {
    bytes: Vec<u8>,
    /// Something didn't fit into its length field.
    too_long: bool,
}

impl Writer {
    /// Appends a message. `header` is the family's header, and `fill` writes the attributes. The sequence number is 0
    /// until [`number`] gives the message one.
    pub(crate) fn message(&mut self, kind: u16, flags: u16, header: &[u8], fill: impl FnOnce(&mut Self)) {
        let start = self.begin_message(kind, flags, header);
        fill(self);
        self.end_message(start);
    }

    // It is separate because the compiler makes a generic function once for each caller.
    fn begin_message(&mut self, kind: u16, flags: u16, header: &[u8]) -> usize {
        let start = self.bytes.len();
        self.bytes.extend_from_slice(&[0; 4]);
        self.bytes.extend_from_slice(&kind.to_ne_bytes());
        self.bytes.extend_from_slice(&flags.to_ne_bytes());
        self.bytes.extend_from_slice(&[0; 8]);
        self.bytes.extend_from_slice(header);
        self.pad();
        start
    }

    fn end_message(&mut self, start: usize) {
        let length = u32::try_from(self.bytes.len() - start).unwrap_or_else(|_| {
            self.too_long = true;
            0
        });
        overwrite(&mut self.bytes, start, &length.to_ne_bytes());
    }

    /// Appends an attribute of any bytes. If its length doesn't fit into 16 bits, [`finish`](Self::finish) returns
    /// `None`.
    pub(crate) fn bytes(&mut self, kind: u16, value: &[u8]) {
        let start = self.begin(kind);
        self.bytes.extend_from_slice(value);
        self.end(start);
    }

    /// Appends a text with a NUL at its end.
    pub(crate) fn text(&mut self, kind: u16, value: &str) {
        let start = self.begin(kind);
        self.bytes.extend_from_slice(value.as_bytes());
        self.bytes.push(0);
        self.end(start);
    }

    /// Appends a number in host byte order.
    pub(crate) fn u32_ne(&mut self, kind: u16, value: u32) {
        self.bytes(kind, &value.to_ne_bytes());
    }

    /// Appends a number in host byte order.
    pub(crate) fn u64_ne(&mut self, kind: u16, value: u64) {
        self.bytes(kind, &value.to_ne_bytes());
    }

    /// Appends a number in network byte order.
    pub(crate) fn u32_be(&mut self, kind: u16, value: u32) {
        self.bytes(kind, &value.to_be_bytes());
    }

    /// Appends a number in network byte order.
    pub(crate) fn u64_be(&mut self, kind: u16, value: u64) {
        self.bytes(kind, &value.to_be_bytes());
    }

    /// Appends an attribute that consists of attributes, which `fill` writes. Its type has the flag `NLA_F_NESTED`.
    pub(crate) fn nest(&mut self, kind: u16, fill: impl FnOnce(&mut Self)) {
        self.nest_unflagged(kind | NLA_F_NESTED, fill);
    }

    /// Like [`nest`](Self::nest), but omits the flag `NLA_F_NESTED`, as `tc` does.
    pub(crate) fn nest_unflagged(&mut self, kind: u16, fill: impl FnOnce(&mut Self)) {
        let start = self.begin(kind);
        fill(self);
        self.end(start);
    }

    fn begin(&mut self, kind: u16) -> usize {
        let start = self.bytes.len();
        self.bytes.extend_from_slice(&[0; 2]);
        self.bytes.extend_from_slice(&kind.to_ne_bytes());
        start
    }

    fn end(&mut self, start: usize) {
        let length = u16::try_from(self.bytes.len() - start).unwrap_or_else(|_| {
            self.too_long = true;
            0
        });
        overwrite(&mut self.bytes, start, &length.to_ne_bytes());
        self.pad();
    }

    fn pad(&mut self) {
        self.bytes.resize(align(self.bytes.len()), 0);
    }

    /// Returns the length of all messages so far, in bytes.
    pub(crate) fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Returns the messages, or `None` if something didn't fit into its length field.
    pub(crate) fn finish(self) -> Option<Vec<u8>> {
        (!self.too_long).then_some(self.bytes)
    }
}

/// Returns a single message (see [`Writer::message`]). It is empty if an attribute or the message didn't fit into its
/// length field, and sending it fails.
pub(crate) fn message(kind: u16, flags: u16, header: &[u8], fill: impl FnOnce(&mut Writer)) -> Vec<u8> {
    let mut writer = Writer::default();
    writer.message(kind, flags, header, fill);
    writer.finish().unwrap_or_default()
}

/// Returns a request for a list of all objects (NLM_F_DUMP).
pub(crate) fn list(kind: u16, header: &[u8]) -> Vec<u8> {
    message(kind, NLM_F_REQUEST | NLM_F_DUMP, header, |_| {})
}

/// Gives the messages in `bytes` sequence numbers in a row, beginning with `first`. Returns the number of messages.
pub(crate) fn number(bytes: &mut [u8], first: u32) -> u32 {
    let (mut at, mut count) = (0, 0);
    while let Some(length) = u32_ne(bytes, at) {
        overwrite(bytes, at + 8, &first.wrapping_add(count).to_ne_bytes());
        count += 1;
        // A length of zero would be a message that was too long: never sent.
        at += align((length as usize).max(NLMSGHDR));
    }
    count
}

/// Returns the flags of the message that begins at `at`, or 0 if there is none.
pub(crate) fn flags(bytes: &[u8], at: usize) -> u16 {
    u16_ne(bytes, at + 6).unwrap_or(0)
}

/// Replaces the flags of the message that begins at `at`.
pub(crate) fn set_flags(bytes: &mut [u8], at: usize, flags: u16) {
    overwrite(bytes, at + 6, &flags.to_ne_bytes());
}

/// Overwrites bytes that are there. Does nothing behind the end.
fn overwrite(bytes: &mut [u8], at: usize, value: &[u8]) {
    if let Some(place) = bytes.get_mut(at..at + value.len()) {
        place.copy_from_slice(value);
    }
}
