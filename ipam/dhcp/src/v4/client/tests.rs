//! The test plays the server. Time is a number.

use super::*;
use crate::client;
use crate::v4::message::tests::{MAC, answer};

const SERVER: Ipv4Addr = Ipv4Addr::new(10, 1, 2, 1);
const OTHER: Ipv4Addr = Ipv4Addr::new(10, 1, 2, 2);
const ADDRESS: Ipv4Addr = Ipv4Addr::new(10, 1, 2, 50);
const ANOTHER: Ipv4Addr = Ipv4Addr::new(10, 1, 2, 60);
const SERVER_MAC: Mac = Mac([2, 0, 0, 0, 0, 1]);

fn protocol() -> Dhcp4 {
    let own = vec![(code::CLIENT_ID, b"\0id".to_vec())];
    Dhcp4::new(ClientIdentity { mac: MAC, broadcast: false, own, request: vec![1, 3] })
}

fn client() -> Client<Dhcp4> {
    Client::new(protocol(), 8000, 0)
}

fn says(
    client: &mut Client<Dhcp4>,
    now: u64,
    kind: Type,
    server: Ipv4Addr,
    address: Ipv4Addr,
) -> Vec<ClientAction<Dhcp4>> {
    let lease = 100_u32.to_be_bytes();
    let options = [
        (code::SERVER, &server.octets()[..]),
        (code::SUBNET_MASK, &[255, 255, 255, 0]),
        (code::LEASE_TIME, &lease),
    ];
    let bytes = answer(kind, client.protocol.xid, address, &options);
    client.answer(now, SERVER_MAC, &ServerMessage::parse(&bytes, MAC).unwrap())
}

fn words(actions: &[ClientAction<Dhcp4>]) -> Vec<String> {
    client::tests::words(actions, |question| {
        let to = if question.to == To::Everybody { "all" } else { "server" };
        format!("{} from {} to {to}", question.kind.word(), question.address)
    })
}

/// For 100 s since `now` = 100 ms.
fn bound() -> Client<Dhcp4> {
    let mut client = client();
    assert_eq!(words(&client.tick(0)), ["DISCOVER from 0.0.0.0 to all"]);
    let offered = says(&mut client, 0, Type::Offer, SERVER, ADDRESS);
    assert_eq!(words(&offered), ["probe 10.1.2.50", "REQUEST from 0.0.0.0 to all"]);
    assert_eq!(words(&says(&mut client, 1, Type::Ack, SERVER, ADDRESS)), [""; 0]);
    assert_eq!(words(&client.tick(client.next())), ["bound 10.1.2.50"]);
    client
}

#[test]
fn a_client_gets_a_lease_and_releases_it() {
    let mut client = bound();
    assert!(!client.listens() && client.next() == 50_001);
    let (address, release) = client.release(9).unwrap();
    assert_eq!(address, ADDRESS);
    assert_eq!(words(&[ClientAction::Send(release)]), ["RELEASE from 10.1.2.50 to server"]);
    assert!(client.release(9).is_none());
}

#[test]
fn the_probe_runs_while_the_client_waits_for_the_server() {
    let mut client = client();
    client.tick(0);
    says(&mut client, 0, Type::Offer, SERVER, ADDRESS);
    assert_eq!(words(&says(&mut client, 500, Type::Ack, SERVER, ADDRESS)), ["bound 10.1.2.50"]);
}

#[test]
fn the_first_offer_wins_and_other_servers_are_ignored() {
    let mut client = client();
    client.tick(0);
    says(&mut client, 0, Type::Offer, SERVER, ADDRESS);
    for kind in [Type::Offer, Type::Ack, Type::Nak] {
        assert_eq!(words(&says(&mut client, 1, kind, OTHER, ANOTHER)), [""; 0], "{kind:?}");
    }
    assert_eq!(words(&says(&mut client, 200, Type::Ack, SERVER, ADDRESS)), ["bound 10.1.2.50"]);
}

#[test]
fn an_answer_with_another_transaction_id_is_ignored() {
    let mut client = client();
    client.tick(0);
    let bytes = answer(Type::Offer, client.protocol.xid ^ 1, ADDRESS, &[(code::SERVER, &SERVER.octets())]);
    assert!(client.answer(0, SERVER_MAC, &ServerMessage::parse(&bytes, MAC).unwrap()).is_empty());
}

#[test]
fn pauses_double_while_no_server_answers() {
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
fn a_silent_server_is_given_up_after_its_offer() {
    let mut client = client();
    client.tick(0);
    says(&mut client, 0, Type::Offer, SERVER, ADDRESS);
    let first = client.protocol.xid;
    let sent: Vec<String> = (0..4).flat_map(|_| words(&client.tick(client.next()))).collect();
    assert_eq!(sent[..3], ["REQUEST from 0.0.0.0 to all"; 3]);
    assert_eq!(sent[3], "DISCOVER from 0.0.0.0 to all");
    assert_ne!(first, client.protocol.xid);
}

#[test]
fn a_refused_client_starts_over_after_a_pause() {
    let mut client = client();
    client.tick(0);
    says(&mut client, 0, Type::Offer, SERVER, ADDRESS);
    assert_eq!(words(&says(&mut client, 5, Type::Nak, SERVER, ADDRESS)), ["log"]);
    assert!(client.tick(100).is_empty());
    assert_eq!(words(&client.tick(1005)), ["DISCOVER from 0.0.0.0 to all"]);
}

#[test]
fn an_address_of_another_host_is_declined() {
    let mut client = client();
    client.tick(0);
    says(&mut client, 0, Type::Offer, SERVER, ADDRESS);
    assert_eq!(client.probed(), Some(ADDRESS));
    assert!(client.conflict(0, MAC).is_empty(), "our own");
    says(&mut client, 1, Type::Ack, SERVER, ADDRESS);
    let declined = client.conflict(2, SERVER_MAC);
    assert_eq!(words(&declined), ["log", "DECLINE from 0.0.0.0 to all"]);
    assert_eq!(words(&client.tick(1002)), ["DISCOVER from 0.0.0.0 to all"]);
    assert!(client.conflict(1003, SERVER_MAC).is_empty());
}

/// A server may offer one address to two clients, and gives it to one.
#[test]
fn an_address_is_declined_only_after_its_acknowledgement() {
    let offered = || {
        let mut client = client();
        client.tick(0);
        says(&mut client, 0, Type::Offer, SERVER, ADDRESS);
        assert!(client.conflict(1, SERVER_MAC).is_empty());
        client
    };
    let mut refused = offered();
    assert_eq!(words(&says(&mut refused, 2, Type::Nak, SERVER, ADDRESS)), ["log"]);
    let mut given = offered();
    let declined = says(&mut given, 2, Type::Ack, SERVER, ADDRESS);
    assert_eq!(words(&declined), ["log", "DECLINE from 0.0.0.0 to all"]);
    assert_eq!(words(&given.tick(1002)), ["DISCOVER from 0.0.0.0 to all"]);
}

#[test]
fn renewal_asks_the_server_first_and_then_all_servers() {
    let mut client = bound();
    assert_eq!(words(&client.tick(50_001)), ["log", "REQUEST from 10.1.2.50 to server"]);
    // Half of the rest until T2, and again.
    assert_eq!(client.next(), 50_001 + (88_001 - 50_001) / 2);
    assert_eq!(words(&client.tick(client.next())), ["REQUEST from 10.1.2.50 to server"]);
    assert_eq!(words(&says(&mut client, 70_000, Type::Ack, SERVER, ADDRESS)), ["bound 10.1.2.50"]);
    assert_eq!(client.next(), 120_000);
    client.tick(120_000);
    let rebinding = client.lease.as_ref().unwrap().rebind;
    assert_eq!(words(&client.tick(rebinding)), ["log", "REQUEST from 10.1.2.50 to all"]);
    assert_eq!(words(&says(&mut client, rebinding + 5, Type::Ack, OTHER, ADDRESS)), ["bound 10.1.2.50"]);
    assert_eq!(client.lease.as_ref().unwrap().server, OTHER);
}

#[test]
fn an_expired_lease_is_lost_and_requested_again() {
    let mut client = bound();
    let mut sent = Vec::new();
    while client.lease.is_some() {
        sent.extend(words(&client.tick(client.next())));
    }
    assert_eq!(sent.last().unwrap(), "lost 10.1.2.50: it has expired");
    let again = client.tick(client.next());
    assert_eq!(words(&again), ["DISCOVER from 0.0.0.0 to all"]);
    let ClientAction::Send(question) = &again[0] else { panic!("{again:?}") };
    assert!(question.options.contains(&(code::REQUESTED_ADDRESS, ADDRESS.octets().to_vec())));
}

#[test]
fn only_the_leases_server_may_refuse_its_renewal() {
    let mut client = bound();
    client.tick(50_001);
    assert!(says(&mut client, 50_002, Type::Nak, OTHER, ADDRESS).is_empty());
    let refused = says(&mut client, 50_003, Type::Nak, SERVER, ADDRESS);
    assert_eq!(words(&refused), ["log", "lost 10.1.2.50: the server has taken it back"]);
    assert_eq!(words(&client.tick(50_003)), ["DISCOVER from 0.0.0.0 to all"]);
}

#[test]
fn another_address_than_the_offered_one_is_probed() {
    let mut client = client();
    client.tick(0);
    says(&mut client, 0, Type::Offer, SERVER, ADDRESS);
    assert_eq!(words(&says(&mut client, 500, Type::Ack, SERVER, ANOTHER)), ["probe 10.1.2.60"]);
    assert_eq!(words(&client.conflict(501, SERVER_MAC)), ["log", "DECLINE from 0.0.0.0 to all"]);
}

#[test]
fn a_renewal_may_bring_another_address_which_is_probed() {
    let mut client = bound();
    client.tick(50_001);
    assert_eq!(words(&says(&mut client, 50_002, Type::Ack, SERVER, ANOTHER)), ["probe 10.1.2.60"]);
    assert_eq!(words(&client.tick(client.next())), ["bound 10.1.2.60"]);
    // Another host has it. The lease is still the former one.
    client.tick(client.next());
    says(&mut client, 100_200, Type::Ack, SERVER, ADDRESS);
    assert_eq!(words(&client.conflict(100_201, SERVER_MAC)), ["log", "DECLINE from 0.0.0.0 to all"]);
    assert!(client.has(ANOTHER));
}

#[test]
fn a_lease_from_a_file_resumes_at_its_time() {
    let lease = bound().lease.unwrap();
    for (now, expected) in [
        (40_000, &[][..]),
        (60_000, &["log", "REQUEST from 10.1.2.50 to server"]),
        (90_000, &["log", "REQUEST from 10.1.2.50 to all"]),
        (200_000, &["lost 10.1.2.50: it has expired"]),
    ] {
        let mut client = Client::new(protocol(), 8000, now).resume(lease.clone());
        assert_eq!(words(&client.tick(now)), expected, "{now}");
    }
}
