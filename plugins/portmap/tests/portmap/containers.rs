//! A port belongs to a container, with any of its interfaces.

use serde_json::{Value, json};

use cnimble_tests::traffic::{Server, tcp, udp};
use cnimble_tests::{Attachment, Network, Snapshot, configs, need};

use super::reference::go_table;
use super::{Site, pod_ip};

/// A second interface of the first pod, in either network.
fn second_interface(site: &Site, name: &str) -> (Attachment, Value) {
    let att = site.attachment(0).ifname("eth1");
    let mut config = configs::v4(&site.host);
    config["name"] = name.into();
    config["bridge"] = "br1".into();
    config["ipam"]["ranges"] = json!([[{"subnet": "10.3.2.0/24"}]]);
    config["ipam"]["routes"] = json!([]);
    config["ipam"]["dataDir"] = site.host.dir().join("second").to_str().unwrap().into();
    let result = Network::new(&site.host, config).added(&att);
    (att, result)
}

fn ports() -> Value {
    json!([
        {"hostPort": 8080, "containerPort": 80, "protocol": "tcp"},
        {"hostPort": 8080, "containerPort": 80, "protocol": "udp"},
        {"hostPort": 8081, "containerPort": 80, "protocol": "tcp", "hostIP": "192.0.2.1"},
        {"hostPort": 8081, "containerPort": 81, "protocol": "tcp"},
    ])
}

fn assert_served(site: &Site, when: &str) {
    for (port, says) in [(8080, "pod0 "), (8081, "pod0 ")] {
        let answer = tcp(&site.host, &format!("192.0.2.1:{port}"));
        let answer = answer.unwrap_or_else(|err| panic!("{when}: {port}: {err}"));
        assert!(answer.starts_with(says), "{when}: {port}: {answer}");
    }
    for to in ["127.0.0.1:8080", "10.1.2.1:8080"] {
        assert!(tcp(&site.host, to).is_ok_and(|answer| answer.starts_with("pod0 ")), "{when}: {to}");
    }
    assert!(tcp(&site.host, "10.1.2.1:8081").is_ok_and(|answer| answer.starts_with("other ")), "{when}");
    assert!(udp(&site.host, "192.0.2.1:8080").is_some_and(|answer| answer.starts_with("pod0 ")), "{when}");
}

/// nerdctl passes `portMappings` to all networks.
fn ports_of_two_interfaces(backend: &str, other_network: &str, leaves: usize) {
    let site = Site::new();
    let (second, result) = second_interface(&site, other_network);
    let _inside = Server::start(&site.pods[0], 80, "pod0");
    let _other = Server::start(&site.pods[0], 81, "other");
    let net = |name: &str| {
        let net = site.network(ports()).with("/name", json!(name));
        match backend {
            "conditions" => {
                net.with("/conditionsV4", json!(["ip", "daddr", "!=", "{ 192.0.2.7, 192.0.2.8 }"]))
            }
            backend => net.with("/backend", json!(backend)),
        }
    };
    let nets = [net("net64"), net(other_network)];
    let (atts, prev) = ([site.attachment(0), second], [site.results[0].clone(), result]);
    let when = |what: &str| format!("{backend}, {other_network}, {leaves} leaves, {what}");
    if backend == "iptables" {
        // Shared chains stay, as with the Go plugin.
        nets[0].call("ADD", &atts[0], Some(&prev[0])).run().success();
        nets[0].deleted(&atts[0], None);
        site.host.set_sysctl("ipv4/conf/br1/route_localnet", "1");
    }
    let before = Snapshot::of_ns(&site.host);
    let add = |n: usize| nets[n].call("ADD", &atts[n], Some(&prev[n])).run().success();
    let refused = |what: &str| {
        let outcome = net("net64").call("ADD", &site.attachment(1), Some(&site.results[1])).run();
        let err = outcome.error();
        assert_eq!(err.code, 102, "{}: {}", when(what), err.all());
        assert!(err.all().contains("id: pod0"), "{}", err.all());
    };
    let works = |n: usize, what: &str| {
        let outcome = nets[n].check(&atts[n], &prev[n]);
        assert_eq!(outcome.status, 0, "{}: {}", when(what), outcome.describe());
        assert_served(&site, &when(what));
    };

    add(0);
    let alone = site.ruleset();
    // A failed ADD removes only its own rules.
    let unread = nets[1].call("ADD", &atts[1], Some(&prev[1])).under(&["sh", "-c", "exec \"$0\" >/dev/full"]);
    assert_eq!(unread.run().status, 1);
    assert_eq!(site.ruleset(), alone, "{}", when("undone"));
    add(1);
    let both = site.ruleset();
    works(0, "both");
    works(1, "both");
    refused("both");
    assert_eq!(site.ruleset(), both, "{}", when("a refusal"));
    add(1);
    add(0);
    if backend != "iptables" {
        assert_eq!(site.ruleset(), both, "{}", when("again"));
    }
    if other_network == "net64" {
        nets[0].gc(Some(json!([atts[0].listed(), atts[1].listed()]))).success();
    } else {
        nets[0].gc(Some(json!([atts[0].listed()]))).success();
        nets[1].gc(Some(json!([atts[1].listed()]))).success();
    }
    works(0, "after GC");
    works(1, "after GC");

    let stays = 1 - leaves;
    if leaves == 0 {
        nets[leaves].deleted(&atts[leaves].clone().netns(""), Some(&prev[leaves]));
    } else {
        nets[leaves].deleted(&atts[leaves], None);
    }
    works(stays, "one has left");
    assert_eq!(nets[leaves].check(&atts[leaves], &prev[leaves]).error().code, 103);
    refused("one has left");
    let left = site.ruleset();
    add(stays);
    if backend != "iptables" {
        assert_eq!(site.ruleset(), left, "{}", when("the one that stays, again"));
    }
    works(stays, "again");
    // The interface comes again, to the free place.
    add(leaves);
    works(leaves, "back");
    nets[leaves].deleted(&atts[leaves], Some(&prev[leaves]));
    works(stays, "left again");

    nets[stays].deleted(&atts[stays], Some(&prev[stays]));
    before.assert_same(&Snapshot::of_ns(&site.host), &when("after both"));
    net("net64").call("ADD", &site.attachment(1), Some(&site.results[1])).run().success();
}

#[test]
fn a_container_has_its_ports_in_two_networks() {
    need!("nft", "ip");
    for backend in ["nftables", "iptables", "conditions"] {
        for leaves in [0, 1] {
            ports_of_two_interfaces(backend, "net65", leaves);
        }
    }
}

#[test]
fn a_container_has_its_ports_twice_in_one_network() {
    need!("nft", "ip");
    for leaves in [0, 1] {
        ports_of_two_interfaces("nftables", "net64", leaves);
    }
}

#[test]
fn a_repeated_port_is_mapped_once() {
    need!("nft", "ip");
    for backend in ["nftables", "iptables"] {
        let site = Site::new();
        let _first = Server::start(&site.pods[0], 80, "first");
        let _second = Server::start(&site.pods[0], 81, "second");
        let (att, prev) = (site.attachment(0), &site.results[0]);
        let net = site
            .network(json!([
                {"hostPort": 8080, "containerPort": 80, "hostIP": ""},
                {"hostPort": 8080, "containerPort": 80, "hostIP": "0.0.0.0"},
                {"hostPort": 8080, "containerPort": 80, "hostIP": "::"},
                {"hostPort": 8080, "containerPort": 80, "protocol": "TCP"},
                {"hostPort": 8081, "containerPort": 80, "hostIP": "192.0.2.1"},
                {"hostPort": 8081, "containerPort": 80, "hostIP": "192.0.2.1"},
                {"hostPort": 8082, "containerPort": 80, "hostIP": "0.0.0.0"},
                {"hostPort": 8082, "containerPort": 81},
            ]))
            .with("/backend", json!(backend));
        let outcome = net.call("ADD", &att, Some(prev)).run();
        assert_eq!(outcome.result(), *prev);
        // The first interface with the family gets the packets.
        for (to, says) in [
            ("192.0.2.1:8080", "first"),
            ("[2001:db8::1]:8080", "first"),
            ("192.0.2.1:8081", "first"),
            ("192.0.2.1:8082", "first"),
            ("[2001:db8::1]:8082", "second"),
        ] {
            let answer = tcp(&site.world, to).unwrap_or_else(|err| panic!("{backend}: {to}: {err}"));
            assert!(answer.starts_with(says), "{backend}: {to}: {answer}");
        }
        let stderr = outcome.stderr.clone();
        assert!(stderr.contains("8082/tcp is mapped to the pod's port 80 already"), "{stderr}");
        assert!(!stderr.contains("8080"), "{stderr}");
        net.check(&att, prev).success();
        net.deleted(&att, Some(prev));
        assert!(!site.ruleset().contains("pod0"), "{}", site.ruleset());
    }
}

/// The Go plugin's table names no network.
#[test]
fn an_add_by_iptables_leaves_what_go_mapped_in_another_network() {
    need!("nft", "ip", "iptables-nft-save");
    let site = Site::new();
    let of_go = || -> Vec<String> {
        let table = site.host.run("nft list table ip cni_hostport").text();
        table.lines().filter(|line| line.contains("pod0")).map(str::to_owned).collect()
    };
    let table = go_table("1.9", "ip", "192.0.2.1", &pod_ip(&site.results[0], false));
    site.host.run_with("nft -f -", table.as_bytes()).success();
    let before = of_go();
    assert!(!before.is_empty());
    let net = |port: u16| {
        let mapping = json!([{"hostPort": port, "containerPort": 80, "protocol": "tcp"}]);
        site.network(mapping).with("/name", json!("net65")).with("/backend", json!("iptables"))
    };
    site.add(&net(7000), 0);
    assert_eq!(of_go(), before, "ADD");
    // An earlier run's would come first.
    site.add(&net(8080), 0);
    assert!(of_go().is_empty());
}
