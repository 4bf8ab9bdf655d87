//! What servers send, and what a file of the keeper's may hold, for fuzzers.

use std::net::Ipv4Addr;

use cnimble_netlink::link::Mac;

use crate::client::{Action, Client, Identity};
use crate::domains;
use crate::frame;
use crate::lease::{self, Lease};
use crate::message::{Answer, code};

const MAC: Mac = Mac([2, 0, 0, 0, 0, 9]);

/// Takes any bytes for a packet, and for a message that came in one: what becomes a lease is one that a host
/// can have, and the client has always something to wait for.
pub fn dhcp(bytes: &[u8]) {
    if let Some(message) = frame::unwrap(bytes) {
        assert!(message.len() < bytes.len());
    }
    assert!(frame::holder(bytes, Ipv4Addr::LOCALHOST).is_none_or(|_| bytes.len() >= 28));
    for name in domains::search(bytes).iter().chain(&domains::text(bytes)) {
        assert!(!name.is_empty() && !name.contains(|c: char| c.is_whitespace() || c.is_control()));
    }
    // Else nearly all would end at the first fields.
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
    let identity = Identity { mac: MAC, broadcast: false, own, request: vec![1, 3] };
    let mut client = Client::new(identity, 1000, 0);
    for message in [bytes, &message] {
        let Some(mut answer) = Answer::parse(message, MAC) else { continue };
        if let Ok(lease) = Lease::of(&answer, 0, MAC, None) {
            assert!(
                lease::is_usable(lease.address) && lease.prefix > 0 && lease.net().prefix() == lease.prefix
            );
            assert!(lease.renew <= lease.rebind && lease.rebind <= lease.expires && lease.renew >= 1000);
            let text = serde_json::to_vec(&lease).unwrap_or_default();
            assert_eq!(serde_json::from_slice::<Lease>(&text).ok().as_ref(), Some(&lease));
        }
        let actions = client.tick(client.next());
        let xid = actions.iter().find_map(|action| match action {
            Action::Send { question, .. } => Some(question.xid),
            _ => None,
        });
        answer.xid = xid.unwrap_or_default();
        for now in [client.next(), client.next() + 100] {
            client.answer(now, MAC, &answer);
            client.tick(client.next());
        }
        assert!(client.listens() || client.lease().is_some());
    }
    client.release(0);
    let _ = serde_json::from_slice::<Lease>(bytes).map(|lease| lease.result(None));
}
