//! Tests `create` and `info`.

use std::path::Path;

use serde_json::{Value, json};

use cnimble_tests::Node;

use crate::{Driver, cni_network, proposed, write};

#[test]
fn info_tells_the_versions() {
    let node = Node::new();
    let info = Driver::new(&node).answer(&["info"], &Value::Null);
    assert_eq!(info["api_version"], "1.0.0");
    assert_eq!(info["version"], env!("CARGO_PKG_VERSION"));
}

#[test]
fn a_described_network_gets_a_free_subnet() {
    cnimble_tests::need!("ip");
    let node = Node::new();
    let driver = Driver::new(&node);
    // The first is taken by a route of the host, and the second by a CNI network. podman's own third is in a file.
    node.ip("link add taken type bridge");
    node.ip("link set taken up");
    node.ip("addr add 10.89.0.1/24 dev taken");
    cni_network(&node, "other", "10.89.1.0/24");
    node.sh("mkdir -p /etc/containers/networks; mount -t tmpfs none /etc/containers/networks");
    let known = proposed(&json!({"name": "known", "subnets": [{"subnet": "10.89.2.0/24"}]}));
    write(&node, Path::new("/etc/containers/networks/known.json"), &known);
    let created = driver.answer(&["create"], &proposed(&json!({"labels": {"a": "b"}, "ipv6_enabled": true})));
    assert_eq!(created["subnets"][0]["subnet"], "10.89.3.0/24");
    let ipv6 = created["subnets"][1]["subnet"].as_str().unwrap();
    assert!(ipv6.starts_with("fd") && ipv6.ends_with("::/64"), "{ipv6}");
    // podman's IPAM has to give the addresses, and no name server is started.
    assert_eq!(created["ipam_options"], json!({"driver": "host-local"}));
    assert_eq!(created["dns_enabled"], false);
    // What the driver does not know stays.
    assert_eq!(
        (&created["labels"], &created["created"]),
        (&json!({"a": "b"}), &proposed(&json!({}))["created"])
    );
    for (subnet, whose) in [
        ("10.89.0.0/25", "taken"),
        ("10.89.1.128/25", "network other"),
        ("10.89.2.0/24", "podman's network known"),
        ("10.88.0.0/16", "podman's network podman"),
    ] {
        let refused = driver.refusal(&["create"], &proposed(&json!({"subnets": [{ "subnet": subnet }]})));
        assert!(refused.contains(whose), "{subnet}: {refused}");
    }
}

#[test]
fn podmans_default_network_can_have_another_subnet() {
    cnimble_tests::need!("ip");
    let node = Node::new();
    let driver = Driver::new(&node);
    node.sh("mkdir -p /etc/containers/networks; mount -t tmpfs none /etc/containers/networks");
    let changed = proposed(&json!({"name": "podman", "subnets": [{"subnet": "10.99.0.0/16"}]}));
    write(&node, Path::new("/etc/containers/networks/podman.json"), &changed);
    driver.create(&json!({"subnets": [{"subnet": "10.88.7.0/24"}]}));
    let refused = driver.refusal(&["create"], &proposed(&json!({"subnets": [{"subnet": "10.99.1.0/24"}]})));
    assert!(refused.contains("podman's network podman"), "{refused}");
}

#[test]
fn what_can_not_work_is_refused() {
    cnimble_tests::need!("ip");
    let node = Node::new();
    let driver = Driver::new(&node);
    cni_network(&node, "good", "10.77.1.0/24");
    cni_network(&node, "bad", "10.77.2.1/24");
    for (network, word) in [
        (json!({"options": {"network": "missing"}}), "no network \"missing\" in /etc/cni/net.d"),
        (json!({"options": {"network": "bad"}}), "10.77.2.1/24"),
        (json!({"options": {"network": "good", "mtu": "1400"}}), "no option mtu"),
        (json!({"options": {"network": "good", "conflist": "{}"}}), "conflist"),
        (json!({"options": {"network": "good", "plugin-dir": "/nonexistent"}}), "no plugin \"bridge\""),
        (json!({"options": {"network": "good"}, "internal": true}), "--internal"),
        (json!({"options": {"network": "good"}, "subnets": [{"subnet": "10.1.0.0/24"}]}), "--subnet"),
        (json!({"options": {"network": "good"}, "ipam_options": {"driver": "dhcp"}}), "--ipam-driver"),
        (json!({"options": {"type": "vxlan"}}), "type=vxlan"),
        (json!({"options": {"vlan": "5000"}}), "5000"),
        (json!({"options": {"mtu": "12"}}), "12"),
        (json!({"options": {"type": "macvlan"}}), "--subnet"),
        (json!({"options": {"default-route": "maybe"}}), "maybe"),
        (json!({"ipam_options": {"driver": "dhcp"}}), "--ipam-driver dhcp"),
        (json!({"subnets": [{"subnet": "10.1.0.0/31"}]}), "10.1.0.0/31"),
        (json!({"subnets": [{"subnet": "10.1.0.0/24"}, {"subnet": "10.1.0.0/24"}]}), "overlap"),
    ] {
        let refused = driver.refusal(&["create"], &proposed(&network));
        assert!(refused.contains(word), "{network}: {refused}");
    }
    for args in [&["frobnicate"] as &[&str], &["setup"], &[]] {
        assert!(driver.refusal(args, &Value::Null).contains("usage: cni create"), "{args:?}");
    }
    assert!(driver.refusal(&["create"], &json!([])).contains("podman's network"));
}

#[test]
fn a_named_network_is_copied() {
    cnimble_tests::need!("ip");
    let node = Node::new();
    let driver = Driver::new(&node);
    cni_network(&node, "demo", "10.89.7.0/24");
    let created = driver.create(&json!({"options": {"network": "demo", "publish": "true"}}));
    assert_eq!(created["ipam_options"], json!({"driver": "none"}));
    let copy: Value = serde_json::from_str(created["options"]["conflist"].as_str().unwrap()).unwrap();
    let file = node.sh("cat /etc/cni/net.d/demo.conflist");
    assert_eq!(copy, serde_json::from_str::<Value>(&file).unwrap());
}
