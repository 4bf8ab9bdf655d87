//! Netlink messages as bytes: a writer that can't produce a broken one, and a reader that
//! takes anything.

/// Length of `struct nlmsghdr` (netlink(7)).
pub(crate) const NLMSG_HEADER: usize = 16;
/// Length of `struct nfgenmsg` (linux/netfilter/nfnetlink.h).
const NFGEN_HEADER: usize = 4;
const ATTR_HEADER: usize = 4;
const NLA_F_NESTED: u16 = 0x8000;
const NLA_TYPE_MASK: u16 = 0x3fff;

/// Messages under construction.
#[derive(Debug, Clone, Default)]
pub(crate) struct Writer {
    bytes: Vec<u8>,
    too_long: bool,
}

impl Writer {
    /// Appends a message. Sequence numbers are filled in by [`Writer::number`].
    pub(crate) fn message(
        &mut self,
        kind: u16,
        flags: u16,
        family: u8,
        resource: u16,
        fill: impl FnOnce(&mut Self),
    ) {
        let start = self.bytes.len();
        self.bytes.extend_from_slice(&[0; 4]);
        self.bytes.extend_from_slice(&kind.to_ne_bytes());
        self.bytes.extend_from_slice(&flags.to_ne_bytes());
        self.bytes.extend_from_slice(&[0; 8]);
        self.bytes.extend_from_slice(&[family, 0]);
        self.bytes.extend_from_slice(&resource.to_be_bytes());
        fill(self);
        let length = u32::try_from(self.bytes.len() - start).unwrap_or_else(|_| {
            self.too_long = true;
            0
        });
        self.put(start, &length.to_ne_bytes());
    }

    fn put(&mut self, at: usize, value: &[u8]) {
        if let Some(place) = self.bytes.get_mut(at..at + value.len()) {
            place.copy_from_slice(value);
        }
    }

    /// Appends an attribute.
    pub(crate) fn attr(&mut self, kind: u16, value: &[u8]) {
        self.raw(kind, |w| w.bytes.extend_from_slice(value));
    }

    /// Appends an attribute with a text and its NUL.
    pub(crate) fn text(&mut self, kind: u16, value: &str) {
        self.raw(kind, |w| {
            w.bytes.extend_from_slice(value.as_bytes());
            w.bytes.push(0);
        });
    }

    /// Appends a number in network byte order, as nf_tables wants all its numbers.
    pub(crate) fn u32(&mut self, kind: u16, value: u32) {
        self.attr(kind, &value.to_be_bytes());
    }

    /// Appends a number in network byte order.
    pub(crate) fn u64(&mut self, kind: u16, value: u64) {
        self.attr(kind, &value.to_be_bytes());
    }

    /// Appends an attribute that consists of attributes.
    pub(crate) fn nest(&mut self, kind: u16, fill: impl FnOnce(&mut Self)) {
        self.raw(kind | NLA_F_NESTED, fill);
    }

    fn raw(&mut self, kind: u16, fill: impl FnOnce(&mut Self)) {
        let start = self.bytes.len();
        self.bytes.extend_from_slice(&[0; 2]);
        self.bytes.extend_from_slice(&kind.to_ne_bytes());
        fill(self);
        let length = u16::try_from(self.bytes.len() - start).unwrap_or_else(|_| {
            self.too_long = true;
            0
        });
        self.put(start, &length.to_ne_bytes());
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
    }

    /// Numbers the messages from `first` on; returns the number after the last.
    pub(crate) fn number(&mut self, first: u32) -> u32 {
        let (mut at, mut sequence) = (0, first);
        while let Some(length) = u32_ne(&self.bytes, at) {
            self.put(at + 8, &sequence.to_ne_bytes());
            sequence = sequence.wrapping_add(1);
            // A length of zero would be a message that was too long: never sent.
            at += (length as usize).max(NLMSG_HEADER).next_multiple_of(4);
        }
        sequence
    }

    /// Adds flags to the message that starts at `at`.
    pub(crate) fn add_flags(&mut self, at: usize, flags: u16) {
        let old =
            self.bytes.get(at + 6..at + 8).and_then(|b| b.try_into().ok()).map_or(0, u16::from_ne_bytes);
        self.put(at + 6, &(old | flags).to_ne_bytes());
    }

    pub(crate) fn len(&self) -> usize {
        self.bytes.len()
    }

    /// The bytes, unless something in them didn't fit into its length field.
    pub(crate) fn finished(&self) -> Option<&[u8]> {
        (!self.too_long).then_some(&self.bytes)
    }
}

/// A message in a reply.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Message<'a> {
    pub(crate) kind: u16,
    pub(crate) flags: u16,
    pub(crate) sequence: u32,
    /// All behind `struct nlmsghdr`.
    pub(crate) payload: &'a [u8],
}

impl<'a> Message<'a> {
    /// The attributes behind `struct nfgenmsg`.
    pub(crate) fn attrs(&self) -> &'a [u8] {
        self.payload.get(NFGEN_HEADER..).unwrap_or_default()
    }
}

/// The messages of a datagram; ends at the first that isn't whole.
pub(crate) fn messages(datagram: &[u8]) -> impl Iterator<Item = Message<'_>> {
    let mut rest = datagram;
    std::iter::from_fn(move || {
        let length = u32_ne(rest, 0)? as usize;
        let message = Message {
            kind: u16_ne(rest, 4)?,
            flags: u16_ne(rest, 6)?,
            sequence: u32_ne(rest, 8)?,
            payload: rest.get(NLMSG_HEADER..length)?,
        };
        rest = rest.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some(message)
    })
}

/// The attributes in `bytes`, kind without flags; ends at the first that isn't whole.
pub(crate) fn attrs(bytes: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    let mut rest = bytes;
    std::iter::from_fn(move || {
        let length = usize::from(u16_ne(rest, 0)?);
        let kind = u16_ne(rest, 2)? & NLA_TYPE_MASK;
        let value = rest.get(ATTR_HEADER..length)?;
        rest = rest.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some((kind, value))
    })
}

/// The first attribute of this kind.
pub(crate) fn find(bytes: &[u8], kind: u16) -> Option<&[u8]> {
    attrs(bytes).find(|(k, _)| *k == kind).map(|(_, value)| value)
}

/// The first attribute of this kind, as text up to its NUL.
pub(crate) fn find_text(bytes: &[u8], kind: u16) -> Option<String> {
    find(bytes, kind).map(text)
}

/// Text up to a NUL.
pub(crate) fn text(bytes: &[u8]) -> String {
    let end = bytes.iter().position(|b| *b == 0).unwrap_or(bytes.len());
    String::from_utf8_lossy(bytes.get(..end).unwrap_or_default()).into_owned()
}

/// The first attribute of this kind, as a number in network byte order.
pub(crate) fn find_u32(bytes: &[u8], kind: u16) -> Option<u32> {
    find(bytes, kind)?.get(..4)?.try_into().ok().map(u32::from_be_bytes)
}

/// The first attribute of this kind, as a number in network byte order.
pub(crate) fn find_u64(bytes: &[u8], kind: u16) -> Option<u64> {
    find(bytes, kind)?.get(..8)?.try_into().ok().map(u64::from_be_bytes)
}

fn u16_ne(bytes: &[u8], at: usize) -> Option<u16> {
    bytes.get(at..at.checked_add(2)?)?.try_into().ok().map(u16::from_ne_bytes)
}

fn u32_ne(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..at.checked_add(4)?)?.try_into().ok().map(u32::from_ne_bytes)
}

/// A number in host byte order, as netlink itself has them.
pub(crate) fn i32_ne(bytes: &[u8], at: usize) -> Option<i32> {
    u32_ne(bytes, at).map(u32::cast_signed)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> Writer {
        let mut w = Writer::default();
        w.message(7, 5, 2, 10, |w| {
            w.text(1, "abc");
            w.nest(2, |w| {
                w.u32(1, 0x0102_0304);
                w.attr(3, &[9]);
            });
        });
        w.message(8, 1, 0, 0, |w| w.u64(4, 77));
        w
    }

    #[test]
    fn what_is_written_can_be_read() {
        let mut w = sample();
        assert_eq!(w.number(41), 43);
        w.add_flags(0, 0x400);
        let read: Vec<_> = messages(w.finished().unwrap()).collect();
        assert_eq!(read.len(), 2);
        assert_eq!((read[0].kind, read[0].flags, read[0].sequence), (7, 0x405, 41));
        assert_eq!(find_text(read[0].attrs(), 1).as_deref(), Some("abc"));
        let nest = find(read[0].attrs(), 2).unwrap();
        assert_eq!(find_u32(nest, 1), Some(0x0102_0304));
        assert_eq!(find(nest, 3), Some(&[9][..]));
        assert_eq!(find_u64(read[1].attrs(), 4), Some(77));
    }

    #[test]
    fn any_bytes_can_be_read() {
        let whole = sample().finished().unwrap().to_vec();
        // Cut anywhere, and with any one byte changed to extreme values.
        for end in 0..whole.len() {
            read_all(&whole[..end]);
        }
        for at in 0..whole.len() {
            for value in [0, 1, 3, 0x7f, 0xff] {
                let mut bytes = whole.clone();
                bytes[at] = value;
                read_all(&bytes);
            }
        }
    }

    fn read_all(bytes: &[u8]) {
        for message in messages(bytes) {
            for (_, value) in attrs(message.attrs()) {
                for (_, inner) in attrs(value) {
                    let _ = (text(inner), find_u32(inner, 1), find_u64(inner, 1));
                }
            }
        }
    }

    #[test]
    fn too_long_is_noticed() {
        let mut w = Writer::default();
        w.message(1, 1, 0, 0, |w| w.attr(1, &[0; 70_000]));
        assert!(w.finished().is_none());
    }
}
