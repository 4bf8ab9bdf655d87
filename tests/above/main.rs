//! Replays what projects above the plugins pass to them: Multus, flannel, kindnet, the SR-IOV plugin, Istio and whereabouts.
//! Each file in `calls` is recorded from a run of the project, with only these plugins on the machine. [`Record`] has its keys.
#![cfg(test)]

use std::collections::BTreeMap;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde_json::{Value, json};

use cnimble_tests::{LIMIT, Node, Snapshot, need, plugin_dir, run_limited, script};

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
        symlink(entry.path(), dir.join(entry.file_name())).unwrap();
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

/// Calls the plugin on the node, and returns the result that it prints.
fn run(node: &Node, bin: &Path, call: &Call, netns: &str, stdin: &str) -> Value {
    let mut command = node.command("env");
    command.args(["-i", "PATH=/usr/sbin:/usr/bin:/sbin:/bin"]).arg(format!("CNI_PATH={}", bin.display()));
    command.args(call.env.iter().map(|(key, value)| format!("{key}={}", value.replace("$NETNS", netns))));
    command.arg(bin.join(&call.plugin));
    let output = run_limited(&mut command, stdin.as_bytes(), LIMIT);
    let printed = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{} {:?} {stdin}: {printed}", call.plugin, call.env);
    if printed.is_empty() { Value::Null } else { serde_json::from_str(&printed).unwrap() }
}

fn replay(record: &Record) {
    let node = Node::new();
    node.set_sysctl("ipv6/conf/default/accept_dad", "0");
    record.host.iter().for_each(|command| drop(node.ip(command)));
    let bin = plugins(&node, &record.answers);
    let before = Snapshot::settled(&node).without("sysctl");
    // The kernel chooses other addresses than in the run.
    let mut chosen: BTreeMap<String, String> = BTreeMap::new();
    for call in &record.calls {
        let id = call.env["CNI_CONTAINERID"].as_str();
        // A GC or STATUS is about no container.
        let name = format!("pod-{}", id.get(..12).unwrap_or(id));
        let netns = format!("/run/netns/{name}");
        if call.env["CNI_COMMAND"] == "ADD" && !node.path(&netns).exists() {
            node.sh(&format!("ip netns add {name}"));
        }
        let here = |value: &Value, chosen: &BTreeMap<String, String>| {
            let text = value.to_string().replace("$NETNS", &netns);
            chosen.iter().fold(text, |text, (then, now)| text.replace(then, now))
        };
        let stdin = here(&call.stdin, &chosen);
        let result = run(&node, &bin, call, &netns, &stdin);
        let pairs = macs(&call.result).into_iter().zip(macs(&result));
        chosen.extend(pairs.map(|(then, now)| (then.to_owned(), now.to_owned())));
        let expected: Value = serde_json::from_str(&here(&call.result, &chosen)).unwrap();
        assert_eq!(result, expected, "{} {:?} {stdin}", call.plugin, call.env);
    }
    // Bridges stay, as with the Go plugins, and so does forwarding.
    for link in node.ip_json("link show type bridge").as_array().unwrap() {
        node.ip(&format!("link del {}", link["ifname"].as_str().unwrap()));
    }
    before.assert_same(&Snapshot::settled(&node).without("sysctl"), "after the calls");
    // Lock files stay: a plugin that waits for one has it open.
    let files = "find /var/lib/cni /run/cni* -type f ! -name lock ! -name bridges.lock ! -name 'last_reserved_ip*' \
        2>/dev/null || true";
    assert_eq!(node.sh(files), "", "files left");
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
