//! A lease over time: renewed, refused, lost, and found again.

use std::process::Stdio;

use cnimble_tests::{Background, plugin_dir};
use server::{DISCOVER, REQUEST};

use super::*;

/// As an administrator does. The test reads its log.
pub(crate) fn start_daemon(host: &Host, options: &[&str]) -> Background {
    let mut command = host.command(plugin_dir().join("dhcp"));
    command.args(["daemon", "-socketpath"]).arg(socket(host)).args(options);
    let log = std::fs::File::create(host.dir().join("daemon.log")).unwrap();
    let daemon = Background::start(command.stdin(Stdio::null()).stderr(log));
    assert!(wait_until(PATIENCE, || socket(host).exists()));
    daemon
}

pub(crate) fn log(host: &Host) -> String {
    std::fs::read_to_string(host.dir().join("daemon.log")).unwrap()
}

/// To be renewed after a second.
pub(crate) fn bound<'h>(host: &'h Host, server: &Server, pod: &Pod) -> (Network<'h>, Attachment, Value) {
    server.now(|manner| (manner.seconds, manner.times) = (60, Some((1, 50))));
    server.now(|manner| manner.more = vec![(3, OWN.octets().to_vec())]);
    let network = network(host);
    let attachment = Attachment::new("c1", pod);
    let result = network.added(&attachment);
    assert_eq!(address(&result), "10.8.0.50/24");
    (network, attachment, result)
}

#[test]
fn a_lease_is_renewed_by_its_server_and_nothing_changes() {
    let (host, pod) = (host(), Pod::new());
    let server = server(&host);
    let (network, attachment, result) = bound(&host, &server, &pod);
    // A busy machine may need more.
    let discovers = server.said(DISCOVER).len();
    // The first request has no address yet.
    let said = server.wait(REQUEST, server.said(REQUEST).len() + 2);
    assert_eq!(said.has, FIRST);
    assert!(!said.options.contains_key(&50) && !said.options.contains_key(&54));
    assert_eq!(server.said(DISCOVER).len(), discovers);
    network.check(&attachment, &result).success();
    network.deleted(&attachment, Some(&result));
}

#[test]
fn the_interface_follows_to_another_address_and_the_log_says_so() {
    let (host, pod) = (host(), Pod::new());
    let server = server(&host);
    let _daemon = start_daemon(&host, &[]);
    let (network, attachment, result) = bound(&host, &server, &pod);
    server.now(|manner| manner.first = Ipv4Addr::new(10, 8, 0, 60));
    wait_for(&pod, &["10.8.0.60/24"]);
    assert!(wait_until(PATIENCE, || pod.ip("route show default").contains("via 10.8.0.1")));
    assert!(wait_until(PATIENCE, || log(&host).contains("followed from 10.8.0.50/24 to 10.8.0.60/24")));
    assert!(pod.pings("10.8.0.1"));
    assert!(network.check(&attachment, &result).error().code > 0);
    network.deleted(&attachment, Some(&result));
}

#[test]
fn a_refused_renewal_replaces_the_address() {
    let (host, pod) = (host(), Pod::new());
    let server = server(&host);
    let _daemon = start_daemon(&host, &[]);
    let (network, attachment, _) = bound(&host, &server, &pod);
    server.now(|manner| manner.refuses = true);
    wait_for(&pod, &[]);
    server.now(|manner| (manner.refuses, manner.first) = (false, Ipv4Addr::new(10, 8, 0, 70)));
    wait_for(&pod, &["10.8.0.70/24"]);
    assert!(log(&host).contains("10.8.0.50 is taken away"), "{}", log(&host));
    assert!(pod.pings("10.8.0.1"));
    network.deleted(&attachment, None);
}

/// The plugin tuning sets another one. Servers send their offers there.
#[test]
fn after_a_lost_lease_the_client_has_the_present_hardware_address() {
    let (host, pod) = (host(), Pod::new());
    let server = server(&host);
    let (network, attachment, _) = bound(&host, &server, &pod);
    pod.ip("link set eth0 address 02:00:00:00:00:77");
    let discovers = server.said(DISCOVER).len();
    server.now(|manner| manner.refuses = true);
    assert_eq!(server.wait(DISCOVER, discovers + 1).mac, [2, 0, 0, 0, 0, 0x77]);
    server.now(|manner| manner.refuses = false);
    wait_for(&pod, &["10.8.0.50/24"]);
    network.deleted(&attachment, None);
}

#[test]
fn a_lease_expires_without_its_server_and_returns_with_it() {
    let (host, pod) = (host(), Pod::new());
    let server = server(&host);
    let _daemon = start_daemon(&host, &["-resendmax", "1s"]);
    let (network, attachment, _) = bound(&host, &server, &pod);
    server.now(|manner| (manner.seconds, manner.times) = (3, Some((1, 2))));
    let renewed = server.said(REQUEST).len();
    server.wait(REQUEST, renewed + 1);
    server.now(|manner| manner.silent = true);
    wait_for(&pod, &[]);
    assert!(log(&host).contains("rebinding"), "{}", log(&host));
    server.now(|manner| (manner.silent, manner.seconds, manner.times) = (false, 3600, None));
    wait_for(&pod, &["10.8.0.50/24"]);
    assert!(pod.pings("10.8.0.1"));
    network.deleted(&attachment, None);
}

#[test]
fn another_server_extends_the_lease_of_a_missing_one() {
    let (host, pod, beside) = (host(), Pod::new(), Pod::new());
    let one = server(&host);
    host.cable("other", &beside, "eth0");
    host.ip("link set other master br0");
    beside.ip("address add 10.8.0.2/24 dev eth0");
    let other = Ipv4Addr::new(10, 8, 0, 2);
    let second = Server::start(&beside, other, Manner { silent: true, ..Manner::new(FIRST, 3600) });
    one.now(|manner| (manner.seconds, manner.times) = (60, Some((1, 2))));
    let network = network(&host);
    let attachment = Attachment::new("c1", &pod);
    network.added(&attachment);
    one.now(|manner| manner.silent = true);
    second.now(|manner| manner.silent = false);
    assert!(wait_until(PATIENCE, || second.said(REQUEST).iter().any(|said| said.has == FIRST)));
    assert_eq!(ipv4(&pod), ["10.8.0.50/24"]);
    let known = || std::fs::read_to_string(&leases(&host)[0]).unwrap().contains("\"server\":\"10.8.0.2\"");
    assert!(wait_until(PATIENCE, known));
    network.deleted(&attachment, None);
}

#[test]
fn without_a_server_add_fails_in_time_and_leaves_nothing() {
    let (host, pod) = (host(), Pod::new());
    let mut daemon = start_daemon(&host, &["-once", "-resendtimeout=300ms"]);
    let network = network(&host);
    let err = network.add(&Attachment::new("c1", &pod)).error();
    assert!(err.code == 11 && err.all().contains("address to eth0 within 300 ms"), "{err:?}");
    assert!(err.all().contains("1 DISCOVER sent, no server answered; hint: "), "{err:?}");
    assert_eq!(pod.links(), ["lo"]);
    assert!(wait_until(PATIENCE, || !daemon.running()));
    assert_ended(&host);
}

#[test]
fn the_networks_timeout_applies_and_the_error_names_servers() {
    let (host, pod) = (host(), Pod::new());
    let server = server(&host);
    server.now(|manner| manner.refuses = true);
    let network = network(&host).with("/ipam/timeout", json!(1));
    let err = network.add(&Attachment::new("c1", &pod)).error();
    assert!(err.code == 11 && err.all().contains("address to eth0 within 1 s"), "{err:?}");
    assert!(err.all().contains("DISCOVER"), "{err:?}");
    assert!(err.all().contains("answers from 10.8.0.1; 10.8.0.1 refuses"), "{err:?}");
    assert_eq!(pod.links(), ["lo"]);
    assert_ended(&host);
}

#[test]
fn the_error_says_that_a_message_could_not_be_sent() {
    let (host, pod) = (host(), Pod::new());
    let _server = server(&host);
    // A message has more bytes. The C libraries end the words differently.
    let network = network(&host).with("/ipam/timeout", json!(1)).with("/mtu", json!(300));
    let err = network.add(&Attachment::new("c1", &pod)).error();
    let told = "tried, and the last message could not be sent: Message too";
    assert!(err.code == 11 && err.all().contains(told), "{err:?}");
    assert_ended(&host);
}

/// The daemon reads its command line.
#[test]
fn a_started_daemon_gives_add_a_minute() {
    let (host, pod) = (host(), Pod::new());
    let _server = server(&host);
    let network = network(&host);
    let attachment = Attachment::new("c1", &pod);
    network.added(&attachment);
    let [daemon] = daemons(&socket(&host))[..] else { panic!("not one daemon") };
    let line = std::fs::read(format!("/proc/{daemon}/cmdline")).unwrap();
    let words: Vec<&[u8]> = line.split(|byte| *byte == 0).collect();
    assert!(words.windows(2).any(|pair| pair == [&b"-resendtimeout"[..], b"60s"]), "{words:?}");
    network.deleted(&attachment, None);
}
