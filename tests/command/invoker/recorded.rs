//! Tests that the record of ADD decides, and not a file that has changed since, and what `del` and `check` say.

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, chown};
use std::path::Path;

use serde_json::{Value, json};

use cnimble_tests::{Outcome, Pod, need, plugin_dir};

use super::{Node, RESULT, Run, command, scripts, until_mounts_are_gone};

const PORTS: &str = r#"{"portMappings":[{"hostPort":8080,"containerPort":80,"protocol":"tcp"}]}"#;

/// A chain in a subnet of one test: an address in a namespace of another test would be evidence for a removed pod.
fn chain(node: &Node, subnet: &str) -> Value {
    json!({
        "cniVersion": "1.1.0",
        "name": "net",
        "plugins": [
            {
                "type": "bridge", "bridge": "br0", "isGateway": true, "ipMasq": true, "removeUnusedBridge": true,
                "ipam": {
                    "type": "host-local", "dataDir": node.host.data_dir(),
                    "ranges": [[{"subnet": subnet}]],
                },
            },
            {"type": "portmap", "capabilities": {"portMappings": true}},
        ],
    })
}

/// What became of the file after ADD.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum File {
    AsAtAdd,
    Edited,
    PluginAdded,
    UninstalledPluginAdded,
    PluginRemoved,
    IpamChanged,
    OldVersion,
    Renamed,
    Broken,
    Missing,
}

use File::{
    AsAtAdd, Broken, Edited, IpamChanged, Missing, OldVersion, PluginAdded, PluginRemoved, Renamed,
    UninstalledPluginAdded,
};

const FILES: [File; 10] = [
    AsAtAdd,
    Edited,
    PluginAdded,
    UninstalledPluginAdded,
    PluginRemoved,
    IpamChanged,
    OldVersion,
    Renamed,
    Broken,
    Missing,
];

impl File {
    fn write(self, node: &Node, subnet: &str) {
        let (mut net, path) = (chain(node, subnet), node.conf().join("net.conflist"));
        match self {
            AsAtAdd => {}
            Edited => net["plugins"][0]["ipMasq"] = json!(false),
            PluginAdded => net["plugins"].as_array_mut().unwrap().push(json!({"type": "firewall"})),
            UninstalledPluginAdded => net["plugins"].as_array_mut().unwrap().push(json!({"type": "absent"})),
            PluginRemoved => net["plugins"].as_array_mut().unwrap().truncate(1),
            IpamChanged => net["plugins"][0]["ipam"]["dataDir"] = json!(node.host.dir().join("other")),
            OldVersion => net["cniVersion"] = json!("0.3.1"),
            Renamed => net["name"] = json!("renamed"),
            Broken => return fs::write(path, "{").unwrap(),
            Missing => return fs::remove_file(path).unwrap(),
        }
        fs::write(path, net.to_string()).unwrap();
    }

    /// Whether a usable file has the network's old name.
    fn is_there(self) -> bool {
        !matches!(self, Renamed | Broken | Missing)
    }

    fn differs(self) -> bool {
        self.is_there() && self != AsAtAdd
    }
}

fn cnimble(node: &Node, args: &[&str]) -> Outcome {
    node.cnimble(plugin_dir(), args).run()
}

fn add(node: &Node, pod: &Pod, subnet: &str) {
    node.network("net", &chain(node, subnet));
    let args = ["add", "net", pod.path(), "--container-id", "one", "--cap-args", PORTS];
    cnimble(node, &args).success();
}

#[track_caller]
fn nothing_stays(node: &Node, what: &str) {
    let links = node.host.links();
    assert_eq!((node.entries(), node.leases()), (vec![], vec![]), "{what}");
    assert_eq!((node.host.nft("list ruleset").as_str(), links), ("", vec!["lo".to_owned()]), "{what}");
}

#[test]
fn nothing_stays_whatever_became_of_the_file() {
    need!("ip", "nft");
    let node = Node::new();
    let subnet = "10.214.40.0/24";
    let dir = node.host.data_dir();
    let gone = ["gc", "net", "--gone", "--grace", "0", "--data-dir", dir.to_str().unwrap()];
    let del = ["del", "net", "--container-id", "one"];
    for (verb, args) in [("del", &del[..]), ("gc --all", &["gc", "net", "--all"]), ("gc --gone", &gone)] {
        for file in FILES {
            let what = format!("{verb}, {file:?}");
            let pod = Pod::new();
            add(&node, &pod, subnet);
            file.write(&node, subnet);
            let checked = cnimble(&node, &["check", "net", pod.path(), "--container-id", "one"]);
            assert_eq!(checked.status, 0, "{what}: {}", checked.describe());
            // `gc --gone` is for pods that have no namespace any more.
            let pod = (verb != "gc --gone").then_some(pod);
            let outcome = if verb == "gc --gone" {
                until_mounts_are_gone(|| cnimble(&node, args), |_| node.entries().is_empty())
            } else {
                cnimble(&node, args)
            };
            // GC asks the plugins of the file, too.
            let is_refused = file == UninstalledPluginAdded && verb == "gc --all";
            assert_eq!(outcome.status, if is_refused { 4 } else { 0 }, "{what}: {}", outcome.describe());
            if verb == "gc --gone" {
                assert!(outcome.stderr.lines().count() <= 1, "{what}: {}", outcome.describe());
            } else {
                let told = outcome.stderr.matches("is not configured as at the ADD").count();
                assert_eq!(told, usize::from(file.differs()), "{what}: {}", outcome.describe());
            }
            drop(pod);
            cnimble_tests::wait_until(cnimble_tests::PATIENCE, || node.host.links() == ["lo"]);
            nothing_stays(&node, &what);
            // Neither record nor file: is it a repetition, or a misspelt name?
            let again = cnimble(&node, &del);
            let status = match file {
                UninstalledPluginAdded => 4,
                _ if file.is_there() => 0,
                _ => 3,
            };
            assert_eq!(again.status, status, "{what}: {}", again.describe());
            if status == 3 {
                assert!(
                    again.stderr.contains("  record     there is none of eth0 of one"),
                    "{}",
                    again.describe()
                );
            }
        }
    }
}

/// The file counts, and the doctor finds what it doesn't reach.
#[test]
fn without_a_record_the_file_counts() {
    need!("ip", "nft");
    let node = Node::new();
    let subnet = "10.214.45.0/24";
    for file in FILES {
        let pod = Pod::new();
        add(&node, &pod, subnet);
        fs::remove_file(node.cache().join("results/net-one-eth0")).unwrap();
        file.write(&node, subnet);
        let checked = cnimble(&node, &["check", "net", pod.path(), "--container-id", "one"]);
        let status = match file {
            _ if !file.is_there() => 3,
            OldVersion => 3,
            _ => 5,
        };
        assert_eq!(checked.status, status, "{file:?}: {}", checked.describe());
        assert!(
            checked.stderr.starts_with("cnimble: can't check eth0 in network net\n"),
            "{}",
            checked.describe()
        );
        let outcome =
            cnimble(&node, &["del", "net", pod.path(), "--container-id", "one", "--cap-args", PORTS]);
        let status = match file {
            UninstalledPluginAdded => 4,
            _ if file.is_there() => 0,
            _ => 3,
        };
        assert_eq!(outcome.status, status, "{file:?}: {}", outcome.describe());
        if file.is_there() {
            assert_eq!(pod.links(), ["lo"], "{file:?}");
        }
        drop(pod);
        cnimble_tests::wait_until(cnimble_tests::PATIENCE, || {
            !node.host.links().iter().any(|of| of.starts_with("veth"))
        });
        let dir = node.host.data_dir();
        let doctor = ["doctor", "--repair", "--grace", "0", "--data-dir", dir.to_str().unwrap()];
        cnimble(&node, &doctor).success();
        node.host.shell("ip link del br0 2>/dev/null || true");
        nothing_stays(&node, &format!("{file:?}"));
    }
}

/// The way out if a plugin was uninstalled.
#[test]
fn the_file_counts_if_the_caller_wants_that() {
    need!("ip", "nft");
    let node = Node::new();
    let subnet = "10.214.46.0/24";
    let pod = Pod::new();
    let bin = node.host.dir().join("bin");
    fs::create_dir(&bin).unwrap();
    for name in ["bridge", "host-local"] {
        std::os::unix::fs::symlink(plugin_dir().join(name), bin.join(name)).unwrap();
    }
    for args in [&["del", "net", "--container-id", "one"][..], &["gc", "net", "--all"]] {
        add(&node, &pod, subnet);
        PluginRemoved.write(&node, subnet);
        let refused = node.cnimble(&bin, args).run();
        assert_eq!(refused.status, 4, "{}", refused.describe());
        assert!(refused.stderr.contains("no plugin \"portmap\""), "{}", refused.describe());
        assert!(args[0] == "gc" || refused.stderr.contains("--from-file"), "{}", refused.describe());
        assert_eq!(node.entries().len(), 1);
        node.cnimble(&bin, &[args, &["--from-file"]].concat()).run().success();
        assert_eq!((node.entries(), node.leases(), pod.links()), (vec![], vec![], vec!["lo".to_owned()]));
        // This plugin's part stays: nothing was asked to remove it.
        assert!(node.host.nft("list ruleset").contains("8080"));
        cnimble(&node, &["del", "net", pod.path(), "--container-id", "one"]).success();
        node.host.nft("flush ruleset");
    }
}

/// Runs a line on a terminal, and returns what stands there.
fn on_terminal(node: &Node, plugins: &Path, line: &str) -> (i32, String) {
    let line = format!("{} {line} --cache-dir {}", command().display(), node.cache().display());
    let mut script = node.host.command("script");
    script.args(["-qec", &line, "/dev/null"]).env("TERM", "xterm").env("NO_COLOR", "1");
    script.env("CNI_PATH", plugins).env("NETCONFPATH", node.conf());
    let outcome = Run { command: script, stdin: Vec::new() }.run();
    (outcome.status, outcome.text().replace('\r', ""))
}

#[test]
fn del_and_check_say_what_was_done() {
    need!("script");
    let node = Node::new();
    let bin = scripts(
        node.host.dir(),
        &[("it", &format!("cat >/dev/null; echo '{RESULT}'")), ("refuses", REFUSES)],
    );
    for (name, plugin) in [("net", "it"), ("other", "it"), ("bad", "refuses")] {
        node.network(name, &json!({"cniVersion": "1.0.0", "name": name, "plugins": [{"type": plugin}]}));
    }
    let pod = Pod::new();
    let path = pod.path();
    let del = |line: &str| on_terminal(&node, &bin, line);
    node.cnimble(&bin, &["add", "net", path, "--container-id", "x"]).run().success();
    let hint = format!(
        "a record names this namespace with network net, ID x and interface eth0: use `cnimble VERB net {path} \
         --container-id x --cache-dir {}`",
        node.cache().display()
    );
    // Another ID than that of ADD: nothing is removed, and the command says why.
    let (status, told) = del(&format!("del net {path}"));
    assert!(status == 0 && told.contains(&hint.replace("VERB", "del")), "{told}");
    assert!(told.contains("ok there is no record of eth0 of cnitool-"), "{told}");
    assert!(!told.contains("by the record of its ADD"), "{told}");
    let (status, told) = del(&format!("check net {path}"));
    assert!(status == 5 && told.contains(&hint.replace("VERB", "check")), "{told}");
    // Another network, and one that nobody knows.
    let (status, told) = del(&format!("del other {path} --container-id x"));
    assert!(status == 0 && told.contains(&hint.replace("VERB", "del")), "{told}");
    for verb in ["del", "check"] {
        let (status, told) = del(&format!("{verb} nett {path}"));
        assert!(status == 3 && told.contains(&hint.replace("VERB", verb)), "{told}");
    }
    // A runtime that repeats a DEL of one of several networks is told nothing.
    let repeated = node.cnimble(&bin, &["del", "other", path, "--container-id", "x"]).run().success();
    assert_eq!((repeated.text().as_str(), repeated.stderr.as_str()), ("", ""));
    let repeated = node.cnimble(&bin, &["del", "net", path]).run().success();
    assert!(repeated.stderr.contains(&hint.replace("VERB", "del")), "{}", repeated.describe());
    // A namespace that isn't there.
    let (status, told) = del("del net /run/netns/misspelt");
    assert!(status == 0 && told.contains("; there is no namespace /run/netns/misspelt\n"), "{told}");
    assert_eq!(node.entries(), ["net-x-eth0"]);

    let (status, told) = del(&format!("check net {path} --container-id x"));
    assert!(
        status == 0 && told.starts_with("ok no plugin of net found a difference at eth0 of x\n"),
        "{told}"
    );
    let (status, told) = del(&format!("del net {path} --container-id x"));
    assert!(
        status == 0 && told.starts_with("ok DEL of eth0 of x on net succeeded, by the record of its ADD\n"),
        "{told}"
    );
    for recorded in [false, true] {
        if recorded {
            node.cnimble(&bin, &["add", "net", path, "--container-id", "x"]).run().success();
        }
        let del = node.cnimble(&bin, &["del", "net", path, "--container-id", "x"]).json().run().result();
        assert_eq!(del["recorded"], recorded);
    }
}

/// A plugin that takes no version.
const REFUSES: &str = r#"cat >/dev/null
[ $CNI_COMMAND = ADD ] && { echo '{"cniVersion":"1.0.0"}'; exit; }
echo '{"cniVersion":"1.0.0","code":1,"msg":"incompatible CNI versions"}'; exit 1"#;

/// A hint must fit the failure, and a headline what was looked at.
#[test]
fn no_sentence_says_what_was_not_looked_at() {
    need!();
    let node = Node::new();
    let bin = scripts(
        node.host.dir(),
        &[
            ("refuses", REFUSES),
            ("silent", "cat >/dev/null; exit 3"),
            (
                "differs",
                r#"cat >/dev/null; case $CNI_COMMAND in ADD) echo '{}';; CHECK) echo '{"code":103,"msg":"no eth0"}'; exit 1;; esac"#,
            ),
            (
                "fails",
                r#"cat >/dev/null; case $CNI_COMMAND in ADD) echo '{}';; CHECK) echo '{"code":999,"msg":"no netns"}'; exit 1;; esac"#,
            ),
            ("quiet", "cat >/dev/null; echo '{}'"),
        ],
    );
    for plugin in ["refuses", "silent", "differs", "fails"] {
        node.network(plugin, &json!({"cniVersion": "1.0.0", "name": plugin, "plugins": [{"type": plugin}]}));
    }
    node.network("old", &json!({"cniVersion": "0.3.1", "name": "old", "plugins": [{"type": "quiet"}]}));
    node.network(
        "unchecked",
        &json!({"cniVersion": "1.1.0", "name": "unchecked", "disableCheck": true, "disableGC": true,
            "plugins": [{"type": "quiet"}]}),
    );
    let pod = Pod::new();
    let run = |args: &[&str]| node.cnimble(&bin, args).run();
    for name in ["refuses", "differs", "fails", "old", "unchecked"] {
        run(&["add", name, pod.path(), "--container-id", "x"]).success();
    }
    // Of a plugin of another maker it is not known whether a repetition helps.
    let outcome = run(&["del", "refuses", pod.path(), "--container-id", "x"]);
    assert!(outcome.status == 1 && outcome.stderr.contains("DEL may be repeated"), "{}", outcome.describe());
    // Only a plugin that has compared something finds a difference.
    for (name, status, headline) in [
        ("refuses", 1, "can't check eth0 in network refuses"),
        ("old", 3, "can't check eth0 in network old"),
        // Codes from 100 on are a plugin's own: this one may mean something else by 103.
        ("differs", 1, "can't check eth0 in network differs"),
        // The Go plugins have one code for a difference and for a namespace that they can't open.
        ("fails", 1, "can't check eth0 in network fails"),
    ] {
        let outcome = run(&["check", name, pod.path(), "--container-id", "x"]);
        assert_eq!(outcome.status, status, "{}", outcome.describe());
        assert!(outcome.stderr.starts_with(&format!("cnimble: {headline}\n")), "{}", outcome.describe());
    }
    let outcome = run(&["check", "differs", pod.path(), "--container-id", "x", "--from-file"]);
    assert!(!outcome.stderr.contains("differs from the file"), "{}", outcome.describe());
    // It wrote nothing to stderr.
    let outcome = run(&["add", "silent", pod.path()]);
    assert!(
        outcome.stderr.contains("what it wrote to stderr stands above, if it wrote anything"),
        "{}",
        outcome.describe()
    );
    // No plugin was asked.
    let check = node.cnimble(&bin, &["check", "unchecked", pod.path(), "--container-id", "x"]).json();
    assert_eq!(check.run().result()["asked"], false);
    let gc = |args: &[&str]| node.cnimble(&bin, args).json().run().result();
    for args in [
        &["gc", "unchecked", "--all"][..],
        &["gc", "unchecked", "--gone"],
        &["gc", "unchecked", "--valid", "a/b"],
    ] {
        let told = gc(args);
        assert_eq!((&told["disableGC"], &told["validAttachments"]), (&json!(true), &Value::Null), "{args:?}");
    }
    assert_eq!(gc(&["gc", "old", "--valid", "x/eth0"])["disableGC"], false);
    assert_eq!(node.entries().len(), 5);
}

/// DEL in another namespace would end the record, and leave the interface of the pod.
#[test]
fn the_namespace_of_another_pod_is_refused() {
    need!("ip", "nft");
    let node = Node::new();
    let [pod, other] = [Pod::new(), Pod::new()];
    add(&node, &pod, "10.214.41.0/24");
    for verb in ["del", "check"] {
        let outcome = cnimble(&node, &[verb, "net", other.path(), "--container-id", "one"]);
        assert_eq!(outcome.status, 2, "{verb}: {}", outcome.describe());
        let says = format!("by its record eth0 of one is in {}, and not in {}", pod.path(), other.path());
        assert!(outcome.stderr.contains(&says), "{verb}: {}", outcome.describe());
    }
    assert_eq!(node.entries().len(), 1);
    cnimble(&node, &["check", "net", pod.path(), "--container-id", "one"]).success();
    cnimble(&node, &["del", "net", pod.path(), "--container-id", "one"]).success();
    nothing_stays(&node, "DEL in its own namespace");
}

/// The record's result is used, and its configuration is not.
#[test]
fn a_record_with_a_damaged_configuration_is_no_removal_by_the_record() {
    need!("ip", "nft");
    let node = Node::new();
    let pod = Pod::new();
    add(&node, &pod, "10.214.42.0/24");
    let record = node.cache().join("results/net-one-eth0");
    let mut entry: Value = serde_json::from_slice(&fs::read(&record).unwrap()).unwrap();
    // The base64 of `{`.
    entry["config"] = json!("ew==");
    fs::write(&record, entry.to_string()).unwrap();
    let check = cnimble(&node, &["check", "net", "--container-id", "one"]).success();
    assert_eq!(check.stderr.matches("can't be used").count(), 1, "{}", check.describe());
    let del = node.cnimble(plugin_dir(), &["del", "net", "--container-id", "one"]).json().run();
    assert_eq!(del.result()["recorded"], false, "{}", del.describe());
    assert_eq!(del.stderr.matches("can't be used").count(), 1, "{}", del.describe());
    nothing_stays(&node, "DEL by the file");
}

#[test]
fn damage_of_a_record_is_told_once() {
    need!("ip", "nft");
    let (node, pod) = (Node::new(), Pod::new());
    add(&node, &pod, "10.214.43.0/24");
    fs::write(node.entry("net", "one"), "{").unwrap();
    for (verb, status) in [("check", 5), ("del", 0)] {
        let outcome = cnimble(&node, &[verb, "net", pod.path(), "--container-id", "one"]);
        assert_eq!(outcome.status, status, "{}", outcome.describe());
        assert_eq!(outcome.stderr.matches("EOF while parsing").count(), 1, "{}", outcome.describe());
    }
    // Without a file the report of the missing file tells why the record is no help.
    fs::write(node.entry("net", "one"), "{").unwrap();
    fs::remove_file(node.conf().join("net.conflist")).unwrap();
    let outcome = cnimble(&node, &["del", "net", pod.path(), "--container-id", "one"]);
    assert_eq!(outcome.status, 3, "{}", outcome.describe());
    assert_eq!(outcome.stderr.matches("EOF while parsing").count(), 1, "{}", outcome.describe());
}

/// A misspelt path of a file can't lead to a record. The error says how the record is reached.
#[test]
fn a_path_without_a_file_is_answered_with_the_way_to_the_record() {
    need!();
    let node = Node::new();
    let bin = scripts(node.host.dir(), &[("it", &format!("cat >/dev/null; echo '{RESULT}'"))]);
    node.network("net", &json!({"cniVersion": "1.0.0", "name": "net", "plugins": [{"type": "it"}]}));
    let (pod, file) = (Pod::new(), node.conf().join("net.conflist"));
    let file_text = file.to_str().unwrap();
    node.cnimble(&bin, &["add", file_text, pod.path()]).run().success();
    fs::remove_file(&file).unwrap();
    let outcome = node.cnimble(&bin, &["del", file_text, pod.path()]).run();
    assert!(
        outcome.status == 3 && outcome.stderr.contains("name the network instead"),
        "{}",
        outcome.describe()
    );
    node.cnimble(&bin, &["del", "net", pod.path()]).run().success();
    assert_eq!(node.entries(), [""; 0]);
}

/// The record stays where its directory can't be written to. A record that stays is evidence of a living pod.
#[test]
fn del_fails_if_the_record_stays() {
    need!("ip", "nft", "setpriv");
    let (node, pod) = (Node::new(), Pod::new());
    add(&node, &pod, "10.214.41.0/24");
    let record = node.entry("net", "one");
    // Everybody may read the directory, and only its owner may change it.
    fs::set_permissions(record.parent().unwrap(), fs::Permissions::from_mode(0o755)).unwrap();
    chown(record.parent().unwrap(), Some(1000), None).unwrap();
    let mut wrapper = node.host.command("setpriv");
    wrapper.args(["--bounding-set", "-dac_override,-dac_read_search"]);
    let del = ["del", "net", "--container-id", "one"];
    let outcome = node.cnimble(plugin_dir(), &del).under(wrapper).run();
    assert_eq!((outcome.status, record.exists()), (7, true), "{}", outcome.describe());
    assert!(outcome.stderr.contains(record.to_str().unwrap()), "{}", outcome.describe());
    assert!(outcome.stderr.contains("succeeded, and its record stays"), "{}", outcome.describe());
    assert_eq!(cnimble(&node, &del).status, 0);
    nothing_stays(&node, "a repeated DEL");
}

/// A record that can't be read may name the namespace. The command line is not wrong then.
#[test]
fn check_without_a_namespace_tells_why_the_record_is_no_help() {
    need!();
    let node = Node::new();
    let bin = scripts(node.host.dir(), &[("it", &format!("cat >/dev/null; echo '{RESULT}'"))]);
    node.network("net", &json!({"cniVersion": "1.0.0", "name": "net", "plugins": [{"type": "it"}]}));
    let pod = Pod::new();
    node.cnimble(&bin, &["add", "net", pod.path(), "--container-id", "x"]).run().success();
    fs::write(node.entry("net", "x"), "{").unwrap();
    let outcome = node.cnimble(&bin, &["check", "net", "--container-id", "x"]).run();
    assert_eq!(outcome.status, 5, "{}", outcome.describe());
    assert!(outcome.stderr.contains("EOF while parsing"), "{}", outcome.describe());
    assert!(!outcome.stderr.contains("the command line"), "{}", outcome.describe());
}

/// Nobody knows what a record holds that can't be read. Its attachment got no DEL.
#[test]
fn gc_of_all_fails_if_a_record_of_the_network_can_not_be_read() {
    need!("setpriv");
    let node = Node::new();
    let bin = scripts(node.host.dir(), &[("it", &format!("cat >/dev/null; echo '{RESULT}'"))]);
    for name in ["net", "other"] {
        node.network(name, &json!({"cniVersion": "1.0.0", "name": name, "plugins": [{"type": "it"}]}));
        let pod = Pod::new();
        node.cnimble(&bin, &["add", name, pod.path(), "--container-id", "x"]).run().success();
    }
    let record = node.entry("net", "x");
    chown(&record, Some(1000), None).unwrap();
    let gc = |name: &str| {
        let mut wrapper = node.host.command("setpriv");
        wrapper.args(["--bounding-set", "-dac_override,-dac_read_search"]);
        node.cnimble(&bin, &["gc", name, "--all"]).under(wrapper).run()
    };
    let outcome = gc("net");
    assert_eq!(outcome.status, 5, "{}", outcome.describe());
    assert!(outcome.stderr.contains(record.to_str().unwrap()), "{}", outcome.describe());
    // Another network is not concerned.
    gc("other").success();
}

/// What the plugins of the reference set mean by a code is known, and what others mean isn't.
#[test]
fn a_failed_del_says_what_a_repetition_does_only_where_that_is_known() {
    need!();
    let node = Node::new();
    let refuses = r#"cat >/dev/null; [ $CNI_COMMAND = ADD ] && { echo '{"cniVersion":"1.0.0"}'; exit; }
        cat $(dirname $0)/error; exit 1"#;
    let bin = scripts(node.host.dir(), &[("tuning", refuses), ("calico", refuses)]);
    for plugin in ["tuning", "calico"] {
        node.network(plugin, &json!({"cniVersion": "1.0.0", "name": plugin, "plugins": [{"type": plugin}]}));
    }
    let pod = Pod::new();
    let by_file = "a repetition with the same configuration fails in the same way; correct the network's file, and use \
                   --from-file";
    let by_arguments = "a repetition with the same arguments fails in the same way";
    for (plugin, code, msg, hint) in [
        ("tuning", 1, "incompatible CNI versions", by_file),
        ("tuning", 7, "mtu: expected a number", by_file),
        ("tuning", 7, "prevResult: no interface has the sandbox", "DEL may be repeated"),
        ("tuning", 4, "CNI_ARGS: no value", by_arguments),
        ("tuning", 5, "no answer", "DEL may be repeated"),
        ("calico", 7, "the server is away", "DEL may be repeated"),
        ("calico", 4, "the server is away", "DEL may be repeated"),
    ] {
        let args = [plugin, pod.path(), "--container-id", "x"];
        node.cnimble(&bin, &[&["add"], &args[..]].concat()).run().success();
        let error = json!({"cniVersion": "1.0.0", "code": code, "msg": msg});
        fs::write(bin.join("error"), error.to_string()).unwrap();
        let outcome = node.cnimble(&bin, &[&["del"], &args[..]].concat()).run();
        assert_eq!(outcome.status, 1, "{}", outcome.describe());
        assert!(outcome.stderr.ends_with(&format!(" {hint}\n")), "{code}: {}", outcome.describe());
    }
}

/// A record that is there after a DEL stays only if it is the one that was there before.
#[test]
fn del_tells_a_record_that_stays_from_a_new_one_and_from_one_that_can_not_be_read() {
    need!("setpriv");
    let node = Node::new();
    let plugin = format!(
        "cat >/dev/null; [ $CNI_COMMAND = ADD ] && {{ echo '{RESULT}'; exit; }}; sh $(dirname $0)/meanwhile"
    );
    let bin = scripts(node.host.dir(), &[("it", &plugin)]);
    node.network("net", &json!({"cniVersion": "1.0.0", "name": "net", "plugins": [{"type": "it"}]}));
    let pod = Pod::new();
    let add = ["add", "net", pod.path(), "--container-id", "x"];
    node.cnimble(&bin, &add).run().success();
    let record = node.entry("net", "x");
    let dir = record.parent().unwrap();
    let del = |meanwhile: &str| {
        fs::write(bin.join("meanwhile"), meanwhile).unwrap();
        // Everybody may read the directory, and only its owner may remove a record.
        fs::set_permissions(dir, fs::Permissions::from_mode(0o755)).unwrap();
        chown(dir, Some(1000), None).unwrap();
        let mut wrapper = node.host.command("setpriv");
        wrapper.args(["--bounding-set", "-dac_override,-dac_read_search"]);
        let outcome = node.cnimble(&bin, &["del", "net", "--container-id", "x"]).under(wrapper).run();
        chown(dir, Some(0), None).unwrap();
        chown(&record, Some(0), None).unwrap();
        outcome
    };
    let file = record.display();
    let same = del("");
    assert!(same.status == 7 && same.stderr.contains("and its record stays"), "{}", same.describe());
    // A shell reads the record whole before it writes over it.
    let again = del(&format!("text=$(sed s,10.0.0.2/24,10.0.0.3/24, {file}); echo \"$text\" >{file}"));
    assert!(again.status == 0 && !again.stderr.contains("stays"), "{}", again.describe());
    assert!(again.stderr.contains("added again meanwhile: there is a new record"), "{}", again.describe());
    let unread = del(&format!("chown 1000 {file}; chmod 600 {file}"));
    assert!(unread.status == 5 && !unread.stderr.contains("stays"), "{}", unread.describe());
    assert!(unread.stderr.contains("whether its record is gone can't be read"), "{}", unread.describe());
}

/// Reads records without the right of root to read any file.
fn without_rights(node: &Node) -> std::process::Command {
    let mut wrapper = node.host.command("setpriv");
    wrapper.args(["--bounding-set", "-dac_override,-dac_read_search"]);
    wrapper
}

/// A clean-up names what it did not look at: damaged records, records that it may not read, and plugins that CNI_PATH lacks.
#[test]
fn gc_claims_no_more_than_the_records_and_plugins_that_it_found() {
    need!("script", "setpriv");
    let node = Node::new();
    let bin = scripts(node.host.dir(), &[("it", &format!("cat >/dev/null; echo '{RESULT}'"))]);
    for (name, version) in [("net", "1.1.0"), ("old", "1.0.0")] {
        node.network(name, &json!({"cniVersion": version, "name": name, "plugins": [{"type": "it"}]}));
    }
    let dir = node.cache().display().to_string();
    let (status, told) = on_terminal(&node, &bin, "gc net --all");
    let words = format!(
        "ok net: DEL of attachments that aren't valid, by the usable records in {dir}, and GC of the plugins that were \
         found succeeded; valid attachments: 0\n"
    );
    assert!(status == 0 && told == words, "{told}");
    let (status, told) = on_terminal(&node, &bin, "gc old --all");
    let words = format!(
        "ok old: DEL of attachments that aren't valid, by the usable records in {dir}, succeeded; valid attachments: 0; \
         version 1.0.0 has no GC\n"
    );
    assert!(status == 0 && told == words, "{told}");
    // Without a file only a record tells of the network, and this one can't be read.
    node.cnimble(&bin, &["add", "net", Pod::new().path(), "--container-id", "x"]).run().success();
    fs::remove_file(node.conf().join("net.conflist")).unwrap();
    chown(node.entry("net", "x"), Some(1000), None).unwrap();
    let outcome = node.cnimble(&bin, &["gc", "net", "--all"]).under(without_rights(&node)).run();
    assert!(
        outcome.status == 5 && outcome.stderr.contains("can't read the records"),
        "{}",
        outcome.describe()
    );
    let outcome =
        node.cnimble(&bin, &["gc", "nett", "--all", "--from-file"]).under(without_rights(&node)).run();
    assert_eq!(outcome.status, 3, "{}", outcome.describe());
}

/// Files that may not be read are not missing. Only a permission is a reason to change permissions.
#[test]
fn a_file_that_may_not_be_read_is_not_a_missing_one() {
    need!("setpriv");
    let node = Node::new();
    let bin = scripts(node.host.dir(), &[("it", &format!("cat >/dev/null; echo '{RESULT}'"))]);
    for name in ["a", "a-b"] {
        node.network(name, &json!({"cniVersion": "1.0.0", "name": name, "plugins": [{"type": "it"}]}));
    }
    let pod = Pod::new();
    node.cnimble(&bin, &["add", "a", pod.path(), "--container-id", "b-c"]).run().success();
    // The names of both records are the same.
    let outcome = node.cnimble(&bin, &["add", "a-b", pod.path(), "--container-id", "c"]).run();
    assert!(
        outcome.status == 5 && outcome.stderr.contains("another attachment's entry"),
        "{}",
        outcome.describe()
    );
    assert!(!outcome.stderr.contains("make the directory readable"), "{}", outcome.describe());
    let locked = fs::Permissions::from_mode(0o700);
    let results = node.cache().join("results");
    for dir in [&bin, &results] {
        fs::set_permissions(dir, locked.clone()).unwrap();
        chown(dir, Some(1000), None).unwrap();
        let args = ["check", "a", pod.path(), "--container-id", "b-c"];
        let outcome = node.cnimble(&bin, &args).under(without_rights(&node)).run();
        chown(dir, Some(0), None).unwrap();
        assert!(outcome.stderr.contains("Permission denied"), "{}", outcome.describe());
        assert!(!outcome.stderr.contains("no plugin \"it\""), "{}", outcome.describe());
    }
}
