use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use server::{DECLINE, REBIND, RELEASE, RENEW, REQUEST, SOLICIT};

use super::*;

/// A lease of a minute, to be renewed after a second.
fn bound<'h>(host: &'h Host, server: &Server, pod: &Pod) -> (Network<'h>, Attachment, Value) {
    server.now(|manner| (manner.seconds, manner.times) = (60, (1, 50)));
    let network = network(host);
    let attachment = Attachment::new("c1", pod);
    let result = network.added(&attachment);
    assert_eq!(address(&result), "fd00:8::50/128");
    (network, attachment, result)
}

#[test]
fn a_lease_is_renewed_and_released() {
    let (host, pod) = (host(), Pod::new());
    let server = server(&host);
    server.now(|manner| manner.babbles = true);
    let (network, attachment, result) = bound(&host, &server, &pod);
    let said = server.wait(RENEW, 2);
    assert_eq!((said.address, said.server.as_deref()), (Some(FIRST), Some(&b"\0\x03\0\x01server"[..])));
    // A DUID-UUID, the same in every message.
    assert_eq!((said.duid.len(), &said.duid[..2]), (18, &[0, 4][..]));
    for kind in [SOLICIT, REQUEST] {
        let before = server.wait(kind, 1);
        assert_eq!(before.duid, said.duid);
        assert_eq!(before.options[&6], [0, 23, 0, 24, 0, 82]);
    }
    assert_eq!(ipv6(&pod), ["fd00:8::50/128"]);
    network.check(&attachment, &result).success();
    network.deleted(&attachment, Some(&result));
    let said = server.wait(RELEASE, 1);
    assert_eq!(said.address, Some(FIRST));
    assert_ended(&host);
}

#[test]
fn a_rapid_commit_needs_no_request() {
    let (host, pod) = (host(), Pod::new());
    let server = server(&host);
    server.now(|manner| (manner.rapid, manner.more) = (true, vec![(23, FIRST.octets().to_vec())]));
    let network = network(&host);
    let attachment = Attachment::new("c1", &pod);
    let result = network.added(&attachment);
    assert_eq!(result["dns"], json!({"nameservers": ["fd00:8::50"]}));
    assert!(server.said(REQUEST).is_empty());
    network.deleted(&attachment, None);
}

#[test]
fn the_interface_follows_to_another_address_and_the_log_says_so() {
    let (host, pod) = (host(), Pod::new());
    let server = server(&host);
    let _daemon = start_daemon(&host, &[]);
    let (network, attachment, result) = bound(&host, &server, &pod);
    server.now(|manner| manner.first = "fd00:8::60".parse().unwrap());
    wait_for(&pod, &["fd00:8::60/128"]);
    wait_for_log(&host, "followed from fd00:8::50/128 to fd00:8::60/128");
    assert!(lifetimes(&pod).is_some_and(|(_, valid)| valid <= 60));
    assert!(network.check(&attachment, &result).error().code > 0);
    network.deleted(&attachment, Some(&result));
}

#[test]
fn a_lease_expires_without_its_server_and_returns_with_it() {
    let (host, pod) = (host(), Pod::new());
    let server = server(&host);
    let _daemon = start_daemon(&host, &["-resendmax", "1s"]);
    let (network, attachment, _) = bound(&host, &server, &pod);
    server.now(|manner| (manner.seconds, manner.times) = (3, (1, 2)));
    let renewed = server.said(RENEW).len();
    server.wait(RENEW, renewed + 1);
    server.now(|manner| manner.silent = true);
    wait_for(&pod, &[]);
    wait_for_log(&host, "fd00:8::50 is taken away: it has expired");
    server.now(|manner| (manner.silent, manner.seconds, manner.times) = (false, 3600, (0, 0)));
    wait_for(&pod, &["fd00:8::50/128"]);
    network.deleted(&attachment, None);
}

#[test]
fn an_interface_that_was_down_gets_its_address_back_with_a_renewal() {
    let (host, pod) = (host(), Pod::new());
    let server = server(&host);
    let (network, attachment, result) = bound(&host, &server, &pod);
    assert!(wait_until(PATIENCE, || lifetimes(&pod).is_some()));
    // The kernel keeps only permanent ones (keep_addr_on_down).
    pod.ip("link set eth0 down");
    wait_for(&pod, &[]);
    pod.ip("link set eth0 up");
    wait_for(&pod, &["fd00:8::50/128"]);
    network.check(&attachment, &result).success();
    network.deleted(&attachment, Some(&result));
}

#[test]
fn another_server_extends_a_lease() {
    let (host, pod, beside) = (host(), Pod::new(), Pod::new());
    let one = server(&host);
    host.cable("other", &beside, "eth0");
    host.ip("link set other master br0");
    let other = b"\0\x03\0\x01other";
    let second = Server::start(&beside, "eth0", other, Manner { silent: true, ..Manner::new(FIRST, 3600) });
    one.now(|manner| (manner.seconds, manner.times) = (3600, (1, 2)));
    let network = network(&host);
    let attachment = Attachment::new("c1", &pod);
    let result = network.added(&attachment);
    one.now(|manner| manner.silent = true);
    second.now(|manner| manner.silent = false);
    let said = second.wait(REBIND, 1);
    assert_eq!((said.address, said.server), (Some(FIRST), None));
    let file = leases(&host).pop().unwrap();
    let known = || -> Value { serde_json::from_str(&std::fs::read_to_string(&file).unwrap()).unwrap() };
    assert!(wait_until(PATIENCE, || known()["lease"]["server_id"] == json!(other)), "{}", known());
    assert_eq!(ipv6(&pod), ["fd00:8::50/128"]);
    network.deleted(&attachment, Some(&result));
}

#[test]
fn a_server_creates_a_forgotten_lease_again() {
    let (host, pod) = (host(), Pod::new());
    let server = server(&host);
    let _daemon = start_daemon(&host, &[]);
    let (network, attachment, result) = bound(&host, &server, &pod);
    let (solicits, requests) = (server.said(SOLICIT).len(), server.said(REQUEST).len());
    // The status NoBinding.
    server.now(|manner| manner.refuses = Some((3, &[RENEW])));
    let said = server.wait(REQUEST, requests + 1);
    assert_eq!(said.address, Some(FIRST));
    wait_for_log(&host, "it knows no such lease (NoBinding): \"so it is\"");
    assert_eq!(ipv6(&pod), ["fd00:8::50/128"]);
    assert_eq!(server.said(SOLICIT).len(), solicits);
    network.check(&attachment, &result).success();
    network.deleted(&attachment, None);
}

#[test]
fn the_error_contains_the_status_of_the_server() {
    let (host, pod) = (host(), Pod::new());
    let server = server(&host);
    let _daemon = start_daemon(&host, &["-resendtimeout=1500ms"]);
    // The status NoAddrsAvail.
    server.now(|manner| manner.refuses = Some((2, &[SOLICIT])));
    let network = network(&host);
    // The server may be late on a busy machine.
    let mut said = String::new();
    let named = wait_until(PATIENCE, || {
        let err = network.add(&Attachment::new("c1", &pod)).error();
        assert_eq!(err.code, 11, "{err:?}");
        said = err.all();
        said.contains("it has no address to give (NoAddrsAvail)")
    });
    assert!(named, "{said}");
    assert_eq!(pod.links(), ["lo"]);
    assert!(lease_files(&host).is_empty());
}

#[test]
fn an_address_of_another_host_is_declined() {
    let (host, pod, other) = (host(), Pod::new(), Pod::new());
    let server = server(&host);
    host.cable("other", &other, "eth0");
    host.ip("link set other master br0");
    other.ip("address add fd00:8::50/64 dev eth0 nodad");
    assert!(wait_until(PATIENCE, || other.pings_once(OWN)));
    let network = network(&host);
    let attachment = Attachment::new("c1", &pod);
    std::thread::scope(|scope| {
        let added = scope.spawn(|| network.added(&attachment));
        let said = server.wait(DECLINE, 1);
        assert_eq!(said.address, Some(FIRST));
        server.now(|manner| manner.first = "fd00:8::60".parse().unwrap());
        assert_eq!(address(&added.join().unwrap()), "fd00:8::60/128");
    });
    network.deleted(&attachment, None);
}

#[test]
fn a_killed_daemon_loses_no_lease_of_either_family() {
    let (host, pod, other) = (host(), Pod::new(), Pod::new());
    let server = server(&host);
    server.now(|manner| (manner.seconds, manner.times) = (3600, (2, 3000)));
    let four = four_server(&host, Some((2, 3000)));
    let network = network(&host).with("/ipam/families", json!(["ipv4", "ipv6"]));
    let attachment = Attachment::new("c1", &pod);
    let result = network.added(&attachment);
    let duid = server.wait(REQUEST, 1).duid;
    let solicits = || server.said(SOLICIT).iter().filter(|said| said.duid == duid).count();
    let asked = solicits();
    let [daemon] = daemons(&socket(&host))[..] else { panic!("{:?}", daemons(&socket(&host))) };
    kill(Pid::from_raw(daemon), Signal::SIGKILL).unwrap();
    assert!(wait_until(PATIENCE, || daemons(&socket(&host)).is_empty()));
    let renewals = || {
        let six = server.said(RENEW).iter().filter(|said| said.duid == duid).count();
        let requests = four.said(crate::server::REQUEST);
        (six, requests.iter().filter(|said| said.has == super::super::FIRST).count())
    };
    let before = renewals();
    // Any pod's verb starts a daemon, which resumes the leases.
    let beside = Attachment::new("c2", &other);
    network.added(&beside);
    assert!(wait_until(PATIENCE, || {
        let now = renewals();
        now.0 > before.0 && now.1 > before.1
    }));
    assert_eq!((solicits(), leases(&host).len()), (asked, 4), "{:?}", leases(&host));
    network.check(&attachment, &result).success();
    network.deleted(&attachment, Some(&result));
    network.deleted(&beside, None);
    server.wait(RELEASE, 2);
    assert_ended(&host);
}
