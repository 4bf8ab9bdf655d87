//! Tests crashes, kills and reboots: the final state is the same, without leaks and duplicates.

use std::fs;
use std::path::PathBuf;
use std::process::Stdio;

use nix::mount::{MntFlags, umount2};
use serde_json::Value;

use cnimble_tests::{PATIENCE, need, wait_until};

use super::{Node, with_scripts};

/// A plugin that reports its call and blocks until the gate opens.
const SLOW: &str = r#"
config=$(cat)
[ "$CNI_COMMAND" = ADD ] || exit 0
touch "$GATE/$CNI_CONTAINERID"
while [ -e "$GATE/closed" ]; do sleep 0.02; done
echo "$config" | sed 's/.*"prevResult"://; s/,"runtimeConfig".*//; s/,"type":"slow"}$//; s/}$//' >/dev/null
echo '{"cniVersion":"1.0.0"}'
"#;

fn slow_node(subnet: &str) -> Node {
    let mut node = Node::new();
    let gate = node.path("gate");
    fs::create_dir(&gate).unwrap();
    fs::write(gate.join("closed"), "").unwrap();
    let script = SLOW.replace("$GATE", gate.to_str().unwrap());
    with_scripts(&mut node, &[("slow", &script)]);
    let mut config = node.bridge("pods", subnet);
    config["plugins"].as_array_mut().unwrap().push(serde_json::json!({"type": "slow"}));
    node.conflist("10-pods.conflist", &config.to_string());
    node
}

#[test]
fn killed_in_the_middle_of_up_and_started_again() {
    need!("ip", "nft", "ping");
    let node = slow_node("10.30.0.0/24");
    let files: Vec<String> = (0..8).map(|number| node.pod(&format!("p{number}"), "")).collect();
    let mut up = vec!["up"];
    up.extend(files.iter().map(String::as_str));
    let mut command = node.command(&up);
    let mut child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    // All pods have an address and a veth pair, but none is up.
    let gate = node.path("gate");
    assert!(wait_until(PATIENCE, || fs::read_dir(&gate).unwrap().count() == 9));
    child.kill().unwrap();
    child.wait().unwrap();
    for pod in node.pods() {
        assert_eq!(pod["state"], "Unfinished", "{pod}");
    }
    assert_eq!(node.leases("pods").len(), 8);
    // Running plugins outlive the command. They must not run beside the next command's plugins.
    fs::remove_file(gate.join("closed")).unwrap();
    node.ok(&up);
    node.has_exactly(8);
    assert!(node.pings("p0", &node.ip("p7")));
    node.ok(&["down", "--all"]);
    node.is_clean();
}

#[test]
fn killed_in_the_middle_of_up_and_taken_down() {
    need!("ip", "nft");
    let node = slow_node("10.31.0.0/24");
    let web = node.pod("web", "    ports:\n    - {containerPort: 80, hostPort: 8080}\n");
    let mut child =
        node.command(&["up", "--pause", &web]).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let gate = node.path("gate");
    assert!(wait_until(PATIENCE, || fs::read_dir(&gate).unwrap().count() == 2));
    child.kill().unwrap();
    child.wait().unwrap();
    // The gate stays closed: the orphaned plugin still waits, and is ended.
    let id = node.pods()[0]["id"].as_str().unwrap().to_owned();
    let left = || {
        let processes = fs::read_dir("/proc").unwrap().flatten();
        let environments = processes.filter_map(|entry| fs::read(entry.path().join("environ")).ok());
        environments.filter(|text| String::from_utf8_lossy(text).contains(&id)).count()
    };
    assert!(left() >= 2, "the plugin and the pause process");
    // This works even if the configuration was removed since.
    fs::remove_file(node.path("net.d/10-pods.conflist")).unwrap();
    node.ok(&["down", "web"]);
    assert_eq!(left(), 0);
    node.is_clean();
}

#[test]
fn interrupted_by_a_signal_it_takes_back_what_it_began() {
    need!("ip", "nft");
    let node = slow_node("10.32.0.0/24");
    let web = node.pod("web", "");
    let mut child = node.command(&["up", &web]).stderr(Stdio::null()).spawn().unwrap();
    let gate = node.path("gate");
    assert!(wait_until(PATIENCE, || fs::read_dir(&gate).unwrap().count() == 2));
    let pid = nix::unistd::Pid::from_raw(i32::try_from(child.id()).unwrap());
    nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGTERM).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(143));
    node.is_clean();
}

#[test]
fn down_works_when_the_namespace_is_gone() {
    need!("ip", "nft");
    let node = Node::new();
    node.network("10.33.0.0/24");
    let web = node.pod("web", "    ports:\n    - {containerPort: 80, hostPort: 8080}\n");
    for unpin in [false, true] {
        node.ok(&["up", &web]);
        let pin = node.pods()[0]["netns"].as_str().unwrap().to_owned();
        umount2(pin.as_str(), MntFlags::MNT_DETACH).unwrap();
        if unpin {
            fs::remove_file(&pin).unwrap();
        }
        assert_eq!(node.pods()[0]["state"], "NoNamespace");
        let outcome = node.run(&["exec", "web", "--", "true"]);
        assert!(outcome.stderr.contains("its network namespace is gone"), "{}", outcome.describe());
        node.ok(&["down", "web"]);
        node.is_clean();
    }
    // `up` recreates the pod.
    node.ok(&["up", &web]);
    let pin = node.pods()[0]["netns"].as_str().unwrap().to_owned();
    umount2(pin.as_str(), MntFlags::MNT_DETACH).unwrap();
    node.ok(&["up", &web]);
    node.has_exactly(1);
    node.ok(&["down", "web"]);
    node.is_clean();
}

/// Returns the records of the pods, each in a directory with others.
fn records(node: &Node) -> Vec<PathBuf> {
    let entries = |path: PathBuf| fs::read_dir(path).unwrap().map(|entry| entry.unwrap().path());
    entries(node.path("state/sandboxes")).flat_map(entries).collect()
}

/// Simulates a reboot, which keeps only the state directory.
fn reboot(node: &Node) {
    for pod in node.pods() {
        umount2(pod["netns"].as_str().unwrap(), MntFlags::MNT_DETACH).unwrap();
    }
    fs::remove_dir_all(node.path("run")).unwrap();
    for link in node.host.links().iter().filter(|name| *name != "lo") {
        // The deletion of another link may have removed this one.
        node.host.run(&format!("ip link del {link}"));
    }
    node.host.nft("flush ruleset");
    for path in records(node) {
        // The last line of a record counts.
        let text = fs::read(&path).unwrap();
        let documents = serde_json::Deserializer::from_slice(&text).into_iter::<Value>();
        let mut record = documents.map(Result::unwrap).last().unwrap();
        record["bootId"] = "00000000-0000-0000-0000-000000000000".into();
        fs::write(&path, record.to_string()).unwrap();
    }
}

#[test]
fn after_a_reboot_the_leases_are_given_back() {
    need!("ip", "nft", "ping");
    let node = Node::new();
    node.network("10.34.0.0/24");
    let (web, db) = (node.pod("web", ""), node.pod("db", ""));
    node.ok(&["up", "--pause", &web, &db]);
    for pod in node.pods() {
        let pid = i32::try_from(pod["pid"].as_u64().unwrap()).unwrap();
        nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), nix::sys::signal::Signal::SIGKILL).unwrap();
    }
    reboot(&node);
    for pod in node.pods() {
        assert_eq!(pod["state"], "Stale", "{pod}");
    }
    assert!(node.run(&["status", "web"]).stderr.contains("it is from before a reboot"));
    assert_eq!(node.leases("pods").len(), 2);

    // One pod is brought up again, the other is not wanted any more.
    node.ok(&["up", &web]);
    node.ok(&["down", "db"]);
    node.has_exactly(1);
    assert!(node.pings("web", "10.34.0.1"));
    node.ok(&["down", "web"]);
    node.is_clean();
}

#[test]
fn a_record_that_cannot_be_read_is_told_and_taken_down() {
    need!("ip", "nft");
    let node = Node::new();
    node.network("10.35.0.0/24");
    let (web, db) = (node.pod("web", ""), node.pod("db", ""));
    node.ok(&["up", &web, &db]);
    let id = node.pods().iter().find(|pod| pod["name"] == "web").unwrap()["id"].clone();
    let ours = |path: &PathBuf| path.to_str().unwrap().contains(id.as_str().unwrap());
    let path = records(&node).into_iter().find(ours).unwrap();
    fs::write(&path, "").unwrap();

    let outcome = node.run(&["ls"]);
    assert_eq!(outcome.status, 5, "{}", outcome.describe());
    assert!(outcome.text().contains("default/db") && outcome.stderr.contains(path.to_str().unwrap()));
    node.ok(&["up", &web]);
    node.has_exactly(2);
    node.ok(&["down", "--all"]);
    node.is_clean();
}
