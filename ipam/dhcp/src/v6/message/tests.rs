use super::*;

pub(crate) const DUID: &[u8] = b"\0\x04client";
pub(crate) const SERVER: &[u8] = b"\0\x03server";
pub(crate) const IAID: u32 = 7;
pub(crate) const ADDRESS: Ipv6Addr = Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 0x50);

pub(crate) fn with(code: u16, value: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    option(&mut bytes, code, value);
    bytes
}

/// With times and suboptions.
pub(crate) fn ia_na(iaid: u32, renew: u32, rebind: u32, inside: &[u8]) -> Vec<u8> {
    let head = [iaid, renew, rebind].map(u32::to_be_bytes).concat();
    with(code::IA_NA, &[&head, inside].concat())
}

pub(crate) fn ia_address(address: Ipv6Addr, preferred: u32, valid: u32) -> Vec<u8> {
    let times = [preferred, valid].map(u32::to_be_bytes).concat();
    with(code::IA_ADDRESS, &[&address.octets(), &times[..]].concat())
}

pub(crate) fn status(code: u16, text: &str) -> Vec<u8> {
    with(code::STATUS, &[&code.to_be_bytes(), text.as_bytes()].concat())
}

pub(crate) fn message(kind: Type, xid: u32, server: &[u8], options: &[Vec<u8>]) -> Vec<u8> {
    let [_, a, b, c] = xid.to_be_bytes();
    let ids = [with(code::CLIENT_ID, DUID), with(code::SERVER_ID, server)].concat();
    [&[kind as u8, a, b, c], &ids[..], &options.concat()].concat()
}

fn read(options: &[Vec<u8>]) -> ServerMessage {
    ServerMessage::parse(&message(Type::Reply, 77, SERVER, options), DUID, IAID).unwrap()
}

#[test]
fn a_truncated_answer_is_read_without_its_end() {
    let dns = with(code::NAME_SERVERS, &[ADDRESS.octets(), ADDRESS.octets()].concat());
    let names = with(code::DOMAINS, b"\x01a\x07example\x03org\x00\x01b\x00");
    let options = [
        ia_na(IAID + 1, 1, 2, &ia_address(Ipv6Addr::LOCALHOST, 1, 2)),
        ia_na(IAID, 10, 20, &ia_address(ADDRESS, 30, 40)),
        dns,
        names,
        with(code::SOL_MAX_RT, &[0, 0, 0, 60]),
        with(code::PREFERENCE, &[255]),
        with(code::RAPID_COMMIT, &[]),
    ];
    let bytes = message(Type::Reply, 0x00ab_cdef, SERVER, &options);
    let answer = ServerMessage::parse(&bytes, DUID, IAID).unwrap();
    assert_eq!((answer.kind, answer.xid, answer.server.as_slice()), (Type::Reply, 0x00ab_cdef, SERVER));
    assert_eq!((answer.preference, answer.rapid, answer.longest_pause), (255, true, Some(60)));
    assert_eq!(answer.name_servers, [ADDRESS; 2]);
    assert_eq!(answer.domains, ["a.example.org", "b"]);
    let ia = answer.ia.unwrap();
    assert_eq!((ia.times, ia.status), ((10, 20), None));
    assert_eq!(ia.addresses, [Given { address: ADDRESS, preferred: 30, valid: 40 }]);
    // Cut off before the end of both IDs.
    let ids = HEADER + 8 + DUID.len() + SERVER.len();
    for length in 0..bytes.len() {
        assert_eq!(ServerMessage::parse(&bytes[..length], DUID, IAID).is_some(), length >= ids, "{length}");
    }
}

#[test]
fn messages_for_other_clients_or_without_a_server_are_ignored() {
    let bytes = message(Type::Advertise, 1, SERVER, &[]);
    assert!(ServerMessage::parse(&bytes, DUID, IAID).is_some());
    assert!(ServerMessage::parse(&bytes, b"\0\x04another", IAID).is_none());
    for server in [&b""[..], b"\0\x03", &[1; LONGEST_DUID + 1]] {
        let bytes = message(Type::Advertise, 1, server, &[]);
        assert!(ServerMessage::parse(&bytes, DUID, IAID).is_none(), "{server:?}");
    }
    for kind in [Type::Solicit, Type::Request, Type::Renew, Type::Rebind, Type::Release, Type::Decline] {
        assert!(ServerMessage::parse(&message(kind, 1, SERVER, &[]), DUID, IAID).is_none(), "{kind:?}");
    }
    let mut relayed = bytes;
    relayed[0] = 13;
    assert!(ServerMessage::parse(&relayed, DUID, IAID).is_none());
}

#[test]
fn inconsistent_addresses_are_left_out() {
    let late = ia_address(ADDRESS, 41, 40);
    let inside = [&ADDRESS.octets()[..], &[0, 0, 0, 1, 0, 0, 0, 2], &status(2, "")].concat();
    let failed = with(code::IA_ADDRESS, &inside);
    let short = with(code::IA_ADDRESS, &ADDRESS.octets());
    for bad in [late, failed, short] {
        let ia = read(&[ia_na(IAID, 0, 0, &bad)]).ia.unwrap();
        assert_eq!(ia.addresses, [], "{bad:?}");
    }
    let many = (0..100).flat_map(|_| ia_address(ADDRESS, 1, 2)).collect::<Vec<u8>>();
    assert_eq!(read(&[ia_na(IAID, 0, 0, &many)]).ia.unwrap().addresses.len(), MOST_ADDRESSES);
    for seconds in [59_u32, 86_401, 0] {
        assert_eq!(read(&[with(code::SOL_MAX_RT, &seconds.to_be_bytes())]).longest_pause, None);
    }
}

#[test]
fn a_status_has_words_without_control_characters() {
    for (code, expected) in [
        (1, "it fails without a reason (UnspecFail): \"\\n\""),
        (2, "it has no address to give (NoAddrsAvail): \"\\n\""),
        (3, "it knows no such lease (NoBinding): \"\\n\""),
        (4, "the address does not belong to this link (NotOnLink): \"\\n\""),
        (5, "it wants to be asked by multicast (UseMulticast): \"\\n\""),
        (9, "status 9: \"\\n\""),
    ] {
        let answer = read(&[ia_na(IAID, 0, 0, &status(code, "\n"))]);
        assert_eq!(answer.refusal().unwrap().words(), expected);
        assert_eq!(read(&[status(code, "\n")]).refusal(), answer.refusal());
    }
    assert_eq!(read(&[status(0, "fine")]).refusal(), None);
    assert!(read(&[status(1, &"x".repeat(500))]).refusal().unwrap().words().len() < 150);
}

#[test]
fn a_message_has_the_form_of_rfc_8415() {
    let mut question = Question {
        kind: Type::Solicit,
        xid: 0x0001_0203,
        elapsed: 258,
        duid: vec![0, 4, 9],
        server: None,
        iaid: 1,
        address: None,
    };
    let expected = [
        &[1, 1, 2, 3, 0, 1, 0, 3, 0, 4, 9][..],
        &[0, 3, 0, 12, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0],
        &[0, 8, 0, 2, 1, 2, 0, 14, 0, 0],
        &[0, 6, 0, 6, 0, 23, 0, 24, 0, 82],
    ];
    assert_eq!(question.encode(), expected.concat());
    question.kind = Type::Release;
    question.server = Some(vec![0, 3, 8]);
    question.address = Some(ADDRESS);
    let expected = [
        &[8, 1, 2, 3, 0, 1, 0, 3, 0, 4, 9, 0, 2, 0, 3, 0, 3, 8][..],
        &[0, 3, 0, 40, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 5, 0, 24],
        &ADDRESS.octets(),
        &[0; 8],
        &[0, 8, 0, 2, 1, 2],
    ];
    assert_eq!(question.encode(), expected.concat());
}
