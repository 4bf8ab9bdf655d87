//! Tests pods with several interfaces and with a device of the host.

use serde_json::{Value, json};

use cnimble_tests::{Lan, PATIENCE, Pod, Snapshot, need, plugin_dir, wait_until, with_kind};

use super::Node;

fn host_local(node: &Node, subnet: &str, routes: &Value) -> Value {
    json!({"type": "host-local", "dataDir": node.host.data_dir(), "ranges": [[{"subnet": subnet}]], "routes": routes})
}

/// Creates a network of the host's device `card`. The doctor judges by all namespaces of the machine, so each test has
/// its own subnet.
fn cards(node: &Node, subnet: &str) {
    let config = json!({
        "cniVersion": "1.1.0",
        "name": "cards",
        "plugins": [{"type": "host-device", "device": "card", "dataDir": node.host.dir().join("records"),
                     "ipam": host_local(node, subnet, &json!([]))}],
    });
    node.network("cards", &config);
}

fn add(node: &Node, network: &str, pod: &Pod, ifname: &str) {
    let args = ["add", network, pod.path(), "-i", ifname, "--container-id", "web"];
    node.cnimble(plugin_dir(), &args).run().success();
}

#[test]
fn a_pod_has_three_interfaces_and_answers_each_network_by_its_own() {
    need!("ip", "nft");
    with_kind!("macvlan");
    let node = Node::new();
    node.host.set_sysctl("ipv6/conf/default/accept_dad", "0");
    // A host behind the router of the network outside.
    node.host.set_sysctl("ipv4/ip_forward", "1");
    let lan = Lan::behind(&node.host, "uplink");
    lan.ip("address add 10.66.0.1/32 dev lo");
    let far = Pod::new();
    node.host.cable("card", &far, "far0");
    far.ip("address add 10.8.0.1/24 dev far0");
    let before = Snapshot::settled(&node.host).without("leases");
    let networks = [
        (
            "pods",
            json!([{"type": "bridge", "bridge": "br0", "isDefaultGateway": true, "removeUnusedBridge": true,
                         "ipam": host_local(&node, "10.6.0.0/24", &json!([]))}]),
        ),
        (
            "outside",
            json!([{"type": "macvlan", "master": "uplink",
                            "ipam": host_local(&node, "10.7.0.0/24", &json!([{"dst": "0.0.0.0/0"}]))},
                           {"type": "sbr"}]),
        ),
    ];
    for (name, plugins) in &networks {
        node.network(name, &json!({"cniVersion": "1.1.0", "name": name, "plugins": plugins}));
    }
    cards(&node, "10.8.0.0/24");
    let pod = Pod::new();
    // The bridge gets the device's interface number and is deleted when the device needs it again.
    let all = [("cards", "net2"), ("pods", "eth0"), ("outside", "net1")];
    for (network, ifname) in all {
        add(&node, network, &pod, ifname);
    }
    assert_eq!(pod.links(), ["eth0", "lo", "net1", "net2"]);
    let way = |to: &str| pod.ip(&format!("route get {to}"));
    assert!(way("10.66.0.1").contains("dev eth0"), "{}", way("10.66.0.1"));
    assert!(way("10.66.0.1 from 10.7.0.2").contains("via 10.7.0.1 dev net1"));
    // A ping to an interface's address is answered through it, although the default route leads elsewhere.
    assert_eq!(lan.run("ping -n -c 1 -W 120 -I 10.66.0.1 10.7.0.2").status, 0);
    assert!(pod.pings_once("10.6.0.1") && pod.pings_once("10.8.0.1") && far.pings_once("10.8.0.2"));
    for (network, ifname) in all {
        let args = ["check", network, pod.path(), "-i", ifname, "--container-id", "web"];
        node.cnimble(plugin_dir(), &args).run().success();
    }
    for (network, ifname) in all.iter().rev() {
        let args = ["del", network, pod.path(), "-i", ifname, "--container-id", "web"];
        node.cnimble(plugin_dir(), &args).run().success();
    }
    assert_eq!((pod.links(), pod.ip("rule show").lines().count()), (vec!["lo".to_owned()], 3));
    before.assert_same(&Snapshot::settled(&node.host).without("leases"), "after DEL");
}

#[test]
fn the_tree_draws_a_device_and_the_doctor_brings_that_of_a_dead_pod_home() {
    need!("ip");
    let node = Node::new();
    node.host.set_sysctl("ipv6/conf/default/accept_dad", "0");
    let _lan = Lan::behind(&node.host, "card");
    cards(&node, "10.213.11.0/24");
    let before = Snapshot::settled(&node.host).without("leases");
    let pod = Pod::new();
    add(&node, "cards", &pod, "net1");
    let drawn = node.cnimble(plugin_dir(), &["tree"]).env("LC_ALL", "C.UTF-8").run().success().text();
    let expected = "\
        cards  CNI 1.1.0, host-device, 1 pod\n\
        └─ (without a known link on the host)\n   \
           └─ net1  web\n         \
                 pod      device card of the host\n         \
                 address  10.213.11.2/24\n";
    assert_eq!(drawn, expected);
    let dir = node.host.data_dir();
    let doctor = |more: &[&str]| {
        let all = [&["doctor", "--json", "--grace", "0", "--data-dir", dir.to_str().unwrap()], more].concat();
        node.cnimble(plugin_dir(), &all).run()
    };
    doctor(&[]).success();
    // The kernel moves a hardware device to the host when the namespace is removed.
    pod.ip(&format!("link set net1 netns {}", node.host.path()));
    drop(pod);
    // A starting child process of another test may still hold the namespace.
    assert!(wait_until(PATIENCE, || doctor(&[]).status == 6));
    let repaired = doctor(&["--repair"]);
    assert!(repaired.status == 0 && repaired.text().contains("\"repaired\""), "{}", repaired.describe());
    before.assert_same(&Snapshot::settled(&node.host).without("leases"), "after the repair");
    doctor(&[]).success();
}
