//! Tests `cnimble events`: changes of attachments are reported for any runtime and any plugins.

use std::fs::{self, File};
use std::net::TcpListener;
use std::path::{Path, PathBuf};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};

use cnimble_tests::{Background, PATIENCE, Pod, need, need_go, plugin_dir, wait_until};

use super::{Node, scripts};

/// A running `cnimble events --json`.
struct Events {
    process: Background,
    out: PathBuf,
}

impl Events {
    /// Returns once it follows events.
    fn follow(node: &Node) -> Self {
        let out = node.host.dir().join("events");
        let data = node.host.data_dir();
        let args = ["events", "--json", "--data-dir", data.to_str().unwrap()];
        let mut command = node.cnimble(plugin_dir(), &args).command;
        command.stdout(File::create(&out).unwrap());
        let events = Events { process: Background::start(&mut command), out };
        events.wait(|all| all.iter().any(|event| event["event"] == "following"));
        events
    }

    /// Returns its output once `done` holds for it.
    fn wait(&self, done: impl Fn(&[Value]) -> bool) -> Vec<Value> {
        let mut told = Vec::new();
        let read = || {
            let text = fs::read_to_string(&self.out).unwrap();
            // The last line may be incomplete.
            let lines = text.split_inclusive('\n').filter(|line| line.ends_with('\n'));
            told = lines.map(|line| serde_json::from_str(line).unwrap()).collect();
            done(&told)
        };
        let done = wait_until(PATIENCE, read);
        assert!(done, "{told:#?}");
        told
    }

    /// Waits for this event of this container.
    fn of(&self, what: &str, id: &str) -> Value {
        let is = |event: &&Value| event["event"] == what && event["containerID"] == id;
        let told = self.wait(|all| all.iter().any(|event| is(&event)));
        told.iter().find(is).unwrap().clone()
    }

    /// Returns the events of a container in order.
    fn all_of(&self, id: &str) -> Vec<Value> {
        let told = self.wait(|_| true);
        told.into_iter()
            .filter(|event| event["containerID"] == id)
            .map(|event| event["event"].clone())
            .collect()
    }

    fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(i32::try_from(self.process.pid()).unwrap()), signal).unwrap();
    }
}

fn add(node: &Node, plugins: &Path, pod: &Pod, id: &str) {
    node.cnimble(plugins, &["add", "net", pod.path(), "--container-id", id]).run().success();
}

fn del(node: &Node, plugins: &Path, pod: &Pod, id: &str) {
    node.cnimble(plugins, &["del", "net", pod.path(), "--container-id", id]).run().success();
}

/// Where the first sign and the last were read at once, as on a busy machine, the duration is unknown.
fn is_duration(milliseconds: &Value) -> bool {
    milliseconds.is_null() || milliseconds.as_f64().is_some_and(|milliseconds| milliseconds > 0.0)
}

#[test]
fn an_add_and_a_del_are_told_with_their_time() {
    need!("ip");
    let node = Node::new();
    node.bridge("net", "1.0.0");
    let events = Events::follow(&node);
    let pod = Pod::new();
    add(&node, plugin_dir(), &pod, "web");
    let added = events.of("add", "web");
    assert_eq!((&added["network"], &added["ifname"]), (&json!("net"), &json!("eth0")), "{added}");
    assert_eq!(
        (&added["addresses"], &added["netns"]),
        (&json!(["10.1.2.2/24"]), &json!(pod.path())),
        "{added}"
    );
    assert!(is_duration(&added["milliseconds"]), "{added}");
    del(&node, plugin_dir(), &pod, "web");
    assert!(is_duration(&events.of("del", "web")["milliseconds"]));
    // No other event of the first pod was reported, and the ADD of another pod causes none for it.
    add(&node, plugin_dir(), &pod, "db");
    events.of("add", "db");
    assert_eq!(events.all_of("web"), ["add", "del"]);
}

/// The Go plugins write no aliases, so events come from their leases.
#[test]
fn the_go_plugins_are_followed_too() {
    need_go!(go, "ip", "iptables");
    let node = Node::new();
    node.bridge("net", "1.0.0");
    let events = Events::follow(&node);
    let pod = Pod::new();
    add(&node, go, &pod, "web");
    assert!(is_duration(&events.of("add", "web")["milliseconds"]));
    del(&node, go, &pod, "web");
    assert!(is_duration(&events.of("del", "web")["milliseconds"]));
    assert_eq!(events.all_of("web"), ["add", "del"]);
}

#[test]
fn an_add_that_is_taken_back_is_told_as_failed() {
    need!("ip");
    let node = Node::new();
    node.bridge("net", "1.0.0");
    let fail = r#"cat >/dev/null; test "$CNI_COMMAND" = DEL && exit; echo '{"code":50,"msg":"no"}'; exit 1"#;
    let bin = scripts(node.host.dir(), &[("fails", fail)]);
    let path = node.conf().join("net.conflist");
    let mut config: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    config["plugins"].as_array_mut().unwrap().push(json!({"type": "fails"}));
    fs::write(&path, config.to_string()).unwrap();
    let events = Events::follow(&node);
    let path = format!("{}:{}", plugin_dir().display(), bin.display());
    let pod = Pod::new();
    let outcome = node.cnimble(Path::new(&path), &["add", "net", pod.path(), "--container-id", "web"]).run();
    assert_eq!(outcome.status, 1, "{}", outcome.describe());
    let failed = events.of("failed", "web");
    assert!(is_duration(&failed["milliseconds"]) && failed["pod"].is_null(), "{failed}");
    assert_eq!(events.all_of("web"), ["failed"]);
}

#[test]
fn rules_that_come_back_are_told_as_repaired() {
    need!("ip", "nft");
    let node = Node::new();
    // The address belongs to this test alone, because the doctor looks at all namespaces of the machine.
    node.bridge_with("net", "1.0.0", "10.214.1.0/24");
    let events = Events::follow(&node);
    let pod = Pod::new();
    add(&node, plugin_dir(), &pod, "web");
    events.of("add", "web");
    node.host.nft("flush ruleset");
    let data = node.host.data_dir();
    let repair = ["doctor", "--repair", "--data-dir", data.to_str().unwrap()];
    node.cnimble(plugin_dir(), &repair).run().success();
    events.of("repaired", "web");
    let told = events.all_of("web");
    assert!(told[0] == "add" && told[1..].iter().all(|what| what == "repaired"), "{told:?}");
}

#[test]
fn a_listener_on_a_published_port_is_told() {
    need!("ip", "nft");
    let node = Node::new();
    let ipam = json!({"type": "host-local", "dataDir": node.host.data_dir(), "ranges": [[{"subnet": "10.1.2.0/24"}]]});
    let plugins = json!([
        {"type": "bridge", "bridge": "br0", "isGateway": true, "ipam": ipam},
        {"type": "portmap", "capabilities": {"portMappings": true}},
    ]);
    node.network("net", &json!({"cniVersion": "1.0.0", "name": "net", "plugins": plugins}));
    let events = Events::follow(&node);
    let listener = node.host.within(|| TcpListener::bind("0.0.0.0:8080").unwrap());
    let pod = Pod::new();
    let ports = json!({"portMappings": [{"hostPort": 8080, "containerPort": 80}]}).to_string();
    let args = ["add", "net", pod.path(), "--container-id", "web", "--cap-args", &ports];
    node.cnimble(plugin_dir(), &args).run().success();
    let warning = events.of("warning", "web");
    let pid = std::process::id();
    let message = warning["message"].as_str().unwrap();
    assert!(message.starts_with(&format!("process {pid} (")), "{warning}");
    assert!(message.ends_with(") listens on port 8080/tcp, which leads to the pod now"), "{warning}");
    drop(listener);
    del(&node, plugin_dir(), &pod, "web");
    events.of("del", "web");
    assert_eq!(events.all_of("web"), ["add", "warning", "del"]);
}

/// The kernel sends more notifications than the socket holds. The loss is reported, and missed changes are found.
#[test]
fn what_happened_while_notifications_were_lost_is_told() {
    need!("ip");
    let node = Node::new();
    node.bridge("net", "1.0.0");
    let (here, gone) = (Pod::new(), Pod::new());
    add(&node, plugin_dir(), &gone, "gone");
    let events = Events::follow(&node);
    events.signal(Signal::SIGSTOP);
    let stat = format!("/proc/{}/stat", events.process.pid());
    let stopped = || fs::read_to_string(&stat).unwrap().contains(") T ");
    assert!(wait_until(PATIENCE, stopped));
    add(&node, plugin_dir(), &here, "here");
    del(&node, plugin_dir(), &gone, "gone");
    node.host.ip("link set lo up");
    let flood: String = (0..8000).map(|number| format!("link set lo alias flood{number}\n")).collect();
    node.host.run_with("ip -batch -", flood.as_bytes()).success();
    events.signal(Signal::SIGCONT);
    events.wait(|all| all.iter().any(|event| event["event"] == "lost"));
    events.of("add", "here");
    events.of("del", "gone");
    // Following continues.
    del(&node, plugin_dir(), &here, "here");
    events.of("del", "here");
    assert_eq!(events.all_of("here"), ["add", "del"]);
    assert_eq!(events.all_of("gone"), ["del"]);
}

#[test]
fn a_network_is_chosen_and_lines_are_for_people() {
    need!("ip");
    let node = Node::new();
    node.bridge("net", "1.0.0");
    let ipam = json!({"type": "host-local", "dataDir": node.host.data_dir(), "ranges": [[{"subnet": "10.1.3.0/24"}]]});
    let other = json!({"type": "bridge", "bridge": "br1", "ipam": ipam});
    node.network("other", &json!({"cniVersion": "1.0.0", "name": "other", "plugins": [other]}));
    let out = node.host.dir().join("lines");
    let data = node.host.data_dir();
    let args = ["events", "--network", "net", "--data-dir", data.to_str().unwrap()];
    let mut command = node.cnimble(plugin_dir(), &args).command;
    command.stdout(File::create(&out).unwrap());
    let _process = Background::start(&mut command);
    let text = || fs::read_to_string(&out).unwrap();
    assert!(wait_until(PATIENCE, || text() == "following 0 attachments\n"), "{}", text());
    let (pod, other) = (Pod::new(), Pod::new());
    node.cnimble(plugin_dir(), &["add", "other", other.path(), "--container-id", "db"]).run().success();
    let args = "IgnoreUnknown=1;K8S_POD_NAMESPACE=shop;K8S_POD_NAME=web";
    let line = ["add", "net", pod.path(), "--container-id", "web", "--args", args];
    node.cnimble(plugin_dir(), &line).run().success();
    let told = || {
        text()
            .lines()
            .nth(1)
            .is_some_and(|line| line.contains("  add       net  eth0  shop/web  10.1.2.2/24  in "))
    };
    assert!(wait_until(PATIENCE, told), "{}", text());
    assert!(!text().contains("other"), "{}", text());
}

/// Uses the script of `examples/node-exporter`, which reads `cnimble events --metrics`.
#[test]
fn counts_are_in_the_node_exporters_file_and_replaced_whole() {
    need!("ip");
    let (node, pod) = (Node::new(), Pod::new());
    node.bridge("net", "1.0.0");
    let (bin, file) = (node.host.dir().join("counting"), node.host.dir().join("cnimble.prom"));
    fs::create_dir(&bin).unwrap();
    let (data, cache) = (node.host.data_dir(), node.cache());
    let line = format!(
        "#!/bin/sh\nexec {} \"$@\" --data-dir {} --cache-dir {}\n",
        super::command().display(),
        data.display(),
        cache.display()
    );
    cnimble_tests::script(&bin.join("cnimble"), &line);
    let example = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/node-exporter/cnimble-textfile");
    let mut command = node.host.command(&example);
    command.arg(&file).env("PATH", format!("{}:{}", bin.display(), std::env::var("PATH").unwrap()));
    let _script = Background::start(&mut command);
    let has = |line: &str| {
        let text = fs::read_to_string(&file).unwrap_or_default();
        // A reader sees a complete file at any moment.
        assert!(text.is_empty() || text.ends_with("# EOF\n"), "{text}");
        text.contains(line)
    };
    assert!(wait_until(PATIENCE, || has("cnimble_attachments 0\n")));
    add(&node, plugin_dir(), &pod, "web");
    assert!(wait_until(PATIENCE, || has("cnimble_events_total{network=\"net\",event=\"add\"} 1\n")));
    assert!(has("cnimble_attachments 1\n"));
    assert!(has("cnimble_attachment_duration_seconds_count{network=\"net\",event=\"add\"} 1\n"));
    del(&node, plugin_dir(), &pod, "web");
    assert!(wait_until(PATIENCE, || has("cnimble_events_total{network=\"net\",event=\"del\"} 1\n")));

    // A service manager starts it again if it fails.
    cnimble_tests::script(&bin.join("cnimble"), "#!/bin/sh\nkill -9 $$\n");
    let mut command = node.host.command(&example);
    command.arg(&file).env("PATH", format!("{}:{}", bin.display(), std::env::var("PATH").unwrap()));
    let ended = cnimble_tests::run_limited(&mut command, b"", cnimble_tests::LIMIT);
    assert_eq!(ended.status.code(), Some(1));

    let both = node.cnimble(plugin_dir(), &["events", "--metrics", "--json"]).run();
    assert_eq!(both.status, 2, "{}", both.describe());
}
