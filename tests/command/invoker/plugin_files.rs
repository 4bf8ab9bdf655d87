//! Tests how doctor and validate report the maker of each plugin file.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use cnimble_tests::{Outcome, Pod, need_go, plugin_dir, script};

use super::Node;

/// Creates a directory with the plugins of this network. Plugins in `others` come from there, the rest from cnimble.
fn bin(node: &Node, others: &[(&str, &Path)]) -> PathBuf {
    let bin = node.host.dir().join("bin");
    let _ = fs::remove_dir_all(&bin);
    fs::create_dir(&bin).unwrap();
    for name in ["bridge", "host-local", "portmap"] {
        let other = others.iter().find(|(other, _)| *other == name);
        symlink(other.map_or(plugin_dir().join(name), |(_, file)| file.to_path_buf()), bin.join(name))
            .unwrap();
    }
    bin
}

fn doctor(node: &Node, bin: &Path) -> Outcome {
    let dir = node.host.data_dir();
    node.cnimble(bin, &["doctor", "--json", "--data-dir", dir.to_str().unwrap()]).run()
}

/// Returns maker and name of each file, and the consequences.
fn told(outcome: &Outcome, status: i32) -> (Vec<String>, Vec<String>) {
    assert_eq!(outcome.status, status, "{}", outcome.describe());
    let document: Value = serde_json::from_slice(&outcome.stdout).unwrap();
    let plugins = &document["plugins"];
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let files = plugins["files"].as_array().unwrap().iter();
    let files = files.map(|file| format!("{} {}", text(&file["maker"]), text(&file["name"]))).collect();
    let what = plugins["consequences"].as_array().unwrap().iter();
    (files, what.map(|of| format!("{}: {}", text(&of["what"]), text(&of["remedy"]))).collect())
}

fn network(node: &Node) {
    let chain = json!({
        "cniVersion": "1.0.0",
        "name": "net",
        "plugins": [
            {
                "type": "bridge", "bridge": "br0", "isGateway": true,
                "ipam": {
                    "type": "host-local", "dataDir": node.host.data_dir(),
                    "ranges": [[{"subnet": "10.213.1.0/24"}]],
                },
            },
            {"type": "portmap", "capabilities": {"portMappings": true}},
        ],
    });
    node.network("net", &chain);
}

#[test]
fn doctor_tells_of_pods_whose_rules_a_copied_go_plugin_leaves() {
    need_go!(go, "ip", "nft", "iptables-save");
    let (node, pod) = (Node::new(), Pod::new());
    network(&node);
    let ours = bin(&node, &[]);
    let ports =
        json!({"portMappings": [{"hostPort": 8080, "containerPort": 80, "protocol": "tcp"}]}).to_string();
    let add = ["add", "net", pod.path(), "--container-id", "web", "--cap-args", &ports];
    node.cnimble(&ours, &add).run().result();
    let all = ["cnimble bridge", "cnimble host-local", "cnimble portmap"].map(str::to_owned).to_vec();
    assert_eq!(told(&doctor(&node, &ours), 0), (all, Vec::new()));

    let text = node.cnimble(&ours, &["doctor", "--data-dir", node.host.data_dir().to_str().unwrap()]).run();
    let line = format!(" in {}: all 3 with a name of the reference set\n", ours.display());
    assert!(text.text().contains(&line), "{}", text.describe());

    let mixed = bin(&node, &[("portmap", &go.join("portmap"))]);
    let (files, follows) = told(&doctor(&node, &mixed), 6);
    assert_eq!(files, ["cnimble bridge", "cnimble host-local", "go portmap"]);
    assert_eq!(follows.len(), 1, "{follows:?}");
    assert!(
        follows[0].contains("container web") && follows[0].contains(": cnimble hand-over --yes --cache-dir "),
        "{follows:?}"
    );

    let (leases, state) = (node.host.data_dir(), node.host.dir().join("state"));
    let (leases, state) = (leases.to_str().unwrap(), state.to_str().unwrap());
    let hand_over = ["hand-over", "--yes", "--data-dir", leases, "--state-dir", state];
    node.cnimble(&mixed, &hand_over).run().success();
    assert!(told(&doctor(&node, &mixed), 0).1.is_empty());
    node.cnimble(&mixed, &["del", "net", pod.path(), "--container-id", "web", "--cap-args", &ports])
        .run()
        .success();
}

#[test]
fn a_file_that_is_another_plugin_is_told_by_doctor_and_validate() {
    need_go!(go, "ip", "nft");
    let node = Node::new();
    network(&node);
    // The result of `cp -f OTHER/loopback loopback` if all names are hard links of one file.
    let overwritten = bin(&node, &[("bridge", &go.join("loopback"))]);
    let (files, follows) = told(&doctor(&node, &overwritten), 6);
    assert_eq!(files[0], "go bridge");
    assert!(follows[0].contains("bridge is the plugin loopback (Go"), "{follows:?}");
    // A distribution's build may have no version.
    assert!(!follows[0].contains("vunknown"), "{follows:?}");

    let validate = node.cnimble(&overwritten, &["validate", "net"]).run();
    assert!(validate.stderr.contains("is the plugin loopback"), "{}", validate.describe());
    let strict = node.cnimble(&overwritten, &["validate", "--strict", "net"]).run();
    let text = String::from_utf8_lossy(&strict.stdout).into_owned();
    assert!(strict.status != 0 && text.contains("bridge is the plugin loopback"), "{}", strict.describe());

    let mixed = bin(&node, &[("portmap", &go.join("portmap"))]);
    let strict = node.cnimble(&mixed, &["validate", "--strict", "net"]).run();
    let text = String::from_utf8_lossy(&strict.stdout).into_owned();
    assert!(text.contains("note: ") && text.contains("hand-over --yes"), "{}", strict.describe());
}

/// A script may do anything when it is called without CNI_COMMAND.
#[test]
fn a_plugin_that_is_a_script_is_not_run() {
    let node = Node::new();
    let ran = node.host.dir().join("ran");
    let other = node.host.dir().join("other");
    script(&other, &format!("#!/bin/sh\ntouch {}\n", ran.display()));
    let bin = bin(&node, &[("bridge", &other)]);
    let (files, follows) = told(&doctor(&node, &bin), 0);
    assert_eq!(files[0], "other bridge");
    assert!(follows.is_empty() && !ran.exists(), "{follows:?}");
}

#[test]
fn a_missing_directory_is_a_warning_only_if_no_other_one_exists() {
    let node = Node::new();
    let missing = node.host.dir().join("missing");
    let both = std::env::join_paths([missing.as_path(), plugin_dir()]).unwrap();
    let outcome = node.cnimble(Path::new(&both), &["plugins"]).run().success();
    assert!(outcome.stderr.is_empty(), "{}", outcome.describe());
    let outcome = node.cnimble(&missing, &["plugins"]).run();
    assert!(outcome.stderr.contains("can't list the plugin directory"), "{}", outcome.describe());
}
