//! The events about the nodes' shares that an agent gets.

use std::io::{BufRead, BufReader};
use std::process::Stdio;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use serde_json::{Value, json};

use cnimble_tests::{Background, Host, PATIENCE, plugin_dir, wait_until};

use super::etcd::NEEDS_AGENTS;
use super::{Node, cluster, cluster_of, refused};

/// A program that watches, and the lines that it has printed.
pub(super) struct Watch {
    pub(super) process: Background,
    lines: Arc<Mutex<Vec<String>>>,
}

impl Watch {
    pub(super) fn start(host: &Host, node: &Node<'_>, seen: i64) -> Self {
        let config = host.dir().join("watched");
        std::fs::write(&config, node.config.to_string()).unwrap();
        let (reader, writer) = std::io::pipe().unwrap();
        let mut command = host.command(plugin_dir().join("cluster-local-store"));
        command.args(["watch", "0", &seen.to_string()]).stdin(std::fs::File::open(config).unwrap());
        let process = Background::start(command.stdout(Stdio::from(writer)).stderr(Stdio::null()));
        drop(command);
        let lines = Arc::new(Mutex::new(Vec::new()));
        let said = Arc::clone(&lines);
        std::thread::spawn(move || {
            for line in BufReader::new(reader).lines().map_while(Result::ok) {
                said.lock().unwrap().push(line);
            }
        });
        Watch { process, lines }
    }

    /// Returns the nodes of the last line.
    pub(super) fn nodes(&self) -> Value {
        let lines = self.lines.lock().unwrap();
        let last = lines.iter().rfind(|line| line.contains("\"nodes\""));
        last.map_or(Value::Null, |line| serde_json::from_str::<Value>(line).unwrap()["nodes"].clone())
    }

    #[track_caller]
    pub(super) fn tells(&self, what: &str, is_so: impl Fn(&Value) -> bool) {
        assert!(wait_until(PATIENCE, || is_so(&self.nodes())), "{what}: {:?}", self.lines.lock().unwrap());
    }

    /// Waits for a look without another revision.
    #[track_caller]
    pub(super) fn looks(&self) {
        let looks = || self.lines.lock().unwrap().iter().filter(|line| line.is_empty()).count();
        let before = looks();
        assert!(wait_until(PATIENCE, || looks() > before), "{}", self.all());
    }

    pub(super) fn all(&self) -> String {
        self.lines.lock().unwrap().join("\n")
    }
}

fn first(node: &Node<'_>) -> Value {
    node.share()["owned"][0]["first"].clone()
}

#[test]
fn an_agent_learns_of_each_claim_return_release_and_node_address() {
    let host = Host::new();
    let (_etcd, nodes) = cluster_of(&host, 1, "10.9.0.0/28", 29);
    let watch = Watch::start(&host, &nodes[0], 0);
    watch.tells("nothing at first", |nodes| *nodes == json!({}));
    nodes[0].operate("tend 192.0.2.1 2001:db8::1").unwrap();
    let block = first(&nodes[0]);
    let wanted = json!({"a": {"ips": ["192.0.2.1", "2001:db8::1"], "blocks": [block], "singles": []}});
    watch.tells("a block and addresses", |nodes| *nodes == wanted);
    // The node has another address, a spare block and a new confirmation.
    nodes[0].operate("tend 192.0.2.7").unwrap();
    watch.tells("another address", |nodes| nodes["a"]["ips"] == json!(["192.0.2.7"]));
    let asked = nodes[0].operate("tend 192.0.2.7").unwrap();
    assert_eq!(asked, json!({"asked": false}));
    // Without an agent a node has a block but no address. A plugin's confirmation removes nothing.
    nodes[1].added("p1");
    nodes[0].operate("confirm").unwrap();
    let other = first(&nodes[1]);
    watch.tells("another block", |nodes| {
        nodes["b"] == json!({"ips": [], "blocks": [other], "singles": []})
            && nodes["a"]["ips"] == json!(["192.0.2.7"])
    });
    // No block is free, so the address is borrowed from one.
    let single = nodes[2].added("p1");
    let single = single.split('/').next().unwrap();
    watch.tells("a single address", |nodes| nodes["c"]["singles"] == json!([single]));
    nodes[2].run("DEL", "p1", "", Some(&format!("{single}/28"))).unwrap();
    watch.tells("its return", |nodes| nodes["c"].is_null());
    nodes[1].operate("release a").unwrap();
    watch.tells("a release", |nodes| nodes["a"].is_null());
    // The first line of a later watch has the same nodes.
    let late = Watch::start(&host, &nodes[0], 0);
    late.tells("all", |nodes| *nodes == watch.nodes() && nodes["b"]["blocks"] == json!([other]));
}

#[test]
fn a_node_that_goes_on_longer_without_the_store_ends_no_watch() {
    let host = Host::new();
    let (_etcd, nodes) = cluster(&host, 1, "10.9.0.0/16");
    let mut watch = Watch::start(&host, &nodes[0], 0);
    watch.tells("nothing at first", |nodes| *nodes == json!({}));
    nodes[1].offline(7200).operate("confirm").unwrap();
    watch.looks();
    assert!(watch.process.running());
}

/// All agents parse each line. The next one comes with the first look, after ten seconds.
#[test]
fn a_confirmation_is_no_news() {
    let host = Host::new();
    let (_etcd, nodes) = cluster(&host, 1, "10.9.0.0/16");
    nodes[0].operate("confirm").unwrap();
    let start = Instant::now();
    let watch = Watch::start(&host, &nodes[0], 0);
    watch.tells("nothing at first", |nodes| *nodes == json!({}));
    let has_more = || watch.lines.lock().unwrap().len() > 1;
    assert!(wait_until(PATIENCE, || nodes[0].operate("confirm").is_ok() && has_more()), "{}", watch.all());
    assert!(start.elapsed() >= Duration::from_secs(10), "{}", watch.all());
}

#[test]
fn a_watch_ends_with_etcd_and_refuses_a_member_that_is_behind() {
    let host = Host::new();
    let (mut etcd, nodes) = cluster(&host, 1, "10.9.0.0/16");
    nodes[0].added("p1");
    let mut watch = Watch::start(&host, &nodes[0], 0);
    watch.tells("a block", |nodes| nodes["a"]["blocks"].is_array());
    etcd.kill(0);
    assert!(wait_until(PATIENCE, || !watch.process.running()));
    assert!(wait_until(PATIENCE, || watch.all().contains("\"code\": 11")), "{}", watch.all());
    etcd.member(0);
    etcd.settle();
    let mut behind = Watch::start(&host, &nodes[1], 1_000_000);
    assert!(wait_until(PATIENCE, || !behind.process.running()));
    assert!(wait_until(PATIENCE, || behind.all().contains("which was seen")), "{}", behind.all());
    refused(nodes[1].add("p2"), 50, "restored from a backup");
}

#[test]
fn a_restored_etcd_is_not_followed() {
    let host = Host::new();
    let (mut etcd, nodes) = cluster(&host, 1, "10.9.0.0/16");
    nodes[0].added("p1");
    let backup = etcd.backup();
    nodes[1].added("p1");
    let mut watch = Watch::start(&host, &nodes[2], 0);
    watch.tells("both", |nodes| nodes["a"]["blocks"].is_array() && nodes["b"]["blocks"].is_array());
    etcd.restore(&backup);
    assert!(wait_until(PATIENCE, || !watch.process.running()));
    // The node has never seen the old etcd, but its agent may have.
    let seen = if NEEDS_AGENTS { 1_000_000 } else { 0 };
    let mut again = Watch::start(&host, &nodes[2], seen);
    assert!(wait_until(PATIENCE, || !again.process.running()));
    assert!(wait_until(PATIENCE, || again.all().contains("restored from a backup")), "{}", again.all());
    assert_eq!(again.nodes(), Value::Null);
}

#[test]
fn a_watch_ends_when_its_member_is_paused() {
    let host = Host::new();
    let (etcd, nodes) = cluster(&host, 1, "10.9.0.0/16");
    let mut watch = Watch::start(&host, &nodes[0], 0);
    watch.tells("nothing at first", |nodes| *nodes == json!({}));
    etcd.signal(0, Signal::SIGSTOP);
    assert!(wait_until(PATIENCE, || !watch.process.running()));
    assert!(wait_until(PATIENCE, || watch.all().contains("no answer")), "{}", watch.all());
    etcd.signal(0, Signal::SIGCONT);
}

/// Its nodes' routes stay. In a whole store those of a released node go.
#[test]
fn an_emptied_store_is_not_taken_for_one_without_nodes() {
    let host = Host::new();
    let (etcd, nodes) = cluster(&host, 1, "10.9.0.0/16");
    nodes[0].added("p1");
    nodes[1].added("p1");
    nodes[2].added("p1");
    let mut watch = Watch::start(&host, &nodes[0], 0);
    watch.tells("three nodes", |nodes| nodes.as_object().is_some_and(|nodes| nodes.len() == 3));
    nodes[0].operate("release c").unwrap();
    watch.tells("a release", |nodes| nodes["c"].is_null() && nodes["b"]["blocks"].is_array());
    etcd.empty();
    assert!(wait_until(PATIENCE, || !watch.process.running()));
    assert!(wait_until(PATIENCE, || watch.all().contains("cnimble ipam init")), "{}", watch.all());
    let nodes_told = watch.nodes();
    assert!(nodes_told["a"].is_object() && nodes_told["b"].is_object(), "{}", watch.all());
    let mut again = Watch::start(&host, &nodes[0], 0);
    assert!(wait_until(PATIENCE, || !again.process.running()));
    assert_eq!(again.nodes(), Value::Null);
}
