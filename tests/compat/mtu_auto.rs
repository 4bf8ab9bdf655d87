//! `mtuAuto`: the MTU of the host's default route, less an overhead.

use std::path::Path;

use serde_json::{Value, json};

use cnimble_tests::{
    Attachment, Host, Lan, Network, Pod, Snapshot, need, need_recent_go, plugin_dir, with_kind,
};

const KINDS: [&str; 2] = ["bridge", "ptp"];

/// A host with a default route by `up0`, which has this MTU.
fn site(mtu: u32) -> (Host, Lan) {
    let host = Host::hasty();
    let lan = Lan::behind(&host, "up0");
    host.ip("address add 10.7.0.2/24 dev up0");
    host.ip("route add default via 10.7.0.1 dev up0");
    host.ip(&format!("link set up0 mtu {mtu}"));
    (host, lan)
}

fn network<'h>(host: &'h Host, plugins: &Path, kind: &str) -> Network<'h> {
    let config = json!({
        "cniVersion": "1.1.0", "name": "auto", "type": kind, "mtuAuto": true,
        "ipam": {"type": "host-local", "dataDir": host.data_dir(), "ranges": [[{"subnet": "10.1.2.0/24"}]]},
    });
    let gateway = if kind == "bridge" { json!(true) } else { json!(null) };
    Network::by(plugins, host, config).with("/isGateway", gateway)
}

fn ipv6(net: &Network<'_>) -> Value {
    json!({"type": "host-local", "dataDir": net.host.data_dir(), "ranges": [[{"subnet": "fd00:1:2::/64"}]]})
}

/// The MTUs of the host's links of a pod and of the pod's end, after an ADD, a CHECK and a DEL.
#[track_caller]
fn mtus(net: &Network<'_>) -> Vec<u64> {
    let pod = Pod::new();
    let attachment = Attachment::new("c1", &pod);
    let result = net.added(&attachment);
    let found = result["interfaces"].as_array().unwrap().iter().map(|interface| {
        let name = interface["name"].as_str().unwrap();
        assert_eq!(interface["mtu"], Value::Null, "as without the key");
        let link = if interface["sandbox"].is_string() { pod.link(name) } else { net.host.link(name) };
        link["mtu"].as_u64().unwrap()
    });
    let found = found.collect();
    net.check(&attachment, &result).success();
    net.deleted(&attachment, Some(&result));
    found
}

#[track_caller]
fn assert_mtu(net: &Network<'_>, expected: u64) {
    let found = mtus(net);
    assert!(found.len() >= 2 && found.iter().all(|mtu| *mtu == expected), "{expected}: {found:?}");
}

#[test]
fn a_pod_has_the_mtu_of_the_default_route() {
    need!("ip");
    for kind in KINDS {
        let (host, _lan) = site(1400);
        let net = network(&host, plugin_dir(), kind);
        let less = net.with("/mtuOverhead", json!(50));
        assert_mtu(&less, 1350);
        assert_mtu(&net, 1400);
        assert_mtu(&net.with("/mtuAuto", json!(false)), 1500);
        assert_mtu(&net.with("/mtuAuto", json!(null)).with("/mtu", json!(1333)), 1333);
        host.ip("link set up0 mtu 9000");
        assert_mtu(&less, 8950);
        host.ip("route replace default via 10.7.0.1 dev up0 mtu 1300");
        assert_mtu(&less, 1250);
        host.ip("route replace default via 10.7.0.1 dev up0 mtu 9500");
        assert_mtu(&net, 9000);
    }
}

#[test]
fn the_go_plugins_ignore_the_keys() {
    need_recent_go!(go, "ip");
    for kind in KINDS {
        let (host, _lan) = site(1400);
        let theirs = network(&host, go, kind).with("/mtuOverhead", json!(50));
        assert_mtu(&theirs, 1500);
        assert_mtu(&theirs.with("/mtu", json!(1333)), 1333);
    }
}

#[test]
fn the_default_route_of_the_lowest_metric_counts_and_its_smallest_next_hop() {
    need!("ip");
    let (host, _lan) = site(1400);
    let other = Lan::behind(&host, "up1");
    host.ip("address add 10.8.0.2/24 dev up1");
    host.ip("link set up1 mtu 1340");
    let net = network(&host, plugin_dir(), "ptp");
    host.ip("route add default via 10.8.0.1 dev up1 metric 9");
    assert_mtu(&net, 1400);
    host.ip("route replace default nexthop via 10.7.0.1 dev up0 nexthop via 10.8.0.1 dev up1");
    assert_mtu(&net, 1340);
    // Without IPv4, IPv6.
    host.ip("route flush 0.0.0.0/0");
    host.ip("-6 address add fd00:7::2/64 dev up0 nodad");
    host.ip("-6 route add default via fd00:7::1 dev up0");
    assert_mtu(&net, 1400);
    drop(other);
}

/// The bridge has the smallest MTU of its ports, so pods would follow themselves down.
#[track_caller]
fn assert_stays(way_out: &str) {
    let (host, _lan) = site(1400);
    host.ip("link add br0 type bridge");
    host.ip("link set br0 up");
    host.ip("address flush dev up0");
    host.ip("link set up0 master br0");
    if way_out != "br0" {
        host.ip(&format!("link add link br0 name {way_out} type vlan id 7"));
        host.ip(&format!("link set {way_out} up"));
    }
    host.ip(&format!("address add 10.7.0.2/24 dev {way_out}"));
    host.ip(&format!("route add default via 10.7.0.1 dev {way_out}"));
    let net = network(&host, plugin_dir(), "bridge").with("/bridge", json!("br0"));
    let net = net.with("/mtuOverhead", json!(50)).with("/isGateway", json!(false));
    let pods = [Pod::new(), Pod::new(), Pod::new()];
    for (n, pod) in pods.iter().enumerate() {
        net.added(&Attachment::new(&format!("c{n}"), pod));
        assert_eq!(pod.link("eth0")["mtu"], 1350);
    }
}

#[test]
fn pods_on_the_bridge_of_the_default_route_follow_its_other_ports() {
    need!("ip");
    assert_stays("br0");
}

#[test]
fn pods_on_the_bridge_below_the_default_routes_vlan_follow_its_other_ports() {
    with_kind!("vlan");
    assert_stays("br0.7");
}

#[test]
fn an_impossible_mtu_is_one_clear_error_and_leaves_nothing() {
    need!("ip");
    for kind in KINDS {
        let (host, _lan) = site(1400);
        let net = network(&host, plugin_dir(), kind);
        let pod = Pod::new();
        let attachment = Attachment::new("c1", &pod);
        let before = Snapshot::of(&host);
        let assert_fails = |net: &Network<'_>, code: u64, words: &str| {
            let err = net.add(&attachment).error();
            assert!(err.code == code && err.all().contains(words), "{kind}: {err:?}");
            assert_eq!(pod.links(), ["lo"]);
            before.assert_same(&Snapshot::settled(&host), words);
        };
        assert_fails(&net.with("/mtu", json!(1400)), 7, "mtu, mtuAuto: they exclude each other");
        assert_fails(&net.with("/mtuAuto", json!("auto")), 7, "mtuAuto");
        assert_fails(&net.with("/mtuOverhead", json!(-1)), 7, "mtuOverhead");
        let words = "mtuAuto: the pod would have 67 of the 1400 bytes of up0, and an MTU has at least 68";
        assert_fails(&net.with("/mtuOverhead", json!(1333)), 102, words);
        assert_fails(&net.with("/mtuOverhead", json!(u32::MAX)), 102, "of the 1400 bytes of up0");
        assert_mtu(&net.with("/mtuOverhead", json!(1332)), 68);
        let (host, _lan) = site(1400);
        let net = network(&host, plugin_dir(), kind);
        let six = net.with("/ipam", ipv6(&net));
        let words = "mtuAuto: the pod would have an MTU of 1279, and IPv6 needs 1280";
        let before = Snapshot::of(&host);
        let err = six.with("/mtuOverhead", json!(121)).add(&attachment).error();
        assert!(err.code == 102 && err.all().contains(words), "{kind}: {err:?}");
        assert_eq!(pod.links(), ["lo"]);
        before.assert_same(&Snapshot::settled(&host), words);
        assert_mtu(&six.with("/mtuOverhead", json!(120)), 1280);
    }
}

#[test]
fn without_a_default_route_the_pod_has_the_kernels_mtu_and_add_warns() {
    need!("ip");
    for kind in KINDS {
        let (host, _lan) = site(1400);
        host.ip("route del default");
        let net = network(&host, plugin_dir(), kind);
        let pod = Pod::new();
        let outcome = net.add(&Attachment::new("c1", &pod));
        assert!(outcome.stderr.contains("mtuAuto: the host has no default route"), "{}", outcome.stderr);
        outcome.success();
        assert_eq!(pod.link("eth0")["mtu"], 1500);
    }
}
