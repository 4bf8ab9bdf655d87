//! Tests `cnimble doctor` on nodes with all kinds of damage. Living pods must never be changed.

mod cut_off;
mod departures;
mod faults;
mod guard;
mod leaves;
mod repairs;
mod strangers;
mod unseen;
mod vlan_in_vm;
mod warned;
mod words;

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::{Value, json};

use cnimble_tests::{Background, Outcome, PATIENCE, Pod, Snapshot, leases, plugin_dir, script, wait_until};

use super::Node;

/// Returns a complete chain. Its addresses belong to this module: the same address in any namespace of the machine
/// would be evidence for its lease.
fn chain(node: &Node, name: &str, bridge: &str, subnet: &str) -> Value {
    json!({
        "cniVersion": "1.0.0",
        "name": name,
        "plugins": [
            {
                "type": "bridge", "bridge": bridge, "isGateway": true, "ipMasq": true, "macspoofchk": true,
                "ipam": {"type": "host-local", "dataDir": node.host.data_dir(), "ranges": [[{"subnet": subnet}]]},
            },
            {"type": "portmap", "capabilities": {"portMappings": true}},
            {"type": "firewall"},
            {"type": "bandwidth", "egressRate": 80_000_000, "egressBurst": 8_000_000},
        ],
    })
}

fn ports(port: u16) -> String {
    json!({"portMappings": [{"hostPort": port, "containerPort": 80, "protocol": "tcp"}]}).to_string()
}

impl Node {
    fn add(&self, plugins: &Path, net: &str, pod: &Pod, id: &str, port: u16) -> Value {
        let ports = ports(port);
        let args = ["add", net, pod.path(), "--container-id", id, "--cap-args", &ports];
        self.cnimble(plugins, &args).run().result()
    }

    /// Runs `cnimble doctor ARGS… --json` with cnimble's plugins.
    fn doctor(&self, args: &[&str]) -> Outcome {
        let dir = self.host.data_dir();
        let mut all = vec!["doctor", "--json", "--data-dir", dir.to_str().unwrap()];
        all.extend(args);
        self.cnimble(plugin_dir(), &all).run()
    }

    /// Returns all state that may change, except the order in which addresses are given.
    fn state(&self) -> (Snapshot, Vec<String>) {
        let mut cache = leases(&self.cache());
        cache.retain(|line| !line.contains(".corrupt-"));
        (Snapshot::settled(&self.host).without_lines("last_reserved_ip"), cache)
    }

    /// Waits until the links of removed pods are deleted.
    fn gone(&self, links: &[String]) {
        assert!(
            wait_until(PATIENCE, || !self.host.links().iter().any(|link| links.contains(link))),
            "{links:?}"
        );
    }

    pub(super) fn entry(&self, net: &str, id: &str) -> std::path::PathBuf {
        self.cache().join(format!("results/{net}-{id}-eth0"))
    }

    fn file(&self, path: &str, content: &str) {
        fs::write(self.host.dir().join(path), content).unwrap();
    }
}

/// A directory of plugins with one named `waits`, whose ADD hangs for the container `hanging`. That ADD holds the lock
/// of its network.
struct HangingAdd {
    plugins: PathBuf,
}

impl HangingAdd {
    fn prepare(node: &Node) -> Self {
        let plugins = node.host.dir().join("plugins");
        fs::create_dir(&plugins).unwrap();
        for name in ["bridge", "portmap", "firewall", "host-local"] {
            std::os::unix::fs::symlink(plugin_dir().join(name), plugins.join(name)).unwrap();
        }
        let answer = r#"#!/bin/sh
cat >$0.$CNI_CONTAINERID; case $CNI_CONTAINERID in hanging) read wait <$0.fifo;; esac
case $CNI_COMMAND in ADD) jq -c .prevResult $0.$CNI_CONTAINERID;; esac"#;
        script(&plugins.join("waits"), answer);
        node.host.sh(&format!("mkfifo {}", plugins.join("waits.fifo").display()));
        HangingAdd { plugins }
    }

    /// Starts the ADD, and returns when it hangs.
    fn begin(&self, node: &Node, network: &str, pod: &Pod) -> Background {
        let args = ["add", network, pod.path(), "--container-id", "hanging"];
        let add = Background::start(&mut node.cnimble(&self.plugins, &args).command);
        let input = self.plugins.join("waits.hanging");
        let hangs = || fs::read_to_string(&input).is_ok_and(|text| text.contains(network));
        assert!(wait_until(PATIENCE, hangs));
        add
    }

    fn end(&self, add: Background) {
        fs::write(self.plugins.join("waits.fifo"), "go on\n").unwrap();
        assert!(add.finish(Duration::from_secs_f32(PATIENCE)).status.success());
    }
}

/// Returns the host's veths in a result.
fn veths(result: &Value) -> Vec<String> {
    let names = result["interfaces"].as_array().unwrap().iter().map(|of| of["name"].as_str().unwrap());
    names.filter(|name| name.starts_with("veth")).map(str::to_owned).collect()
}

fn findings(outcome: &Outcome, status: i32) -> Vec<Value> {
    assert_eq!(outcome.status, status, "{}", outcome.describe());
    let document: Value = serde_json::from_slice(&outcome.stdout).unwrap();
    assert_eq!(document["healthy"], status == 0, "{document:#}");
    assert_eq!(document["notLookedAt"], json!([]));
    document["findings"].as_array().unwrap().clone()
}

/// Returns `kind outcome container` of the findings, sorted and without duplicates.
fn kinds(findings: &[Value]) -> Vec<String> {
    let text = |value: &Value| value.as_str().unwrap_or("-").to_owned();
    let of = |f: &Value| format!("{} {} {}", text(&f["kind"]), text(&f["outcome"]), text(&f["containerID"]));
    let mut kinds: Vec<String> = findings.iter().map(of).collect();
    kinds.sort();
    kinds.dedup();
    kinds
}

#[track_caller]
fn same(before: &(Snapshot, Vec<String>), after: &(Snapshot, Vec<String>), when: &str) {
    before.0.assert_same(&after.0, when);
    assert_eq!(before.1, after.1, "{when}: the cache");
}

/// Asserts that a look finds `expected` and changes nothing. Then a repair restores the state `healthy`, and another
/// look finds nothing.
#[track_caller]
fn heals(node: &Node, healthy: &(Snapshot, Vec<String>), expected: &[&str]) {
    let damaged = node.state();
    let looked = node.doctor(&["--grace", "0"]);
    let found = findings(&looked, 6);
    assert_eq!(kinds(&found), expected, "{found:#?}");
    same(&damaged, &node.state(), "after looking");
    let repaired = kinds(&findings(&node.doctor(&["--grace", "0", "--repair"]), 0));
    let expected: Vec<String> = expected.iter().map(|line| line.replace(" found ", " repaired ")).collect();
    assert_eq!(repaired, expected);
    same(healthy, &node.state(), "after the repair");
    assert_eq!(findings(&node.doctor(&["--grace", "0"]), 0), [] as [Value; 0]);
}
