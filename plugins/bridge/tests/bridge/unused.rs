use std::fs::File;
use std::os::unix::fs::MetadataExt;

use serde_json::{Value, json};

use cnimble_tests::{Attachment, Host, Network, PATIENCE, Pod, configs, in_vm, need, wait_until};

fn network(host: &Host) -> Network<'_> {
    Network::new(host, configs::dual(host)).with("/removeUnusedBridge", json!(true))
}

fn bridge(net: &Network<'_>) -> String {
    net.config["bridge"].as_str().unwrap().to_owned()
}

fn is_there(net: &Network<'_>) -> bool {
    net.host.links().contains(&bridge(net))
}

fn pod(net: &Network<'_>, id: &str) -> (Pod, Attachment, Value) {
    let pod = Pod::new();
    let attachment = Attachment::new(id, &pod);
    let result = net.added(&attachment);
    (pod, attachment, result)
}

#[test]
fn the_bridge_goes_with_its_last_pod() {
    need!("ip");
    let host = Host::new();
    let net = network(&host);
    let links = host.links();
    let (_first, one, first_result) = pod(&net, "one");
    let (_second, two, _) = pod(&net, "two");
    net.deleted(&one, Some(&first_result));
    assert!(is_there(&net), "another pod is there");
    // The configuration has the bridge's addresses.
    net.deleted(&two, None);
    assert_eq!(host.links(), links);
    net.deleted(&two, None);

    // GC removes it as DEL does.
    let (third, _, _) = pod(&net, "three");
    assert!(third.pings("10.1.2.1"));
    net.gc(Some(json!([]))).success();
    assert_eq!(host.links(), links);
}

#[test]
fn a_bridge_stays_without_the_key_and_one_that_was_made_without_it() {
    need!("ip");
    let host = Host::new();
    let with = network(&host);
    let without = with.with("/removeUnusedBridge", json!(false));
    let (_pod, att, result) = pod(&without, "one");
    without.deleted(&att, Some(&result));
    assert!(is_there(&with));
    let (_pod, att, result) = pod(&with, "two");
    with.deleted(&att, Some(&result));
    assert!(is_there(&with), "it was made without");

    host.ip(&format!("link del {}", bridge(&with)));
    let (_pod, att, result) = pod(&with, "three");
    without.deleted(&att, Some(&result));
    assert!(is_there(&with), "DEL has no such key");
    with.deleted(&att, None);
    assert!(!is_there(&with));
}

#[test]
fn a_bridge_that_something_else_uses_stays() {
    need!("ip");
    for (used, free) in [
        ("link add other up master BRIDGE type veth peer name far", "link del other"),
        ("addr add 192.0.2.1/24 dev BRIDGE", "addr del 192.0.2.1/24 dev BRIDGE"),
        ("link add link BRIDGE name above type macvlan", "link del above"),
        (
            "link set BRIDGE alias mine",
            "link set BRIDGE alias 'bridge, made by cnimble, goes with its last pod'",
        ),
    ] {
        let host = Host::new();
        let net = network(&host);
        let on_it = |line: &str| host.shell(&format!("ip {}", line.replace("BRIDGE", &bridge(&net))));
        let (_pod, att, result) = pod(&net, "one");
        on_it(used);
        net.deleted(&att, Some(&result));
        net.gc(Some(json!([]))).success();
        assert!(is_there(&net), "{used}");
        on_it(free);
        net.deleted(&att, Some(&result));
        assert!(!is_there(&net), "{free}");
    }
}

#[test]
fn a_failed_add_takes_the_bridge_back_and_no_other_pods() {
    need!("ip");
    let host = Host::new();
    let net = network(&host);
    let links = host.links();
    let bad = net.with("/ipam/type", json!("no-such-plugin"));
    let failing = Pod::new();
    assert_ne!(bad.add(&Attachment::new("bad", &failing)).status, 0);
    assert_eq!(host.links(), links);
    let (stays, _, _) = pod(&net, "stays");
    assert_ne!(bad.add(&Attachment::new("bad", &failing)).status, 0);
    assert!(is_there(&net) && stays.pings("10.1.2.1"));
}

/// The lock of removable bridges.
fn locked() -> File {
    std::fs::create_dir_all("/run/cnimble").unwrap();
    let path = "/run/cnimble/bridges.lock";
    let file = File::options().write(true).create(true).truncate(false).open(path).unwrap();
    file.lock().unwrap();
    file
}

fn is_waited_for(file: &File) -> bool {
    let inode = format!(":{} ", file.metadata().unwrap().ino());
    let locks = std::fs::read_to_string("/proc/locks").unwrap();
    locks.lines().any(|line| line.contains("-> FLOCK") && line.contains(&inode))
}

#[test]
fn a_port_that_comes_between_the_look_and_the_removal_keeps_the_bridge() {
    need!("ip");
    let host = Host::new();
    let net = network(&host);
    let (_pod, att, result) = pod(&net, "one");
    let port = result["interfaces"][1]["name"].as_str().unwrap();
    let lock = locked();
    std::thread::scope(|scope| {
        let del = scope.spawn(|| net.deleted(&att, Some(&result)));
        assert!(wait_until(PATIENCE, || !host.links().iter().any(|link| link == port)));
        assert!(wait_until(PATIENCE, || is_waited_for(&lock) || del.is_finished()));
        host.ip(&format!("link add other master {} type veth peer name far", bridge(&net)));
        drop(lock);
    });
    assert!(is_there(&net));
}

#[test]
fn an_add_waits_for_a_bridge_that_goes_and_makes_it_anew() {
    need!("ip");
    for key in [true, false] {
        let host = Host::new();
        let net = network(&host);
        let (_pod, att, result) = pod(&net, "one");
        net.with("/removeUnusedBridge", json!(false)).deleted(&att, Some(&result));
        let net = net.with("/removeUnusedBridge", json!(key));
        let lock = locked();
        let (pod, result) = std::thread::scope(|scope| {
            let add = scope.spawn(|| {
                let (pod, _, result) = pod(&net, "two");
                (pod, result)
            });
            assert!(wait_until(PATIENCE, || is_waited_for(&lock) || add.is_finished()));
            host.ip(&format!("link del {}", bridge(&net)));
            drop(lock);
            add.join().unwrap()
        });
        let port = host.link(result["interfaces"][1]["name"].as_str().unwrap());
        assert_eq!(port["master"], result["interfaces"][0]["name"], "{key}");
        assert!(pod.pings("10.1.2.1"), "{key}");
    }
}

/// Each thread's pod is often the only one.
#[test]
fn pods_that_come_keep_the_bridge_from_pods_that_go() {
    need!("ip");
    let host = Host::new();
    let net = network(&host);
    let links = host.links();
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let net = &net;
            scope.spawn(move || {
                let pod = Pod::new();
                for round in 0..15 {
                    let att = Attachment::new(&format!("pod{thread}-{round}"), &pod);
                    let result = net.added(&att);
                    let port = result["interfaces"][1]["name"].as_str().unwrap();
                    let master = net.host.link(port)["master"].clone();
                    assert_eq!(master, result["interfaces"][0]["name"], "round {round}");
                    if round % 5 == 0 {
                        assert!(pod.pings("10.1.2.1"), "round {round}");
                    }
                    net.deleted(&att, Some(&result));
                }
            });
        }
    });
    assert_eq!(host.links(), links);
}

#[test]
fn a_vlans_gateway_goes_with_the_last_pod_of_the_vlan() {
    in_vm!();
    let host = Host::new();
    let net = network(&host);
    let links = host.links();
    let gateway = |vlan: u16| format!("{}.{vlan}", bridge(&net));
    let in_vlan = |vlan: u16| net.with("/vlan", json!(vlan)).with("/name", json!(format!("vlan{vlan}")));
    let (red, blue) = (in_vlan(100), in_vlan(200));
    let (_pod1, one, result1) = pod(&red, "one");
    let (_pod2, two, _) = pod(&red, "two");
    let (_pod3, three, _) = pod(&blue, "three");
    red.deleted(&one, Some(&result1));
    assert!(host.links().contains(&gateway(100)), "a pod of the vlan is there");
    red.deleted(&two, None);
    assert!(!host.links().contains(&gateway(100)) && host.links().contains(&gateway(200)));
    blue.deleted(&three, None);
    assert_eq!(host.links(), links);
}
