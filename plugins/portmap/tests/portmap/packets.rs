use std::io;
use std::net::SocketAddr;

use serde_json::json;

use cnimble_tests::traffic::{Server, ask, tcp, tcp_is_shut, udp, udp_socket};
use cnimble_tests::{Ns, Snapshot, need, sctp};

use super::{Site, pod_ip};

fn every_way_in(backend: &str) {
    let site = Site::new();
    let net = site
        .network(json!([
            {"hostPort": 8080, "containerPort": 80, "protocol": "tcp"},
            {"hostPort": 8080, "containerPort": 80, "protocol": "udp"},
            {"hostPort": 8081, "containerPort": 80, "protocol": "tcp", "hostIP": "192.0.2.1"},
            {"hostPort": 8081, "containerPort": 80, "protocol": "udp", "hostIP": "2001:db8::1"},
        ]))
        .with("/backend", json!(backend));
    let _inside = Server::start(&site.pods[0], 80, "pod0");
    // A port of a host outside, only forwarded.
    let _outside = Server::start(&site.world, 8080, "world");
    let _outside2 = Server::start(&site.world, 80, "world80");
    let before = Snapshot::of_ns(&site.host);
    site.add(&net, 0);
    let (host, world, pods): (&Ns, &Ns, _) = (&site.host, &site.world, &site.pods);
    let own = pod_ip(&site.results[0], false);

    // From, to, and the source that the pod sees.
    for (from, to, seen) in [
        (world, "192.0.2.1:8080", "192.0.2.9"),
        (world, "[2001:db8::1]:8080", "2001:db8::9"),
        (host, "192.0.2.1:8080", ""),
        (host, "10.1.2.1:8080", ""),
        (host, "127.0.0.1:8080", "10.1.2.1"),
        (host, "127.0.0.5:8080", "10.1.2.1"),
        (host, "[2001:db8::1]:8080", ""),
        (&pods[0], "192.0.2.1:8080", "10.1.2.1"),
        (&pods[1], "192.0.2.1:8080", "10.1.2.1"),
        (&pods[0], "10.1.2.1:8080", "10.1.2.1"),
        (&pods[0], "[2001:db8::1]:8080", "fd00:1:2::1"),
        (&pods[1], "[2001:db8::1]:8080", "fd00:1:2::1"),
    ] {
        // The Go plugin masquerades 127.0.0.1 only.
        if backend == "iptables" && to.starts_with("127.0.0.5") {
            continue;
        }
        let answer = tcp(from, to).unwrap_or_else(|err| panic!("tcp {to} to be seen as {seen}: {err}"));
        assert!(answer.starts_with("pod0 ") && answer.ends_with(seen), "tcp {to}: {answer}");
        let answer = udp(from, to).unwrap_or_else(|| panic!("udp {to}: no answer"));
        assert!(answer.starts_with("pod0 ") && answer.ends_with(seen), "udp {to}: {answer}");
    }
    // On one address of the host.
    assert!(tcp(world, "192.0.2.1:8081").unwrap().starts_with("pod0"));
    assert!(udp(world, "[2001:db8::1]:8081").unwrap().starts_with("pod0"));
    assert_eq!(tcp(&pods[1], "10.1.2.1:8081").unwrap_err().kind(), io::ErrorKind::ConnectionRefused);
    assert_eq!(tcp(host, "127.0.0.1:8081").unwrap_err().kind(), io::ErrorKind::ConnectionRefused);
    assert_eq!(tcp(world, "[2001:db8::1]:8081").unwrap_err().kind(), io::ErrorKind::ConnectionRefused);
    // For other hosts: not redirected.
    assert!(tcp(&pods[1], "192.0.2.9:8080").unwrap().starts_with("world "));
    assert!(tcp(&pods[1], "[2001:db8::9]:8080").unwrap().starts_with("world "));
    assert!(udp(&pods[1], "192.0.2.9:8080").unwrap().starts_with("world "));
    assert!(tcp(host, "192.0.2.9:8080").unwrap().starts_with("world "));
    assert_eq!(
        tcp(world, &format!("{own}:8080")).unwrap_err().kind(),
        io::ErrorKind::ConnectionRefused,
        "the pod's own port 8080 is not the host's"
    );
    if backend == "nftables" {
        // At once, without a timeout.
        assert_eq!(tcp(host, "[::1]:8080").unwrap_err().kind(), io::ErrorKind::ConnectionRefused);
    }
    let attachment = site.attachment(0);
    net.check(&attachment, &site.results[0]).success();
    net.deleted(&attachment, Some(&site.results[0]));
    assert_eq!(tcp(world, "192.0.2.1:8080").unwrap_err().kind(), io::ErrorKind::ConnectionRefused);
    assert_eq!(tcp(host, "127.0.0.1:8080").unwrap_err().kind(), io::ErrorKind::ConnectionRefused);
    let rules = Snapshot::of_ns(&site.host).without("link").without("route 4").without("route 6");
    assert!(rules.mentions("pod0").is_empty(), "{:?}", rules.mentions("pod0"));
    assert!(rules.mentions(&own).is_empty(), "{:?}", rules.mentions(&own));
    if backend == "nftables" {
        before.assert_same(&Snapshot::of_ns(&site.host), "after the last mapping");
    }
}

#[test]
fn nf_tables_lead_every_way_in() {
    need!("nft", "ip");
    every_way_in("nftables");
}

#[test]
fn iptables_lead_every_way_in() {
    need!("nft", "ip", "iptables-restore", "iptables-nft-save");
    every_way_in("iptables");
}

#[test]
fn masquerading_can_be_for_all_or_for_nobody() {
    need!("nft", "ip");
    for backend in ["nftables", "iptables"] {
        let site = Site::new();
        let _inside = Server::start(&site.pods[0], 80, "pod0");
        let net =
            site.network(json!([{"hostPort": 8080, "containerPort": 80}])).with("/backend", json!(backend));
        let all = net.with("/masqAll", json!(true));
        site.add(&all, 0);
        assert_eq!(tcp(&site.world, "192.0.2.1:8080").unwrap(), "pod0 10.1.2.1");
        assert_eq!(tcp(&site.world, "[2001:db8::1]:8080").unwrap(), "pod0 fd00:1:2::1");
        assert_eq!(tcp(&site.host, "127.0.0.1:8080").unwrap(), "pod0 10.1.2.1");
        assert_eq!(tcp(&site.pods[0], "192.0.2.1:8080").unwrap(), "pod0 10.1.2.1");
        all.check(&site.attachment(0), &site.results[0]).success();
        all.deleted(&site.attachment(0), None);

        let site = Site::new();
        let _inside = Server::start(&site.pods[0], 80, "pod0");
        let net = site
            .network(json!([{"hostPort": 8080, "containerPort": 80}]))
            .with("/backend", json!(backend))
            .with("/snat", json!(false));
        site.add(&net, 0);
        assert_eq!(tcp(&site.world, "192.0.2.1:8080").unwrap(), "pod0 192.0.2.9");
        assert!(tcp_is_shut(&site.pods[0], "192.0.2.1:8080"), "{backend}: no hairpin without snat");
        assert!(tcp_is_shut(&site.host, "127.0.0.1:8080"), "{backend}: no localhost without snat");
        assert_eq!(site.host.sysctl("ipv4/conf/br0/route_localnet"), "0");
    }
}

#[test]
fn the_connections_of_a_busy_udp_client_are_deleted() {
    need!("nft", "ip", "conntrack");
    for backend in ["nftables", "iptables"] {
        let site = Site::new();
        let to: SocketAddr = "192.0.2.1:5353".parse().unwrap();
        let to6: SocketAddr = "[2001:db8::1]:5353".parse().unwrap();
        let net = site
            .network(json!([{"hostPort": 5353, "containerPort": 53, "protocol": "udp"}]))
            .with("/backend", json!(backend));
        // Connection tracking starts with its first rule.
        site.add(&net.with("/runtimeConfig/portMappings", json!([{"hostPort": 1, "containerPort": 1}])), 0);
        let server = Server::start(&site.host, 5353, "host");
        let elsewhere = Server::start(&site.world, 5353, "world");
        let (client, client6) = (udp_socket(&site.world, to), udp_socket(&site.world, to6));
        assert!(ask(&client, to).unwrap().starts_with("host"));
        assert!(ask(&client6, to6).unwrap().starts_with("host"));
        // Another host's connection to the same port, forwarded here.
        let bypass: SocketAddr = "192.0.2.9:5353".parse().unwrap();
        let passing = udp_socket(&site.pods[1], bypass);
        assert!(ask(&passing, bypass).unwrap().starts_with("world"));
        let tracked = || site.host.sh("conntrack -L -p udp");
        let passes = |list: &str| list.lines().any(|line| line.contains("dst=192.0.2.9"));
        assert!(passes(&tracked()), "{}", tracked());
        drop(server);

        // The old connection is forgotten. Otherwise the client would still send to the host.
        let _inside = Server::start(&site.pods[0], 53, "pod0");
        site.add(&net, 0);
        assert!(ask(&client, to).unwrap().starts_with("pod0"), "{backend}");
        assert!(ask(&client6, to6).unwrap().starts_with("pod0"), "{backend}");
        assert!(passes(&tracked()), "{}", tracked());

        net.deleted(&site.attachment(0), Some(&site.results[0]));
        let list = tracked();
        assert!(!list.contains("dport=5353 src=10.1.2") && !list.contains("src=fd00:1:2"), "{list}");
        assert!(passes(&list), "{list}");
        let _server = Server::start(&site.host, 5353, "host");
        assert!(ask(&client, to).unwrap().starts_with("host"), "{backend}");
        assert!(ask(&client6, to6).unwrap().starts_with("host"), "{backend}");
        drop(elsewhere);
    }
}

#[test]
fn associations_of_sctp_with_fixed_ports_are_forgotten() {
    need!("nft", "ip", "conntrack");
    for (backend, mappings) in [
        ("nftables", json!([{"hostPort": 3868, "containerPort": 3000, "protocol": "sctp"}])),
        ("iptables", json!([{"hostPort": 3868, "containerPort": 3000, "protocol": "sctp"}])),
        // One walk through the table serves both protocols.
        (
            "nftables",
            json!([
                {"hostPort": 3868, "containerPort": 3000, "protocol": "sctp"},
                {"hostPort": 3868, "containerPort": 3000, "protocol": "udp"},
            ]),
        ),
    ] {
        let site = Site::new();
        let net = site.network(mappings.clone()).with("/backend", json!(backend));
        // Connection tracking starts with its first rule.
        site.add(&net.with("/runtimeConfig/portMappings", json!([{"hostPort": 1, "containerPort": 1}])), 0);
        let host = sctp::Listener::open(&site.host, "host");
        let pods = [&site.pods[0], &site.pods[1]].map(|pod| sctp::Listener::open(pod, "pod"));
        let begin = || {
            ["192.0.2.1:3868", "[2001:db8::1]:3868"]
                .map(|to| sctp::begin(&site.world, 38_680, to, &[&host, &pods[0], &pods[1]]))
        };
        assert_eq!(begin(), ["host", "host"], "{backend}");
        // Another port of the host.
        let other = sctp::begin(&site.world, 38_681, "192.0.2.1:3869", &[&host]);
        assert_eq!(other, "host");
        let tracked = || site.host.sh("conntrack -L -p sctp");
        assert!(tracked().contains("dport=3869"), "{}", tracked());

        site.add(&net, 0);
        assert!(tracked().contains("dport=3869"), "an entry of another port went: {}", tracked());
        assert_eq!(begin(), ["pod", "pod"], "{backend}, {mappings}");
        net.deleted(&site.attachment(0), Some(&site.results[0]));
        let list = tracked();
        assert!(!list.contains("dport=3868 "), "{backend}, {mappings}: {list}");
        assert_eq!(begin(), ["host", "host"], "{backend}, {mappings}");
    }
}
