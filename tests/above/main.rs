//! Replays what projects above the plugins pass to them: Multus, flannel, kindnet, the SR-IOV plugin, Istio and whereabouts.
//! Each file in `calls` is recorded from a run of the project, with only these plugins on the machine. [`Record`] has its keys.
#![cfg(test)]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde_json::{Value, json};

use cnimble_tests::{Node, Snapshot, copy, need, plugin_dir, script};

/// The calls of one run, in their order.
#[derive(Deserialize)]
struct Record {
    /// What the node has before the run: arguments of `ip`, one command each.
    #[serde(default)]
    host: Vec<String>,
    /// The results of IPAM plugins of the project, by their names.
    #[serde(default)]
    answers: BTreeMap<String, Value>,
    calls: Vec<Call>,
}

/// A call of one of our plugins. `$NETNS` stands for the path of the container's namespace.
#[derive(Deserialize)]
struct Call {
    plugin: String,
    env: BTreeMap<String, String>,
    stdin: Value,
    /// The result, or `null` if the plugin prints nothing.
    result: Value,
}

fn files(folder: &str) -> Vec<PathBuf> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(folder);
    let mut files: Vec<PathBuf> =
        std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    files
}

/// The answer of whereabouts to CHECK.
const NO_CHECK: &str = r#"{"code": 999, "msg": "CNI CHECK method is not implemented"}"#;

/// Returns a directory with our plugins and with substitutes for the project's, which print their recorded results.
fn plugins(node: &Node, answers: &BTreeMap<String, Value>) -> PathBuf {
    let dir = node.dir().join("bin");
    std::fs::create_dir(&dir).unwrap();
    for entry in std::fs::read_dir(plugin_dir()).unwrap() {
        let entry = entry.unwrap();
        std::fs::hard_link(entry.path(), dir.join(entry.file_name()))
            .unwrap_or_else(|_| copy(&entry.path(), &dir.join(entry.file_name())));
    }
    for (name, answer) in answers {
        let text = format!(
            "#!/bin/sh\ncat >/dev/null\ncase $CNI_COMMAND in\nADD | VERSION) printf %s '{answer}' ;;\n\
                            CHECK) echo '{NO_CHECK}' && exit 1 ;;\nesac\n"
        );
        script(&dir.join(name), &text);
    }
    dir
}

/// The MAC addresses of a result's interfaces.
fn macs(result: &Value) -> Vec<&str> {
    let interfaces = result["interfaces"].as_array().into_iter().flatten();
    interfaces.filter_map(|interface| interface["mac"].as_str()).collect()
}

fn replay(record: &Record) {
    let node = Node::new();
    node.set_sysctl("ipv6/conf/default/accept_dad", "0");
    record.host.iter().for_each(|command| drop(node.ip(command)));
    let bin = plugins(&node, &record.answers);
    let before = Snapshot::settled(&node);
    // The kernel chooses other addresses than in the run.
    let mut chosen: BTreeMap<String, String> = BTreeMap::new();
    for call in &record.calls {
        let id = call.env["CNI_CONTAINERID"].as_str();
        // A GC or STATUS is about no container.
        let netns = format!("/run/netns/pod-{}", id.get(..12).unwrap_or(id));
        if call.env["CNI_COMMAND"] == "ADD" && !node.path(&netns).exists() {
            node.sh(&format!("ip netns add {}", netns.trim_start_matches("/run/netns/")));
        }
        let here = |value: &Value| {
            let text = value.to_string().replace("$NETNS", &netns);
            chosen.iter().fold(text, |text, (then, now)| text.replace(then, now))
        };
        let (stdin, expected) = (here(&call.stdin), here(&call.result));
        let mut command = node.command("env");
        command
            .arg("-i")
            .arg("PATH=/usr/sbin:/usr/bin:/sbin:/bin")
            .arg(format!("CNI_PATH={}", bin.display()));
        command
            .args(call.env.iter().map(|(key, value)| format!("{key}={}", value.replace("$NETNS", &netns))));
        command.arg(bin.join(&call.plugin));
        let output = cnimble_tests::run_limited(&mut command, stdin.as_bytes(), cnimble_tests::LIMIT);
        let what = format!("{} {} {stdin}", call.plugin, call.env["CNI_COMMAND"]);
        let printed = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.success(), "{what}: {printed} {}", String::from_utf8_lossy(&output.stderr));
        let result: Value =
            if printed.is_empty() { Value::Null } else { serde_json::from_str(&printed).unwrap() };
        let mut expected: Value = serde_json::from_str(&expected).unwrap();
        let pairs: Vec<(String, String)> = macs(&expected)
            .iter()
            .zip(macs(&result))
            .map(|(then, now)| ((*then).to_owned(), now.to_owned()))
            .collect();
        for (then, now) in pairs {
            expected = serde_json::from_str(&expected.to_string().replace(&then, &now)).unwrap();
            chosen.insert(then, now);
        }
        assert_eq!(result, expected, "{what}");
    }
    // Bridges stay, as with the Go plugins, and so does forwarding.
    for link in node.ip_json("link show type bridge").as_array().unwrap() {
        node.ip(&format!("link del {}", link["ifname"].as_str().unwrap()));
    }
    before.without("sysctl").assert_same(&Snapshot::settled(&node).without("sysctl"), "after the calls");
    let left = node.sh(
        "find /var/lib/cni /run/cni* -type f ! -name lock ! -name 'last_reserved_ip*' 2>/dev/null || true",
    );
    assert_eq!(left, "", "files left");
}

/// Each project's calls have the recorded results, and nothing is left behind.
#[test]
fn calls_of_the_projects_have_the_recorded_results() {
    need!("ip", "nft", "unshare", "nsenter");
    let files = files("tests/above/calls");
    assert!(files.len() >= 5, "{files:?}");
    for path in files {
        println!("{}", path.display());
        let record = serde_json::from_str(&std::fs::read_to_string(&path).unwrap()).unwrap();
        replay(&record);
    }
}

/// The strict check accepts each project's configuration.
#[test]
fn samples_for_the_projects_are_sound() {
    need!("unshare", "nsenter");
    let node = Node::new();
    let projects = ["flannel", "istio-cni", "multus", "sriov", "whereabouts"];
    let version = json!({"cniVersion": "1.1.0", "supportedVersions": ["0.3.1", "1.0.0", "1.1.0"]});
    let bin = plugins(&node, &projects.map(|name| (name.to_owned(), version.clone())).into());
    for path in files("examples/above") {
        let mut command = node.command(cnimble_tests::command().to_str().unwrap());
        command.args(["validate", "--strict"]).arg(&path).env("CNI_PATH", &bin);
        cnimble_tests::Outcome::of(&mut command).success();
    }
}
