//! Nodes that have left the cluster: other nodes return their blocks, and none of their addresses has two owners.

use std::process::Stdio;
use std::time::{Duration, Instant};

use cnimble_tests::http::ApiServer;
use cnimble_tests::{Background, Host, PATIENCE, command, plugin_dir, wait_until};
use serde_json::json;

use super::agent::agent_of;
use super::boots::{claimed, owned};
use super::{Node, cluster, refused, wanted};

fn tend(node: &Node<'_>, names: &[&str]) {
    node.listed(names).operate("tend").unwrap();
}

#[test]
fn the_blocks_of_a_vanished_node_return_and_it_claims_others_when_its_pods_are_gone() {
    let host = Host::new();
    let (etcd, nodes) = cluster(&host, 1, "10.9.0.0/16");
    let [gone, left] = [&nodes[0], &nodes[1]].map(|node| node.offline(3));
    let ip = gone.added("p1");
    for node in [&gone, &left] {
        tend(node, &["a", "b"]);
    }
    let theirs = owned(&gone);
    assert!(wait_until(PATIENCE, || {
        tend(&left, &["b"]);
        claimed(&left).is_disjoint(&theirs)
    }));
    assert_eq!(etcd.get("/cnimble/ipam/net/nodes/a") + &etcd.get("/cnimble/ipam/net/owned/a/"), "");
    assert_eq!(left.share()["vanished"], serde_json::Value::Null);
    // Its right has ended, and it learns why.
    refused(gone.add("p2"), 50, "has confirmed nothing for too long");
    let wanted = wanted(&ip);
    left.run("ADD", "p1", &wanted, None).unwrap();
    refused(gone.add("p2"), 50, "has a lease");
    gone.run("DEL", "p1", "", Some(&ip)).unwrap();
    gone.added("p2");
    assert!(owned(&gone).is_disjoint(&owned(&left)) && !owned(&gone).is_empty());
    super::assert_no_block_is_lost(&[gone, left]);
}

/// It may still give addresses, for an hour without etcd.
#[test]
fn before_the_time_offline_a_vanished_node_keeps_its_blocks() {
    let host = Host::new();
    let (_etcd, nodes) = cluster(&host, 1, "10.9.0.0/16");
    nodes[0].added("p1");
    nodes[1].added("p1");
    nodes[..2].iter().for_each(|node| tend(node, &["a", "b"]));
    let left = nodes[1].offline(1);
    let looks = || left.share()["vanished"][0]["before"].as_u64().unwrap_or(0);
    let has_waited = || {
        tend(&left, &["b"]);
        looks() > 3000
    };
    assert!(wait_until(PATIENCE, has_waited), "{}", left.share());
    assert!(claimed(&left).is_superset(&owned(&nodes[0])));
    nodes[0].added("p2");
}

#[test]
fn a_node_that_confirms_or_that_no_api_server_had_isnt_vanished() {
    let host = Host::new();
    let (_etcd, nodes) = cluster(&host, 1, "10.9.0.0/16");
    let [living, left, other] = [0, 1, 2].map(|n| nodes[n].offline(3));
    for node in [&living, &left, &other] {
        node.added("p1");
    }
    for node in [&living, &left] {
        tend(node, &["a", "b"]);
    }
    let began = Instant::now();
    while began.elapsed() < Duration::from_secs(8) {
        living.operate("confirm").unwrap();
        tend(&left, &["b"]);
    }
    assert!(claimed(&left).is_superset(&owned(&other)) && claimed(&left).is_superset(&owned(&living)));
    living.added("p2");
}

#[test]
fn a_node_that_the_api_server_doesnt_list_returns_no_blocks_of_others() {
    let host = Host::new();
    let (_etcd, nodes) = cluster(&host, 1, "10.9.0.0/16");
    let [silent, left] = [0, 1].map(|n| nodes[n].offline(3));
    silent.added("p1");
    for node in [&silent, &left] {
        tend(node, &["a", "b"]);
    }
    let began = Instant::now();
    while began.elapsed() < Duration::from_secs(8) {
        tend(&left, &["z"]);
        // No list, as while the API server is away.
        tend(&left, &[]);
    }
    assert!(claimed(&left).is_superset(&owned(&silent)));
}

/// Returns an API server that lists the nodes a and b. The latter, which is `gone` later, owns a block by then.
fn listing_both(host: &Host, gone: &Node<'_>) -> ApiServer {
    gone.added("p1");
    tend(gone, &["a", "b"]);
    let api = ApiServer::of_nodes(host, "127.0.0.21:8080");
    for name in ["a", "b"] {
        api.put(json!({"metadata": {"name": name}}));
    }
    api
}

#[test]
fn the_agent_returns_the_blocks_of_a_node_that_the_api_server_deletes() {
    let host = Host::new();
    let (etcd, nodes) = cluster(&host, 1, "10.9.0.0/16");
    let [first, gone] = [&nodes[0], &nodes[1]].map(|node| node.offline(3));
    let api = listing_both(&host, &gone);
    let dir = host.dir().join("agent");
    let _agent = agent_of(&dir, &first, "127.0.0.21:8080");
    let log = || std::fs::read_to_string(dir.join("log")).unwrap();
    let is_known = || etcd.get("/cnimble/ipam/net/nodes/a").contains("\"listed\":true");
    assert!(wait_until(PATIENCE, is_known), "{}", log());
    assert!(claimed(&first).is_superset(&owned(&gone)));
    api.delete("default/b");
    assert!(wait_until(PATIENCE, || claimed(&first).is_disjoint(&owned(&gone))), "{}", log());
}

/// Routes follow the store's nodes, and the API server tells which nodes are gone. With an autoscaler nobody runs
/// `cnimble ipam release`.
#[test]
fn an_agent_with_shared_blocks_returns_those_of_a_node_that_the_api_server_deletes() {
    let host = Host::new();
    let (_etcd, nodes) = cluster(&host, 1, "10.9.0.0/16");
    let [first, gone] = [&nodes[0], &nodes[1]].map(|node| node.offline(3));
    let api = listing_both(&host, &gone);
    let dir = host.dir().join("agent");
    std::fs::create_dir(&dir).unwrap();
    let (keys, kubeconfig) = (dir.join("pods.json"), api.kubeconfig(&dir, None));
    std::fs::write(&keys, first.config["ipam"].to_string()).unwrap();
    let mut process = first.command(command());
    process.arg("--cni-path").arg(plugin_dir()).arg("--conf-dir").arg(dir.join("net.d"));
    process.args(["node", "--name", "net", "--node-ip", "192.0.2.1", "--cluster-local"]).arg(keys);
    process.arg("--kubeconfig").arg(kubeconfig).arg("--listen").arg(dir.join("sock"));
    process.stdin(Stdio::null()).stderr(std::fs::File::create(dir.join("log")).unwrap());
    let _agent = Background::start(&mut process);
    let log = || std::fs::read_to_string(dir.join("log")).unwrap();
    let has_share = || first.store().join(".cnimble-share").exists();
    let is_known = || has_share() && first.share()["identity"]["listed"] == true;
    assert!(wait_until(PATIENCE, is_known), "{}", log());
    assert!(claimed(&first).is_superset(&owned(&gone)));
    api.delete("default/b");
    assert!(wait_until(PATIENCE, || claimed(&first).is_disjoint(&owned(&gone))), "{}", log());
}
