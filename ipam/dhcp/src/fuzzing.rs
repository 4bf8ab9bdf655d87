//! Reads servers' messages and the lease daemon's files for fuzzers.

use std::net::Ipv4Addr;

use cnimble_netlink::link::Mac;

use crate::client::{Client, ClientAction};
use crate::domains;
use crate::held::{self, AnyLease};
use crate::v4::client::{ClientIdentity, Dhcp4};
use crate::v4::frame;
use crate::v4::lease::{self, Lease};
use crate::v4::message::{ServerMessage, code};
use crate::v6;

const MAC: Mac = Mac([2, 0, 0, 0, 0, 9]);

/// Takes any bytes as a packet, and as its message. A host can use a resulting lease, and the client always waits.
pub fn dhcp(bytes: &[u8]) {
    if let Some(message) = frame::unwrap(bytes) {
        assert!(message.len() < bytes.len());
    }
    assert!(cnimble_netlink::arp::holder(bytes, Ipv4Addr::LOCALHOST).is_none_or(|_| bytes.len() >= 28));
    for name in domains::search(bytes).iter().chain(&domains::text(bytes)) {
        assert!(!name.is_empty() && !name.contains(|c: char| c.is_whitespace() || c.is_control()));
    }
    // Nearly all inputs would fail at the first fields otherwise.
    let mut message = vec![2, 1, 6, 0];
    message.resize(28, 0);
    message.extend(MAC.0);
    message.resize(236, 0);
    message.extend([99, 130, 83, 99]);
    message.extend(bytes);
    for (place, byte) in message.iter_mut().skip(16).zip(bytes).take(4) {
        *place = *byte;
    }
    let own = vec![(code::CLIENT_ID, b"\0id".to_vec())];
    let identity = ClientIdentity { mac: MAC, broadcast: false, own, request: vec![1, 3] };
    let mut client = Client::new(Dhcp4::new(identity), 1000, 0);
    for message in [bytes, &message] {
        let Some(mut answer) = ServerMessage::parse(message, MAC) else { continue };
        if let Ok(lease) = Lease::from_answer(&answer, 0, MAC, None) {
            assert!(
                lease::is_usable(lease.address) && lease.prefix > 0 && lease.net().prefix() == lease.prefix
            );
            assert!(lease.renew <= lease.rebind && lease.rebind <= lease.expires && lease.renew >= 1000);
            let text = serde_json::to_vec(&lease).unwrap_or_default();
            assert_eq!(serde_json::from_slice::<Lease>(&text).ok().as_ref(), Some(&lease));
        }
        let actions = client.tick(client.next());
        let xid = actions.iter().find_map(|action| match action {
            ClientAction::Send(question) => Some(question.xid),
            _ => None,
        });
        answer.xid = xid.unwrap_or_default();
        for now in [client.next(), client.next() + 100] {
            client.answer(now, MAC, &answer);
            client.tick(client.next());
        }
        assert!(client.listens() || client.lease.is_some());
    }
    client.release(0);
    let _ = serde_json::from_slice::<AnyLease>(bytes).map(|lease| held::result(&[lease], None));
}

const DUID: &[u8] = b"\0\x04client";
const IAID: u32 = 7;

/// Takes any bytes as a DHCPv6 message, and as its options. A host can use a resulting lease, and the client always
/// waits.
pub fn dhcp6(bytes: &[u8]) {
    use v6::message::Type;
    let _ = v6::socket::advertised(bytes);
    let option = |code: u16, value: &[u8]| {
        let length = u16::try_from(value.len()).unwrap_or(u16::MAX);
        [&code.to_be_bytes()[..], &length.to_be_bytes(), value].concat()
    };
    // Nearly all inputs would fail at the IDs otherwise.
    let ids = [option(1, DUID), option(2, b"\0\x03server")].concat();
    let ia = option(3, &[&IAID.to_be_bytes(), bytes.get(1..).unwrap_or_default()].concat());
    let (first, rest) = bytes.split_first().unwrap_or((&0, &[]));
    let kind = if first & 1 == 0 { Type::Advertise } else { Type::Reply };
    let head = [kind as u8, 0, 0, 1];
    let messages = [
        bytes.to_vec(),
        [&head[..], &ids, rest].concat(),
        [&head[..], &ids, &ia].concat(),
        [&head[..], &ids, &option(14, &[]), &ia].concat(),
    ];
    let identity = v6::client::ClientIdentity { duid: DUID.to_vec(), iaid: IAID };
    let mut client = Client::new(v6::client::Dhcp6::new(identity), 1000, 0);
    for message in messages {
        let Some(mut answer) = v6::message::ServerMessage::parse(&message, DUID, IAID) else { continue };
        if let Some(status) = answer.refusal() {
            assert!(!status.words().contains(|c: char| c.is_control()));
        }
        for name in &answer.domains {
            assert!(!name.contains(|c: char| c.is_whitespace() || c.is_control()));
        }
        if let Ok(lease) = v6::lease::Lease::from_answer(&answer, 0, None) {
            assert!(v6::lease::is_usable(lease.address) && lease.net().prefix() == 128);
            assert!(lease.renew <= lease.rebind && lease.rebind <= lease.expires && lease.renew >= 1000);
            assert!(lease.preferred <= lease.expires.max(1000) && lease.lifetimes(0).1 > 0);
            let text = serde_json::to_vec(&lease).unwrap_or_default();
            assert_eq!(serde_json::from_slice::<AnyLease>(&text).ok(), Some(AnyLease::Six(lease)));
        }
        // The second answer meets another state.
        for _ in 0..2 {
            // An endless lease has no next time.
            let now = client.next().min(1 << 50);
            for action in client.tick(now) {
                if let ClientAction::Send(question) = action {
                    answer.xid = question.xid;
                    assert!(question.encode().len() < 1000);
                }
            }
            client.answer(now, &answer);
            if let Some(address) = client.probed().filter(|_| first & 2 != 0) {
                client.conflict(now, address);
            }
            assert!(client.listens() || client.lease.is_some());
            assert!(client.next() >= now || client.lease.is_none());
        }
    }
    client.release(0);
    let _ = serde_json::from_slice::<AnyLease>(bytes).map(|lease| held::result(&[lease], None));
}
