//! The reader: messages, attributes, numbers.

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
    pub(crate) kind: u16,
    pub(crate) flags: u16,
    pub(crate) seq: u32,
    pub(crate) port: u32,
    pub(crate) body: &'a [u8],
}

pub(crate) struct Messages<'a>(&'a [u8]);

impl<'a> Messages<'a> {
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

/// Attributes in a row. Iterating and [`find`](Self::find) report a damaged one as [`Malformed`]. The methods that
/// return an `Option` take an attribute behind a damaged one for absent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Attributes<'a>(&'a [u8]);

impl<'a> Attributes<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Attributes(bytes)
    }

    /// `header` is the length of the family's header.
    pub(crate) fn behind(body: &'a [u8], header: usize) -> Self {
        Attributes(body.get(align(header)..).unwrap_or_default())
    }

    pub(crate) fn find(self, wanted: u16) -> Result<Option<&'a [u8]>, Malformed> {
        for attribute in self {
            let (kind, value) = attribute?;
            if kind == wanted {
                return Ok(Some(value));
            }
        }
        Ok(None)
    }

    pub(crate) fn get(self, wanted: u16) -> Option<&'a [u8]> {
        self.flatten().find(|(kind, _)| *kind == wanted).map(|(_, value)| value)
    }

    pub(crate) fn nested(self, wanted: u16) -> Option<Attributes<'a>> {
        self.get(wanted).map(Attributes)
    }

    /// Up to its NUL.
    pub(crate) fn text(self, wanted: u16) -> Option<String> {
        self.get(wanted).map(text)
    }

    /// The first attribute of type `wanted`, as a number in network byte order.
    pub(crate) fn u32_be(self, wanted: u16) -> Option<u32> {
        u32_be(self.get(wanted)?, 0)
    }

    /// The first attribute of type `wanted`, as a number in network byte order.
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

pub(crate) fn u8_at(bytes: &[u8], offset: usize) -> Option<u8> {
    bytes.get(offset).copied()
}

/// A 16-bit number in host byte order at `offset`.
pub(crate) fn u16_ne(bytes: &[u8], offset: usize) -> Option<u16> {
    Some(u16::from_ne_bytes(*bytes.get(offset..)?.first_chunk()?))
}

/// A 32-bit number in host byte order at `offset`.
pub(crate) fn u32_ne(bytes: &[u8], offset: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(*bytes.get(offset..)?.first_chunk()?))
}

/// A 32-bit number in network byte order at `offset`.
pub(crate) fn u32_be(bytes: &[u8], offset: usize) -> Option<u32> {
    Some(u32::from_be_bytes(*bytes.get(offset..)?.first_chunk()?))
}

/// Up to its NUL; replaces what is not UTF-8.
pub(crate) fn text(value: &[u8]) -> String {
    let end = value.iter().position(|&byte| byte == 0);
    let bytes = value.get(..end.unwrap_or(value.len())).unwrap_or(value);
    String::from_utf8_lossy(bytes).into_owned()
}

/// An IP address of 4 or 16 bytes.
pub(crate) fn ip(value: &[u8]) -> Option<IpAddr> {
    if let Ok(v4) = <[u8; 4]>::try_from(value) {
        return Some(Ipv4Addr::from(v4).into());
    }
    let v6 = <[u8; 16]>::try_from(value).ok()?;
    Some(Ipv6Addr::from(v6).into())
}
