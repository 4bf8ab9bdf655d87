//! Tests entries of pods that ended without a DEL, with a path that leads to another pod since.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use cnimble_tests::{Lan, Pod, need, need_go, plugin_dir, with_kind};

use super::faults::{flannel, inside};
use super::{Node, chain, findings, kinds, ports, same, veths};

/// The first pod is in the network east, the second in west.
struct Astray {
    node: Node,
    path: PathBuf,
    live: Pod,
}

impl Astray {
    fn new(node: Node, plugins: &Path) -> Self {
        let path = node.host.dir().join("netns");
        let (gone, live) = (Pod::new(), Pod::new());
        symlink(gone.path(), &path).unwrap();
        let args =
            ["add", "east", path.to_str().unwrap(), "--container-id", "gone", "--cap-args", &ports(8001)];
        let links = veths(&node.cnimble(plugins, &args).run().result());
        node.add(plugins, "west", &live, "live", 8002);
        assert_eq!(findings(&node.doctor(&["--grace", "0"]), 0), [] as [Value; 0]);
        drop(gone);
        node.gone(&links);
        fs::remove_file(&path).unwrap();
        symlink(live.path(), &path).unwrap();
        Astray { node, path, live }
    }

    /// Asserts that neither doctor nor GC changes the second pod, and that a DEL of the first leaves it whole.
    fn is_left_alone(&self, gateway: &str) {
        let node = &self.node;
        let (before, of_pod) = (node.state(), inside(&self.live));
        let found = findings(&node.doctor(&["--grace", "0", "--repair", "--pods"]), 6);
        assert_eq!(kinds(&found), ["cache-entry left gone"], "{found:#?}");
        same(&before, &node.state(), "after the doctor");
        let data = node.host.data_dir();
        let gc = ["gc", "east", "--gone", "--grace", "0", "--data-dir", data.to_str().unwrap()];
        node.cnimble(plugin_dir(), &gc).run().success();
        same(&before, &node.state(), "after GC");
        let del = ["del", "east", self.path.to_str().unwrap(), "--container-id", "gone"];
        node.cnimble(plugin_dir(), &del).run().success();
        assert_eq!(inside(&self.live), of_pod);
        findings(&node.doctor(&["--grace", "0", "--repair"]), 0);
        assert_eq!(findings(&node.doctor(&["--grace", "0"]), 0), [] as [Value; 0]);
        assert_eq!(inside(&self.live), of_pod);
        assert!(self.live.pings(gateway), "{}", node.host.nft("list ruleset"));
    }
}

/// Writes east and west, which differ in bridge and subnet.
fn networks(node: &Node, change: impl Fn(&mut Value)) {
    for (name, bridge, subnet) in [("east", "br1", "10.213.32.0/24"), ("west", "br2", "10.213.33.0/24")] {
        let mut network = chain(node, name, bridge, subnet);
        // Its elements are of a port that is gone, which the doctor removes.
        network["plugins"][0]["macspoofchk"] = json!(false);
        change(&mut network);
        node.network(name, &network);
    }
}

fn routed(network: &mut Value) {
    network["plugins"][0]["type"] = json!("ptp");
    network["plugins"][0]["ipam"]["routes"] = json!([{"dst": "0.0.0.0/0"}]);
}

#[test]
fn nothing_is_repaired_in_a_pod_that_an_old_path_leads_to() {
    need!("ip", "nft", "ping");
    for change in [(|_| {}) as fn(&mut Value), routed] {
        let node = Node::new();
        networks(&node, change);
        Astray::new(node, plugin_dir()).is_left_alone("10.213.33.1");
    }
}

#[test]
fn nothing_is_repaired_in_a_pod_of_the_go_plugins_that_an_old_path_leads_to() {
    need_go!(go, "ip", "nft", "iptables-nft-save", "ping");
    for change in [(|_| {}) as fn(&mut Value), routed] {
        let node = Node::new();
        networks(&node, |network| {
            change(network);
            // Without an owner for rules.
            network["plugins"].as_array_mut().unwrap().truncate(1);
        });
        let astray = Astray::new(node, go);
        astray.is_left_alone("10.213.33.1");
    }
}

/// Writes east and west, which differ in addresses.
fn on_one_uplink(node: &Node, kind: &str) {
    for (name, start) in [("east", "10.7.0.10"), ("west", "10.7.0.20")] {
        let ipam = json!({"type": "host-local", "dataDir": node.host.data_dir(),
            "ranges": [[{"subnet": "10.7.0.0/24", "rangeStart": start}]]});
        let plugin = json!({"type": kind, "master": "uplink", "ipam": ipam});
        node.network(name, &json!({"cniVersion": "1.0.0", "name": name, "plugins": [plugin]}));
    }
}

#[test]
fn nothing_is_repaired_in_a_macvlan_that_an_old_path_leads_to() {
    need!("ip", "nft", "ping");
    with_kind!("macvlan");
    let node = Node::new();
    let _lan = Lan::behind(&node.host, "uplink");
    on_one_uplink(&node, "macvlan");
    Astray::new(node, plugin_dir()).is_left_alone("10.7.0.1");
}

/// All ipvlans of an uplink have its MAC, and those of the Go plugins name no owner.
#[test]
fn nothing_is_repaired_in_an_ipvlan_of_the_go_plugins_that_an_old_path_leads_to() {
    need_go!(go, "ip", "nft");
    with_kind!("ipvlan");
    let node = Node::new();
    let _lan = Lan::behind(&node.host, "uplink");
    on_one_uplink(&node, "ipvlan");
    Astray::new(node, go).is_left_alone("10.7.0.1");
}

/// A pod can have given its interface another MAC. The owner is known all the same.
#[test]
fn a_pod_with_another_mac_is_compared_and_repaired() {
    need_go!(go, "ip", "nft");
    for plugins in [plugin_dir(), go] {
        let node = Node::new();
        networks(&node, |network| network["plugins"].as_array_mut().unwrap().truncate(1));
        let pod = Pod::new();
        let end = veths(&node.add(plugins, "east", &pod, "one", 8001)).remove(0);
        pod.ip("link set eth0 address 02:00:00:00:00:77");
        node.host.ip(&format!("link set {end} nomaster"));
        let found = findings(&node.doctor(&["--grace", "0", "--repair"]), 6);
        assert_eq!(kinds(&found), ["host-state repaired one", "pod-state found one"], "{found:#?}");
        // No plugin puts back the MAC of the result.
        let remedy = found.last().unwrap()["remedy"].as_str().unwrap();
        assert!(remedy.starts_with("--repair can't put it back"), "{found:#?}");
        assert_eq!(node.host.link(&end)["master"], "br1");
    }
}

/// A runtime's entry is of one network, and the interface in the name of another, if a plugin delegates as Multus does.
#[test]
fn an_interface_in_the_name_of_another_network_of_the_same_container_is_the_entrys() {
    need!("ip", "nft");
    let node = Node::new();
    networks(&node, |_| {});
    let mut delegated = chain(&node, "west", "br2", "10.213.33.0/24")["plugins"][0].take();
    (delegated["name"], delegated["cniVersion"]) = (json!("west"), json!("1.0.0"));
    let plugins = flannel(&node, &delegated);
    let delegate = json!({"bridge": "br2", "isGateway": true});
    let meta = json!({"cniVersion": "1.0.0", "name": "meta", "plugins": [{"type": "flannel", "delegate": delegate}]});
    node.network("meta", &meta);
    let pod = Pod::new();
    let args = ["add", "meta", pod.path(), "--container-id", "one"];
    let end = veths(&node.cnimble(&plugins, &args).run().result()).remove(0);
    node.host.ip(&format!("link set {end} nomaster"));
    let found = findings(&node.doctor(&["--grace", "0", "--repair"]), 0);
    assert_eq!(kinds(&found), ["host-state repaired one"], "{found:#?}");
    assert_eq!(node.host.link(&end)["master"], "br2");
}
