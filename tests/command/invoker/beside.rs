//! `gc --gone` and `doctor --repair` beside ADDs, by `cnimble` and by runtimes that take no lock
//! of ours: no ADD that succeeds loses anything.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::atomic::{AtomicBool, Ordering};

use serde_json::{Value, json};

use cnimble_tests::{Background, LIMIT, PATIENCE, Pod, need, need_go, plugin_dir, wait_until};

use super::{Node, command, scripts};

/// A plugin in the chain that passes the result on; a verb that is named in a file `closed` waits
/// until the file is gone, and says so by a file `reached`.
const GATE: &str = r#"
config=$(cat)
if [ "$(cat "$GATE/closed" 2>/dev/null)" = "$CNI_COMMAND" ]; then
    touch "$GATE/reached"
    while [ -e "$GATE/closed" ]; do sleep 0.02; done
fi
case $CNI_COMMAND in
VERSION) echo '{"cniVersion":"1.1.0","supportedVersions":["0.4.0","1.0.0","1.1.0"]}' ;;
ADD) echo "$config" | jq .prevResult ;;
esac
"#;

impl Node {
    /// A bridge network whose addresses no other test uses, with a gate behind the bridge.
    fn gated(&self, subnet: &str, gate: &str) -> PathBuf {
        let dir = self.host.dir();
        let config = json!({
            "cniVersion": "1.1.0",
            "name": "net",
            "plugins": [
                {
                    "type": "bridge", "bridge": "br0", "isGateway": true, "ipMasq": true,
                    "ipam": {"type": "host-local", "dataDir": self.host.data_dir(), "ranges": [[{"subnet": subnet}]]},
                },
                {"type": gate},
            ],
        });
        self.network("net", &config);
        let bin = scripts(dir, &[(gate, &GATE.replace("$GATE", dir.to_str().unwrap()))]);
        let mut path = bin.into_os_string();
        path.push(":");
        path.push(plugin_dir());
        path.into()
    }

    /// The verb waits in the gate from now on.
    fn close(&self, verb: &str) {
        let _ = fs::remove_file(self.host.dir().join("reached"));
        fs::write(self.host.dir().join("closed"), verb).unwrap();
    }

    fn wait_until_reached(&self) {
        assert!(wait_until(PATIENCE, || self.host.dir().join("reached").exists()), "nobody in the gate");
    }

    fn open(&self) {
        fs::remove_file(self.host.dir().join("closed")).unwrap();
    }

    /// `cnimble ARGS…` beside the test, stderr in a file; with a cache of its own if one is named.
    fn background(&self, plugins: &Path, args: &[&str], cache: &str) -> Running {
        let stderr = self.host.dir().join(cnimble_tests::unique("stderr"));
        let mut started = self.host.command(command());
        started.args(args).arg("--cache-dir").arg(self.host.dir().join(cache));
        started.env("CNI_PATH", plugins).env("NETCONFPATH", self.conf());
        started.stdin(Stdio::null()).stdout(Stdio::null()).stderr(fs::File::create(&stderr).unwrap());
        Running { process: Background::start(&mut started), stderr }
    }

    /// ADD of the bridge alone, as another runtime calls it: without a lock, and without a cache.
    fn add_without_lock(&self, pod: &Pod, id: &str) -> Value {
        let list: Value =
            serde_json::from_slice(&fs::read(self.conf().join("net.conflist")).unwrap()).unwrap();
        let mut config = list["plugins"][0].clone();
        config["name"] = json!("net");
        config["cniVersion"] = json!("1.1.0");
        let bridge = self.host.call("bridge").command("ADD").attachment(id, pod.path(), "eth0");
        bridge.config(&config).run().result()
    }

    /// What the node has for a pod that has been added: all of it.
    #[track_caller]
    fn assert_whole(&self, pod: &Pod, id: &str, result: &Value) {
        let address = result["ips"][0]["address"].as_str().unwrap();
        let ip = address.split('/').next().unwrap();
        assert_eq!(pod.addrs("eth0"), [address], "{id}");
        let lease = fs::read_to_string(self.host.data_dir().join("net").join(ip)).unwrap_or_default();
        assert_eq!(lease, format!("{id}\r\neth0"), "the lease of {ip}");
        let rules = self.host.nft("list table inet cnimble");
        assert!(rules.contains(&format!("id: {id}\"")), "{id} ({ip}) isn't masqueraded: {rules}");
    }
}

/// A command that runs beside the test.
struct Running {
    process: Background,
    stderr: PathBuf,
}

impl Running {
    fn text(&self) -> String {
        fs::read_to_string(&self.stderr).unwrap_or_default()
    }

    /// Whether it is waiting for a lock, or has ended without.
    fn waits_or_ended(&mut self) -> bool {
        self.text().contains("waiting for") || !self.process.running()
    }

    #[track_caller]
    fn succeeds(self) -> String {
        let output = self.process.finish(LIMIT);
        let text = fs::read_to_string(&self.stderr).unwrap_or_default();
        assert!(output.status.success(), "{:?}: {text}", output.status);
        text
    }
}

const DATA_DIR: &str = "--data-dir";

/// `gc net --gone` of things of any age: nothing is left to the grace period.
fn gc_gone(node: &Node) -> Vec<String> {
    let dir = node.host.data_dir().to_str().unwrap().to_owned();
    ["gc", "net", "--gone", "--grace", "0", DATA_DIR, &dir].map(str::to_owned).into()
}

fn words(args: &[String]) -> Vec<&str> {
    args.iter().map(String::as_str).collect()
}

#[test]
fn gc_gone_waits_for_an_add_that_goes_on_in_another_cache() {
    need!("ip", "nft", "jq");
    let node = Node::new();
    let plugins = node.gated("10.214.1.0/24", "gate");
    let pod = Pod::new();
    node.close("ADD");
    let add = node.background(&plugins, &["add", "net", pod.path(), "--container-id", "mid"], "one");
    node.wait_until_reached();
    // Something to clean up: that isn't begun while the network is in use.
    let dead = node.host.data_dir().join("net/10.214.1.99");
    fs::write(&dead, "dead\r\neth0").unwrap();
    let mut gc = node.background(&plugins, &words(&gc_gone(&node)), "other");
    assert!(wait_until(PATIENCE, || gc.waits_or_ended()));
    let waiting = gc.text();
    node.open();
    add.succeeds();
    gc.succeeds();
    let result = json!({"ips": [{"address": pod.addrs("eth0").first()}]});
    node.assert_whole(&pod, "mid", &result);
    assert!(!dead.exists());
    // The wait is told, and who is waited for.
    assert!(waiting.contains("waiting for network net, which process"), "{waiting}");
    assert!(waiting.contains("add net"), "{waiting}");
}

/// As containerd does: plugins run one after the other, there is no lock, and the cache is written
/// when the last of them has ended.
#[test]
fn gc_gone_leaves_alone_what_another_runtime_is_just_adding() {
    need!("ip", "nft", "jq");
    let node = Node::new();
    let plugins = node.gated("10.214.2.0/24", "gate");
    let pod = Pod::new();
    let result = node.add_without_lock(&pod, "theirs");
    // As in the middle of the bridge's ADD: link and lease are made, the address isn't yet there.
    let address = result["ips"][0]["address"].as_str().unwrap();
    pod.ip("addr flush dev eth0");
    // The next plugin of their chain is at work now; the doctor comes by as well.
    let gc = gc_gone(&node);
    node.cnimble(&plugins, &words(&gc)).run().success();
    let dir = node.host.data_dir().to_str().unwrap().to_owned();
    let doctor = ["doctor", "--repair", "--grace", "0", DATA_DIR, &dir];
    node.cnimble(&plugins, &doctor).run();
    pod.ip(&format!("addr add {address} dev eth0"));
    node.assert_whole(&pod, "theirs", &result);
}

/// A Go plugin says on no link whose it is: the age of the lease speaks for the ADD.
#[test]
fn gc_gone_leaves_alone_what_the_go_plugins_have_just_leased() {
    need_go!(go, "ip", "nft", "jq");
    let node = Node::new();
    let plugins = node.gated("10.214.3.0/24", "gate");
    let ipam = json!({
        "type": "host-local", "dataDir": node.host.data_dir(), "ranges": [[{"subnet": "10.214.3.0/24"}]],
    });
    let config = json!({"cniVersion": "1.0.0", "name": "net", "type": "bridge", "ipam": ipam});
    let pod = Pod::new();
    let leased = node.host.call_in(go, "host-local").command("ADD").attachment("theirs", pod.path(), "eth0");
    leased.config(&config).run().success();
    let dir = node.host.data_dir().to_str().unwrap().to_owned();
    let outcome = node.cnimble(&plugins, &["gc", "net", "--gone", DATA_DIR, &dir]).run().success();
    assert_eq!(node.leases(), ["10.214.3.2"]);
    assert!(outcome.stderr.contains("left alone: lease lease"), "{}", outcome.stderr);
    // Without the grace period it is what a runtime that died has left.
    node.cnimble(&plugins, &words(&gc_gone(&node))).run().success();
    assert_eq!(node.leases(), [""; 0]);
}

#[test]
fn adds_beside_gc_gone_lose_nothing() {
    need!("ip", "nft", "jq");
    let node = Node::new();
    let plugins = node.gated("10.214.4.0/24", "gate");
    let dir = node.host.data_dir().to_str().unwrap().to_owned();
    adds_beside(&node, &plugins, &["gc", "net", "--gone", DATA_DIR, &dir], &[0]);
}

#[test]
fn adds_beside_doctor_repair_lose_nothing_on_a_node_with_thousands_of_leases() {
    need!("ip", "nft", "jq");
    let node = Node::new();
    let plugins = node.gated("10.214.64.0/18", "gate");
    let store = node.host.data_dir().join("net");
    fs::create_dir_all(&store).unwrap();
    for number in 0..3000 {
        // From the upper end, where the pods' addresses aren't.
        let ip = format!("10.214.{}.{}", 127 - number / 250, 1 + number % 250);
        fs::write(store.join(ip), format!("filler{number}\r\neth0")).unwrap();
    }
    let dir = node.host.data_dir().to_str().unwrap().to_owned();
    // Some leases are too young to be judged; nothing is found.
    adds_beside(&node, &plugins, &["doctor", "--repair", DATA_DIR, &dir], &[0]);
}

/// 60 ADDs by four processes at a time, half of them as another runtime does it, as long as another one
/// runs `cleaner` again and again.
#[track_caller]
fn adds_beside(node: &Node, plugins: &Path, cleaner: &[&str], allowed: &[i32]) {
    let pods: Vec<(Pod, String)> = (0..60).map(|number| (Pod::new(), format!("c{number}"))).collect();
    let done = AtomicBool::new(false);
    let results: Vec<(usize, Value)> = std::thread::scope(|scope| {
        let cleaning = scope.spawn(|| {
            let mut rounds = 0;
            while !done.load(Ordering::Relaxed) {
                let outcome = node.cnimble(plugins, cleaner).run();
                assert!(allowed.contains(&outcome.status), "{}", outcome.describe());
                rounds += 1;
            }
            rounds
        });
        let adding: Vec<_> = (0..4)
            .map(|first| {
                let pods = &pods;
                scope.spawn(move || {
                    let own = pods.iter().enumerate().skip(first).step_by(4);
                    let added = own.map(|(index, (pod, id))| {
                        let args = ["add", "net", pod.path(), "--container-id", id];
                        let result = match first % 2 {
                            0 => node.cnimble(plugins, &args).run().result(),
                            _ => node.add_without_lock(pod, id),
                        };
                        (index, result)
                    });
                    added.collect::<Vec<_>>()
                })
            })
            .collect();
        let results = adding.into_iter().map(std::thread::ScopedJoinHandle::join).collect::<Vec<_>>();
        done.store(true, Ordering::Relaxed);
        assert!(cleaning.join().unwrap() > 1);
        results.into_iter().flat_map(|results| results.unwrap()).collect()
    });
    assert_eq!(results.len(), pods.len());
    let addresses: BTreeSet<String> =
        results.iter().map(|(_, result)| result["ips"][0]["address"].to_string()).collect();
    assert_eq!(addresses.len(), pods.len(), "an address was given out twice");
    for (index, result) in &results {
        let (pod, id) = &pods[*index];
        node.assert_whole(pod, id, result);
    }
    assert_eq!(node.entries().len(), pods.len() / 2);
}

/// The doctor has looked, and asks the plugins of a pod that lives (CHECK), when what it has found is
/// taken down and added again: it must not go by what it saw before.
#[test]
fn doctor_judges_again_what_has_come_to_life_since_it_looked() {
    need!("ip", "nft", "jq");
    let node = Node::new();
    // The doctor asks a plugin that it doesn't link.
    let plugins = node.gated("10.214.5.0/24", "gate");
    let (live, old, new) = (Pod::new(), Pod::new(), Pod::new());
    node.cnimble(&plugins, &["add", "net", live.path(), "--container-id", "live"]).run().success();
    node.cnimble(&plugins, &["add", "net", old.path(), "--container-id", "again"]).run().success();
    let ports = || node.host.ip_json("link show master br0").as_array().unwrap().len();
    drop(old);
    assert!(wait_until(PATIENCE, || ports() == 1));
    node.close("CHECK");
    let dir = node.host.data_dir().to_str().unwrap().to_owned();
    let doctor = node.background(&plugins, &["doctor", "--repair", "--grace", "0", DATA_DIR, &dir], "cache");
    node.wait_until_reached();
    node.cnimble(&plugins, &["del", "net", "--container-id", "again"]).run().success();
    let added = node.cnimble(&plugins, &["add", "net", new.path(), "--container-id", "again"]).run();
    let result = added.result();
    node.open();
    doctor.succeeds();
    node.assert_whole(&new, "again", &result);
    assert_eq!(node.entries().len(), 2);
}

#[test]
fn a_command_that_is_killed_leaves_no_lock() {
    need!("ip", "nft", "jq");
    let node = Node::new();
    let plugins = node.gated("10.214.6.0/24", "gate");
    let (killed, pod) = (Pod::new(), Pod::new());
    let gc = gc_gone(&node);
    // An add in the middle of its chain; its plugin goes on without it, as another runtime's would.
    node.close("ADD");
    let add = node.background(&plugins, &["add", "net", killed.path(), "--container-id", "killed"], "cache");
    node.wait_until_reached();
    drop(add);
    let outcome = node.cnimble(&plugins, &words(&gc)).run().success();
    assert!(!outcome.stderr.contains("waiting for"), "{}", outcome.stderr);
    node.open();
    // A clean-up in the middle of its DEL.
    node.cnimble(&plugins, &["add", "net", pod.path(), "--container-id", "gone"]).run().success();
    let ports = || node.host.ip_json("link show master br0").as_array().unwrap().len();
    drop((pod, killed));
    assert!(wait_until(PATIENCE, || ports() == 0));
    node.close("DEL");
    let cleaning = node.background(&plugins, &words(&gc), "cache");
    node.wait_until_reached();
    // Meanwhile others wait, and say for whom.
    let other = Pod::new();
    let mut add = node.background(&plugins, &["add", "net", other.path(), "--container-id", "next"], "cache");
    assert!(wait_until(PATIENCE, || add.waits_or_ended()));
    let waiting = add.text();
    assert!(waiting.contains("waiting for network net, which process"), "{waiting}");
    assert!(waiting.contains("gc net --gone"), "{waiting}");
    drop(cleaning);
    add.succeeds();
    node.open();
    assert_eq!(other.addrs("eth0").len(), 1);
}
