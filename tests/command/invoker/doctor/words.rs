//! Tests that the doctor's sentences claim no more than was looked at, and that its commands do what they say.

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, chown};
use std::path::Path;

use serde_json::{Value, json};

use cnimble_tests::{Outcome, Pod, command, need, plugin_dir};

use super::super::{RESULT, scripts};
use super::faults::network;
use super::{Node, findings, kinds};

/// Runs `cnimble doctor ARGS…` with text, and a lease directory of the node.
fn doctor(node: &Node, plugins: &Path, args: &[&str]) -> Outcome {
    let dir = node.host.data_dir();
    let all = [&["doctor", "--grace", "0", "--data-dir", dir.to_str().unwrap()], args].concat();
    node.cnimble(plugins, &all).run()
}

/// A plugin of another maker, whose CHECK does what is in the file `meanwhile`.
fn with_other(node: &Node, subnet: &str) -> String {
    let other = r#"cat >$0.in; case $CNI_COMMAND in
        ADD) jq .prevResult $0.in;;
        CHECK) sh $(dirname $0)/meanwhile;;
    esac"#;
    let scripts = scripts(node.host.dir(), &[("other", other)]);
    let mut config = network(node, "doc", subnet);
    config["plugins"][1] = json!({"type": "other"});
    node.network("doc", &config);
    format!("{}:{}", plugin_dir().display(), scripts.display())
}

/// A DEL removes the record last. What it removes while the doctor compares is no fault of a living pod.
#[test]
fn what_a_del_removes_during_the_look_is_no_fault() {
    need!("ip", "nft", "jq", "nsenter");
    let (node, pod) = (Node::new(), Pod::new());
    let path = with_other(&node, "10.213.51.0/24");
    let path = Path::new(&path);
    node.cnimble(path, &["add", "doc", pod.path(), "--container-id", "one"]).run().success();
    let meanwhile = node.host.dir().join("bin/meanwhile");
    let differs = r#"echo '{"cniVersion":"1.0.0","code":103,"msg":"a difference"}'; exit 1"#;
    let cut_off = "nsenter --net=$CNI_NETNS ip route add blackhole 10.213.51.1";
    let look = |lines: &str, status: i32| {
        fs::write(&meanwhile, lines).unwrap();
        let outcome = doctor(&node, path, &["--json"]);
        let found = kinds(&findings(&outcome, status));
        let document: Value = serde_json::from_slice(&outcome.stdout).unwrap();
        (found, document["warnings"].to_string())
    };
    // Without a DEL both are told.
    assert_eq!(look(differs, 6).0, ["host-state found one"]);
    let (found, warnings) = look(cut_off, 6);
    assert!(
        found.is_empty() && warnings.contains("no echo request from one reaches"),
        "{found:?} {warnings}"
    );
    drop(pod.run("ip route del blackhole 10.213.51.1"));
    let (record, aside) = (node.entry("doc", "one"), node.host.dir().join("aside"));
    for lines in [differs, cut_off] {
        let told = look(&format!("mv {} {}; {lines}", record.display(), aside.display()), 0);
        assert_eq!(told, (vec![], "[]".to_owned()), "{lines}");
        fs::rename(&aside, &record).unwrap();
        drop(pod.run("ip route del blackhole 10.213.51.1"));
    }
    // The record of another ADD of the same attachment is not the one that was compared.
    let file = record.display();
    let again =
        format!("text=$(jq -c '.cniArgs = [[\"A\", \"b\"]]' {file}); echo \"$text\" >{file}; {differs}");
    assert_eq!(look(&again, 0), (vec![], "[]".to_owned()));
}

/// The result of a libcni before 0.8 does not name its attachment, so the doctor can't compare it.
#[test]
fn a_bare_result_is_named_and_not_called_whole() {
    need!();
    let node = Node::new();
    fs::create_dir_all(node.cache().join("results")).unwrap();
    let whole = doctor(&node, plugin_dir(), &[]).success().text();
    assert!(whole.ends_with("0 attachments live or may live; the plugins' objects are whole\n"), "{whole}");
    let record = node.entry("net", "old");
    fs::write(&record, RESULT).unwrap();
    let told = doctor(&node, plugin_dir(), &[]).success().text();
    let line = format!(
        "not checked: file {}: a bare result of libcni before 0.8, which doesn't name its attachment\n",
        record.display()
    );
    assert!(told.contains(&line), "{told}");
    assert!(told.ends_with("the plugins' objects are whole as far as they were compared\n"), "{told}");
}

/// With `--data-dir` the leases are known, and the store of a network without a usable file is not.
#[test]
fn an_unusable_file_is_named_also_with_a_directory_of_leases() {
    need!();
    let node = Node::new();
    fs::write(node.conf().join("broken.conflist"), "{").unwrap();
    let told = doctor(&node, plugin_dir(), &[]).success().text();
    let line = "not checked: leases and the store of a network without a usable file: ";
    assert!(told.contains(line) && told.contains("broken.conflist"), "{told}");
    assert!(told.ends_with("whole as far as they were compared\n"), "{told}");
}

/// A lease whose owner no record names. Only records and links that were read are evidence.
#[test]
fn an_orphaned_lease_is_told_with_what_was_read() {
    need!();
    let node = Node::new();
    let store = node.host.data_dir().join("doc");
    fs::create_dir_all(&store).unwrap();
    fs::write(store.join("10.213.52.9"), "gone\r\neth0").unwrap();
    let found = findings(&node.doctor(&["--grace", "0"]), 6);
    assert_eq!(
        found[0]["why"],
        "its address is in no network namespace that can be seen from here, and neither a record nor a link that was \
         read shows that its owner lives"
    );
}

/// The commands in a doubt and in a remedy name the cache, which has a space.
#[test]
fn a_command_for_an_attachment_names_its_cache_as_a_shell_reads_it() {
    need!("ip", "nft");
    let (node, pod) = (Node::new(), Pod::new());
    node.network("doc", &network(&node, "doc", "10.213.53.0/24"));
    let cache = node.host.dir().join("my cache");
    let run = |args: &[&str]| {
        let mut run = node.host.command(command());
        run.args(args).arg("--cache-dir").arg(&cache);
        Outcome::of(run.env("CNI_PATH", plugin_dir()).env("NETCONFPATH", node.conf()))
    };
    run(&["add", "doc", pod.path(), "--container-id", "one"]).success();
    let call = node.host.call("portmap").command("DEL").attachment("one", pod.path(), "eth0");
    call.config(&json!({"cniVersion": "1.0.0", "name": "doc", "type": "portmap"})).run().success();
    let entry = json!({
        "kind": "cniCacheV1", "containerId": "stale", "ifName": "eth0", "networkName": "old",
        "netns": "/run/netns/no-such-namespace", "config": "ew==",
    });
    fs::write(cache.join("results/old-stale-eth0"), entry.to_string()).unwrap();
    let dir = node.host.data_dir();
    let told = run(&["doctor", "--grace", "0", "--data-dir", dir.to_str().unwrap()]);
    assert_eq!(told.status, 6, "{}", told.describe());
    let option = format!("--cache-dir '{}'", cache.display());
    for part in [
        "  why         a note says that its DEL has begun, or can't be read\n",
        &format!("a runtime may repeat it, else `cnimble del doc --container-id one {option}`\n"),
        "  why     /run/netns/no-such-namespace leads here to no namespace of a pod\n",
        &format!(
            "  remedy  its configuration can't be used: remove it by `cnimble del old --container-id stale {option} \
             --from-file`, or rename the file if no file has the network\n"
        ),
    ] {
        assert!(told.text().contains(part), "{part}: {}", told.describe());
    }
}

/// DEL succeeds, and its record can't be removed.
#[test]
fn what_is_there_after_the_repair_is_not_called_repaired() {
    need!("setpriv");
    let node = Node::new();
    let bin = scripts(node.host.dir(), &[("it", &format!("cat >/dev/null; echo '{RESULT}'"))]);
    node.network("net", &json!({"cniVersion": "1.0.0", "name": "net", "plugins": [{"type": "it"}]}));
    let pod = Pod::new();
    node.cnimble(&bin, &["add", "net", pod.path(), "--container-id", "x"]).run().success();
    drop(pod);
    let results = node.cache().join("results");
    fs::set_permissions(&results, fs::Permissions::from_mode(0o755)).unwrap();
    chown(&results, Some(1000), None).unwrap();
    let mut wrapper = node.host.command("setpriv");
    wrapper.args(["--bounding-set", "-dac_override,-dac_read_search"]);
    let dir = node.host.data_dir();
    let args = ["doctor", "--repair", "--grace", "0", "--data-dir", dir.to_str().unwrap()];
    let outcome = node.cnimble(&bin, &args).under(wrapper).run();
    assert_eq!(outcome.status, 7, "{}", outcome.describe());
    let failed = "  failed  DEL with the recorded configuration: it is there after the repair: the log tells why, or \
                  another program has made it again";
    assert!(outcome.text().contains(failed), "{}", outcome.describe());
}

/// A list that is too long was not read, so nothing is known to differ.
#[test]
fn a_list_that_is_too_long_is_not_checked() {
    need!("ip", "nft");
    let (node, pod) = (Node::new(), Pod::new());
    node.network("doc", &network(&node, "doc", "10.213.54.0/24"));
    node.cnimble(plugin_dir(), &["add", "doc", pod.path(), "--container-id", "one"]).run().success();
    let mut lines = String::new();
    for number in 0..16_500 {
        lines += &format!("route add 10.99.{}.{}/32 dev eth0\n", number / 250, number % 250);
    }
    pod.run_with("ip -batch -", lines.as_bytes()).success();
    let outcome = doctor(&node, plugin_dir(), &["--json"]);
    let found = findings(&outcome, 0);
    assert_eq!(found, [] as [Value; 0]);
    let document: Value = serde_json::from_slice(&outcome.stdout).unwrap();
    let not_checked = document["notChecked"].to_string();
    assert!(not_checked.contains("plugin bridge is "), "{not_checked}");
    assert!(not_checked.contains("there are more than 16384 of them"), "{not_checked}");
}
