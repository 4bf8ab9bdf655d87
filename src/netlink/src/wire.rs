//! Reading netlink: messages in a datagram, attributes in a message (netlink(7),
//! include/uapi/linux/netlink.h).
//!
//! Requests are written by the netlink crates, but answers are read here: a plugin needs a
//! dozen of the hundred attributes of a link, and an attribute that a newer kernel sends in
//! a way the crates don't know must not fail a look-up. All readers take any bytes without
//! panicking; what they can't make sense of is a [`Malformed`].

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Length of `struct nlmsghdr`.
pub(super) const HEADER: usize = 16;

/// `NLMSG_ERROR`
pub(super) const ERROR: u16 = 2;
/// `NLMSG_DONE`
pub(super) const DONE: u16 = 3;
/// `NLMSG_OVERRUN`
pub(super) const OVERRUN: u16 = 4;

const NLM_F_CAPPED: u16 = 0x100;
const NLM_F_ACK_TLVS: u16 = 0x200;
const NLMSGERR_ATTR_MSG: u16 = 1;
const NLMSGERR_ATTR_OFFS: u16 = 2;
/// Without `NLA_F_NESTED` and `NLA_F_NET_BYTEORDER`.
const TYPE_MASK: u16 = 0x3fff;

/// Why bytes from the kernel make no sense.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Malformed(pub(super) &'static str);

/// One netlink message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Message<'a> {
    pub(super) kind: u16,
    pub(super) flags: u16,
    pub(super) seq: u32,
    pub(super) port: u32,
    pub(super) body: &'a [u8],
}

/// The messages in a datagram.
pub(super) struct Messages<'a>(&'a [u8]);

impl<'a> Messages<'a> {
    pub(super) fn new(datagram: &'a [u8]) -> Self {
        Messages(datagram)
    }

    fn split(&mut self) -> Option<Message<'a>> {
        let length = usize::try_from(u32_at(self.0, 0)?).ok()?;
        let message = self.0.get(..length)?;
        let found = Message {
            kind: u16_at(message, 4)?,
            flags: u16_at(message, 6)?,
            seq: u32_at(message, 8)?,
            port: u32_at(message, 12)?,
            body: message.get(HEADER..)?,
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

/// Attributes in a row: type and value.
#[derive(Debug, Clone, Copy)]
pub(super) struct Attributes<'a>(&'a [u8]);

impl<'a> Attributes<'a> {
    /// The attributes in `bytes`, for nested ones.
    pub(super) fn new(bytes: &'a [u8]) -> Self {
        Attributes(bytes)
    }

    /// The attributes behind a family's header of `header` bytes.
    pub(super) fn behind(body: &'a [u8], header: usize) -> Self {
        Attributes(body.get(align(header)..).unwrap_or_default())
    }

    fn split(&mut self) -> Option<(u16, &'a [u8])> {
        let length = usize::from(u16_at(self.0, 0)?);
        let kind = u16_at(self.0, 2)? & TYPE_MASK;
        let value = self.0.get(4..length)?;
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

/// What an `NLMSG_ERROR` or `NLMSG_DONE` says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Verdict {
    /// 0, or a positive errno.
    pub(super) errno: i32,
    /// The extended ack's text, or empty.
    pub(super) text: String,
}

/// Reads an `NLMSG_ERROR` (`struct nlmsgerr`) or `NLMSG_DONE`. The extended ack stands
/// behind the request that the kernel repeats: only its header when it is capped.
pub(super) fn verdict(message: &Message<'_>) -> Result<Verdict, Malformed> {
    let code = u32_at(message.body, 0).ok_or(Malformed("an acknowledgement without a code"))?.cast_signed();
    let mut verdict = Verdict { errno: code.min(0).saturating_neg(), text: String::new() };
    if message.flags & NLM_F_ACK_TLVS == 0 {
        return Ok(verdict);
    }
    let mut skip = 4;
    if message.kind == ERROR {
        skip += match message.flags & NLM_F_CAPPED {
            0 => usize::try_from(u32_at(message.body, 4).unwrap_or(0)).unwrap_or(usize::MAX),
            _ => HEADER,
        };
    }
    // The errno is what matters: a text that can't be read is only left out.
    let tlvs = message.body.get(skip..).unwrap_or_default();
    let mut offset = None;
    for (kind, value) in Attributes::new(tlvs).flatten() {
        match kind {
            NLMSGERR_ATTR_MSG => verdict.text = text(value),
            NLMSGERR_ATTR_OFFS => offset = u32_at(value, 0),
            _ => {}
        }
    }
    if verdict.errno != 0
        && verdict.text.is_empty()
        && let Some(offset) = offset
    {
        verdict.text = format!("the kernel points at byte {offset} of the request");
    }
    Ok(verdict)
}

/// Rounded up to the four bytes of `NLMSG_ALIGN` and `NLA_ALIGN`.
fn align(length: usize) -> usize {
    length.saturating_add(3) & !3
}

/// A byte at `offset`.
pub(super) fn u8_at(bytes: &[u8], offset: usize) -> Option<u8> {
    bytes.get(offset).copied()
}

/// A native 16-bit number at `offset`.
pub(super) fn u16_at(bytes: &[u8], offset: usize) -> Option<u16> {
    Some(u16::from_ne_bytes(*bytes.get(offset..)?.first_chunk()?))
}

/// A native 32-bit number at `offset`.
pub(super) fn u32_at(bytes: &[u8], offset: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(*bytes.get(offset..)?.first_chunk()?))
}

/// A string up to its NUL; what is not UTF-8 is replaced.
pub(super) fn text(value: &[u8]) -> String {
    let end = value.iter().position(|&byte| byte == 0);
    let bytes = value.get(..end.unwrap_or(value.len())).unwrap_or(value);
    String::from_utf8_lossy(bytes).into_owned()
}

/// An IP address of 4 or 16 bytes.
pub(super) fn ip(value: &[u8]) -> Option<IpAddr> {
    if let Ok(v4) = <[u8; 4]>::try_from(value) {
        return Some(Ipv4Addr::from(v4).into());
    }
    let v6 = <[u8; 16]>::try_from(value).ok()?;
    Some(Ipv6Addr::from(v6).into())
}

#[cfg(test)]
mod tests;
