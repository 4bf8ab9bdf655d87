//! The test plays the server. Time is a number.

use super::*;
use crate::client;
use crate::v6::message::tests::{ADDRESS, DUID, IAID, SERVER, ia_address, ia_na, message, status, with};
use crate::v6::message::{ServerMessage, code};

const OTHER: &[u8] = b"\0\x03other";
const ANOTHER: Ipv6Addr = Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 0x60);

fn identity() -> ClientIdentity {
    ClientIdentity { duid: DUID.to_vec(), iaid: IAID }
}

fn client() -> Client<Dhcp6> {
    Client::new(Dhcp6::new(identity()), 8000, 0)
}

fn says(
    client: &mut Client<Dhcp6>,
    now: u64,
    kind: Type,
    server: &[u8],
    options: &[Vec<u8>],
) -> Vec<ClientAction<Dhcp6>> {
    let bytes = message(kind, client.protocol.xid, server, options);
    client.answer(now, &ServerMessage::parse(&bytes, DUID, IAID).unwrap())
}

/// For 100 s, with T1 at 50 and T2 at 88.
fn gives(address: Ipv6Addr) -> Vec<u8> {
    ia_na(IAID, 50, 88, &ia_address(address, 90, 100))
}

fn preference(of: u8) -> Vec<u8> {
    with(code::PREFERENCE, &[of])
}

fn words(actions: &[ClientAction<Dhcp6>]) -> Vec<String> {
    client::tests::words(actions, |question| {
        let to = match &question.server {
            Some(server) if server == SERVER => "server",
            Some(_) => "other",
            None => "all",
        };
        let address = question.address.map_or("any".to_owned(), |address| address.to_string());
        format!("{} {address} to {to}", question.kind.word())
    })
}

/// From a server of the first choice.
fn requesting() -> Client<Dhcp6> {
    let mut client = client();
    assert_eq!(words(&client.tick(0)), ["Solicit any to all"]);
    let offered = says(&mut client, 0, Type::Advertise, SERVER, &[gives(ADDRESS), preference(255)]);
    assert_eq!(words(&offered), ["probe fd00::50", "Request fd00::50 to server"]);
    client
}

/// For 100 s since `now` = 0.
fn bound() -> Client<Dhcp6> {
    let mut client = requesting();
    assert_eq!(words(&says(&mut client, 0, Type::Reply, SERVER, &[gives(ADDRESS)])), [""; 0]);
    assert_eq!(words(&client.tick(client.next())), ["bound fd00::50"]);
    assert!(!client.listens());
    client
}

#[test]
fn a_client_gets_a_lease_and_releases_it() {
    let mut client = bound();
    assert_eq!(client.next(), 50_000);
    let (address, released) = client.release(10).unwrap();
    assert_eq!(address, ADDRESS);
    assert_eq!(words(&[ClientAction::Send(released)]), ["Release fd00::50 to server"]);
    assert!(client.lease.is_none() && client.release(11).is_none());
}

#[test]
fn the_server_with_the_highest_preference_wins() {
    let mut client = client();
    client.tick(0);
    for (server, address, of) in [(SERVER, ADDRESS, 1), (OTHER, ANOTHER, 2), (b"\0\x03third", ADDRESS, 0)] {
        let advertised = says(&mut client, 5, Type::Advertise, server, &[gives(address), preference(of)]);
        assert!(advertised.is_empty());
    }
    assert_eq!(words(&client.tick(client.next())), ["probe fd00::60", "Request fd00::60 to other"]);
}

#[test]
fn after_the_first_pause_the_first_advertise_wins() {
    let mut client = client();
    client.tick(0);
    assert_eq!(words(&client.tick(client.next())), ["Solicit any to all"]);
    let advertised = says(&mut client, 2000, Type::Advertise, SERVER, &[gives(ADDRESS)]);
    assert_eq!(words(&advertised), ["probe fd00::50", "Request fd00::50 to server"]);
}

#[test]
fn only_a_reply_with_rapid_commit_answers_a_solicit() {
    let mut client = client();
    client.tick(0);
    assert!(says(&mut client, 1, Type::Reply, SERVER, &[gives(ADDRESS)]).is_empty());
    let rapid = [gives(ADDRESS), with(code::RAPID_COMMIT, &[])];
    assert_eq!(words(&says(&mut client, 2, Type::Reply, SERVER, &rapid)), ["probe fd00::50"]);
    assert_eq!(client.next(), 102);
    assert_eq!(words(&client.tick(102)), ["bound fd00::50"]);
}

#[test]
fn messages_of_another_exchange_are_ignored() {
    let mut client = requesting();
    let old = client.protocol.xid;
    client.protocol.xid = (old + 1) & 0x00ff_ffff;
    let bytes = message(Type::Reply, old, SERVER, &[gives(ADDRESS)]);
    assert!(client.answer(1, &ServerMessage::parse(&bytes, DUID, IAID).unwrap()).is_empty());
    assert!(says(&mut client, 1, Type::Reply, OTHER, &[gives(ADDRESS)]).is_empty(), "another server");
    assert!(says(&mut client, 1, Type::Advertise, SERVER, &[gives(ADDRESS)]).is_empty());
    assert!(matches!(client.state, ClientState::Acquiring(AcquiringStep::Requesting { .. })), "{client:?}");
    says(&mut client, 1, Type::Reply, SERVER, &[gives(ADDRESS)]);
    // The second answer has no effect.
    assert!(says(&mut client, 2, Type::Reply, SERVER, &[gives(ADDRESS)]).is_empty());
}

#[test]
fn a_silent_server_is_given_up_after_its_advertise() {
    let mut client = requesting();
    let sent: Vec<String> = (0..10).flat_map(|_| words(&client.tick(client.next()))).collect();
    assert_eq!(sent[..9], ["Request fd00::50 to server"; 9]);
    assert_eq!(sent[9], "Solicit any to all");
}

#[test]
fn repeated_messages_have_an_elapsed_time() {
    let mut client = client();
    let ClientAction::Send(first) = client.tick(0).remove(0) else { panic!() };
    let then = client.next();
    let ClientAction::Send(again) = client.tick(then).remove(0) else { panic!() };
    assert_eq!((first.elapsed, u64::from(again.elapsed)), (0, then / 10));
    assert_eq!(first.xid, again.xid);
    assert!(first.xid < 1 << 24);
}

#[test]
fn a_refusal_is_recorded_and_the_next_server_is_asked() {
    let mut client = client();
    client.tick(0);
    let none = ia_na(IAID, 0, 0, &status(2, "full"));
    assert_eq!(words(&says(&mut client, 1, Type::Advertise, SERVER, std::slice::from_ref(&none))), ["log"]);
    assert_eq!(client.tally.refusal(), Some("it has no address to give (NoAddrsAvail): \"full\""));
    says(&mut client, 1, Type::Advertise, OTHER, &[gives(ANOTHER)]);
    assert_eq!(words(&client.tick(client.next())), ["probe fd00::60", "Request fd00::60 to other"]);
    let now = client.protocol.begun + 5;
    assert_eq!(words(&says(&mut client, now, Type::Reply, OTHER, &[none])), ["log"]);
    assert!(client.tick(now + REST - 1).is_empty());
    assert_eq!(words(&client.tick(now + REST)), ["Solicit any to all"]);
}

#[test]
fn an_address_of_another_host_is_declined() {
    let mut client = requesting();
    assert_eq!(client.probed(), Some(ADDRESS));
    assert!(client.conflict(0, ANOTHER).is_empty());
    says(&mut client, 1, Type::Reply, SERVER, &[gives(ADDRESS)]);
    assert_eq!(words(&client.conflict(2, ADDRESS)), ["log", "Decline fd00::50 to server"]);
    assert_eq!(client.tally.refusal(), Some("another host has fd00::50"));
    assert_eq!(words(&client.tick(client.next())), ["Decline fd00::50 to server"]);
    assert!(says(&mut client, 5000, Type::Reply, SERVER, &[]).is_empty());
    assert_eq!(words(&client.tick(6000)), ["Solicit any to all"]);
    // The client gives up a Decline without an answer.
    let mut client = requesting();
    client.conflict(0, ADDRESS);
    let sent: Vec<String> = (0..5).flat_map(|_| words(&client.tick(client.next()))).collect();
    assert_eq!(sent[..3], ["Decline fd00::50 to server"; 3]);
    assert_eq!(sent[3], "Solicit any to all");
}

#[test]
fn renewal_asks_the_server_first_and_then_all_servers() {
    let mut client = bound();
    assert_eq!(words(&client.tick(50_000)), ["log", "Renew fd00::50 to server"]);
    let pause = client.next() - 50_000;
    assert!((10_000..=11_000).contains(&pause), "{pause}");
    assert_eq!(words(&client.tick(client.next())), ["Renew fd00::50 to server"]);
    assert!(says(&mut client, 70_000, Type::Reply, OTHER, &[gives(ADDRESS)]).is_empty());
    assert_eq!(words(&says(&mut client, 70_000, Type::Reply, SERVER, &[gives(ADDRESS)])), ["bound fd00::50"]);
    assert_eq!(client.next(), 120_000);
    client.tick(120_000);
    let rebinding = client.lease.as_ref().unwrap().rebind;
    assert_eq!(words(&client.tick(rebinding)), ["log", "Rebind fd00::50 to all"]);
    let replied = says(&mut client, rebinding + 5, Type::Reply, OTHER, &[gives(ADDRESS)]);
    assert_eq!(words(&replied), ["bound fd00::50"]);
    assert_eq!(client.lease.as_ref().unwrap().server_id, OTHER);
}

#[test]
fn an_expired_lease_is_lost_and_requested_again() {
    let mut client = bound();
    let mut sent = Vec::new();
    while client.lease.is_some() {
        sent.extend(words(&client.tick(client.next())));
    }
    assert_eq!(sent.last().unwrap(), "lost fd00::50: it has expired");
    assert!(sent.len() < 20, "{sent:?}");
    assert_eq!(words(&client.tick(client.next())), ["Solicit fd00::50 to all"]);
}

#[test]
fn another_address_of_a_renewal_is_probed() {
    let mut client = bound();
    client.tick(50_000);
    let inside = [ia_address(ADDRESS, 0, 0), ia_address(ANOTHER, 90, 100)].concat();
    let replied = says(&mut client, 50_002, Type::Reply, SERVER, &[ia_na(IAID, 50, 88, &inside)]);
    assert_eq!(words(&replied), ["probe fd00::60"]);
    assert_eq!(client.lease.as_ref().unwrap().address, ADDRESS);
    assert_eq!(words(&client.tick(50_102)), ["bound fd00::60"]);
}

#[test]
fn a_server_may_end_its_lease() {
    let mut client = bound();
    client.tick(50_000);
    let taken = ia_na(IAID, 0, 0, &ia_address(ADDRESS, 0, 0));
    let replied = says(&mut client, 50_002, Type::Reply, SERVER, &[taken]);
    assert_eq!(words(&replied), ["log", "lost fd00::50: the server has taken it back"]);
    assert_eq!(words(&client.tick(50_002)), ["Solicit fd00::50 to all"]);
    // It is asked again.
    for inside in [vec![], status(2, ""), status(1, "")] {
        let mut client = bound();
        client.tick(50_000);
        let replied = says(&mut client, 50_002, Type::Reply, SERVER, &[ia_na(IAID, 0, 0, &inside)]);
        assert_eq!(words(&replied), ["log"]);
        assert_eq!(words(&client.tick(client.next())), ["Renew fd00::50 to server"]);
    }
}

#[test]
fn an_unknown_lease_is_requested_again() {
    let unknown = ia_na(IAID, 0, 0, &status(3, ""));
    let mut client = bound();
    client.tick(50_000);
    let replied = says(&mut client, 50_002, Type::Reply, SERVER, std::slice::from_ref(&unknown));
    assert_eq!(words(&replied), ["log", "Request fd00::50 to server"]);
    assert!(client.lease.is_some() && client.probed().is_none());
    assert_eq!(words(&says(&mut client, 50_003, Type::Reply, SERVER, &[gives(ADDRESS)])), ["bound fd00::50"]);
    // A refusal makes the client look for another lease.
    client.tick(client.next());
    says(&mut client, 100_010, Type::Reply, SERVER, &[unknown]);
    let none = ia_na(IAID, 0, 0, &status(4, ""));
    let replied = says(&mut client, 100_020, Type::Reply, SERVER, &[none]);
    assert_eq!(words(&replied), ["log", "lost fd00::50: the server has taken it back"]);
    assert_eq!(words(&client.tick(101_020)), ["Solicit fd00::50 to all"]);
}

#[test]
fn a_server_limits_the_pause_between_solicits() {
    let pauses = |client: &mut Client<Dhcp6>| {
        let pause = |_| {
            let now = client.next();
            client.tick(now);
            client.next() - now
        };
        (0..12).map(pause).max().unwrap()
    };
    let mut asked = client();
    assert!(pauses(&mut asked) <= 8800);
    let mut client = client();
    client.tick(0);
    let none = [ia_na(IAID, 0, 0, &status(2, "")), with(code::SOL_MAX_RT, &60_u32.to_be_bytes())];
    says(&mut client, 1, Type::Advertise, SERVER, &none);
    assert!((54_000..=66_000).contains(&pauses(&mut client)));
}

#[test]
fn a_lease_from_a_file_resumes_at_its_time() {
    let lease = bound().lease.unwrap();
    for (now, expected) in [
        (40_000, &[][..]),
        (60_000, &["log", "Renew fd00::50 to server"]),
        (90_000, &["log", "Rebind fd00::50 to all"]),
        (200_000, &["lost fd00::50: it has expired"]),
    ] {
        let mut client = Client::new(Dhcp6::new(identity()), 8000, now).resume(lease.clone());
        assert_eq!(words(&client.tick(now)), expected, "{now}");
    }
}
