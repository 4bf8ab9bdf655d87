//! Ports of the host that lead into pods: real packets through every way in, owners, costs,
//! and what the Go plugins left.
// Test code throughout: it stops at the first surprise.
#![allow(clippy::needless_pass_by_value)] // json!(…) as an argument
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use std::io;
use std::net::{SocketAddr, TcpListener, UdpSocket};

use cnimble::net::nft::Nft;
use cnimble::rules::Owner;
use cnimble::rules::portmap::{self, Backend, Forward, Mapping, Protocol};
use cnimble::spec::Attachment as Id;
use cnimble_tests::traffic::{Server, ask, tcp, udp, udp_socket};
use cnimble_tests::{Attachment, Host, Network, Ns, Snapshot, configs, go_plugins, need, skip};
use serde_json::{Value, json};

/// A node with a bridge and two pods on it, and the world behind it.
struct Site {
    host: Host,
    pods: [Ns; 2],
    world: Ns,
    results: [Value; 2],
}

impl Site {
    fn new() -> Self {
        let (host, pods, world) = (Host::new(), [Ns::new(), Ns::new()], Ns::new());
        host.cable("uplink", &world, "eth0");
        for (ns, link, addrs) in [
            (&*host, "uplink", ["192.0.2.1/24", "2001:db8::1/64"]),
            (&world, "eth0", ["192.0.2.9/24", "2001:db8::9/64"]),
        ] {
            ns.ip(&format!("addr add {} dev {link}", addrs[0]));
            ns.ip(&format!("-6 addr add {} dev {link} nodad", addrs[1]));
        }
        // The way back to the pods, for what is not masqueraded.
        world.ip("route add 10.1.2.0/24 via 192.0.2.1");
        world.ip("-6 route add fd00:1:2::/64 via 2001:db8::1");
        // Where bridges call iptables (br_netfilter), a frame that is turned round to the pod
        // that sent it stays on the bridge, and needs this.
        let bridge = Network::new(&host, configs::dual(&host)).with("/hairpinMode", json!(true));
        let results = [0, 1].map(|n| bridge.added(&Attachment::new(&format!("pod{n}"), &pods[n])));
        drop(bridge);
        Site { host, pods, world, results }
    }

    fn attachment(&self, pod: usize) -> Attachment {
        Attachment::new(&format!("pod{pod}"), &self.pods[pod])
    }

    fn network(&self, mappings: Value) -> Network<'_> {
        Network::new(
            &self.host,
            json!({
                "cniVersion": configs::newest(), "name": "net64", "type": "portmap",
                "capabilities": {"portMappings": true},
                "runtimeConfig": {"portMappings": mappings},
            }),
        )
    }

    fn add(&self, network: &Network<'_>, pod: usize) -> Value {
        let call = network.call("ADD", &self.attachment(pod), Some(&self.results[pod]));
        let result = call.run().result();
        assert_eq!(result, self.results[pod], "the result is passed on");
        result
    }

    fn ruleset(&self) -> String {
        self.host.nft("-s list ruleset")
    }
}

/// The pod's addresses in the order of the results.
fn pod_ip(result: &Value, v6: bool) -> String {
    let ips = result["ips"].as_array().unwrap();
    let found = ips.iter().map(|ip| ip["address"].as_str().unwrap()).find(|ip| ip.contains(':') == v6);
    found.unwrap().split('/').next().unwrap().to_owned()
}

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
    // The same port of somebody whom this host only has to forward to.
    let _outside = Server::start(&site.world, 8080, "world");
    let _outside2 = Server::start(&site.world, 80, "world80");
    let before = Snapshot::of_ns(&site.host);
    site.add(&net, 0);
    let (host, world, pods): (&Ns, &Ns, _) = (&site.host, &site.world, &site.pods);
    let own = pod_ip(&site.results[0], false);

    // (from, to, whom the pod sees)
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
        // The reference's chains masquerade 127.0.0.1 only.
        if backend == "iptables" && to.starts_with("127.0.0.5") {
            continue;
        }
        let answer = tcp(from, to).unwrap_or_else(|err| panic!("tcp {to} to be seen as {seen}: {err}"));
        assert!(answer.starts_with("pod0 ") && answer.ends_with(seen), "tcp {to}: {answer}");
        let answer = udp(from, to).unwrap_or_else(|| panic!("udp {to}: no answer"));
        assert!(answer.starts_with("pod0 ") && answer.ends_with(seen), "udp {to}: {answer}");
    }
    // One address of the host only.
    assert!(tcp(world, "192.0.2.1:8081").unwrap().starts_with("pod0"));
    assert!(udp(world, "[2001:db8::1]:8081").unwrap().starts_with("pod0"));
    assert_eq!(tcp(&pods[1], "10.1.2.1:8081").unwrap_err().kind(), io::ErrorKind::ConnectionRefused);
    assert_eq!(tcp(host, "127.0.0.1:8081").unwrap_err().kind(), io::ErrorKind::ConnectionRefused);
    assert_eq!(tcp(world, "[2001:db8::1]:8081").unwrap_err().kind(), io::ErrorKind::ConnectionRefused);
    // Not ours: what only passes through.
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
        // Nobody waits for minutes.
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
        assert!(tcp(&site.pods[0], "192.0.2.1:8080").is_err(), "{backend}: no hairpin without snat");
        assert!(tcp(&site.host, "127.0.0.1:8080").is_err(), "{backend}: no localhost without snat");
        assert_eq!(site.host.sysctl("ipv4/conf/br0/route_localnet"), "0");
    }
}

#[test]
fn nobody_else_reaches_localhost() {
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
        assert_eq!(site.host.sysctl("ipv4/conf/br0/route_localnet"), "1");
        assert_eq!(site.host.sysctl("ipv4/conf/uplink/route_localnet"), "0");

        // A pod that sends its packets for 127.0.0.1 to the host.
        pod.set_sysctl("ipv4/conf/eth0/route_localnet", "1");
        pod.ip("addr del 127.0.0.1/8 dev lo");
        pod.ip("route add 127.0.0.1/32 via 10.1.2.1 dev eth0");
        assert_eq!(udp(pod, "127.0.0.1:9999"), None, "{backend}");
        assert!(tcp(pod, "127.0.0.1:9999").is_err(), "{backend}");
        // Nor the pod's port by that way.
        assert!(tcp(pod, "127.0.0.1:8080").is_err(), "{backend}");

        // That it was the guard who kept it away:
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
        (json!([{"hostPort": 8080, "containerPort": 80}]), json!({}), "1"),
        (json!([{"hostPort": 8080, "containerPort": 80, "hostIP": "127.0.0.1"}]), json!({}), "1"),
        (json!([{"hostPort": 8080, "containerPort": 80, "hostIP": "0.0.0.0"}]), json!({}), "1"),
        (json!([{"hostPort": 8080, "containerPort": 80, "hostIP": "192.0.2.1"}]), json!({}), "0"),
        (json!([{"hostPort": 8080, "containerPort": 80, "hostIP": "::"}]), json!({}), "0"),
        (json!([{"hostPort": 8080, "containerPort": 80}]), json!(false), "0"),
    ] {
        let site = Site::new();
        let mut net = site.network(mappings.clone());
        if more == json!(false) {
            net = net.with("/snat", more);
        }
        site.add(&net, 0);
        assert_eq!(site.host.sysctl("ipv4/conf/br0/route_localnet"), open, "{mappings}");
    }
}

#[test]
fn a_port_that_is_taken_names_its_owner() {
    need!("nft", "ip");
    let site = Site::new();
    let tcp8080 = json!({"hostPort": 8080, "containerPort": 80, "protocol": "tcp"});
    let first = site.network(
        json!([tcp8080, {"hostPort": 53, "containerPort": 53, "protocol": "udp", "hostIP": "192.0.2.1"}]),
    );
    site.add(&first, 0);
    let before = Snapshot::of_ns(&site.host);
    let refused = |mappings: Value| {
        let net = site.network(mappings.clone());
        let outcome = net.call("ADD", &site.attachment(1), Some(&site.results[1])).run();
        let err = outcome.error();
        assert_eq!(err.code, 102, "{mappings}: {}", err.all());
        assert!(err.all().contains("net: net64, if: eth0, id: pod0"), "{}", err.all());
        before.assert_same(&Snapshot::of_ns(&site.host), "after the refusal");
        err.all()
    };
    let text = refused(json!([{"hostPort": 7000, "containerPort": 80}, tcp8080]));
    assert!(text.contains("host port 8080/tcp is already taken"), "{text}");
    // Part of a port that somebody has all of, and all of a port that somebody has a part of.
    refused(json!([{"hostPort": 8080, "containerPort": 80, "hostIP": "192.0.2.1"}]));
    refused(json!([{"hostPort": 8080, "containerPort": 80, "hostIP": "::"}]));
    let text = refused(json!([{"hostPort": 53, "containerPort": 80, "protocol": "udp"}]));
    assert!(text.contains("host port 53/udp of 192.0.2.1 is already taken"), "{text}");
    refused(json!([{"hostPort": 53, "containerPort": 80, "protocol": "UDP", "hostIP": "192.0.2.1"}]));
    // Others are free.
    let others = site.network(json!([
        {"hostPort": 8080, "containerPort": 80, "protocol": "udp"},
        {"hostPort": 53, "containerPort": 53, "protocol": "udp", "hostIP": "10.1.2.1"},
        {"hostPort": 53, "containerPort": 53, "protocol": "tcp"},
    ]));
    site.add(&others, 1);

    // The owner itself comes again, with another port in the pod: replaced.
    let again = site.network(json!([
        {"hostPort": 8080, "containerPort": 81, "protocol": "tcp"},
        {"hostPort": 8080, "containerPort": 82, "protocol": "tcp", "hostIP": "192.0.2.1"},
    ]));
    site.add(&again, 0);
    let _one = Server::start(&site.pods[0], 81, "eightyone");
    let _two = Server::start(&site.pods[0], 82, "eightytwo");
    assert!(tcp(&site.world, "192.0.2.1:8080").unwrap().starts_with("eightytwo"));
    assert!(tcp(&site.host, "10.1.2.1:8080").unwrap().starts_with("eightyone"));
    again.check(&site.attachment(0), &site.results[0]).success();
    // When it has gone, the port is free.
    again.deleted(&site.attachment(0), None);
    site.add(&site.network(json!([tcp8080])), 1);
}

/// System calls that send or receive, of one ADD.
fn messages(site: &Site, net: &Network<'_>, attachment: &Attachment, prev: &Value) -> usize {
    let log = site.host.dir().join("strace");
    let wrapper =
        ["strace", "-qq", "-e", "trace=sendto,sendmsg,recvfrom,recvmsg", "-o", log.to_str().unwrap()];
    net.call("ADD", attachment, Some(prev)).under(&wrapper).run().success();
    let trace = std::fs::read_to_string(log).unwrap();
    trace.lines().count()
}

#[test]
fn a_mapping_costs_the_same_among_five_hundred() {
    need!("nft", "ip", "strace");
    let site = Site::new();
    let one = |port: u16| site.network(json!([{"hostPort": port, "containerPort": 80, "protocol": "tcp"}]));
    // The first makes the table.
    site.add(&one(9001), 1);
    let third = Attachment::new("third", &site.pods[1]);
    let mut prev = site.results[1].clone();
    prev["ips"] = json!([{"address": "10.1.2.77/24"}, {"address": "fd00:1:2::77/64"}]);
    let alone = messages(&site, &one(9000), &third, &prev);
    one(9000).deleted(&third, None);

    let many: Vec<Value> = (0..500)
        .map(|n| json!({"hostPort": 10_000 + n, "containerPort": n + 1, "protocol": "tcp"}))
        .collect();
    let many = site.network(json!(many));
    let all = messages(&site, &many, &site.attachment(0), &site.results[0]);
    assert_eq!(all, alone, "500 mappings in one ADD take as many messages as one");
    assert_eq!(site.ruleset().matches("id: pod0").count(), 1000 + 3);
    let among = messages(&site, &one(9000), &third, &prev);
    assert_eq!(among, alone, "one mapping among 500");
    println!("{alone} messages");

    let _inside = Server::start(&site.pods[0], 500, "last");
    assert!(tcp(&site.world, "192.0.2.1:10499").unwrap().starts_with("last"));
    assert!(tcp(&site.world, "[2001:db8::1]:10499").unwrap().starts_with("last"));
    many.check(&site.attachment(0), &site.results[0]).success();
    // Another one wants the last of them.
    let net = site.network(json!([{"hostPort": 10_499, "containerPort": 1}]));
    let outcome = net.call("ADD", &site.attachment(1), Some(&site.results[1])).run();
    assert_eq!(outcome.error().code, 102);
    many.deleted(&site.attachment(0), None);
    assert!(!site.ruleset().contains("pod0") && site.ruleset().contains("pod1"));
}

#[test]
fn what_a_busy_udp_client_is_used_to_is_forgotten() {
    need!("nft", "ip", "conntrack");
    for backend in ["nftables", "iptables"] {
        let site = Site::new();
        let to: SocketAddr = "192.0.2.1:5353".parse().unwrap();
        let to6: SocketAddr = "[2001:db8::1]:5353".parse().unwrap();
        let net = site
            .network(json!([{"hostPort": 5353, "containerPort": 53, "protocol": "udp"}]))
            .with("/backend", json!(backend));
        // Tracking begins with the first rule that needs it.
        site.add(&net.with("/runtimeConfig/portMappings", json!([{"hostPort": 1, "containerPort": 1}])), 0);
        let server = Server::start(&site.host, 5353, "host");
        let elsewhere = Server::start(&site.world, 5353, "world");
        let (client, client6) = (udp_socket(&site.world, to), udp_socket(&site.world, to6));
        assert!(ask(&client, to, 3).unwrap().starts_with("host"));
        assert!(ask(&client6, to6, 3).unwrap().starts_with("host"));
        // Somebody else's connection to the same port, through this host.
        let bypass: SocketAddr = "192.0.2.9:5353".parse().unwrap();
        let passing = udp_socket(&site.pods[1], bypass);
        assert!(ask(&passing, bypass, 3).unwrap().starts_with("world"));
        let tracked = || site.host.sh("conntrack -L -p udp");
        let passes = |list: &str| list.lines().any(|line| line.contains("dst=192.0.2.9"));
        assert!(passes(&tracked()), "{}", tracked());
        drop(server);

        // Without forgetting, the client would go on talking to the host, where nobody listens.
        let _inside = Server::start(&site.pods[0], 53, "pod0");
        site.add(&net, 0);
        assert!(ask(&client, to, 3).unwrap().starts_with("pod0"), "{backend}");
        assert!(ask(&client6, to6, 3).unwrap().starts_with("pod0"), "{backend}");
        assert!(passes(&tracked()), "{}", tracked());

        // The pod goes; the client must not be sent after it.
        net.deleted(&site.attachment(0), Some(&site.results[0]));
        let list = tracked();
        assert!(!list.contains("dport=5353 src=10.1.2") && !list.contains("src=fd00:1:2"), "{list}");
        assert!(passes(&list), "{list}");
        let _server = Server::start(&site.host, 5353, "host");
        assert!(ask(&client, to, 3).unwrap().starts_with("host"), "{backend}");
        assert!(ask(&client6, to6, 3).unwrap().starts_with("host"), "{backend}");
        drop(elsewhere);
    }
}

#[test]
fn every_del_removes_all_and_only_its_own() {
    need!("nft", "ip");
    for backend in ["nftables", "iptables"] {
        let site = Site::new();
        let net = |port: u16| {
            site.network(json!([
                {"hostPort": port, "containerPort": 80, "protocol": "tcp"},
                {"hostPort": port, "containerPort": 80, "protocol": "udp", "hostIP": "127.0.0.1"},
            ]))
            .with("/backend", json!(backend))
        };
        site.add(&net(7001), 1);
        let before = Snapshot::of_ns(&site.host);
        let prev = &site.results[0];
        let here = site.attachment(0);
        let gone = here.clone().netns("/proc/999999999/ns/net");
        let empty = here.clone().netns("");
        let bare = Network::new(
            &site.host,
            json!({"cniVersion": configs::newest(), "name": "net64", "type": "portmap"}),
        );
        let broken = net(7000).with("/backend", json!("other"));
        for (what, net_at_del, attachment, prev_at_del) in [
            ("all there", &net(7000), &here, Some(prev)),
            ("no prevResult", &net(7000), &here, None),
            ("no namespace", &net(7000), &empty, Some(prev)),
            ("nothing but the ID", &bare, &empty, None),
            ("a path that is gone", &net(7000), &gone, Some(prev)),
            ("another port", &net(7777), &here, Some(prev)),
            ("a broken configuration", &broken, &empty, None),
        ] {
            site.add(&net(7000), 0);
            assert!(!before.diff(&Snapshot::of_ns(&site.host)).is_empty(), "{what}: nothing was added");
            net_at_del.deleted(attachment, prev_at_del);
            before.assert_same(&Snapshot::of_ns(&site.host), what);
            net_at_del.deleted(attachment, prev_at_del);
        }
        // On a host where nothing ever was.
        let fresh = Host::new();
        let untouched = Snapshot::of(&fresh);
        Network::new(&fresh, bare.config.clone()).deleted(&empty, None);
        untouched.assert_same(&Snapshot::of(&fresh), "DEL on an untouched host");
    }
}

#[test]
fn nothing_to_map_is_passed_through() {
    need!("nft", "ip");
    let host = Host::new();
    let pod = Ns::new();
    let before = Snapshot::of(&host);
    let prev = json!({
        "cniVersion": "0.4.0", "interfaces": [{"name": "eth0", "sandbox": "/x"}],
        "ips": [{"version": "4", "interface": 0, "address": "10.1.2.3/24", "gateway": "10.1.2.1"}],
        "routes": [{"dst": "0.0.0.0/0"}], "dns": {"nameservers": ["192.0.2.53"]},
    });
    for more in [
        json!({}),
        json!({"runtimeConfig": null}),
        json!({"runtimeConfig": {}}),
        json!({"runtimeConfig": {"portMappings": null}}),
        json!({"RuntimeConfig": {"PortMappings": []}}),
        json!({"snat": true, "capabilities": {"portMappings": true}}),
    ] {
        let mut config = json!({"cniVersion": "0.4.0", "name": "n", "type": "portmap"});
        config.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let net = Network::new(&host, config);
        let attachment = Attachment::new("c", &pod);
        let result = net.call("ADD", &attachment, Some(&prev)).run().result();
        assert_eq!(result, prev, "{more}");
        net.check(&attachment, &prev).success();
        net.deleted(&attachment, Some(&prev));
        // Chained it must be, all the same.
        let err = net.add(&attachment).error();
        assert!(err.code == 7 && err.msg.contains("must be called as chained plugin"), "{}", err.all());
    }
    before.assert_same(&Snapshot::of(&host), "with nothing to map");
}

#[test]
fn bad_input_is_one_clear_error_and_changes_nothing() {
    need!("nft", "ip");
    let host = Host::new();
    let pod = Ns::new();
    let before = Snapshot::of(&host);
    let prev = json!({"cniVersion": "1.0.0", "ips": [{"address": "10.1.2.3/24"}]});
    let net = |more: Value| {
        let mut config = json!({"cniVersion": "1.0.0", "name": "n", "type": "portmap"});
        config.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        Network::new(&host, config)
    };
    let ports = |list: Value| json!({"runtimeConfig": {"portMappings": list}});
    for (more, part) in [
        (ports(json!([{"hostPort": 0, "containerPort": 1}])), "hostPort: 0 is not a port"),
        (ports(json!([{"hostPort": 65536, "containerPort": 1}])), "portMappings[0].hostPort"),
        (ports(json!([{"hostPort": 1, "containerPort": "x"}])), "portMappings[0].containerPort"),
        (ports(json!([{"hostPort": 1, "containerPort": 1, "protocol": "icmp"}])), "unknown protocol"),
        (ports(json!([{"hostPort": 1, "containerPort": 1, "hostIP": "::g"}])), "portMappings[0].hostIP"),
        (ports(json!([{"hostPort": 1, "containerPort": 1}, {"hostPort": 1, "containerPort": 1}])), "already"),
        (ports(json!({"hostPort": 1})), "portMappings"),
        (json!({"backend": "pf"}), "unknown backend"),
        (json!({"backend": "nftables", "conditionsV4": ["-d", "192.0.2.1"]}), "conditionsV4"),
        (json!({"markMasqBit": 99}), "markMasqBit"),
        (json!({"snat": "yes"}), "snat"),
    ] {
        let net = net(more.clone());
        for verb in ["ADD", "CHECK"] {
            let err = net.call(verb, &Attachment::new("c", &pod), Some(&prev)).run().error();
            assert_eq!(err.code, 7, "{more}: {}", err.all());
            assert!(err.msg.contains(part), "{more}: {}", err.all());
        }
    }
    before.assert_same(&Snapshot::of(&host), "after refusals");
}

fn owner(id: &str) -> Owner {
    Owner { network: "net64".into(), attachment: Id { container_id: id.into(), ifname: "eth0".into() } }
}

fn forward(ports: &[u16], addrs: &[&str]) -> Forward {
    Forward {
        mappings: ports
            .iter()
            .map(|port| Mapping {
                protocol: Protocol::Tcp,
                host_ip: None,
                host_port: *port,
                container_port: 80,
            })
            .collect(),
        addrs: addrs.iter().map(|addr| addr.parse().unwrap()).collect(),
        snat: true,
        masq_all: false,
        mark_bit: 13,
        external_mark_chain: None,
        conditions_v4: Vec::new(),
        conditions_v6: Vec::new(),
    }
}

#[test]
fn undo_is_exact() {
    need!("nft", "ip");
    let host = Ns::new();
    host.ip("link add br0 type bridge");
    host.ip("addr add 10.1.2.1/24 dev br0");
    host.ip("link set br0 up");
    let before = Snapshot::of_ns(&host);
    let add = |id: &str, forward: &Forward| {
        host.within(|| portmap::add(Backend::Auto, &mut Nft::new(), &owner(id), forward).unwrap())
    };
    // Alone: not even the table stays, and localhost is closed again.
    let one = forward(&[80, 81], &["10.1.2.3/24", "fd00::3/64"]);
    let undo = add("a", &one);
    assert_eq!(host.sysctl("ipv4/conf/br0/route_localnet"), "1");
    host.within(|| undo.run().unwrap());
    before.assert_same(&Snapshot::of_ns(&host), "undo of the only one");

    // With another one, which needs the table and localhost.
    let undo = add("a", &one);
    let two = forward(&[82], &["10.1.2.4/24"]);
    let second = add("b", &two);
    host.within(|| undo.run().unwrap());
    let ruleset = host.nft("-s list ruleset");
    assert!(!ruleset.contains("id: a") && ruleset.contains("id: b"), "{ruleset}");
    assert_eq!(host.sysctl("ipv4/conf/br0/route_localnet"), "1");
    host.within(|| portmap::check(&mut Nft::new(), &owner("b"), &two).unwrap());
    host.within(|| second.run().unwrap());
    assert!(!host.nft("-s list ruleset").contains("id: "));
}

#[test]
fn masquerading_and_mapping_share_the_table() {
    need!("nft", "ip");
    use cnimble::rules::masquerade;
    let host = Ns::new();
    let before = Snapshot::of_ns(&host);
    let addrs = vec!["10.1.2.3/24".parse().unwrap()];
    let mut one = forward(&[80], &["10.1.2.3/24"]);
    one.snat = false;
    let masq = |id: &str| {
        host.within(|| {
            masquerade::add(masquerade::Backend::Nftables, &mut Nft::new(), &owner(id), &addrs).unwrap()
        })
    };
    let map = |id: &str| {
        host.within(|| portmap::add(Backend::Nftables, &mut Nft::new(), &owner(id), &one).unwrap())
    };
    // Either may come first, and either may go first.
    for order in 0..4 {
        let (masquerading, mapping) = if order & 1 == 0 {
            let masquerading = masq("a");
            (masquerading, map("a"))
        } else {
            let mapping = map("a");
            (masq("a"), mapping)
        };
        host.within(|| {
            masquerade::check(&mut Nft::new(), &owner("a"), &addrs).unwrap();
            portmap::check(&mut Nft::new(), &owner("a"), &one).unwrap();
        });
        if order & 2 == 0 {
            host.within(|| masquerading.run().unwrap());
            host.within(|| portmap::check(&mut Nft::new(), &owner("a"), &one).unwrap());
            host.within(|| mapping.run().unwrap());
        } else {
            host.within(|| mapping.run().unwrap());
            host.within(|| masquerade::check(&mut Nft::new(), &owner("a"), &addrs).unwrap());
            host.within(|| masquerading.run().unwrap());
        }
        before.assert_same(&Snapshot::of_ns(&host), &format!("order {order}"));
    }
    // DEL and GC of the one leave the other.
    let _ = (masq("a"), map("a"));
    host.within(|| masquerade::remove(&mut Nft::new(), &owner("a"), &[]).unwrap());
    host.within(|| portmap::check(&mut Nft::new(), &owner("a"), &one).unwrap());
    masq("a");
    host.within(|| portmap::remove(&mut Nft::new(), &owner("a"), None).unwrap());
    host.within(|| masquerade::check(&mut Nft::new(), &owner("a"), &addrs).unwrap());
    map("a");
    host.within(|| masquerade::gc(&mut Nft::new(), "net64", &[]).unwrap());
    host.within(|| portmap::check(&mut Nft::new(), &owner("a"), &one).unwrap());
    masq("a");
    host.within(|| portmap::gc(&mut Nft::new(), "net64", &[]).unwrap());
    host.within(|| masquerade::check(&mut Nft::new(), &owner("a"), &addrs).unwrap());
}

#[test]
fn many_race_for_one_port() {
    need!("nft", "ip");
    for _ in 0..3 {
        let host = Ns::new();
        let won: usize = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..8)
                .map(|n| {
                    let host = &host;
                    scope.spawn(move || {
                        let mut forward = forward(&[80, 9000 + n], &[&format!("10.1.2.{}/24", n + 2)]);
                        forward.snat = n % 2 == 0;
                        let made = host.within(|| {
                            portmap::add(Backend::Nftables, &mut Nft::new(), &owner(&n.to_string()), &forward)
                        });
                        if let Err(err) = &made {
                            assert_eq!(err.code.0, 102, "{err}");
                        }
                        usize::from(made.is_ok())
                    })
                })
                .collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).sum()
        });
        assert_eq!(won, 1);
        let ruleset = host.nft("-s list ruleset");
        assert_eq!(ruleset.matches("tcp . 90").count(), 1, "{ruleset}");
    }
}

#[test]
fn gc_keeps_the_valid_and_other_networks() {
    need!("nft", "ip");
    for backend in ["nftables", "iptables"] {
        let site = Site::new();
        let net = |name: &str, port: u16| {
            site.network(json!([{"hostPort": port, "containerPort": 80}]))
                .with("/backend", json!(backend))
                .with("/name", json!(name))
        };
        let attachments = [0, 1].map(|pod| site.attachment(pod));
        let (keep, stale, other) = (net("net64", 7000), net("net64", 7001), net("other", 7002));
        site.add(&keep, 0);
        site.add(&stale, 1);
        let mut elsewhere = site.results[1].clone();
        elsewhere["ips"] = json!([{"address": "10.1.2.99/24", "interface": 2}]);
        other.call("ADD", &attachments[1], Some(&elsewhere)).run().success();
        // Nothing listed, nothing cleaned.
        keep.gc(None).success();
        stale.check(&attachments[1], &site.results[1]).success();
        keep.gc(Some(json!([attachments[0].listed()]))).success();
        keep.check(&attachments[0], &site.results[0]).success();
        other.check(&attachments[1], &elsewhere).success();
        assert_eq!(stale.check(&attachments[1], &site.results[1]).error().code, 103);
        keep.gc(Some(Value::Null)).success();
        assert_eq!(keep.check(&attachments[0], &site.results[0]).error().code, 103);
        other.check(&attachments[1], &elsewhere).success();
        other.gc(Some(json!([]))).success();
        let left = Snapshot::of_ns(&site.host).without("link");
        assert!(left.mentions("pod1").is_empty(), "{:?}", left.mentions("pod1"));
    }
}

#[test]
fn check_says_what_is_missing() {
    need!("nft", "ip");
    let site = Site::new();
    let net = site.network(json!([{"hostPort": 8080, "containerPort": 80, "protocol": "tcp"}]));
    let attachment = site.attachment(0);
    net.status().success();
    for (damage, part) in [
        ("nft delete element inet cnimble portmap4 { tcp . 8080 }", "portmap4 has no element tcp . 8080"),
        ("nft flush chain inet cnimble portmap", "portmap has no rule for portmap4"),
        ("nft flush chain inet cnimble portmap-output", "portmap-output has no rule"),
        ("nft flush chain inet cnimble portmap-postrouting", "portmap-postrouting has no rule"),
        (
            "nft flush set inet cnimble portmap-hairpin-10.1.2.0/24",
            "portmap-hairpin-10.1.2.0/24 has no element",
        ),
        ("nft flush ruleset", "has no element"),
    ] {
        let site = Site::new();
        let net = net.with("/name", json!("net64"));
        let net = Network { host: &site.host, ..net };
        let attachment = site.attachment(0);
        site.add(&net, 0);
        net.check(&attachment, &site.results[0]).success();
        site.host.sh(damage);
        let err = net.check(&attachment, &site.results[0]).error();
        assert_eq!(err.code, 103, "{damage}: {}", err.all());
        assert!(err.all().contains(part), "{damage}: {}", err.all());
    }
    site.add(&net, 0);
    site.host.set_sysctl("ipv4/conf/br0/route_localnet", "0");
    let err = net.check(&attachment, &site.results[0]).error();
    assert!(err.code == 103 && err.all().contains("route_localnet"), "{}", err.all());
    // Other ports than those that were mapped.
    site.host.set_sysctl("ipv4/conf/br0/route_localnet", "1");
    net.check(&attachment, &site.results[0]).success();
    let err =
        site.network(json!([{"hostPort": 8081, "containerPort": 80}])).check(&attachment, &site.results[0]);
    assert_eq!(err.error().code, 103);
    let err =
        site.network(json!([{"hostPort": 8080, "containerPort": 81}])).check(&attachment, &site.results[0]);
    assert!(err.error().all().contains("leads elsewhere"));
}

/// All rules of iptables that name a container, or its chain.
fn iptables_rules(ns: &Ns) -> String {
    ns.shell("iptables-nft-save -t nat; ip6tables-nft-save -t nat")
        .lines()
        .filter(|line| line.contains("CNI-"))
        .map(|line| format!("{line}\n"))
        .collect()
}

#[test]
fn iptables_chains_of_the_go_plugin_are_known() {
    need!("nft", "ip", "iptables-nft-save");
    let Some(go) = go_plugins() else { skip!("the Go plugins are not installed") };
    let site = Site::new();
    let config = |ports: Value| site.network(ports).with("/cniVersion", json!("1.0.0"));
    let mut prev = site.results.clone();
    for prev in &mut prev {
        prev["cniVersion"] = json!("1.0.0");
        for interface in prev["interfaces"].as_array_mut().unwrap() {
            interface.as_object_mut().unwrap().remove("mtu");
        }
    }
    let ours = config(json!([{"hostPort": 8080, "containerPort": 80, "protocol": "tcp"},
                             {"hostPort": 8081, "containerPort": 80, "protocol": "udp"}]));
    let theirs = ours.served_by(go);
    let other = config(json!([{"hostPort": 9090, "containerPort": 80, "protocol": "tcp"}]));
    let attachments = [0, 1].map(|pod| site.attachment(pod));
    let add = |net: &Network<'_>, pod: usize| {
        net.call("ADD", &attachments[pod], Some(&prev[pod])).run().result();
    };
    add(&other.served_by(go), 1);
    let before = iptables_rules(&site.host);
    add(&theirs, 0);
    let made = iptables_rules(&site.host);
    assert_ne!(made, before);

    // CHECK is content, for these ports.
    ours.check(&attachments[0], &prev[0]).success();
    let more = config(
        json!([{"hostPort": 1, "containerPort": 1, "protocol": "tcp"}, {"hostPort": 2, "containerPort": 1, "protocol": "tcp"},
                             {"hostPort": 3, "containerPort": 1, "protocol": "tcp"}]),
    );
    assert_eq!(more.check(&attachments[0], &prev[0]).error().code, 103);
    // DEL without anything but the ID.
    let bare = ours.with("/runtimeConfig", Value::Null);
    bare.deleted(&attachments[0].clone().netns(""), None);
    assert_eq!(iptables_rules(&site.host), before);

    // GC.
    add(&theirs, 0);
    ours.with("/cniVersion", json!("1.1.0")).gc(Some(json!([attachments[1].listed()]))).success();
    assert_eq!(iptables_rules(&site.host), before);
    ours.with("/cniVersion", json!("1.1.0")).with("/name", json!("elsewhere")).gc(Some(json!([]))).success();
    assert_eq!(iptables_rules(&site.host), before);

    // Our backend makes the same, in another order; and they remove ours.
    let sorted = |text: &str| {
        let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
        lines.sort();
        lines
    };
    let iptables = ours.with("/backend", json!("iptables"));
    add(&iptables, 0);
    assert_eq!(sorted(&iptables_rules(&site.host)), sorted(&made));
    iptables.check(&attachments[0], &prev[0]).success();
    add(&iptables, 0);
    assert_eq!(sorted(&iptables_rules(&site.host)), sorted(&made), "again: nothing is there twice");
    theirs.del(&attachments[0], Some(&prev[0])).success();
    assert_eq!(iptables_rules(&site.host), before);
}

#[test]
fn nft_rules_of_newer_go_plugins_are_known() {
    need!("nft", "ip");
    let site = Site::new();
    // As version 1.9 writes them; the packaged one is too old to.
    let (ip, ip6) = (pod_ip(&site.results[0], false), pod_ip(&site.results[0], true));
    let table = |family: &str, to: &str, addr: &str| {
        format!(
            "table {family} cni_hostport {{
                comment \"CNI portmap plugin\";
                chain hostports {{
                    tcp dport 8080 dnat to {to}:80 comment \"pod0\"
                    tcp dport 9090 dnat to {to}:80 comment \"pod1\"
                }}
                chain hostip_hostports {{ }}
                chain prerouting {{
                    type nat hook prerouting priority dstnat; policy accept;
                    jump hostip_hostports
                    jump hostports
                }}
                chain output {{
                    type nat hook output priority -100; policy accept;
                    jump hostip_hostports
                    fib daddr type local jump hostports
                }}
                chain masquerading {{
                    type nat hook postrouting priority srcnat; policy accept;
                    {family} saddr {addr} {family} daddr {addr} masquerade comment \"pod0\"
                }}
            }}\n"
        )
    };
    let load = table("ip", &ip, &ip) + &table("ip6", &format!("[{ip6}]"), &ip6);
    site.host.run_with("nft -f -", load.as_bytes()).success();
    site.host.set_sysctl("ipv4/conf/br0/route_localnet", "1");
    let net = site.network(json!([{"hostPort": 8080, "containerPort": 80, "protocol": "tcp"}]));
    let attachment = site.attachment(0);
    net.check(&attachment, &site.results[0]).success();
    // Whose network it is can't be told.
    net.gc(Some(json!([]))).success();
    assert!(site.ruleset().contains("pod0"));
    net.with("/runtimeConfig", Value::Null).deleted(&attachment.netns(""), None);
    let left = site.ruleset();
    assert!(!left.contains("pod0") && left.contains("pod1"), "{left}");
}

#[test]
fn conditions_and_a_mark_of_others_take_iptables() {
    need!("nft", "ip", "iptables-nft-save");
    let site = Site::new();
    let net = site.network(json!([{"hostPort": 8080, "containerPort": 80, "protocol": "tcp"}]));
    let _inside = Server::start(&site.pods[0], 80, "pod0");
    let conditional = net.with("/conditionsV4", json!(["!", "-s", "192.0.2.9"]));
    site.add(&conditional, 0);
    assert!(tcp(&site.world, "192.0.2.1:8080").is_err());
    assert!(tcp(&site.world, "[2001:db8::1]:8080").unwrap().starts_with("pod0"));
    assert!(tcp(&site.host, "127.0.0.1:8080").unwrap().starts_with("pod0"));
    net.deleted(&site.attachment(0), None);

    site.host.sh("iptables -t nat -N KUBE-MARK-MASQ");
    site.host.sh("ip6tables -t nat -N KUBE-MARK-MASQ");
    let external = net.with("/externalSetMarkChain", json!("KUBE-MARK-MASQ"));
    site.add(&external, 0);
    let rules = site.host.shell("iptables-nft-save -t nat");
    assert!(rules.contains("-j KUBE-MARK-MASQ"), "{rules}");
    net.deleted(&site.attachment(0), None);
    // What iptables says is told, and nothing stays.
    let before = iptables_rules(&site.host);
    let wrong = net.with("/conditionsV4", json!(["--no-such-thing"]));
    let err = wrong.call("ADD", &site.attachment(0), Some(&site.results[0])).run().error();
    assert!(err.all().contains("iptables-restore failed"), "{}", err.all());
    assert_eq!(iptables_rules(&site.host), before);

    let marked = net.with("/backend", json!("iptables")).with("/markMasqBit", json!(20));
    let site = Site::new();
    let marked = Network { host: &site.host, ..marked };
    site.add(&marked, 0);
    assert!(site.host.shell("iptables-nft-save -t nat").contains("0x100000/0x100000"));
}

/// The pod of docs/NFTABLES.md.
#[test]
fn the_documented_ruleset_is_real() {
    need!("nft");
    let ns = Ns::new();
    let mapping = |protocol, host_ip: Option<&str>, host_port, container_port| Mapping {
        protocol,
        host_ip: host_ip.map(|ip| ip.parse().unwrap()),
        host_port,
        container_port,
    };
    let mut shop = forward(&[], &["10.1.0.4/16"]);
    shop.mappings =
        vec![mapping(Protocol::Tcp, None, 8080, 80), mapping(Protocol::Udp, Some("192.0.2.1"), 53, 5353)];
    let owner = Owner {
        network: "cluster".into(),
        attachment: Id { container_id: "shop-1".into(), ifname: "eth0".into() },
    };
    ns.within(|| portmap::add(Backend::Nftables, &mut Nft::new(), &owner, &shop).unwrap());
    let real = ns.nft("list ruleset");
    let page = include_str!("../docs/NFTABLES.md");
    let section = page.split("## Port mappings").nth(1).unwrap();
    let shown = section.split("```nft\n").nth(1).unwrap().split("```").next().unwrap();
    assert_eq!(shown, real, "docs/NFTABLES.md shows\n{shown}\nbut it is\n{real}");
    // It can be loaded again, and is the same then.
    let other = Ns::new();
    other.run_with("nft -f -", real.as_bytes()).success();
    assert_eq!(other.nft("list ruleset"), real);
}

#[test]
fn legacy_iptables_is_filled_and_cleaned() {
    need!("nft", "ip", "iptables-legacy", "iptables-legacy-save");
    let site = Site::new();
    if site.host.run("iptables-legacy -t nat -S").status != 0 {
        skip!("this kernel has no legacy iptables");
    }
    let bin = site.host.dir().join("bin");
    std::fs::create_dir(&bin).unwrap();
    for family in ["iptables", "ip6tables"] {
        for action in ["", "-save", "-restore"] {
            let target = format!("/usr/sbin/{family}-legacy{action}");
            std::os::unix::fs::symlink(target, bin.join(format!("{family}{action}"))).unwrap();
        }
    }
    let path = format!("{}:/usr/sbin:/usr/bin:/sbin:/bin", bin.display());
    let rules = || {
        site.host
            .shell("iptables-legacy-save; ip6tables-legacy-save")
            .lines()
            .filter(|line| line.contains("CNI-"))
            .map(|line| format!("{}\n", line.split(" [").next().unwrap()))
            .collect::<String>()
    };
    let mut net = site
        .network(json!([{"hostPort": 8080, "containerPort": 80, "protocol": "tcp"}]))
        .with("/backend", json!("iptables"));
    net.path = Some(path.clone());
    let mut other = site
        .network(json!([{"hostPort": 9090, "containerPort": 80, "protocol": "tcp"}]))
        .with("/backend", json!("iptables"));
    other.path = Some(path);
    let _inside = Server::start(&site.pods[0], 80, "pod0");
    site.add(&other, 1);
    let before = rules();
    site.add(&net, 0);
    let made = rules();
    assert!(made.contains("CNI-DN-") && made != before, "{made}");
    assert!(site.ruleset().is_empty(), "{}", site.ruleset());
    assert!(tcp(&site.world, "192.0.2.1:8080").unwrap().starts_with("pod0"));
    assert_eq!(tcp(&site.host, "127.0.0.1:8080").unwrap(), "pod0 10.1.2.1");
    net.check(&site.attachment(0), &site.results[0]).success();
    // Again: nothing is there twice.
    site.add(&net, 0);
    assert_eq!(rules().lines().count(), made.lines().count(), "{}", rules());
    net.deleted(&site.attachment(0).netns(""), None);
    assert_eq!(rules(), before);
    assert_eq!(net.check(&site.attachment(0), &site.results[0]).error().code, 103);
    site.add(&net, 0);
    net.gc(Some(json!([site.attachment(1).listed()]))).success();
    assert_eq!(rules(), before);
    net.status().success();
}

#[test]
fn a_result_that_nobody_reads_is_taken_back() {
    need!("nft", "ip");
    for backend in ["nftables", "iptables"] {
        let site = Site::new();
        let net = site
            .network(json!([{"hostPort": 8080, "containerPort": 80}, {"hostPort": 53, "containerPort": 53, "protocol": "udp"}]))
            .with("/backend", json!(backend));
        // What containers share of iptables stays, as the reference's does.
        site.add(&net, 1);
        net.deleted(&site.attachment(1), None);
        site.host.set_sysctl("ipv4/conf/br0/route_localnet", if backend == "iptables" { "1" } else { "0" });
        let before = Snapshot::of_ns(&site.host);
        let call = net.call("ADD", &site.attachment(0), Some(&site.results[0]));
        let outcome = call.under(&["sh", "-c", "exec \"$0\" >/dev/full"]).run();
        assert_eq!(outcome.status, 1, "{}", outcome.describe());
        before.assert_same(&Snapshot::of_ns(&site.host), backend);
    }
}
