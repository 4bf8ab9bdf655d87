use super::*;

/// A message as the kernel sends it.
fn message(kind: u16, flags: u16, body: &[u8]) -> Vec<u8> {
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

fn only(datagram: &[u8]) -> Message<'_> {
    Messages::new(datagram).next().unwrap().unwrap()
}

#[test]
fn messages_in_a_row() {
    let mut datagram = message(16, 2, &[1, 2, 3]);
    datagram.push(0);
    datagram.extend(message(3, 0, &[]));
    let kinds: Vec<_> = Messages::new(&datagram).map(|message| message.unwrap().kind).collect();
    assert_eq!(kinds, [16, 3]);
    let first = only(&datagram);
    assert_eq!((first.flags, first.seq, first.port, first.body), (2, 7, 9, &[1, 2, 3][..]));
}

#[test]
fn acknowledgements() {
    let mut plain = 0_i32.to_ne_bytes().to_vec();
    plain.extend([0; HEADER]);
    let ack = message(ERROR, NLM_F_CAPPED, &plain);
    assert_eq!(verdict(&only(&ack)).unwrap(), Verdict { errno: 0, text: String::new() });

    let mut capped = (-22_i32).to_ne_bytes().to_vec();
    capped.extend([0; HEADER]);
    let mut with_text = capped.clone();
    with_text.extend(attribute(NLMSGERR_ATTR_OFFS, &40_u32.to_ne_bytes()));
    with_text.extend(attribute(NLMSGERR_ATTR_MSG, b"mtu too small\0"));
    let refusal = message(ERROR, NLM_F_CAPPED | NLM_F_ACK_TLVS, &with_text);
    let expected = Verdict { errno: 22, text: "mtu too small".to_owned() };
    assert_eq!(verdict(&only(&refusal)).unwrap(), expected);

    let mut with_offset = capped.clone();
    with_offset.extend(attribute(NLMSGERR_ATTR_OFFS, &40_u32.to_ne_bytes()));
    let refusal = message(ERROR, NLM_F_CAPPED | NLM_F_ACK_TLVS, &with_offset);
    assert!(verdict(&only(&refusal)).unwrap().text.contains("byte 40"));

    // The whole request is repeated: the text stands behind it.
    let mut whole = (-22_i32).to_ne_bytes().to_vec();
    whole.extend(message(16, 0, &[0xff; 8]));
    whole.extend(attribute(NLMSGERR_ATTR_MSG, b"why\0"));
    let refusal = message(ERROR, NLM_F_ACK_TLVS, &whole);
    assert_eq!(verdict(&only(&refusal)).unwrap().text, "why");

    // The end of a list has a code and a text, too.
    let mut end = (-19_i32).to_ne_bytes().to_vec();
    end.extend(attribute(NLMSGERR_ATTR_MSG, b"gone\0"));
    let end = message(DONE, NLM_F_ACK_TLVS, &end);
    let expected = Verdict { errno: 19, text: "gone".to_owned() };
    assert_eq!(verdict(&only(&end)).unwrap(), expected);
}

#[test]
fn lengths_that_lie() {
    let with_length = |length: u32| {
        let mut bytes = message(16, 0, &[0; 4]);
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
        let bytes = message(ERROR, flags, body);
        assert!(verdict(&only(&bytes)).is_err(), "{body:?}");
    }
    // A text that can't be found is left out; the errno counts.
    let mut body = (-1_i32).to_ne_bytes().to_vec();
    body.extend(u32::MAX.to_ne_bytes());
    let bytes = message(ERROR, NLM_F_ACK_TLVS, &body);
    assert_eq!(verdict(&only(&bytes)).unwrap(), Verdict { errno: 1, text: String::new() });
    let bytes = message(ERROR, 0, &i32::MIN.to_ne_bytes());
    assert_eq!(verdict(&only(&bytes)).unwrap().errno, i32::MAX);
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
