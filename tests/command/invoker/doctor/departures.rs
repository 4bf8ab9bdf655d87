//! Tests pods in the middle of a DEL, which a runtime calls plugin by plugin.

use std::fs;
use std::path::Path;

use serde_json::{Value, json};

use cnimble_os::files::begun;
use cnimble_tests::{Pod, need, plugin_dir};

use super::super::{Run, command};
use super::faults::network;
use super::{Node, findings, kinds, ports};

/// A pod, its ID and the result of its ADD.
struct Added {
    pod: Pod,
    id: String,
    result: Value,
}

impl Added {
    fn new(node: &Node, id: String, port: u16) -> Self {
        let pod = Pod::new();
        let result = node.add(plugin_dir(), "doc", &pod, &id, port);
        Added { pod, id, result }
    }

    /// Calls one verb of one plugin.
    fn call(&self, node: &Node, verb: &str, config: &Value, plugin: usize) {
        let mut stdin = config["plugins"][plugin].clone();
        for key in ["name", "cniVersion"] {
            stdin[key] = config[key].clone();
        }
        stdin["prevResult"] = self.result.clone();
        stdin["runtimeConfig"] = serde_json::from_str(&ports(8001)).unwrap();
        let name = stdin["type"].as_str().unwrap().to_owned();
        let call = node.host.call(&name).command(verb);
        call.attachment(&self.id, self.pod.path(), "eth0").config(&stdin).run().success();
    }
}

fn rules(node: &Node) -> Vec<String> {
    let mut lines: Vec<String> = node.host.nft("-s list ruleset").lines().map(str::to_owned).collect();
    lines.sort();
    lines
}

fn notes() -> usize {
    fs::read_dir(begun::DIR).map_or(0, Iterator::count)
}

fn repair(node: &Node, status: i32) -> Vec<String> {
    kinds(&findings(&node.doctor(&["--grace", "0", "--repair"]), status))
}

#[test]
fn doctor_between_any_two_plugins_of_a_del_leaves_no_rule() {
    need!("ip", "nft");
    let node = Node::new();
    let config = network(&node, "doc", "10.213.26.0/24");
    node.network("doc", &config);
    let _other = Added::new(&node, "other".to_owned(), 8001);
    let before = rules(&node);
    // `scripts/stress doctor` takes more.
    let rounds =
        std::env::var("CNIMBLE_LIVES").map_or(3, |count| count.parse().expect("CNIMBLE_LIVES: a number"));
    for round in 0..rounds {
        let pod = Added::new(&node, format!("c{round}"), 8100);
        for plugin in [2, 1] {
            pod.call(&node, "DEL", &config, plugin);
            assert_eq!(repair(&node, 0), [format!("begun-del left {}", pod.id)]);
        }
        pod.call(&node, "DEL", &config, 0);
        assert_eq!(notes(), 0);
        // The runtime removes its record last. Without that the pod looks like one that has lost its interface.
        assert_eq!(repair(&node, 7), [format!("pod-state failed {}", pod.id)]);
        fs::remove_file(node.entry("doc", &pod.id)).unwrap();
        assert_eq!(rules(&node), before, "round {round}");
    }
}

/// All pods have lost their rules, so the doctor restores some while a DEL removes them.
#[test]
fn doctor_beside_a_del_leaves_no_rule() {
    need!("ip", "nft");
    let node = Node::new();
    let config = network(&node, "doc", "10.213.27.0/24");
    node.network("doc", &config);
    let _other = Added::new(&node, "other".to_owned(), 8001);
    let before = rules(&node);
    for round in 0..5 {
        let pod = Added::new(&node, format!("c{round}"), 8100);
        node.host.nft("flush ruleset");
        std::thread::scope(|scope| {
            scope.spawn(|| node.doctor(&["--grace", "0", "--repair"]));
            for plugin in [2, 1, 0] {
                pod.call(&node, "DEL", &config, plugin);
            }
        });
        fs::remove_file(node.entry("doc", &pod.id)).unwrap();
        findings(&node.doctor(&["--grace", "0", "--repair"]), 0);
        assert_eq!(rules(&node), before, "round {round}");
        assert_eq!(notes(), 0);
    }
}

#[test]
fn a_del_that_stopped_half_way_is_told_until_something_ends_it() {
    need!("ip", "nft");
    let node = Node::new();
    let mut config = network(&node, "doc", "10.213.28.0/24");
    config["cniVersion"] = json!("1.1.0");
    node.network("doc", &config);
    let pod = Added::new(&node, "one".to_owned(), 8001);
    let before = rules(&node);
    pod.call(&node, "DEL", &config, 1);
    assert_eq!(repair(&node, 0), ["begun-del left one"]);
    assert_ne!(rules(&node), before);
    // The command in the hint names the directories that the user has named, so it reaches the attachment.
    let (bin, conf) = (plugin_dir().to_str().unwrap(), node.conf());
    let mut doctor = node.host.command(command());
    doctor.args(["doctor", "--json", "--cni-path", bin, "--conf-dir", conf.to_str().unwrap()]);
    doctor.arg("--cache-dir").arg(node.cache()).arg("--data-dir").arg(node.host.data_dir());
    let told = findings(&Run { command: doctor, stdin: Vec::new() }.run(), 0);
    let hint = format!(
        "`cnimble del doc --container-id one --cache-dir {} --cni-path {bin} --conf-dir {}`",
        node.cache().display(),
        conf.display()
    );
    assert!(told[0]["doubt"].as_str().unwrap().contains(&hint), "{told:?}");
    // The runtime keeps the pod after all.
    pod.call(&node, "ADD", &config, 1);
    assert_eq!((rules(&node), repair(&node, 0)), (before, vec![]));
    // GC with a list that contains the pod, then with one that doesn't.
    pod.call(&node, "DEL", &config, 2);
    let gc = |plugin: &str, valid: Value| {
        let stdin =
            json!({"cniVersion": "1.1.0", "name": "doc", "type": plugin, "cni.dev/valid-attachments": valid});
        node.host.call(plugin).command("GC").config(&stdin).run().success();
    };
    gc("portmap", json!([{"containerID": "one", "ifname": "eth0"}]));
    assert_eq!((notes(), repair(&node, 0)), (1, vec!["begun-del left one".to_owned()]));
    gc("portmap", json!([{"containerID": "two", "ifname": "eth0"}]));
    assert_eq!(notes(), 0);
}

#[test]
fn a_del_that_can_not_be_noted_is_done() {
    need!("ip", "nft");
    let node = Node::new();
    node.network("doc", &network(&node, "doc", "10.213.29.0/24"));
    fs::create_dir_all(Path::new(begun::DIR).parent().unwrap()).unwrap();
    fs::write(begun::DIR, "").unwrap();
    let pod = Added::new(&node, "one".to_owned(), 8001);
    node.cnimble(plugin_dir(), &["del", "doc", pod.pod.path(), "--container-id", "one"]).run().success();
    assert_eq!(rules(&node), [] as [String; 0]);
    fs::remove_file(begun::DIR).unwrap();
}
