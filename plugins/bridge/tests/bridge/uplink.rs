//! `uplink`: the pods are on the network of an interface of the host.

use serde_json::{Value, json};

use cnimble_tests::{Attachment, Host, Network, Ns, Pod, Snapshot, configs, need, need_go};

/// A host with an interface that leads to a machine with 10.1.2.200.
fn site() -> (Host, Ns) {
    let (host, world) = (Host::new(), Ns::new());
    host.cable("up0", &world, "eth0");
    host.ip("link set up0 down");
    world.ip("addr add 10.1.2.200/24 dev eth0");
    (host, world)
}

fn network(host: &Host) -> Network<'_> {
    Network::new(host, configs::v4(host)).with("/uplink", json!("up0"))
}

fn master(host: &Host) -> Value {
    host.link("up0")["master"].clone()
}

#[test]
fn pods_are_on_the_network_of_the_uplink_which_is_freed_with_the_bridge() {
    need!("ip", "ping");
    let (host, world) = site();
    let net = network(&host).with("/removeUnusedBridge", json!(true));
    let (first, second) = (Pod::new(), Pod::new());
    let [one, two] = [("one", &first), ("two", &second)].map(|(id, pod)| Attachment::new(id, pod));
    let result = net.added(&one);
    net.added(&two);
    assert!(first.pings("10.1.2.200") && world.pings("10.1.2.3"));
    net.check(&one, &result).success();
    host.ip("link set up0 nomaster");
    let err = net.check(&one, &result).error();
    assert_eq!(err.code, 103);
    assert!(err.all().contains("uplink: up0 is not a port of "), "{}", err.all());
    // The next ADD puts it back.
    net.deleted(&two, None);
    net.added(&two);
    net.check(&one, &result).success();
    net.deleted(&one, Some(&result));
    assert!(first.links().len() == 1 && master(&host).is_string());
    net.deleted(&two, None);
    assert!(master(&host).is_null(), "{:?}", host.links());
    assert_eq!(host.links().len(), 2, "{:?}", host.links());
}

#[test]
fn a_failed_add_takes_the_uplink_off_again() {
    need!("ip");
    let (host, _world) = site();
    let pod = Pod::new();
    let before = Snapshot::of(&host);
    let err = network(&host).with("/ipam/ranges", json!([])).add(&Attachment::new("one", &pod)).error();
    assert_eq!(err.code, 7, "{}", err.all());
    let full = network(&host).with("/ipam", json!({"type": "missing"}));
    full.add(&Attachment::new("one", &pod)).error();
    before.assert_same(&Snapshot::settled(&host), "after failed ADDs");
    assert!(master(&host).is_null());
}

#[test]
fn an_uplink_that_would_cut_the_host_off_is_refused() {
    need!("ip");
    let (host, _world) = site();
    let pod = Pod::new();
    let attachment = Attachment::new("one", &pod);
    let refusal = |net: Network<'_>| {
        let err = net.add(&attachment).error();
        (err.code, err.msg)
    };
    host.ip("addr add 192.0.2.1/24 dev up0");
    let (code, msg) = refusal(network(&host));
    assert!(code == 102 && msg.ends_with("uplink: up0 has the address 192.0.2.1/24"), "{msg}");
    host.ip("addr flush dev up0");
    host.ip("link add other type bridge");
    host.ip("link set up0 master other");
    let (code, msg) = refusal(network(&host));
    assert!(code == 102 && msg.ends_with("uplink: up0 is a port already"), "{msg}");
    let (code, msg) = refusal(network(&host).with("/uplink", json!("a/b")));
    assert!(code == 7 && msg == "uplink: invalid name \"a/b\"", "{msg}");
    assert_eq!(host.links().len(), 3, "no bridge is left: {:?}", host.links());
}

/// A bridge that exists keeps its ports.
#[test]
fn a_bridge_of_others_gets_no_uplink() {
    need!("ip");
    let (host, _world) = site();
    let net = network(&host);
    host.ip(&format!("link add {} type bridge", net.config["bridge"].as_str().unwrap()));
    let pod = Pod::new();
    let attachment = Attachment::new("one", &pod);
    let result = net.added(&attachment);
    assert!(master(&host).is_null());
    net.check(&attachment, &result).success();
}

#[test]
fn the_go_plugin_ignores_the_key() {
    need_go!(go, "ip", "ping");
    for ours in [false, true] {
        let (host, _world) = site();
        let net = network(&host).with("/cniVersion", json!("1.0.0"));
        let net = if ours { net } else { net.served_by(go) };
        let pod = Pod::new();
        net.added(&Attachment::new("one", &pod));
        assert_eq!(pod.pings_once("10.1.2.200"), ours);
    }
}
