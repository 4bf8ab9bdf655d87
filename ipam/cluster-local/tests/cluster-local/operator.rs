//! `cnimble ipam` initializes a network, lists it and releases a node.

use std::path::Path;

use cnimble_tests::{Host, command, plugin_dir};
use serde_json::{Value, json};

use super::{Etcd, Node, answer, refused};

/// Runs `cnimble ipam` and returns its answer as JSON.
fn ipam(host: &Host, words: &[&str]) -> Result<Value, String> {
    let mut process = host.command(command());
    process.args(["--json", "--cni-path"]).arg(plugin_dir()).arg("ipam").args(words);
    answer(&process.output().unwrap()).map_err(|err| err.to_string())
}

pub(super) fn list(path: &Path, node: &Node<'_>) {
    let mut plugin = node.config.clone();
    plugin.as_object_mut().unwrap().retain(|key, _| key != "cniVersion" && key != "name");
    let text = json!({"cniVersion": "1.1.0", "name": "net", "plugins": [plugin]}).to_string();
    std::fs::write(path, text).unwrap();
}

#[test]
fn the_command_sets_a_network_up_lists_its_blocks_and_releases_a_node() {
    let host = Host::new();
    let _etcd = Etcd::start(&host, 1);
    let node = Node::new(&host, 1, "a", "10.9.0.0/16");
    let path = host.dir().join("net.conflist");
    list(&path, &node);
    let file = path.to_str().unwrap();

    let early = ipam(&host, &["blocks", file]).unwrap_err();
    assert!(early.contains("cnimble ipam init"), "{early}");
    ipam(&host, &["init", file, "--new"]).unwrap();
    let again = ipam(&host, &["init", file, "--new"]).unwrap_err();
    assert!(again.contains("set up already"), "{again}");
    assert_eq!(ipam(&host, &["blocks", file]).unwrap(), json!([]));

    let ip = node.added("p1");
    let first = node.share()["owned"][0]["first"].clone();
    let blocks = ipam(&host, &["blocks", file]).unwrap();
    assert_eq!(blocks.as_array().unwrap().len(), 1, "{blocks} for {ip}");
    assert_eq!((&blocks[0]["first"], &blocks[0]["node"]), (&first, &json!("a")));
    assert_eq!(blocks[0]["freeAt"], Value::Null);

    let unknown = ipam(&host, &["release", file, "nobody"]).unwrap_err();
    assert!(unknown.contains("nobody"), "{unknown}");
    let released = ipam(&host, &["release", file, "a"]).unwrap();
    assert_eq!(released["released"], 1, "{released}");
    let blocks = ipam(&host, &["blocks", file]).unwrap();
    assert_eq!((&blocks[0]["first"], &blocks[0]["freeAt"]), (&first, &released["freeAt"]));
    assert!(released["freeAt"].is_u64(), "{released}");
    // The node is unknown from now on, so its requests to etcd are refused.
    refused(node.run("ADD", "p2", "IP=10.9.77.7", None), 50, "released");
    // A boot claims a block of its own.
    node.in_boot(1).added("p2");
    assert_ne!(node.share()["owned"][0]["first"], first);
}
