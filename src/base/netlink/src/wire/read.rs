//! The reader of messages, attributes and numbers. No function panics, whatever the bytes are.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::align;
use crate::uapi::netlink::{NLA_TYPE_MASK, NLATTR, NLMSGHDR};

/// Why bytes from the kernel make no sense.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Malformed(pub(crate) &'static str);

/// The result of reading bytes from the kernel.
pub(crate) type Parsed<T> = Result<T, Malformed>;

/// A message: the fields of `struct nlmsghdr`, and what follows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Message<'a> {
    /// The type of the message (`nlmsg_type`).
    pub(crate) kind: u16,
    pub(crate) flags: u16,
    pub(crate) seq: u32,
    /// The address of the socket whose request the message answers (`nlmsg_pid`).
    pub(crate) port: u32,
    /// What follows the header.
    pub(crate) body: &'a [u8],
}

/// The messages of a datagram. One with a wrong length is reported as [`Malformed`], and ends the iteration.
pub(crate) struct Messages<'a>(&'a [u8]);

impl<'a> Messages<'a> {
    /// Iterates over the messages of `datagram`.
    pub(crate) fn new(datagram: &'a [u8]) -> Self {
        Messages(datagram)
    }

    fn split(&mut self) -> Option<Message<'a>> {
        let length = usize::try_from(u32_ne(self.0, 0)?).ok()?;
        let message = self.0.get(..length)?;
        let found = Message {
            kind: u16_ne(message, 4)?,
            flags: u16_ne(message, 6)?,
            seq: u32_ne(message, 8)?,
            port: u32_ne(message, 12)?,
            body: message.get(NLMSGHDR..)?,
        };
        self.0 = self.0.get(align(length)..).unwrap_or_default();
        Some(found)
    }
}

impl<'a> Iterator for Messages<'a> {
    type Item = Result<Message<'a>, Malformed>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.0.is_empty() {
            return None;
        }
        let message = self.split();
        if message.is_none() {
            self.0 = &[];
        }
        Some(message.ok_or(Malformed("a message's length is wrong")))
    }
}

/// Attributes in a row. Iterating and [`find`](Self::find) report a damaged one as [`Malformed`], and iterating ends
/// there. The methods that return an `Option` take an attribute behind a damaged one for absent. Each method looks for
/// the first attribute of the type, and ignores the flags of types (`NLA_F_NESTED`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Attributes<'a>(&'a [u8]);

impl<'a> Attributes<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Attributes(bytes)
    }

    /// Returns the attributes that follow a header of `header` bytes in a message's body. A body that is too short has
    /// none.
    pub(crate) fn behind(body: &'a [u8], header: usize) -> Self {
        Attributes(body.get(align(header)..).unwrap_or_default())
    }

    /// Returns the value of an attribute, or `None` if there is none.
    pub(crate) fn find(self, wanted: u16) -> Result<Option<&'a [u8]>, Malformed> {
        for attribute in self {
            let (kind, value) = attribute?;
            if kind == wanted {
                return Ok(Some(value));
            }
        }
        Ok(None)
    }

    /// Returns the value of an attribute, a number of one byte. `None` also if it is empty.
    pub(crate) fn find_u8(self, wanted: u16) -> Parsed<Option<u8>> {
        Ok(self.find(wanted)?.and_then(|value| u8_at(value, 0)))
    }

    /// Returns the value of an attribute, a number in the byte order of the host. `None` also if it is too short.
    pub(crate) fn find_u32(self, wanted: u16) -> Parsed<Option<u32>> {
        Ok(self.find(wanted)?.and_then(|value| u32_ne(value, 0)))
    }

    /// Returns the value of an attribute, or `None` if there is none before a damaged one.
    pub(crate) fn get(self, wanted: u16) -> Option<&'a [u8]> {
        self.flatten().find(|(kind, _)| *kind == wanted).map(|(_, value)| value)
    }

    /// Returns the attributes in the value of an attribute.
    pub(crate) fn nested(self, wanted: u16) -> Option<Attributes<'a>> {
        self.get(wanted).map(Attributes)
    }

    /// Returns the value of an attribute as text: up to its NUL, with a replacement for what is not UTF-8.
    pub(crate) fn text(self, wanted: u16) -> Option<String> {
        self.get(wanted).map(text)
    }

    /// Returns the value of an attribute, a number in network byte order. `None` also if it is too short.
    pub(crate) fn u32_be(self, wanted: u16) -> Option<u32> {
        u32_be(self.get(wanted)?, 0)
    }

    /// Returns the value of an attribute, a number in network byte order. `None` also if it is too short.
    pub(crate) fn u64_be(self, wanted: u16) -> Option<u64> {
        Some(u64::from_be_bytes(*self.get(wanted)?.first_chunk()?))
    }

    fn split(&mut self) -> Option<(u16, &'a [u8])> {
        let length = usize::from(u16_ne(self.0, 0)?);
        let kind = u16_ne(self.0, 2)? & NLA_TYPE_MASK;
        let value = self.0.get(NLATTR..length)?;
        self.0 = self.0.get(align(length)..).unwrap_or_default();
        Some((kind, value))
    }
}

impl<'a> Iterator for Attributes<'a> {
    type Item = Result<(u16, &'a [u8]), Malformed>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.0.is_empty() {
            return None;
        }
        let attribute = self.split();
        if attribute.is_none() {
            self.0 = &[];
        }
        Some(attribute.ok_or(Malformed("an attribute's length is wrong")))
    }
}

/// Returns the byte at `offset`, or `None` behind the end.
pub(crate) fn u8_at(bytes: &[u8], offset: usize) -> Option<u8> {
    bytes.get(offset).copied()
}

/// Returns the 16-bit number in host byte order at `offset`, or `None` if the bytes end before its end.
pub(crate) fn u16_ne(bytes: &[u8], offset: usize) -> Option<u16> {
    Some(u16::from_ne_bytes(*bytes.get(offset..)?.first_chunk()?))
}

/// Returns the 32-bit number in host byte order at `offset`, or `None` if the bytes end before its end.
pub(crate) fn u32_ne(bytes: &[u8], offset: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(*bytes.get(offset..)?.first_chunk()?))
}

/// Returns the 32-bit number in network byte order at `offset`, or `None` if the bytes end before its end.
pub(crate) fn u32_be(bytes: &[u8], offset: usize) -> Option<u32> {
    Some(u32::from_be_bytes(*bytes.get(offset..)?.first_chunk()?))
}

/// Returns the text in `value` up to its NUL, or all of it without one. Replaces what is not UTF-8.
pub(crate) fn text(value: &[u8]) -> String {
    let end = value.iter().position(|&byte| byte == 0);
    let bytes = value.get(..end.unwrap_or(value.len())).unwrap_or(value);
    String::from_utf8_lossy(bytes).into_owned()
}

/// Reads an IP address of 4 or 16 bytes. `None` is for any other length.
pub(crate) fn ip(value: &[u8]) -> Option<IpAddr> {
    if let Ok(v4) = <[u8; 4]>::try_from(value) {
        return Some(Ipv4Addr::from(v4).into());
    }
    let v6 = <[u8; 16]>::try_from(value).ok()?;
    Some(Ipv6Addr::from(v6).into())
}
