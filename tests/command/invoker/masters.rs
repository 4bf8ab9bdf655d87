//! Tests `tree`, `gc` and `doctor` with interfaces that have no host end.

use serde_json::json;

use cnimble_tests::{Lan, Pod, need, plugin_dir, with_kind};

use super::Node;

/// Creates a network of macvlans on `uplink`. Liveness is judged by all namespaces of the machine, so such a test has
/// its own subnet.
fn network(node: &Node, name: &str, subnet: &str) {
    let config = json!({
        "cniVersion": "1.1.0",
        "name": name,
        "plugins": [{"type": "macvlan", "master": "uplink",
                     "ipam": {"type": "host-local", "dataDir": node.host.data_dir(), "ranges": [[{"subnet": subnet}]]}}],
    });
    node.network(name, &config);
}

fn added(node: &Node, pod: &Pod, id: &str) {
    node.cnimble(plugin_dir(), &["add", "net", pod.path(), "--container-id", id]).run().success();
}

#[test]
fn a_pod_is_drawn_on_the_master_of_its_interface() {
    need!("ip");
    with_kind!("macvlan");
    let node = Node::new();
    let _lan = Lan::behind(&node.host, "uplink");
    network(&node, "net", "10.7.0.0/24");
    let pod = Pod::new();
    added(&node, &pod, "web");
    let text = |node: &Node| {
        let call = node.cnimble(plugin_dir(), &["tree"]).env("LC_ALL", "C.UTF-8");
        call.run().success().text()
    };
    let drawn = "\
        net  CNI 1.1.0, macvlan, 1 pod\n\
        └─ uplink  veth\n   \
           └─ macvlan mode bridge bcqueuelen 1000 ── eth0  web\n         \
                 address  10.7.0.2/24\n";
    // Linux 5.11 shows the length of the queue.
    assert_eq!(
        text(&node).replace(" bcqueuelen 1000", ""),
        drawn.replace(" bcqueuelen 1000", "").replace("uplink  veth", "uplink")
    );
}

#[test]
fn an_interface_whose_alias_names_it_speaks_for_an_attachment_that_no_cache_knows() {
    need!("ip");
    with_kind!("macvlan");
    let node = Node::new();
    let _lan = Lan::behind(&node.host, "uplink");
    network(&node, "net", "10.213.12.0/24");
    let (told, untold) = (Pod::new(), Pod::new());
    added(&node, &told, "told");
    added(&node, &untold, "other");
    // Simulates a runtime with another cache directory. Without an address the lease is no evidence.
    std::fs::remove_file(node.cache().join("results/net-other-eth0")).unwrap();
    untold.ip("address flush dev eth0");
    let dir = node.host.data_dir();
    let clean = || {
        let args = ["gc", "net", "--gone", "--grace", "0", "--data-dir", dir.to_str().unwrap()];
        node.cnimble(plugin_dir(), &args).run().success()
    };
    let outcome = clean();
    assert_eq!(
        (node.leases(), untold.links()),
        (vec!["10.213.12.2".to_owned(), "10.213.12.3".to_owned()], vec!["eth0".to_owned(), "lo".to_owned()]),
        "{}",
        outcome.describe()
    );
    // With the namespace all evidence is removed.
    drop(untold);
    let outcome = clean();
    assert_eq!(node.leases(), ["10.213.12.2"], "{}", outcome.describe());
    assert_eq!(told.links(), ["eth0", "lo"]);
}
