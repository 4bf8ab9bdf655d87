//! Tests of a client against a server that the test plays. Time is a number.

use super::*;
use crate::message::tests::{MAC, answer};

const SERVER: Ipv4Addr = Ipv4Addr::new(10, 1, 2, 1);
const OTHER: Ipv4Addr = Ipv4Addr::new(10, 1, 2, 2);
const ADDRESS: Ipv4Addr = Ipv4Addr::new(10, 1, 2, 50);
const ANOTHER: Ipv4Addr = Ipv4Addr::new(10, 1, 2, 60);
const SERVER_MAC: Mac = Mac([2, 0, 0, 0, 0, 1]);

fn client() -> Client {
    let identity = Identity {
        mac: MAC,
        broadcast: false,
        own: vec![(code::CLIENT_ID, b"\0id".to_vec())],
        request: vec![1, 3],
    };
    Client::new(identity, 8000, 0)
}

fn says(client: &mut Client, now: u64, kind: Type, server: Ipv4Addr, address: Ipv4Addr) -> Vec<Action> {
    let lease = 100_u32.to_be_bytes();
    let options = [
        (code::SERVER, &server.octets()[..]),
        (code::SUBNET_MASK, &[255, 255, 255, 0]),
        (code::LEASE_TIME, &lease),
    ];
    let bytes = answer(kind, client.xid, address, &options);
    client.answer(now, SERVER_MAC, &Answer::parse(&bytes, MAC).unwrap())
}

/// Returns the actions as text.
fn words(actions: &[Action]) -> Vec<String> {
    let word = |action: &Action| match action {
        Action::Send { question, from, to } => {
            let to = if *to == To::Everybody { "all" } else { "server" };
            format!("{} from {from} to {to}", question.kind.word())
        }
        Action::Probe(address) => format!("probe {address}"),
        Action::Bound(lease) => format!("bound {}", lease.address),
        Action::Lost(lease, why) => format!("lost {}: {why}", lease.address),
        Action::Tell(_) => "tell".to_owned(),
    };
    actions.iter().map(word).collect()
}

/// Returns a client with a lease of 100 s since `now` = 100 ms.
fn bound() -> Client {
    let mut client = client();
    assert_eq!(words(&client.tick(0)), ["DISCOVER from 0.0.0.0 to all"]);
    let offered = says(&mut client, 0, Type::Offer, SERVER, ADDRESS);
    assert_eq!(words(&offered), ["probe 10.1.2.50", "REQUEST from 0.0.0.0 to all"]);
    assert_eq!(words(&says(&mut client, 1, Type::Ack, SERVER, ADDRESS)), [""; 0]);
    assert_eq!(words(&client.tick(client.next())), ["bound 10.1.2.50"]);
    client
}

#[test]
fn from_nothing_to_a_lease_and_back() {
    let mut client = bound();
    assert!(!client.listens() && client.next() == 50_001);
    let release = client.release(9).unwrap();
    assert_eq!(words(&[release]), ["RELEASE from 10.1.2.50 to server"]);
    assert!(client.release(9).is_none());
}

#[test]
fn a_slow_server_isnt_made_slower_by_the_probe() {
    let mut client = client();
    client.tick(0);
    says(&mut client, 0, Type::Offer, SERVER, ADDRESS);
    assert_eq!(words(&says(&mut client, 500, Type::Ack, SERVER, ADDRESS)), ["bound 10.1.2.50"]);
}

#[test]
fn the_first_offer_counts_and_other_servers_have_no_say() {
    let mut client = client();
    client.tick(0);
    says(&mut client, 0, Type::Offer, SERVER, ADDRESS);
    for kind in [Type::Offer, Type::Ack, Type::Nak] {
        assert_eq!(words(&says(&mut client, 1, kind, OTHER, ANOTHER)), [""; 0], "{kind:?}");
    }
    assert_eq!(words(&says(&mut client, 200, Type::Ack, SERVER, ADDRESS)), ["bound 10.1.2.50"]);
}

#[test]
fn an_answer_to_another_question_is_none() {
    let mut client = client();
    client.tick(0);
    let bytes = answer(Type::Offer, client.xid ^ 1, ADDRESS, &[(code::SERVER, &SERVER.octets())]);
    assert!(client.answer(0, SERVER_MAC, &Answer::parse(&bytes, MAC).unwrap()).is_empty());
}

#[test]
fn silence_is_met_with_longer_and_longer_pauses() {
    let mut client = client();
    let mut pauses = Vec::new();
    for _ in 0..10 {
        let now = client.next();
        assert_eq!(words(&client.tick(now)), ["DISCOVER from 0.0.0.0 to all"]);
        pauses.push(client.next() - now);
    }
    for (tries, pause) in pauses.iter().enumerate() {
        let middle = (1000_u64 << tries).min(8000);
        assert!((middle * 3 / 4..=middle * 5 / 4).contains(pause), "{pauses:?}");
    }
}

#[test]
fn a_server_that_offers_and_falls_silent_is_left() {
    let mut client = client();
    client.tick(0);
    says(&mut client, 0, Type::Offer, SERVER, ADDRESS);
    let first = client.xid;
    let told: Vec<String> = (0..4).flat_map(|_| words(&client.tick(client.next()))).collect();
    assert_eq!(told[..3], ["REQUEST from 0.0.0.0 to all"; 3]);
    assert_eq!(told[3], "DISCOVER from 0.0.0.0 to all");
    assert_ne!(first, client.xid);
}

#[test]
fn a_refusal_begins_anew_after_a_rest() {
    let mut client = client();
    client.tick(0);
    says(&mut client, 0, Type::Offer, SERVER, ADDRESS);
    assert_eq!(words(&says(&mut client, 5, Type::Nak, SERVER, ADDRESS)), ["tell"]);
    assert!(client.tick(100).is_empty());
    assert_eq!(words(&client.tick(1005)), ["DISCOVER from 0.0.0.0 to all"]);
}

#[test]
fn an_address_that_another_host_has_is_declined() {
    let mut client = client();
    client.tick(0);
    says(&mut client, 0, Type::Offer, SERVER, ADDRESS);
    assert_eq!(client.probed(), Some(ADDRESS));
    assert!(client.conflict(0, MAC).is_empty(), "our own");
    says(&mut client, 1, Type::Ack, SERVER, ADDRESS);
    let declined = client.conflict(2, SERVER_MAC);
    assert_eq!(words(&declined), ["tell", "DECLINE from 0.0.0.0 to all"]);
    assert_eq!(words(&client.tick(1002)), ["DISCOVER from 0.0.0.0 to all"]);
    assert!(client.conflict(1003, SERVER_MAC).is_empty());
}

/// A server may offer one address to two clients, and gives it to only one of them.
#[test]
fn an_address_is_declined_only_when_it_is_ours() {
    let offered = || {
        let mut client = client();
        client.tick(0);
        says(&mut client, 0, Type::Offer, SERVER, ADDRESS);
        assert!(client.conflict(1, SERVER_MAC).is_empty());
        client
    };
    let mut refused = offered();
    assert_eq!(words(&says(&mut refused, 2, Type::Nak, SERVER, ADDRESS)), ["tell"]);
    let mut given = offered();
    let declined = says(&mut given, 2, Type::Ack, SERVER, ADDRESS);
    assert_eq!(words(&declined), ["tell", "DECLINE from 0.0.0.0 to all"]);
    assert_eq!(words(&given.tick(1002)), ["DISCOVER from 0.0.0.0 to all"]);
}

#[test]
fn renewal_asks_the_server_and_then_all_of_them() {
    let mut client = bound();
    assert_eq!(words(&client.tick(50_001)), ["tell", "REQUEST from 10.1.2.50 to server"]);
    // Half of what remains until T2, and again.
    assert_eq!(client.next(), 50_001 + (88_001 - 50_001) / 2);
    assert_eq!(words(&client.tick(client.next())), ["REQUEST from 10.1.2.50 to server"]);
    assert_eq!(words(&says(&mut client, 70_000, Type::Ack, SERVER, ADDRESS)), ["bound 10.1.2.50"]);
    assert_eq!(client.next(), 120_000);
    client.tick(120_000);
    let rebinding = client.lease().unwrap().rebind;
    assert_eq!(words(&client.tick(rebinding)), ["tell", "REQUEST from 10.1.2.50 to all"]);
    assert_eq!(words(&says(&mut client, rebinding + 5, Type::Ack, OTHER, ADDRESS)), ["bound 10.1.2.50"]);
    assert_eq!(client.lease().unwrap().server, OTHER);
}

#[test]
fn a_lease_that_nobody_prolongs_is_lost_and_another_is_asked_for() {
    let mut client = bound();
    let mut told = Vec::new();
    while client.lease().is_some() {
        told.extend(words(&client.tick(client.next())));
    }
    assert_eq!(told.last().unwrap(), "lost 10.1.2.50: it has expired");
    let again = client.tick(client.next());
    assert_eq!(words(&again), ["DISCOVER from 0.0.0.0 to all"]);
    let Action::Send { question, .. } = &again[0] else { panic!("{again:?}") };
    assert!(question.options.contains(&(code::REQUESTED_ADDRESS, ADDRESS.octets().to_vec())));
}

#[test]
fn a_renewal_may_be_refused_by_its_own_server_only() {
    let mut client = bound();
    client.tick(50_001);
    assert!(says(&mut client, 50_002, Type::Nak, OTHER, ADDRESS).is_empty());
    let refused = says(&mut client, 50_003, Type::Nak, SERVER, ADDRESS);
    assert_eq!(words(&refused), ["tell", "lost 10.1.2.50: the server has taken it back"]);
    assert_eq!(words(&client.tick(50_003)), ["DISCOVER from 0.0.0.0 to all"]);
}

#[test]
fn a_renewal_may_bring_another_address() {
    let mut client = bound();
    client.tick(50_001);
    assert_eq!(words(&says(&mut client, 50_002, Type::Ack, SERVER, ANOTHER)), ["bound 10.1.2.60"]);
}

#[test]
fn a_lease_out_of_a_file_goes_on_where_its_time_is() {
    let lease = bound().lease().unwrap().clone();
    for (now, expected) in [
        (40_000, &[][..]),
        (60_000, &["tell", "REQUEST from 10.1.2.50 to server"]),
        (90_000, &["tell", "REQUEST from 10.1.2.50 to all"]),
        (200_000, &["lost 10.1.2.50: it has expired"]),
    ] {
        let identity = client().identity;
        let mut client = Client::with(identity, 8000, now, lease.clone());
        assert_eq!(words(&client.tick(now)), expected, "{now}");
    }
}
