//! 127.0.0.1: opened on request, guarded, and closed again.

use std::net::{TcpListener, UdpSocket};

use serde_json::json;

use nix::errno::Errno;

use cnimble_tests::trace::{Fate, untraceable};
use cnimble_tests::traffic::{Server, tcp, tcp_is_shut, udp, udp_is_shut};
use cnimble_tests::{Call, Snapshot, need, skip};

use super::Site;

#[test]
fn only_the_host_reaches_localhost() {
    need!("nft", "ip");
    for backend in ["nftables", "iptables"] {
        let site = Site::new();
        let pod = &site.pods[1];
        let secret = site.host.within(|| {
            (TcpListener::bind("127.0.0.1:9999").unwrap(), UdpSocket::bind("127.0.0.1:9999").unwrap())
        });
        let _secret = Server::on(secret.0, secret.1, "secret");
        assert_eq!(tcp(&site.host, "127.0.0.1:9999").unwrap(), "secret 127.0.0.1");
        let net =
            site.network(json!([{"hostPort": 8080, "containerPort": 80}])).with("/backend", json!(backend));
        site.add(&net, 0);
        assert_ne!(site.host.sysctl("ipv4/conf/br0/route_localnet"), "0");
        assert_eq!(site.host.sysctl("ipv4/conf/uplink/route_localnet"), "0");

        // A pod sends packets for 127.0.0.1 to the host.
        pod.set_sysctl("ipv4/conf/eth0/route_localnet", "1");
        pod.ip("addr del 127.0.0.1/8 dev lo");
        pod.ip("route add 127.0.0.1/32 via 10.1.2.1 dev eth0");
        assert!(udp_is_shut(pod, "127.0.0.1:9999"), "{backend}");
        assert!(tcp_is_shut(pod, "127.0.0.1:9999"), "{backend}");
        assert!(tcp_is_shut(pod, "127.0.0.1:8080"), "{backend}");

        if backend == "nftables" {
            site.host.nft("flush chain inet cnimble portmap-guard");
        } else {
            site.host.sh("iptables -t mangle -F CNI-HOSTPORT-GUARD");
        }
        assert!(udp(pod, "127.0.0.1:9999").unwrap().starts_with("secret "), "{backend}");
        if backend == "nftables" {
            let err = net.check(&site.attachment(0), &site.results[0]).error();
            assert!(err.code == 103 && err.all().contains("portmap-guard"), "{}", err.all());
        }
    }
}

#[test]
fn localhost_is_opened_only_if_it_is_wanted() {
    need!("nft", "ip");
    for (mappings, more, open) in [
        (json!([{"hostPort": 8080, "containerPort": 80}]), json!({}), true),
        (json!([{"hostPort": 8080, "containerPort": 80, "hostIP": "127.0.0.1"}]), json!({}), true),
        (json!([{"hostPort": 8080, "containerPort": 80, "hostIP": "0.0.0.0"}]), json!({}), true),
        (json!([{"hostPort": 8080, "containerPort": 80, "hostIP": "192.0.2.1"}]), json!({}), false),
        (json!([{"hostPort": 8080, "containerPort": 80, "hostIP": "::"}]), json!({}), false),
        (json!([{"hostPort": 8080, "containerPort": 80}]), json!(false), false),
    ] {
        let site = Site::new();
        let mut net = site.network(mappings.clone());
        if more == json!(false) {
            net = net.with("/snat", more);
        }
        site.add(&net, 0);
        assert_eq!(site.host.sysctl("ipv4/conf/br0/route_localnet") != "0", open, "{mappings}");
    }
}

/// The ruleset had the note. Without it the setting would stay on after the last mapping, unguarded.
#[test]
fn a_flushed_ruleset_leaves_no_localhost_open() {
    need!("nft", "ip");
    let site = Site::new();
    let before = Snapshot::of_ns(&site.host);
    let nets = [8080, 9090].map(|port| site.network(json!([{"hostPort": port, "containerPort": 80}])));
    let add = |n: usize| site.add(&nets[n], n);
    let del = |n: usize| nets[n].deleted(&site.attachment(n).netns(""), Some(&site.results[n]));
    let flush = || site.host.nft("flush ruleset");
    let is_open = || site.host.sysctl("ipv4/conf/br0/route_localnet") != "0";
    let _inside =
        ["pod0", "pod1"].map(|name| Server::start(&site.pods[usize::from(name == "pod1")], 80, name));

    // DEL finds no mapping.
    add(0);
    flush();
    del(0);
    before.assert_same(&Snapshot::of_ns(&site.host), "DEL");
    // Before and after a new pod needs it.
    for order in [[0, 1], [1, 0]] {
        add(0);
        flush();
        add(1);
        del(order[0]);
        if order[0] == 0 {
            assert_eq!(tcp(&site.host, "127.0.0.1:9090").unwrap(), "pod1 10.1.2.1");
            nets[1].check(&site.attachment(1), &site.results[1]).success();
        }
        del(order[1]);
        before.assert_same(&Snapshot::of_ns(&site.host), &format!("{order:?}"));
    }
    // DEL is never called.
    add(0);
    flush();
    nets[0].gc(Some(json!([]))).success();
    before.assert_same(&Snapshot::of_ns(&site.host), "GC");
    // GC of another network.
    add(0);
    flush();
    add(1);
    nets[0].with("/name", json!("other")).gc(Some(json!([]))).success();
    assert_eq!(tcp(&site.host, "127.0.0.1:9090").unwrap(), "pod1 10.1.2.1");
    del(1);
    assert!(!is_open());
}

/// Without prevResult, or without ports in the configuration.
#[test]
fn a_del_that_knows_less_than_the_add_leaves_no_localhost_open_after_a_flush() {
    need!("nft", "ip");
    let site = Site::new();
    let before = Snapshot::of_ns(&site.host);
    let nets = [8080, 9090].map(|port| site.network(json!([{"hostPort": port, "containerPort": 80}])));
    let (att, result) = (site.attachment(0).netns(""), &site.results[0]);
    let unmapped = nets[0].with("/runtimeConfig/portMappings", json!([]));
    for (net, prev, when) in [
        (&nets[0], None, "without a result"),
        (&unmapped, None, "without result and ports"),
        (&unmapped, Some(result), "without ports"),
        (&nets[0].with("/snat", json!(false)), Some(result), "with snat switched off"),
    ] {
        site.add(&nets[0], 0);
        assert_ne!(site.host.sysctl("ipv4/conf/br0/route_localnet"), "0");
        site.host.nft("flush ruleset");
        net.deleted(&att, prev);
        before.assert_same(&Snapshot::of_ns(&site.host), when);
    }
    // Added after the flush.
    site.add(&nets[0], 0);
    site.host.nft("flush ruleset");
    site.add(&nets[1], 1);
    unmapped.deleted(&att, None);
    assert_ne!(site.host.sysctl("ipv4/conf/br0/route_localnet"), "0");
    nets[1].check(&site.attachment(1), &site.results[1]).success();
    nets[1].deleted(&site.attachment(1), None);
    before.assert_same(&Snapshot::of_ns(&site.host), "the last");
}

/// On by another program.
#[test]
fn localhost_stays_open_for_others() {
    need!("nft", "ip", "iptables-nft-save");
    let site = Site::new();
    let nets = [8080, 9090].map(|port| site.network(json!([{"hostPort": port, "containerPort": 80}])));
    let (key, att) = ("ipv4/conf/br0/route_localnet", site.attachment(0));
    for when in ["before", "after"] {
        if when == "before" {
            site.host.set_sysctl(key, "1");
        }
        site.add(&nets[0], 0);
        site.host.set_sysctl(key, "1");
        nets[0].check(&att, &site.results[0]).success();
        nets[0].deleted(&att, Some(&site.results[0]));
        nets[0].gc(Some(json!([]))).success();
        assert_eq!(site.host.sysctl(key), "1", "{when}");
        site.host.set_sysctl(key, "0");
    }
    // The iptables backend and the Go plugin leave no note.
    site.add(&nets[0], 0);
    site.add(&nets[1].with("/backend", json!("iptables")), 1);
    nets[0].deleted(&att, Some(&site.results[0]));
    let _inside = Server::start(&site.pods[1], 80, "pod1");
    assert_eq!(tcp(&site.host, "127.0.0.1:9090").unwrap(), "pod1 10.1.2.1");
}

/// Runs a verb whose `nth` write fails as with a kernel that takes only 0 and 1 for `route_localnet`.
fn refused(call: &Call<'_>, write: u64, nth: usize) -> bool {
    let (outcome, traced) = call.traced(&Fate::Told { call: write, nth, error: Errno::EINVAL });
    outcome.status == 0 && traced.met
}

/// The kernel here takes any number. So the write of a 2 is refused in its place, and other writes in other rounds.
#[test]
fn localhost_is_closed_where_a_switch_is_only_on_or_off() {
    need!("nft", "ip");
    if let Some(why) = untraceable() {
        skip!("{why}");
    }
    let site = Site::new();
    let net = site.network(json!([{"hostPort": 8080, "containerPort": 80}]));
    let (att, prev) = (site.attachment(0), Some(&site.results[0]));
    let switch = || site.host.sysctl("ipv4/conf/br0/route_localnet");
    let before = Snapshot::of_ns(&site.host);
    let (_, watched) = net.call("ADD", &att, prev).traced(&Fate::Watched);
    let write = watched.calls.iter().find(|call| call.name() == "write").unwrap().number;
    net.deleted(&att, prev);
    let mut closed = 0;
    for nth in 0..4 {
        // The first write of an ADD that is refused and fails nothing.
        let opened = (0..4).any(|nth| {
            let is_on = refused(&net.call("ADD", &att, prev), write, nth) && switch() == "1";
            if !is_on {
                net.deleted(&att, prev);
            }
            is_on
        });
        assert!(opened, "no refused write leaves the switch at 1");
        if refused(&net.call("DEL", &att, prev), write, nth) && switch() == "0" {
            before.assert_same(&Snapshot::of_ns(&site.host), "DEL");
            closed += 1;
        }
        net.deleted(&att, prev);
        site.host.set_sysctl("ipv4/conf/br0/route_localnet", "0");
    }
    assert_eq!(closed, 1, "one write asks the kernel what it takes");
}
