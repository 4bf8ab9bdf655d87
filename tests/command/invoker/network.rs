//! Tests `network inspect` and `network rm`.

use std::fs;
use std::path::PathBuf;

use serde_json::{Value, json};

use cnimble_tests::{Outcome, Pod, Snapshot, need, plugin_dir};

use super::{Node, names, until_mounts_are_gone};

fn run(node: &Node, args: &[&str]) -> Outcome {
    node.cnimble(plugin_dir(), args).run()
}

/// Removes the network, and returns the parts that were kept, with the reasons.
fn kept(node: &Node, network: &str) -> Vec<(String, String)> {
    let told = node.cnimble(plugin_dir(), &["network", "rm", network]).json().run().result();
    assert!(!file(node, network).exists(), "{told}");
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    told["kept"].as_array().unwrap().iter().map(|of| (text(&of["what"]), text(&of["why"]))).collect()
}

fn file(node: &Node, network: &str) -> PathBuf {
    node.conf().join(format!("{network}.conflist"))
}

fn has_link(node: &Node, name: &str) -> bool {
    node.host.ip_json("link show").as_array().unwrap().iter().any(|link| link["ifname"] == name)
}

/// A network with all plugins that leave something on the host.
fn full(node: &Node, name: &str, bridge: &str, subnet: &str) {
    node.network(
        name,
        &json!({"cniVersion": "1.0.0", "name": name, "plugins": [
            {"type": "bridge", "bridge": bridge, "isGateway": true, "ipMasq": true, "macspoofchk": true,
             "ipam": {"type": "host-local", "dataDir": node.host.data_dir(), "ranges": [[{"subnet": subnet}]]}},
            {"type": "portmap", "capabilities": {"portMappings": true}},
            {"type": "firewall", "backend": "nftables", "ingressPolicy": "same-bridge"},
        ]}),
    );
}

/// Adds a pod and takes it away, so that its network's bridge and directory are there.
fn used(node: &Node, network: &str) {
    let pod = Pod::new();
    run(node, &["add", network, pod.path()]).success();
    run(node, &["del", network, pod.path()]).success();
}

#[test]
fn a_network_is_shown_with_its_bridge_ranges_and_pods() {
    need!("ip", "nft");
    let node = Node::new();
    full(&node, "net", "br0", "10.1.2.0/24");
    let shown = run(&node, &["network", "inspect", "net"]).success().text();
    assert!(shown.contains("br0, which the first add makes") && shown.contains("none"), "{shown}");
    let pod = Pod::new();
    run(&node, &["add", "net", pod.path(), "--container-id", "web"]).success();
    let shown = run(&node, &["network", "inspect", "net"]).success().text();
    for line in [
        "version  CNI 1.0.0",
        "plugins  bridge portmap firewall",
        "bridge   br0 up 10.1.2.1/24",
        "range    10.1.2.1-10.1.2.254: 1 used, 252 free",
        "pod      web eth0 10.1.2.2/24 up",
    ] {
        assert!(shown.contains(line), "{line}:\n{shown}");
    }
    let told = node.cnimble(plugin_dir(), &["network", "inspect", "net"]).json().run().result();
    assert_eq!(told["bridges"][0]["link"]["madeByCnimble"], true);
    assert_eq!(told["attachments"][0]["pod"], "web");
    assert_eq!(told["configuration"]["plugins"][0]["bridge"], "br0");
    assert_eq!(run(&node, &["network", "inspect", "nett"]).status, 3);
    // `networks` is the same as `network ls`.
    assert_eq!(run(&node, &["networks"]).success().text(), run(&node, &["network", "ls"]).success().text());
}

#[test]
fn a_network_goes_with_all_that_it_left() {
    need!("ip", "nft");
    let node = Node::new();
    let before = Snapshot::of(&node.host);
    full(&node, "net", "br0", "10.1.2.0/24");
    // One pod is detached, and one has died without a DEL.
    used(&node, "net");
    let dead = Pod::new();
    let ports = r#"{"portMappings":[{"hostPort":8080,"containerPort":80,"protocol":"tcp"}]}"#;
    let link = node.host.dir().join("dead");
    std::os::unix::fs::symlink(dead.path(), &link).unwrap();
    run(&node, &["add", "net", link.to_str().unwrap(), "--cap-args", ports]).success();
    fs::remove_file(link).unwrap();
    drop(dead);
    assert!(has_link(&node, "br0"));
    assert_eq!(run(&node, &["network", "rm", "net"]).status, 7, "the lease of the dead pod is young");
    let remove = || run(&node, &["network", "rm", "net", "--grace", "0"]);
    let outcome = until_mounts_are_gone(remove, |outcome| outcome.status != 7);
    assert_eq!(outcome.status, 0, "{}", outcome.describe());
    assert!(outcome.text().contains("bridge br0\n"), "{}", outcome.text());
    assert!(!has_link(&node, "br0") && !file(&node, "net").exists());
    assert_eq!(names(&node.host.data_dir()), [] as [&str; 0], "the directory of its leases is gone");
    assert_eq!(node.entries(), [] as [&str; 0]);
    // Forwarding stays on: other pods may need it.
    let after = Snapshot::of(&node.host).without_lines("forwarding = ").without_lines("ip_forward = ");
    before
        .without_lines("forwarding = ")
        .without_lines("ip_forward = ")
        .assert_same(&after, "after the removal");
    assert_eq!(run(&node, &["network", "rm", "net"]).status, 3, "it is unknown now");
}

#[test]
fn a_network_with_a_living_pod_stays() {
    need!("ip", "nft");
    let node = Node::new();
    full(&node, "net", "br0", "10.1.2.0/24");
    let pod = Pod::new();
    run(&node, &["add", "net", pod.path(), "--container-id", "web"]).success();
    let before = Snapshot::of(&node.host);
    let outcome = run(&node, &["network", "rm", "net"]);
    assert_eq!(outcome.status, 7, "{}", outcome.describe());
    assert!(outcome.stderr.contains("in use  web, interface eth0"), "{}", outcome.describe());
    before.assert_same(&Snapshot::of(&node.host), "after the refusal");
    assert!(file(&node, "net").exists());
    // Nor does a record that is lost free the network: the pod's link, lease and rules are there.
    fs::remove_dir_all(node.cache()).unwrap();
    let outcome = run(&node, &["network", "rm", "net"]);
    assert_eq!(outcome.status, 7, "{}", outcome.describe());
    assert!(file(&node, "net").exists() && has_link(&node, "br0"));
}

#[test]
fn a_young_lease_may_be_of_a_pod_that_begins() {
    need!("ip");
    let node = Node::new();
    full(&node, "net", "br0", "10.1.2.0/24");
    let dir = node.host.data_dir().join("net");
    fs::create_dir_all(&dir).unwrap();
    fs::write(dir.join("10.1.2.9"), "begun\r\neth0").unwrap();
    let outcome = run(&node, &["network", "rm", "net"]);
    assert!(outcome.status == 7 && outcome.stderr.contains("10.1.2.9"), "{}", outcome.describe());
    assert!(file(&node, "net").exists() && dir.join("10.1.2.9").exists());
}

#[test]
fn a_bridge_that_others_need_stays() {
    need!("ip", "nft");
    // Another program made it.
    let node = Node::new();
    full(&node, "net", "br0", "10.1.2.0/24");
    node.host.ip("link add br0 type bridge");
    used(&node, "net");
    assert_eq!(
        kept(&node, "net"),
        [("bridge br0".to_owned(), "cnimble did not make it, or its alias was changed since".to_owned())]
    );
    assert!(has_link(&node, "br0"));

    // Another network uses it, as its bridge or as its master.
    for plugin in [json!({"type": "bridge", "bridge": "br0"}), json!({"type": "macvlan", "master": "br0"})] {
        let node = Node::new();
        full(&node, "net", "br0", "10.1.2.0/24");
        used(&node, "net");
        node.network("other", &json!({"cniVersion": "1.0.0", "name": "other", "plugins": [plugin]}));
        let kept = kept(&node, "net");
        assert!(kept[0].1.starts_with("network other uses it, too"), "{kept:?}");
        assert!(has_link(&node, "br0"));
    }

    // A pod of another network is on it, and that network's file is gone: its record counts.
    let node = Node::new();
    full(&node, "net", "br0", "10.1.2.0/24");
    let other = json!({"type": "bridge", "bridge": "br0", "ipam": {
        "type": "host-local", "dataDir": node.host.data_dir(), "ranges": [[{"subnet": "10.1.3.0/24"}]]}});
    node.network("other", &json!({"cniVersion": "1.0.0", "name": "other", "plugins": [other]}));
    used(&node, "net");
    let pod = Pod::new();
    run(&node, &["add", "other", pod.path(), "--container-id", "web"]).success();
    fs::remove_file(file(&node, "other")).unwrap();
    let told = kept(&node, "net");
    assert!(told[0].1.contains("network other uses it, too (the record of container web)"), "{told:?}");
    assert!(has_link(&node, "br0"));
    run(&node, &["check", "other", "--container-id", "web"]).success();

    // A file that can't be read may name it.
    let node = Node::new();
    full(&node, "net", "br0", "10.1.2.0/24");
    used(&node, "net");
    fs::write(file(&node, "broken"), "{").unwrap();
    let told = kept(&node, "net");
    assert_eq!(told.len(), 2, "the leases, too: {told:?}");
    assert!(told.iter().all(|(_, why)| why.contains("broken.conflist")), "{told:?}");
    assert!(has_link(&node, "br0"));
}

#[test]
fn a_bridge_with_a_foreign_port_an_uplink_or_a_link_on_top_stays() {
    need!("ip", "nft");
    for (commands, why) in [
        (&["link add mine type veth peer name far", "link set mine master br0"][..], "mine is a port of it"),
        (&["link add up0 type ifb", "link set up0 master br0"], "up0 is a port of it, an uplink"),
        (&["link add link br0 name mac0 type macvlan mode bridge"], "mac0 is made on top of it"),
        (&["link set br0 alias mine"], "its alias was changed"),
    ] {
        let node = Node::new();
        full(&node, "net", "br0", "10.1.2.0/24");
        used(&node, "net");
        commands.iter().for_each(|command| drop(node.host.ip(command)));
        let told = kept(&node, "net");
        assert!(told.len() == 1 && told[0].1.contains(why), "{why}: {told:?}");
        assert!(has_link(&node, "br0"), "{why}");
    }
}

#[test]
fn leases_that_others_need_stay() {
    need!("ip", "nft");
    // Another file has a network of this name, and so the same directory.
    let node = Node::new();
    full(&node, "net", "br0", "10.1.2.0/24");
    used(&node, "net");
    fs::copy(file(&node, "net"), file(&node, "zweite")).unwrap();
    let told = kept(&node, "net");
    assert!(
        told.iter().any(|(what, why)| what.starts_with("leases") && why.contains("zweite.conflist")),
        "{told:?}"
    );
    assert_eq!(names(&node.host.data_dir()), ["net"]);
    assert!(has_link(&node, "br0"));

    // A link leads another network to the same directory.
    let node = Node::new();
    full(&node, "net", "br0", "10.1.2.0/24");
    full(&node, "other", "br1", "10.1.2.0/24");
    used(&node, "net");
    std::os::unix::fs::symlink(node.host.data_dir().join("net"), node.host.data_dir().join("other")).unwrap();
    let told = kept(&node, "net");
    assert!(told[0].1.starts_with("network other has its leases there, too"), "{told:?}");
    assert!(node.host.data_dir().join("net").exists());

    // Files of others keep the directory, and a share of a cluster's addresses does.
    for (name, why) in [("notes.txt", "notes.txt is there"), (".cnimble-share", "cnimble ipam release")] {
        let node = Node::new();
        full(&node, "net", "br0", "10.1.2.0/24");
        used(&node, "net");
        let dir = node.host.data_dir().join("net");
        fs::create_dir_all(&dir).unwrap();
        fs::write(dir.join(name), "{}").unwrap();
        let told = kept(&node, "net");
        assert!(told.len() == 1 && told[0].1.contains(why), "{told:?}");
        assert!(dir.join(name).exists());
        assert!(!has_link(&node, "br0"), "the bridge goes all the same");
    }
}
