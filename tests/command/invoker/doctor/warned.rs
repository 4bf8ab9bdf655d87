//! Tests warnings of host conditions that stop pods.

use std::net::TcpListener;

use serde_json::Value;

use cnimble_tests::{Pod, need, plugin_dir};

use super::Node;
use super::faults::network;

/// A warned node is not healthy: pods are cut off, or will be.
fn warnings(node: &Node) -> Vec<String> {
    let outcome = node.doctor(&[]);
    let document: Value = serde_json::from_slice(&outcome.stdout).unwrap();
    let texts = document["warnings"].as_array().unwrap().iter();
    let texts: Vec<String> = texts.map(|text| text.as_str().unwrap().to_owned()).collect();
    assert_eq!(outcome.status, if texts.is_empty() { 0 } else { 6 }, "{}", outcome.describe());
    assert_eq!(document["healthy"], texts.is_empty());
    texts
}

#[test]
fn doctor_warns_of_what_stops_pods() {
    need!("ip", "nft");
    let node = Node::new();
    let mut config = network(&node, "doc", "10.213.30.0/24");
    config["plugins"].as_array_mut().unwrap().truncate(2);
    node.network("doc", &config);
    let pod = Pod::new();
    node.add(plugin_dir(), "doc", &pod, "one", 8001);
    assert_eq!(warnings(&node), [] as [String; 0]);

    node.host.ip("link add up0 type veth peer name up1");
    node.host.ip("addr add 192.0.2.1/24 dev up0");
    node.host.ip("link set up0 up");
    // Without a carrier, doctor says that no pod reaches the router.
    node.host.ip("link set up1 up");
    node.host.ip("route add default via 192.0.2.2");
    assert_eq!(warnings(&node), [] as [String; 0]);
    node.host.set_sysctl("ipv4/conf/up0/forwarding", "0");
    let told = warnings(&node);
    assert!(told.len() == 1 && told[0].starts_with("net.ipv4.conf.up0.forwarding is 0"), "{told:?}");
    node.host.ip("link del up0");

    let listener = node.host.within(|| TcpListener::bind("0.0.0.0:8001").unwrap());
    let told = warnings(&node);
    assert!(told.len() == 1 && told[0].contains("listens on port 8001/tcp"), "{told:?}");
    assert!(told[0].contains(&std::process::id().to_string()), "{told:?}");
    let dir = node.host.data_dir();
    let words = node.cnimble(plugin_dir(), &["doctor", "--data-dir", dir.to_str().unwrap()]).run();
    let last = "1 attachment lives or may live; 1 warning\n";
    assert!(words.status == 6 && words.text().ends_with(last), "{}", words.describe());
    drop(listener);
    let other = node.host.within(|| TcpListener::bind("0.0.0.0:8002").unwrap());
    assert_eq!(warnings(&node), [] as [String; 0]);
    drop(other);

    node.host.nft("add table ip filter");
    let forward = "type filter hook forward priority 0; policy drop;";
    node.host
        .run_with("nft -f -", format!("add chain ip filter FORWARD {{ {forward} }}").as_bytes())
        .success();
    let told = warnings(&node);
    assert!(
        told.len() == 2 && told[0].starts_with("ip filter FORWARD drops what pods of doc send"),
        "{told:?}"
    );
    assert_eq!(
        told[1],
        "ip filter FORWARD drops what comes for published ports of doc: set acceptPublished of portmap"
    );
    // A rule with a condition may let the packets pass.
    node.host.nft("add rule ip filter FORWARD ip saddr 10.213.30.0/24 accept");
    assert_eq!(warnings(&node), [] as [String; 0]);
}

/// An accept in one table does not overrule a drop in another, so the plugin firewall does not help.
#[test]
fn doctor_warns_of_a_table_that_drops_what_every_pod_sends() {
    need!("ip", "nft");
    let node = Node::new();
    node.network("doc", &network(&node, "doc", "10.213.31.0/24"));
    let pod = Pod::new();
    node.add(plugin_dir(), "doc", &pod, "one", 8001);
    let load = |text: &str| drop(node.host.run_with("nft -f -", text.as_bytes()).success());
    let base = |kind: &str, policy: &str| {
        load(&format!(
            "table inet own {{\nchain {kind} {{ type filter hook {kind} priority 0; policy {policy}; }}\n}}\n"
        ));
    };
    base("input", "drop");
    base("forward", "accept");
    assert_eq!(warnings(&node), [] as [String; 0]);
    base("forward", "drop");
    let told = warnings(&node);
    assert!(
        told.len() == 1 && told[0].starts_with("inet own forward drops what pods of doc send"),
        "{told:?}"
    );
    assert!(told[0].ends_with("nft insert rule inet own forward ct status dnat accept)"), "{told:?}");
    node.host.nft("add rule inet own forward ip saddr 10.213.31.0/24 accept");
    assert_eq!(warnings(&node), [] as [String; 0]);
    node.host.nft("flush chain inet own forward");
    base("forward", "accept");
    node.host.nft("add rule inet own forward ct state vmap { established : accept }");
    node.host.nft("add rule inet own forward reject");
    assert_eq!(warnings(&node), [] as [String; 0]);
}
