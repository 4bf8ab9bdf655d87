//! Tests `init`: files are checked before they are written.

use std::fs;

use cnimble_tests::{Outcome, Pod, need, plugin_dir};
use serde_json::{Value, json};

use super::Node;

fn init(node: &Node, args: &[&str]) -> Outcome {
    node.cnimble(plugin_dir(), &[&["init"], args].concat()).run()
}

#[test]
fn every_purpose_gives_a_file_without_a_finding() {
    need!();
    let node = Node::new();
    node.host.ip("link add up0 type bridge");
    node.host.ip("link set up0 up");
    node.host.ip("address add 192.168.7.9/24 dev up0");
    node.host.ip("route add default via 192.168.7.1");
    for (purpose, more) in [
        ("bridge", &[][..]),
        ("ptp", &[]),
        ("podman", &[]),
        ("containerd", &[]),
        ("k3s", &["--subnet", "10.42.3.0/24"]),
        ("macvlan", &["--subnet", "192.168.7.0/24"]),
        ("dhcp", &[]),
    ] {
        let outcome =
            init(&node, &[&[purpose, &format!("of-{purpose}"), "--dry-run"], more].concat()).success();
        let file: Value = serde_json::from_slice(&outcome.stdout).unwrap();
        assert!(file["_why"].is_string(), "{file}");
        if ["macvlan", "dhcp"].contains(&purpose) {
            assert_eq!(file["plugins"][0]["master"], "up0");
        }
        assert!(fs::read_dir(node.conf()).unwrap().next().is_none(), "--dry-run writes nothing");
        init(&node, &[&[purpose, &format!("of-{purpose}")], more].concat()).success();
        let path = fs::read_dir(node.conf()).unwrap().next().unwrap().unwrap().path();
        assert_eq!(fs::read(&path).unwrap(), outcome.stdout);
        let lint =
            node.cnimble(plugin_dir(), &["validate", "--strict", "--offline", path.to_str().unwrap()]).run();
        assert_eq!(lint.status, 0, "{}", lint.describe());
        fs::remove_file(path).unwrap();
    }
    assert_eq!(init(&node, &["macvlan", "lan"]).status, 2, "addresses of another's network are not guessed");
}

#[test]
fn a_network_of_init_has_a_free_subnet_and_works() {
    need!();
    let node = Node::new();
    node.host.ip("link add up0 type bridge");
    node.host.ip("link set up0 up");
    // podman's own network is 10.88.0.0/16.
    node.host.ip("address add 10.89.0.9/24 dev up0");
    let subnet = |name: &str| {
        let files = fs::read_dir(node.conf()).unwrap().map(|entry| entry.unwrap().path());
        let path = files
            .into_iter()
            .find(|path| path.to_str().unwrap().ends_with(&format!("-{name}.conflist")))
            .unwrap();
        let file: Value = serde_json::from_slice(&fs::read(path).unwrap()).unwrap();
        file["plugins"][0]["ipam"]["ranges"][0][0]["subnet"].clone()
    };
    init(&node, &["bridge", "blue"]).success();
    init(&node, &["ptp", "red"]).success();
    assert_eq!((subnet("blue"), subnet("red")), (json!("10.89.1.0/24"), json!("10.89.2.0/24")));
    let pod = Pod::new();
    node.cnimble(plugin_dir(), &["add", "blue", pod.path()]).run().success();
    assert!(pod.addrs("eth0").iter().any(|addr| addr.starts_with("10.89.1.")), "{:?}", pod.addrs("eth0"));
    node.cnimble(plugin_dir(), &["del", "blue", pod.path()]).run().success();
    // Existing files stay, and names and subnets in use are refused.
    let before = fs::read_dir(node.conf()).unwrap().count();
    for (args, why) in [
        (&["ptp", "blue"][..], "a network of this name"),
        (&["bridge", "more", "--subnet", "10.89.2.128/25"], "overlaps 10.89.2.0/24 of network red"),
        (&["bridge", "more", "--subnet", "10.89.0.0/16"], "overlaps"),
    ] {
        let outcome = init(&node, args);
        assert!(outcome.status == 3 && outcome.stderr.contains(why), "{}", outcome.describe());
    }
    assert_eq!(init(&node, &["bridge", "a/b"]).status, 2);
    assert_eq!(init(&node, &["bridge", "more", "--subnet", "10.1.2.0"]).status, 2);
    assert_eq!(fs::read_dir(node.conf()).unwrap().count(), before);
}
