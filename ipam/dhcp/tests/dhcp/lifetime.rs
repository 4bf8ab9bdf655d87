//! The kernel's lifetime of an address, and CHECK after the lease.

use changes::start_daemon;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use server::REQUEST;

use super::*;

/// In seconds; `u32::MAX` is forever.
fn lifetime(pod: &Pod, address: &str) -> Option<u64> {
    let links = pod.ip_json("address show dev eth0");
    let all = links[0]["addr_info"].as_array().unwrap();
    all.iter().find(|one| one["local"] == address)?["valid_life_time"].as_u64()
}

#[test]
fn the_kernel_has_the_lifetime_of_an_address() {
    let (host, pod) = (host(), Pod::new());
    let _daemon = start_daemon(&host, &[]);
    let server = server(&host);
    server.now(|manner| (manner.seconds, manner.times) = (600, Some((7, 500))));
    let network = network(&host);
    let attachment = Attachment::new("c1", &pod);
    let result = network.added(&attachment);
    let ends = |below: u64| lifetime(&pod, "10.8.0.50").is_some_and(|left| left > 0 && left <= below);
    assert!(wait_until(PATIENCE, || ends(602)), "{:?}", lifetime(&pod, "10.8.0.50"));
    // Shorter, endless, and finite again.
    server.now(|manner| manner.seconds = 60);
    server.now(|manner| manner.times = Some((1, 50)));
    assert!(wait_until(PATIENCE, || ends(62)), "{:?}", lifetime(&pod, "10.8.0.50"));
    server.now(|manner| (manner.seconds, manner.times) = (u32::MAX, None));
    let forever = || lifetime(&pod, "10.8.0.50") == Some(u32::MAX.into());
    assert!(wait_until(PATIENCE, forever), "{:?}", lifetime(&pod, "10.8.0.50"));
    network.check(&attachment, &result).success();
    network.deleted(&attachment, Some(&result));
}

#[test]
fn without_a_lease_daemon_the_kernel_ends_the_address_and_check_says_that_the_lease_has_expired() {
    let (host, pod) = (host(), Pod::new());
    let server = server(&host);
    let mut daemon = start_daemon(&host, &[]);
    server.now(|manner| (manner.seconds, manner.times) = (7, Some((6, 7))));
    let network = network(&host);
    let attachment = Attachment::new("c1", &pod);
    let result = network.added(&attachment);
    assert!(wait_until(PATIENCE, || lifetime(&pod, "10.8.0.50").is_some_and(|left| left < 10)));
    server.now(|manner| manner.silent = true);
    kill(Pid::from_raw(daemon.pid().try_into().unwrap()), Signal::SIGKILL).unwrap();
    assert!(wait_until(PATIENCE, || !daemon.running()));
    wait_for(&pod, &[]);
    std::fs::remove_file(socket(&host)).unwrap();
    let _next = start_daemon(&host, &[]);
    let err = network.check(&attachment, &result).error();
    assert_eq!(err.code, 103, "{err:?}");
    assert!(err.msg.contains("eth0 has no lease of 10.8.0.50 any more: it has expired"), "{err:?}");
    // A new lease restores it.
    server.now(|manner| (manner.silent, manner.seconds, manner.times) = (false, 600, None));
    wait_for(&pod, &["10.8.0.50/24"]);
    network.check(&attachment, &result).success();
    network.deleted(&attachment, Some(&result));
}

#[test]
fn check_says_that_a_lease_has_expired() {
    let (host, pod) = (host(), Pod::new());
    let server = server(&host);
    let _daemon = start_daemon(&host, &["-resendmax", "1s"]);
    server.now(|manner| (manner.seconds, manner.times) = (3, Some((1, 2))));
    let network = network(&host);
    let attachment = Attachment::new("c1", &pod);
    let result = network.added(&attachment);
    server.wait(REQUEST, 3);
    server.now(|manner| manner.silent = true);
    wait_for(&pod, &[]);
    let err = network.check(&attachment, &result).error();
    assert_eq!(err.code, 103, "{err:?}");
    assert!(err.msg.contains("eth0 has no lease of 10.8.0.50 any more: it has expired"), "{err:?}");
    network.deleted(&attachment, Some(&result));
}

#[test]
fn an_address_that_was_made_permanent_stays_so_while_its_lease_is_renewed() {
    let (host, pod) = (host(), Pod::new());
    let _daemon = start_daemon(&host, &[]);
    let server = server(&host);
    let (network, attachment, result) = changes::bound(&host, &server, &pod);
    assert!(wait_until(PATIENCE, || lifetime(&pod, "10.8.0.50").is_some_and(|left| left < 100)));
    // `cnimble hand-over` does the same.
    pod.ip("address replace 10.8.0.50/24 dev eth0 valid_lft forever preferred_lft forever");
    let renewals = server.said(REQUEST).len();
    server.wait(REQUEST, renewals + 3);
    assert_eq!(lifetime(&pod, "10.8.0.50"), Some(u32::MAX.into()));
    network.deleted(&attachment, Some(&result));
}

/// An ADD follows one without a DEL.
#[test]
fn a_new_interface_in_place_of_a_deleted_one_gets_its_own_lease() {
    let (host, pod) = (host(), Pod::new());
    let _daemon = start_daemon(&host, &[]);
    let _server = server(&host);
    let network = network(&host);
    let attachment = Attachment::new("c1", &pod);
    network.added(&attachment);
    pod.ip("link del eth0");
    let result = network.added(&attachment);
    let ends = || lifetime(&pod, "10.8.0.50").is_some_and(|left| left <= 3602);
    assert!(wait_until(PATIENCE, ends), "{:?}", lifetime(&pod, "10.8.0.50"));
    network.deleted(&attachment, Some(&result));
}

#[test]
fn an_interface_that_the_pod_has_renamed_keeps_its_address_while_its_lease_is_renewed() {
    let (host, pod) = (host(), Pod::new());
    let _daemon = start_daemon(&host, &[]);
    let server = server(&host);
    server.now(|manner| (manner.seconds, manner.times) = (6, Some((1, 5))));
    let network = network(&host);
    let attachment = Attachment::new("c1", &pod);
    let result = network.added(&attachment);
    assert!(wait_until(PATIENCE, || lifetime(&pod, "10.8.0.50").is_some_and(|left| left < 10)));
    pod.shell("ip link set eth0 down; ip link set eth0 name net9 up");
    // Longer than the lease.
    server.wait(REQUEST, server.said(REQUEST).len() + 12);
    assert_eq!(pod.addrs("net9").first().map(String::as_str), Some("10.8.0.50/24"));
    network.deleted(&attachment, Some(&result));
}
