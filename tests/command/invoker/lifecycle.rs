//! Tests that added and removed pods leave nothing.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::json;

use cnimble_tests::{Background, LIMIT, PATIENCE, Pod, Snapshot, need, need_go, plugin_dir, wait_until};

use super::{Node, RESULT, command, scripts};

/// Runs add, check and del with the plugins in `plugins`. Nothing may remain.
fn comes_and_goes(plugins: &Path, version: &str) {
    let node = Node::new();
    node.bridge("net", version);
    let first = Pod::new();
    // This pod stays, so the bridge exists and is up before and after.
    node.cnimble(plugins, &["add", "net", first.path()]).run().success();
    let before = Snapshot::of(&node.host).without_lines("last_reserved_ip");
    let pod = Pod::new();
    let result = node.cnimble(plugins, &["add", "net", pod.path()]).run().result();
    assert_eq!(result["cniVersion"], version);
    let address = result["ips"][0]["address"].as_str().unwrap();
    assert_eq!(pod.addrs("eth0"), [address]);
    assert!(pod.pings("10.1.2.1"));
    assert_eq!(node.entries().len(), 2);
    let quiet = node.cnimble(plugins, &["check", "net", pod.path()]).run().success();
    assert_eq!((quiet.text().as_str(), quiet.stderr.as_str()), ("", ""));
    pod.ip("route del default");
    assert_eq!(node.cnimble(plugins, &["check", "net", pod.path()]).run().status, 1);
    node.cnimble(plugins, &["del", "net", pod.path()]).run().success();
    node.cnimble(plugins, &["del", "net", pod.path()]).run().success();
    assert_eq!(node.entries().len(), 1);
    let after = Snapshot::of(&node.host).without_lines("last_reserved_ip");
    before.assert_same(&after, "after del");
}

#[test]
fn a_pod_comes_and_goes_with_our_plugins() {
    need!("ip", "nft", "ping");
    comes_and_goes(plugin_dir(), "1.1.0");
    comes_and_goes(plugin_dir(), "0.4.0");
}

#[test]
fn a_pod_comes_and_goes_with_the_go_plugins() {
    need_go!(go, "ip", "nft", "ping", "iptables");
    comes_and_goes(go, "1.0.0");
}

#[test]
fn a_pod_goes_where_run_is_full() {
    need!("ip", "nft", "unshare", "mount");
    let node = Node::new();
    node.bridge("net", "1.0.0");
    // Less than the two directories and the four locks need.
    for inodes in 1..=6 {
        let pod = Pod::new();
        node.cnimble(plugin_dir(), &["add", "net", pod.path()]).run().success();
        let mut run = node.cnimble(plugin_dir(), &["del", "net", pod.path()]);
        run.command.env("CNIMBLE_LOCK_DIR", "/run/cnimble/locks");
        let full = format!("mount -t tmpfs -o nr_inodes={inodes} none /run; exec \"$@\"");
        let mut wrapper = node.host.command("unshare");
        wrapper.args(["--mount", "--propagation", "private", "sh", "-c", &full, "-"]);
        let outcome = run.under(wrapper).run().success();
        assert!(outcome.stderr.contains("going on without a lock"), "{inodes}: {}", outcome.describe());
        assert!(node.leases().is_empty() && node.entries().is_empty() && pod.links() == ["lo"], "{inodes}");
    }
}

#[test]
fn del_needs_neither_configuration_nor_namespace() {
    need!("ip", "nft");
    let node = Node::new();
    node.bridge("net", "1.0.0");
    let pod = Pod::new();
    let args = ["add", "net", pod.path(), "--container-id", "c1", "--args", "IgnoreUnknown=1;A=b"];
    node.cnimble(plugin_dir(), &args).run().success();
    assert_eq!(node.leases().len(), 1);
    fs::remove_file(node.conf().join("net.conflist")).unwrap();
    drop(pod);
    node.cnimble(plugin_dir(), &["del", "net", "--container-id", "c1"]).run().success();
    assert_eq!(node.entries(), [""; 0]);
    assert_eq!(node.leases(), [""; 0]);
    // Now the container is unknown.
    let outcome = node.cnimble(plugin_dir(), &["del", "net", "--container-id", "c1"]).run();
    assert_eq!(outcome.status, 3, "{}", outcome.describe());
}

#[test]
fn gc_keeps_what_is_valid() {
    need!("ip", "nft");
    let node = Node::new();
    // The address belongs to this test alone. In a namespace of another test it would be evidence for the removed pod.
    node.bridge_with("net", "1.1.0", "10.214.7.0/24");
    let (stays, goes) = (Pod::new(), Pod::new());
    for (pod, id) in [(&stays, "stays"), (&goes, "goes")] {
        node.cnimble(plugin_dir(), &["add", "net", pod.path(), "--container-id", id]).run().success();
    }
    let forgot = node.cnimble(plugin_dir(), &["gc", "net"]).run().success();
    assert!(
        forgot.stderr.contains("so no DEL ran, and plugins with GC were given no list"),
        "{}",
        forgot.stderr
    );
    assert_eq!(node.entries().len(), 2);
    let ports = || node.host.ip_json("link show master br0").as_array().unwrap().len();
    drop(goes);
    assert!(wait_until(PATIENCE, || ports() == 1));
    node.cnimble(plugin_dir(), &["gc", "net", "--gone"]).run().success();
    assert_eq!(node.entries(), ["net-stays-eth0"]);
    assert_eq!(node.leases().len(), 1);
    let list = json!([{"containerID": "stays", "ifname": "eth0"}]).to_string();
    node.cnimble(plugin_dir(), &["gc", "net", "--valid-file", "-"]).stdin(list).run().success();
    node.cnimble(plugin_dir(), &["gc", "net", "--valid", "stays/eth0"]).run().success();
    assert_eq!(stays.addrs("eth0").len(), 1);
    node.cnimble(plugin_dir(), &["gc", "net", "--all"]).run().success();
    assert_eq!(node.entries(), [""; 0]);
    assert_eq!(node.leases(), [""; 0]);
    assert_eq!(stays.links(), ["lo"]);
}

#[test]
fn many_adds_at_the_same_time() {
    need!("ip", "nft");
    let node = Node::new();
    node.bridge("net", "1.1.0");
    let pods: Vec<Pod> = (0..12).map(|_| Pod::new()).collect();
    let all = |verb: &str| {
        std::thread::scope(|scope| {
            let runs: Vec<_> = pods
                .iter()
                .map(|pod| node.cnimble(plugin_dir(), &[verb, "net", pod.path()]))
                .map(|run| scope.spawn(|| run.run().success()))
                .collect();
            runs.into_iter().map(|run| run.join().unwrap()).collect::<Vec<_>>()
        })
    };
    let mut addresses: Vec<String> =
        all("add").iter().map(|outcome| outcome.result()["ips"][0]["address"].to_string()).collect();
    addresses.sort();
    addresses.dedup();
    assert_eq!(addresses.len(), pods.len());
    assert_eq!(node.entries().len(), pods.len());
    all("check");
    all("del");
    assert_eq!(node.entries(), [""; 0]);
    assert_eq!(node.leases(), [""; 0]);
}

#[test]
fn a_read_only_cache_fails_the_add_and_leaves_nothing() {
    need!("ip", "nft");
    let node = Node::new();
    node.bridge("net", "1.0.0");
    fs::write(node.cache(), "not a directory").unwrap();
    let pod = Pod::new();
    let outcome = node.cnimble(plugin_dir(), &["add", "net", pod.path()]).run();
    assert_eq!(outcome.status, 5, "{}", outcome.describe());
    assert_eq!(pod.links(), ["lo"]);
    assert_eq!(node.leases(), [""; 0]);
}

#[test]
fn an_interrupted_add_is_rolled_back() {
    need!();
    let node = Node::new();
    let dir = node.host.dir();
    let record = format!(r#"echo "$CNI_COMMAND ${{0##*/}}" >>{}/calls"#, dir.display());
    let bin = scripts(
        dir,
        &[
            ("first", &format!("cat >/dev/null; {record}; echo '{RESULT}'")),
            ("hangs", &format!("cat >/dev/null; {record}; [ $CNI_COMMAND = ADD ] && sleep 1000; exit 0")),
        ],
    );
    let plugins = json!([{"type": "first"}, {"type": "hangs"}]);
    node.network("net", &json!({"cniVersion": "1.0.0", "name": "net", "plugins": plugins}));
    let pod = Pod::new();
    let mut command = Command::new(command());
    command
        .args(["add", "net", pod.path(), "--cache-dir"])
        .arg(node.cache())
        .env("CNI_PATH", &bin)
        .env("NETCONFPATH", node.conf())
        .env("CNIMBLE_LOCK_DIR", node.host.lock_dir())
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let running = Background::start(&mut command);
    let calls = || fs::read_to_string(dir.join("calls")).unwrap_or_default();
    assert!(wait_until(PATIENCE, || calls().contains("ADD hangs")), "{}", calls());
    let pid = nix::unistd::Pid::from_raw(i32::try_from(running.pid()).unwrap());
    nix::sys::signal::kill(pid, nix::sys::signal::SIGTERM).unwrap();
    let output = running.finish(LIMIT);
    assert_eq!(output.status.code(), Some(143), "{}", String::from_utf8_lossy(&output.stderr));
    // The library undoes the ADD, and the command deletes what that has left.
    let undo = "DEL hangs\nDEL first\n";
    assert_eq!(calls(), format!("ADD first\nADD hangs\n{undo}{undo}"));
    assert!(String::from_utf8_lossy(&output.stderr).contains("all changes are undone"));
    assert_eq!(node.entries(), [""; 0]);
}
