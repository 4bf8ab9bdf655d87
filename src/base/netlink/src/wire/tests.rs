use super::*;
use crate::uapi::netlink::{NLM_F_ACK_TLVS, NLM_F_CAPPED, NLMSG_DONE as DONE, NLMSG_ERROR as ERROR};
use crate::uapi::netlink::{NLMSGERR_ATTR_MSG, NLMSGERR_ATTR_OFFS, NLMSGHDR as HEADER};

/// A message as the kernel sends it.
fn datagram(kind: u16, flags: u16, body: &[u8]) -> Vec<u8> {
    let mut bytes = u32::try_from(HEADER + body.len()).unwrap().to_ne_bytes().to_vec();
    bytes.extend(kind.to_ne_bytes());
    bytes.extend(flags.to_ne_bytes());
    bytes.extend(7_u32.to_ne_bytes());
    bytes.extend(9_u32.to_ne_bytes());
    bytes.extend(body);
    bytes
}

fn attribute(kind: u16, value: &[u8]) -> Vec<u8> {
    let mut bytes = u16::try_from(4 + value.len()).unwrap().to_ne_bytes().to_vec();
    bytes.extend(kind.to_ne_bytes());
    bytes.extend(value);
    bytes.resize(bytes.len().next_multiple_of(4), 0);
    bytes
}

fn only(bytes: &[u8]) -> Message<'_> {
    Messages::new(bytes).next().unwrap().unwrap()
}

#[test]
fn messages_in_a_row() {
    let mut both = datagram(16, 2, &[1, 2, 3]);
    both.push(0);
    both.extend(datagram(3, 0, &[]));
    let kinds: Vec<_> = Messages::new(&both).map(|message| message.unwrap().kind).collect();
    assert_eq!(kinds, [16, 3]);
    let first = only(&both);
    assert_eq!((first.flags, first.seq, first.port, first.body), (2, 7, 9, &[1, 2, 3][..]));
}

#[test]
fn acknowledgements() {
    let mut plain = 0_i32.to_ne_bytes().to_vec();
    plain.extend([0; HEADER]);
    let ack = datagram(ERROR, NLM_F_CAPPED, &plain);
    assert_eq!(Ack::read(&only(&ack)).unwrap(), Ack { code: 0, ..Ack::default() });

    let mut capped = (-22_i32).to_ne_bytes().to_vec();
    capped.extend([0; HEADER]);
    let mut with_text = capped.clone();
    with_text.extend(attribute(NLMSGERR_ATTR_OFFS, &40_u32.to_ne_bytes()));
    with_text.extend(attribute(NLMSGERR_ATTR_MSG, b"mtu too small\0"));
    let refusal = datagram(ERROR, NLM_F_CAPPED | NLM_F_ACK_TLVS, &with_text);
    let expected = Ack { code: 22, text: "mtu too small".to_owned(), offset: Some(40) };
    assert_eq!(Ack::read(&only(&refusal)).unwrap(), expected);

    let mut with_offset = capped.clone();
    with_offset.extend(attribute(NLMSGERR_ATTR_OFFS, &40_u32.to_ne_bytes()));
    let refusal = datagram(ERROR, NLM_F_CAPPED | NLM_F_ACK_TLVS, &with_offset);
    assert!(Ack::read(&only(&refusal)).unwrap().offset == Some(40));

    // The whole request is repeated: the text stands behind it.
    let mut whole = (-22_i32).to_ne_bytes().to_vec();
    whole.extend(datagram(16, 0, &[0xff; 8]));
    whole.extend(attribute(NLMSGERR_ATTR_MSG, b"why\0"));
    let refusal = datagram(ERROR, NLM_F_ACK_TLVS, &whole);
    assert_eq!(Ack::read(&only(&refusal)).unwrap().text, "why");

    // The end of a list has a code and a text, too.
    let mut end = (-19_i32).to_ne_bytes().to_vec();
    end.extend(attribute(NLMSGERR_ATTR_MSG, b"gone\0"));
    let end = datagram(DONE, NLM_F_ACK_TLVS, &end);
    let expected = Ack { code: 19, text: "gone".to_owned(), offset: None };
    assert_eq!(Ack::read(&only(&end)).unwrap(), expected);
}

#[test]
fn lengths_that_lie() {
    let with_length = |length: u32| {
        let mut bytes = datagram(16, 0, &[0; 4]);
        bytes[..4].copy_from_slice(&length.to_ne_bytes());
        bytes
    };
    for bytes in [
        vec![1],
        vec![0; 15],
        vec![0; 16],
        with_length(0),
        with_length(15),
        with_length(21),
        with_length(u32::MAX),
        vec![0xff; 64],
    ] {
        let messages: Vec<_> = Messages::new(&bytes).collect();
        assert_eq!(messages.len(), 1, "{bytes:?}");
        assert!(messages[0].is_err(), "{bytes:?}");
    }
    for bytes in [vec![1], vec![0; 4], vec![3, 0, 1, 0], vec![9, 0, 1, 0, 0, 0, 0, 0], vec![0xff; 8]] {
        let attributes: Vec<_> = Attributes::new(&bytes).collect();
        assert_eq!(attributes.len(), 1, "{bytes:?}");
        assert!(attributes[0].is_err(), "{bytes:?}");
    }
    // The last attribute may lack its padding.
    let attributes: Vec<_> = Attributes::new(&[5, 0, 1, 0x80, 42]).collect();
    assert_eq!(attributes, [Ok((1, &[42][..]))]);
}

#[test]
fn acknowledgements_that_are_broken() {
    for (body, flags) in [(&[][..], 0), (&[1, 2, 3][..], 0), (&[][..], NLM_F_ACK_TLVS)] {
        let bytes = datagram(ERROR, flags, body);
        assert!(Ack::read(&only(&bytes)).is_err(), "{body:?}");
    }
    // A text that can't be found is left out; the errno counts.
    let mut body = (-1_i32).to_ne_bytes().to_vec();
    body.extend(u32::MAX.to_ne_bytes());
    let bytes = datagram(ERROR, NLM_F_ACK_TLVS, &body);
    assert_eq!(Ack::read(&only(&bytes)).unwrap(), Ack { code: 1, ..Ack::default() });
    let bytes = datagram(ERROR, 0, &i32::MIN.to_ne_bytes());
    assert_eq!(Ack::read(&only(&bytes)).unwrap().code, i32::MAX);
}

#[test]
fn texts_and_addresses() {
    assert_eq!(text(b"eth0\0junk"), "eth0");
    assert_eq!(text(b"eth0"), "eth0");
    assert_eq!(text(b""), "");
    assert_eq!(text(b"\xff\xfe\0"), "\u{fffd}\u{fffd}");
    assert_eq!(ip(&[10, 0, 0, 1]), Some("10.0.0.1".parse().unwrap()));
    assert_eq!(ip(&[0; 16]), Some("::".parse().unwrap()));
    assert_eq!(ip(&[0; 5]), None);
    assert_eq!(ip(&[]), None);
}

/// Two messages with the four bytes of `struct nfgenmsg`.
fn sample() -> Vec<u8> {
    let mut w = Writer::default();
    w.message(7, 5, &[2, 0, 0, 10], |w| {
        w.text(1, "abc");
        w.nest(2, |w| {
            w.u32_be(1, 0x0102_0304);
            w.bytes(3, &[9]);
        });
        w.nest_unflagged(4, |w| w.u32_ne(1, 5));
    });
    w.message(8, 1, &[0; 4], |w| {
        w.u64_be(4, 77);
        w.u64_ne(5, 78);
    });
    w.finish().unwrap()
}

#[test]
fn what_is_written_can_be_read() {
    let mut bytes = sample();
    assert_eq!(number(&mut bytes, 41), 2);
    assert_eq!(flags(&bytes, 0), 5);
    set_flags(&mut bytes, 0, 0x405);
    let read: Vec<_> = Messages::new(&bytes).map(Result::unwrap).collect();
    assert_eq!(read.len(), 2);
    assert_eq!((read[0].kind, read[0].flags, read[0].seq), (7, 0x405, 41));
    assert_eq!(read[1].seq, 42);
    let attributes = Attributes::behind(read[0].body, 4);
    assert_eq!(attributes.text(1).as_deref(), Some("abc"));
    let nest = attributes.nested(2).unwrap();
    assert_eq!((nest.u32_be(1), nest.get(3)), (Some(0x0102_0304), Some(&[9][..])));
    assert_eq!(nest.find(3), Ok(Some(&[9][..])));
    assert_eq!(u32_ne(attributes.nested(4).unwrap().get(1).unwrap(), 0), Some(5));
    let attributes = Attributes::behind(read[1].body, 4);
    assert_eq!(attributes.u64_be(4), Some(77));
    assert_eq!(attributes.get(5), Some(&78_u64.to_ne_bytes()[..]));
    // NLA_F_NESTED is on the one nest and not on the other.
    let header = |length: u16, kind: u16| [length.to_ne_bytes(), kind.to_ne_bytes()].concat();
    assert!(bytes.windows(4).any(|four| four == header(20, 0x8002)));
    assert!(bytes.windows(4).any(|four| four == header(12, 4)));
}

#[test]
fn any_bytes_can_be_read() {
    let whole = sample();
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
    for message in Messages::new(bytes).flatten() {
        let _ = Ack::read(&message);
        for (_, value) in Attributes::behind(message.body, 4).flatten() {
            for (_, inner) in Attributes::new(value).flatten() {
                let inner = Attributes::new(inner);
                let _ = (inner.text(1), inner.u32_be(1), inner.u64_be(1), inner.find(1));
            }
        }
    }
    number(&mut bytes.to_vec(), 1);
    set_flags(&mut bytes.to_vec(), 0, flags(bytes, 0));
}

#[test]
fn a_value_behind_a_damaged_attribute_is_absent() {
    let bytes = [3, 0, 1, 0, 5, 0, 2, 0, 42, 0, 0, 0];
    assert_eq!(Attributes::new(&bytes).get(2), None);
    assert!(Attributes::new(&bytes).find(2).is_err());
}

#[test]
fn too_long_is_noticed() {
    let mut w = Writer::default();
    w.message(1, 1, &[0; 4], |w| w.bytes(1, &[0; 70_000]));
    assert!(w.finish().is_none());
    assert!(message(1, 1, &[0; 4], |w| w.bytes(1, &[0; 70_000])).is_empty());
}
