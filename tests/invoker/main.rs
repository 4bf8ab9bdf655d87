//! The command `cnimble` as people and scripts use it, with real plugins in namespaces.
// Tests stop at the first surprise; clippy doesn't see that this whole crate is one.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

mod libcni;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;
use std::time::Duration;

use cnimble_tests::{
    Background, Host, Outcome, Pod, Snapshot, go_plugins, need, plugin_dir, run_limited, skip, wait_until,
};
use serde_json::{Value, json};

/// The command under test: `CNIMBLE_COMMAND`, or this workspace's, built once.
fn command() -> &'static Path {
    static PATH: OnceLock<PathBuf> = OnceLock::new();
    PATH.get_or_init(|| match std::env::var_os("CNIMBLE_COMMAND") {
        Some(path) => PathBuf::from(path),
        None => build(),
    })
}

fn build() -> PathBuf {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let output = Command::new(cargo)
        .args(["build", "--quiet", "--package", "cnimble", "--bin", "cnimble"])
        .args(["--message-format", "json-render-diagnostics"])
        .current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let mut messages = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    messages.find_map(|message| Some(PathBuf::from(message["executable"].as_str()?))).unwrap()
}

/// A node with a directory of networks and a cache.
struct Node {
    host: Host,
}

impl Node {
    fn new() -> Self {
        let node = Node { host: Host::new() };
        fs::create_dir(node.conf()).unwrap();
        node
    }

    fn conf(&self) -> PathBuf {
        self.host.dir().join("net.d")
    }

    fn cache(&self) -> PathBuf {
        self.host.dir().join("cache")
    }

    fn network(&self, name: &str, config: &Value) {
        fs::write(self.conf().join(format!("{name}.conflist")), config.to_string()).unwrap();
    }

    /// A bridge network called `name`.
    fn bridge(&self, name: &str, version: &str) {
        let config = json!({
            "cniVersion": version,
            "name": name,
            "plugins": [{
                "type": "bridge",
                "bridge": "br0",
                "isGateway": true,
                "ipMasq": true,
                "ipam": {
                    "type": "host-local",
                    "dataDir": self.host.data_dir(),
                    "ranges": [[{"subnet": "10.1.2.0/24"}]],
                    "routes": [{"dst": "0.0.0.0/0"}],
                },
            }],
        });
        self.network(name, &config);
    }

    /// `cnimble ARGS…` on this node, with the plugins of `plugins`.
    fn cnimble(&self, plugins: &Path, args: &[&str]) -> Run {
        let mut command = self.host.command(command());
        command.args(args).arg("--cache-dir").arg(self.cache());
        command.env("CNI_PATH", plugins).env("NETCONFPATH", self.conf());
        Run { command, stdin: Vec::new() }
    }

    /// The addresses that host-local has given out.
    fn leases(&self) -> Vec<String> {
        names(&self.host.data_dir().join("net")).into_iter().filter(|name| name.starts_with("10.")).collect()
    }

    /// The names of the cache's entries.
    fn entries(&self) -> Vec<String> {
        names(&self.cache().join("results"))
    }
}

fn names(dir: &Path) -> Vec<String> {
    let Ok(entries) = fs::read_dir(dir) else { return Vec::new() };
    let mut names: Vec<String> =
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

/// One run of the command.
struct Run {
    command: Command,
    stdin: Vec<u8>,
}

impl Run {
    fn env(mut self, key: &str, value: &str) -> Self {
        self.command.env(key, value);
        self
    }

    fn json(mut self) -> Self {
        self.command.arg("--json");
        self
    }

    fn stdin(mut self, text: String) -> Self {
        self.stdin = text.into_bytes();
        self
    }

    fn run(mut self) -> Outcome {
        let output = run_limited(&mut self.command, &self.stdin, Duration::from_secs(60));
        Outcome {
            what: format!("{:?}", self.command),
            status: output.status.code().unwrap_or(-1),
            stdout: output.stdout,
            stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
        }
    }
}

/// A directory with scripts for plugins.
fn scripts(dir: &Path, plugins: &[(&str, &str)]) -> PathBuf {
    let bin = dir.join("bin");
    fs::create_dir_all(&bin).unwrap();
    for (name, script) in plugins {
        let path = bin.join(name);
        fs::write(path.with_extension("new"), format!("#!/bin/sh\n{script}\n")).unwrap();
        fs::set_permissions(path.with_extension("new"), fs::Permissions::from_mode(0o755)).unwrap();
        // Written by a process that is gone, so that no fork holds it open (ETXTBSY).
        let copied = Command::new("cp").arg(path.with_extension("new")).arg(&path).status().unwrap();
        assert!(copied.success());
        fs::remove_file(path.with_extension("new")).unwrap();
    }
    bin
}

const RESULT: &str = r#"{"cniVersion":"1.0.0","ips":[{"address":"10.0.0.2/24"}]}"#;

/// add, check, del, with the plugins in `plugins`; nothing may be left.
fn comes_and_goes(plugins: &Path, version: &str) {
    let node = Node::new();
    node.bridge("net", version);
    let first = Pod::new();
    // A pod that stays: the bridge is there before and after, and up.
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
    need!("ip", "nft", "ping", "iptables");
    let Some(go) = go_plugins() else {
        skip!("no Go plugins");
    };
    comes_and_goes(go, "1.0.0");
}

#[test]
fn cnitools_variables_and_container_ids_work() {
    let node = Node::new();
    let dir = node.host.dir();
    let bin =
        scripts(dir, &[("it", &format!("cat >{0}/stdin; env >{0}/env; echo '{RESULT}'", dir.display()))]);
    node.network(
        "net",
        &json!({"cniVersion": "1.0.0", "name": "net", "plugins": [
            {"type": "it", "capabilities": {"portMappings": true}}]}),
    );
    let pod = Pod::new();
    let link = dir.join("test0");
    std::os::unix::fs::symlink(pod.path(), &link).unwrap();
    let result = node
        .cnimble(&bin, &["add", "net", link.to_str().unwrap()])
        .env("CAP_ARGS", r#"{"portMappings":[{"hostPort":80}],"unasked":1}"#)
        .env("CNI_ARGS", "IgnoreUnknown=1;A=b")
        .env("CNI_IFNAME", "net1")
        .env("TRACEPARENT", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")
        .run()
        .result();
    assert_eq!(result["ips"][0]["address"], "10.0.0.2/24");
    let stdin: Value = serde_json::from_slice(&fs::read(dir.join("stdin")).unwrap()).unwrap();
    assert_eq!(stdin["runtimeConfig"], json!({"portMappings": [{"hostPort": 80}]}));
    let env = fs::read_to_string(dir.join("env")).unwrap();
    for line in [
        "CNI_COMMAND=ADD",
        "CNI_ARGS=IgnoreUnknown=1;A=b",
        "CNI_IFNAME=net1",
        &format!("CNI_NETNS={}", link.display()),
        "TRACEPARENT=00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
    ] {
        assert!(env.lines().any(|other| other == line), "{line}:\n{env}");
    }
    // The ID is made from the path as given, not from what it leads to; flags win.
    let id = env.lines().find_map(|line| line.strip_prefix("CNI_CONTAINERID=")).unwrap();
    assert!(id.starts_with("cnitool-") && id.len() == 28, "{id}");
    assert_eq!(node.entries(), [format!("net-{id}-net1")]);
    node.cnimble(&bin, &["add", "net", pod.path(), "--container-id", "mine", "-i", "net2"])
        .env("CNI_IFNAME", "net1")
        .run()
        .success();
    assert!(node.entries().contains(&"net-mine-net2".to_owned()));
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
    // And now nobody knows it.
    let outcome = node.cnimble(plugin_dir(), &["del", "net", "--container-id", "c1"]).run();
    assert_eq!(outcome.status, 3, "{}", outcome.describe());
}

#[test]
fn gc_keeps_what_is_valid() {
    need!("ip", "nft");
    let node = Node::new();
    node.bridge("net", "1.1.0");
    let (stays, goes) = (Pod::new(), Pod::new());
    for (pod, id) in [(&stays, "stays"), (&goes, "goes")] {
        node.cnimble(plugin_dir(), &["add", "net", pod.path(), "--container-id", id]).run().success();
    }
    let forgot = node.cnimble(plugin_dir(), &["gc", "net"]).run().success();
    assert!(forgot.stderr.contains("nothing was deleted"), "{}", forgot.stderr);
    assert_eq!(node.entries().len(), 2);
    drop(goes);
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
fn ordinary_programs_are_not_run_to_see_whether_they_are_plugins() {
    let node = Node::new();
    let mark = node.host.dir().join("mark");
    let bin = scripts(node.host.dir(), &[("program", &format!("touch {}", mark.display()))]);
    let outcome = node.cnimble(&bin, &["plugins"]).env("PATH", bin.to_str().unwrap()).run();
    assert_eq!(outcome.status, 4, "{}", outcome.describe());
    assert!(outcome.stderr.contains("ordinary programs"), "{}", outcome.stderr);
    assert!(!mark.exists());
}

#[test]
fn exit_statuses_and_json_errors() {
    let node = Node::new();
    let error =
        r#"cat >/dev/null; echo '{"cniVersion":"1.0.0","code":50,"msg":"full","details":"very"}'; exit 1"#;
    let bin = scripts(
        node.host.dir(),
        &[("refuses", error), ("garbage", "echo oops; exit 1"), ("slow", "sleep 60")],
    );
    for plugin in ["refuses", "garbage", "slow", "missing"] {
        node.network(plugin, &json!({"cniVersion": "1.1.0", "name": plugin, "plugins": [{"type": plugin}]}));
    }
    let pod = Pod::new();
    let table: [(&[&str], i32, u32, &str); 13] = [
        (&["add", "refuses", pod.path()], 1, 50, "very"),
        (&["status", "refuses"], 1, 50, "very"),
        (&["add", "garbage", pod.path()], 4, 104, "oops"),
        (&["add", "missing", pod.path()], 4, 104, "no plugin"),
        (&["add", "slow", pod.path(), "--timeout", "1"], 4, 11, "no answer within 1s"),
        (&["add", "none", pod.path()], 3, 7, "there is only garbage, missing, refuses, slow"),
        (&["add", "/nonexistent/x.conflist", pod.path()], 3, 7, "can't be read"),
        (&["add", "refuses", "/nonexistent/ns"], 2, 4, "there is no network namespace /nonexistent/ns"),
        (&["add", "refuses"], 2, 4, "namespace"),
        (&["check", "refuses", "--container-id", "c"], 2, 4, "the cache doesn't know it"),
        (&["add", "refuses", pod.path(), "--args", "x"], 2, 4, "KEY=VALUE"),
        (&["add", "refuses", pod.path(), "--cap-args", "[]"], 2, 4, "no JSON object"),
        (&["check", "refuses", pod.path()], 5, 103, "no result of an ADD"),
    ];
    for (args, status, code, why) in table {
        let outcome = node.cnimble(&bin, args).json().run();
        assert_eq!(outcome.status, status, "{}", outcome.describe());
        let value: Value = serde_json::from_slice(&outcome.stdout).unwrap();
        assert_eq!(value["code"], code, "{}", outcome.describe());
        assert_eq!(value["exitStatus"], status);
        assert!(outcome.text().contains(why), "{why}: {}", outcome.describe());
        // For people the same on stderr, and nothing on stdout.
        let outcome = node.cnimble(&bin, args).run();
        assert_eq!((outcome.status, outcome.text().as_str()), (status, ""));
        assert!(outcome.stderr.starts_with("cnimble: "), "{}", outcome.describe());
        assert!(outcome.stderr.contains(why.trim_end_matches('x')), "{why}: {}", outcome.describe());
    }
    for args in
        [&["add"][..], &["frob"], &["gc", "net", "--all", "--gone"], &["add", "a", "b", "--timeout", "x"]]
    {
        assert_eq!(node.cnimble(&bin, args).run().status, 2, "{args:?}");
    }
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
    let node = Node::new();
    let dir = node.host.dir();
    let record = format!(r#"echo "$CNI_COMMAND ${{0##*/}}" >>{}/calls"#, dir.display());
    let bin = scripts(
        dir,
        &[
            ("first", &format!("cat >/dev/null; {record}; echo '{RESULT}'")),
            ("hangs", &format!("cat >/dev/null; {record}; [ $CNI_COMMAND = ADD ] && sleep 60; exit 0")),
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
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let running = Background::start(&mut command);
    let calls = || fs::read_to_string(dir.join("calls")).unwrap_or_default();
    assert!(wait_until(20.0, || calls().contains("ADD hangs")), "{}", calls());
    let pid = nix::unistd::Pid::from_raw(i32::try_from(running.pid()).unwrap());
    nix::sys::signal::kill(pid, nix::sys::signal::SIGTERM).unwrap();
    let output = running.finish(Duration::from_secs(20));
    assert_eq!(output.status.code(), Some(143), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(calls(), "ADD first\nADD hangs\nDEL hangs\nDEL first\n");
    assert!(String::from_utf8_lossy(&output.stderr).contains("what was made until then is gone again"));
    assert_eq!(node.entries(), [""; 0]);
}

#[test]
fn plugins_and_networks_are_listed() {
    let node = Node::new();
    let bin = scripts(
        node.host.dir(),
        &[
            ("good", r#"echo '{"cniVersion":"1.0.0","supportedVersions":["0.3.1","0.4.0","1.0.0"]}'"#),
            ("odd", "echo hello"),
        ],
    );
    node.bridge("b", "1.0.0");
    fs::write(node.conf().join("a.conflist"), "{").unwrap();
    let listed = node.cnimble(&bin, &["plugins"]).run().success().text();
    let lines: Vec<&str> = listed.lines().collect();
    assert_eq!(lines[0], "PLUGIN  CNI VERSIONS       PATH");
    assert_eq!(lines[1], format!("good    0.3.1 to 1.0.0     {}/good", bin.display()));
    assert_eq!(lines[2], format!("odd     not a CNI plugin?  {}/odd", bin.display()));
    let listed: Value =
        serde_json::from_slice(&node.cnimble(&bin, &["plugins", "--json"]).run().success().stdout).unwrap();
    assert_eq!(listed[0]["supportedVersions"], json!(["0.3.1", "0.4.0", "1.0.0"]));
    assert!(listed[1]["error"].as_str().unwrap().contains("not JSON"), "{listed}");
    let outcome = node.cnimble(&bin, &["networks"]).run();
    assert_eq!(outcome.status, 3);
    let file = node.conf().join("b.conflist");
    assert_eq!(
        outcome.text(),
        format!("NETWORK  CNI    PLUGINS  FILE\nb        1.0.0  bridge   {}\n", file.display())
    );
    assert!(outcome.stderr.contains("a.conflist:1:1: EOF"), "{}", outcome.stderr);
    let outcome = node.cnimble(&bin, &["networks", "--json"]).run();
    let listed: Value = serde_json::from_slice(&outcome.stdout).unwrap();
    assert_eq!(listed["networks"][0]["plugins"], json!(["bridge"]));
    assert_eq!(listed["problems"].as_array().unwrap().len(), 1);
}

#[test]
fn validate_looks_at_the_plugins() {
    let node = Node::new();
    node.bridge("new", "1.1.0");
    let valid = node.cnimble(plugin_dir(), &["validate", "new", "--json"]).run().result();
    assert_eq!(valid["plugins"], json!(["bridge"]));
    if let Some(go) = go_plugins() {
        // Debian's plugins end at 1.0.0; newer ones don't.
        let outcome = node.cnimble(go, &["validate", "new"]).run();
        let old = node.cnimble(go, &["plugins"]).run().success().text().contains("to 1.0.0");
        assert_eq!(outcome.status, if old { 4 } else { 0 }, "{}", outcome.describe());
    }
    let empty = scripts(node.host.dir(), &[]);
    let outcome = node.cnimble(&empty, &["validate", "new"]).run();
    assert_eq!(outcome.status, 4);
    for name in ["bridge", "host-local"] {
        assert!(outcome.stderr.contains(&format!("no plugin \"{name}\"")), "{}", outcome.stderr);
    }
}
