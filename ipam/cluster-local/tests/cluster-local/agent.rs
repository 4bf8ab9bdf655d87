//! `cnimble node` and the plugin: a spare block exists before an ADD needs it.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::Stdio;

use serde_json::json;

use cnimble_tests::{Background, Host, LIMIT, PATIENCE, command, copy, plugin_dir, wait_until};

use super::operator::list;
use super::{Node, cluster};

/// Starts the agent of the node, with its files in a directory. It listens at `sock` there. Its API server
/// doesn't exist and isn't needed here.
pub(super) fn agent(dir: &Path, node: &Node<'_>) -> Background {
    agent_of(dir, node, "127.0.0.1:1")
}

/// Same as `agent`, with an API server at this address.
pub(super) fn agent_of(dir: &Path, node: &Node<'_>, server: &str) -> Background {
    let conf = dir.join("net.d");
    std::fs::create_dir_all(&conf).unwrap();
    list(&conf.join("net.conflist"), node);
    let kubeconfig = dir.join("kubeconfig");
    let config = json!({"current-context": "c", "contexts": [{"name": "c", "context": {"cluster": "k", "user": "u"}}],
        "clusters": [{"name": "k", "cluster": {"server": format!("http://{server}")}}],
        "users": [{"name": "u", "user": {}}]});
    std::fs::write(&kubeconfig, config.to_string()).unwrap();
    let mut process = node.command(command());
    process.arg("--cni-path").arg(plugin_dir()).arg("--conf-dir").arg(conf);
    process.args(["node", "--node-name", "a", "--listen"]).arg(dir.join("sock"));
    process.arg("--kubeconfig").arg(kubeconfig);
    process.stdin(Stdio::null()).stderr(std::fs::File::create(dir.join("log")).unwrap());
    Background::start(&mut process)
}

/// Returns the page of the agent that listens there.
pub(super) fn get(socket: &Path, path: &str) -> Option<String> {
    let mut stream = UnixStream::connect(socket).ok()?;
    stream.set_read_timeout(Some(LIMIT)).unwrap();
    write!(stream, "GET {path} HTTP/1.1\r\nHost: node\r\nConnection: close\r\n\r\n").ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok()?;
    Some(answer)
}

/// Returns the counter of this name in `/metrics` of the agent that listens there.
pub(super) fn metric(socket: &Path, name: &str) -> Option<u64> {
    let text = get(socket, "/metrics")?;
    let line = text.lines().find_map(|line| line.strip_prefix(&format!("cnimble_node_{name} ")))?;
    line.trim().parse().ok()
}

/// Returns the number of blocks in the node's file, or 0 if there is no file.
fn blocks(node: &Node<'_>) -> usize {
    let exists = node.store().join(".cnimble-share").exists();
    if exists { node.share()["owned"].as_array().unwrap().len() } else { 0 }
}

#[test]
fn with_the_agent_adds_go_past_a_blocks_end_without_a_word_to_etcd() {
    let host = Host::new();
    let (_etcd, nodes) = cluster(&host, 1, "10.9.0.0/16");
    let node = &nodes[0];
    // This plugin finds no program that could ask etcd. An ADD that needs it fails.
    let bare = host.dir().join("bare");
    std::fs::create_dir(&bare).unwrap();
    copy(&plugin_dir().join("cluster-local"), &bare.join("cluster-local"));
    let agent = agent(&host.dir().join("agent"), node);
    let log = || std::fs::read_to_string(host.dir().join("agent/log")).unwrap();
    for n in 0..70 {
        // A block has 56 addresses, and an ADD may run before the agent's next look.
        if n % 16 == 0 {
            assert!(wait_until(PATIENCE, || blocks(node) * 56 >= n + 32), "{n} pods: {}", log());
        }
        node.run_in(&bare, "ADD", &format!("p{n}"), "", None)
            .unwrap_or_else(|err| panic!("ADD {n}: {err}\n{}", log()));
    }
    drop(agent);
    super::assert_no_block_is_lost(&nodes[..1]);
}

#[test]
fn the_agent_confirms_the_share_and_gives_empty_blocks_back() {
    let host = Host::new();
    let (_etcd, nodes) = cluster(&host, 1, "10.9.0.0/16");
    let node = &nodes[0];
    for (n, ip) in ["10.9.100.7", "10.9.101.7", "10.9.102.7"].iter().enumerate() {
        node.run("ADD", &format!("p{n}"), &format!("IP={ip}"), None).unwrap();
    }
    for n in 1..3 {
        node.run("DEL", &format!("p{n}"), "", None).unwrap();
    }
    assert!(blocks(node) > 2);
    let turn = || node.share()["identity"]["turn"].as_u64().unwrap();
    let before = turn();
    let agent = agent(&host.dir().join("agent"), &node.offline(3));
    // One block has a lease, and one is the spare block.
    assert!(wait_until(PATIENCE, || blocks(node) == 2 && turn() > before + 2), "{}", node.share());
    drop(agent);
    super::assert_no_block_is_lost(&nodes[..1]);
}
