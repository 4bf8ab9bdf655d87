//! Tests the helpers of other tests: snapshots see each change, pings and requests report whether an answer comes, and
//! scripts are executable at once.

use cnimble_tests::traffic::{Server, tcp, tcp_is_shut, udp, udp_is_shut};
use cnimble_tests::{Host, Ns, Outcome, Snapshot, need, script};

/// Returns a node with a bridge and a namespace connected to it.
fn site() -> (Host, Ns) {
    let (host, pod) = (Host::new(), Ns::new());
    host.ip("link add br0 type bridge");
    host.ip("link set br0 up");
    host.ip("addr add 10.1.2.1/24 dev br0");
    host.cable("port", &pod, "eth0");
    host.ip("link set port master br0");
    pod.ip("addr add 10.1.2.2/24 dev eth0");
    (host, pod)
}

#[test]
fn a_snapshot_sees_every_change() {
    need!("ip", "nft");
    let (host, pod) = site();
    for (change, back) in [
        ("ip addr add 10.9.9.9/24 dev br0", "ip addr del 10.9.9.9/24 dev br0"),
        ("ip -6 addr add fd09::9/64 dev br0", "ip -6 addr del fd09::9/64 dev br0"),
        ("ip route add 10.8.0.0/16 via 10.1.2.9", "ip route del 10.8.0.0/16"),
        ("ip rule add to 10.7.7.7 lookup 7", "ip rule del to 10.7.7.7 lookup 7"),
        ("ip link add veth1 type veth peer name veth2", "ip link del veth1"),
        ("ip link set port type bridge_slave hairpin on", "ip link set port type bridge_slave hairpin off"),
        ("ip link set port nomaster", "ip link set port master br0"),
        ("nft add table inet mine", "nft delete table inet mine"),
    ] {
        let before = Snapshot::of(&host);
        before.assert_same(&Snapshot::of(&host), "nothing was done");
        host.sh(change);
        assert_ne!(before.diff(&Snapshot::of(&host)), "", "{change}");
        host.sh(back);
        before.assert_same(&Snapshot::of(&host), back);
    }
    // The other end changes the carrier of a link.
    let before = Snapshot::of(&host);
    pod.ip("link set eth0 down");
    assert_ne!(before.diff(&Snapshot::of(&host)), "", "no carrier");
    pod.ip("link set eth0 up");
    before.assert_same(&Snapshot::of(&host), "the carrier is back");
    let before = Snapshot::of(&host);
    host.ip("link set port down");
    assert_ne!(before.diff(&Snapshot::of(&host)), "", "a link that is down");
    let before = Snapshot::of(&host);
    std::fs::create_dir(host.data_dir()).unwrap();
    std::fs::write(host.data_dir().join("10.1.2.3"), "c1").unwrap();
    assert_ne!(before.diff(&Snapshot::of(&host)), "", "a lease");
    let before = Snapshot::of(&host);
    host.set_sysctl("ipv4/ip_forward", "1");
    assert_ne!(before.diff(&Snapshot::of(&host)), "", "a sysctl");
}

#[test]
fn who_answers_and_who_does_not() {
    need!("ip", "ping");
    let (host, pod) = site();
    assert!(host.pings("10.1.2.2") && host.pings_once("10.1.2.2") && !host.misses("10.1.2.2"));
    // The first address is unused, the second has no route.
    assert!(host.misses("10.1.2.3") && host.misses("192.0.2.1"));
    let _server = Server::start(&pod, 80, "pod");
    assert_eq!(tcp(&host, "10.1.2.2:80").unwrap(), "pod 10.1.2.1");
    assert_eq!(udp(&host, "10.1.2.2:80").unwrap(), "pod 10.1.2.1");
    assert!(!tcp_is_shut(&host, "10.1.2.2:80") && !udp_is_shut(&host, "10.1.2.2:80"));
    for nobody in ["10.1.2.2:81", "10.1.2.3:80"] {
        assert!(tcp_is_shut(&host, nobody) && udp_is_shut(&host, nobody), "{nobody}");
    }
}

#[test]
fn a_script_can_be_executed_and_replaced_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("it");
    for number in 0..20 {
        script(&path, &format!("#!/bin/sh\nexit {number}\n"));
        assert_eq!(Outcome::of(&mut std::process::Command::new(&path)).status, number);
    }
}
