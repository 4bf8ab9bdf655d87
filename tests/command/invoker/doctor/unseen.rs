//! Tests that the doctor claims only what it has looked at, and what it has put back itself.

use std::fs;
use std::os::unix::fs::chown;
use std::process::Stdio;
use std::time::Duration;

use serde_json::{Value, json};

use cnimble_tests::{Background, Outcome, PATIENCE, Pod, need, plugin_dir, wait_until};

use super::faults::network;
use super::{HangingAdd, Node, chain, findings, kinds};

/// The repair waits for the lock of the network, and somebody else is faster.
#[test]
fn what_others_mend_meanwhile_is_not_called_repaired() {
    need!("ip", "nft", "jq");
    let (node, pods) = (Node::new(), [Pod::new(), Pod::new()]);
    let hanging = HangingAdd::prepare(&node);
    let mut chain = network(&node, "doc", "10.213.1.0/24");
    chain["plugins"].as_array_mut().unwrap().push(json!({"type": "waits"}));
    node.network("doc", &chain);
    node.add(&hanging.plugins, "doc", &pods[0], "one", 8001);
    let add = hanging.begin(&node, "doc", &pods[1]);
    node.host.ip("addr del 10.213.1.1/24 dev br1");
    let data_dir = node.host.data_dir();
    let args = ["doctor", "--json", "--repair", "--grace", "0", "--data-dir", data_dir.to_str().unwrap()];
    let mut run = node.cnimble(&hanging.plugins, &args);
    let doctor = Background::start(run.command.stdout(Stdio::piped()));
    let (fds, locks) = (format!("/proc/{}/fd", doctor.pid()), node.host.lock_dir());
    let waits_for_the_lock = || {
        let open = fs::read_dir(&fds).into_iter().flatten().flatten();
        open.filter_map(|fd| fs::read_link(fd.path()).ok()).any(|file| file.starts_with(&locks))
    };
    assert!(wait_until(PATIENCE, waits_for_the_lock));
    node.host.ip("addr add 10.213.1.1/24 brd + dev br1");
    hanging.end(add);
    let repaired = Outcome::from("doctor", doctor.finish(Duration::from_secs_f32(PATIENCE)));
    assert_eq!(kinds(&findings(&repaired, 0)), ["host-state gone one"]);
}

/// A doctor in a container with fewer capabilities does not see the namespaces of other processes.
#[test]
fn a_doctor_that_may_not_look_at_processes_removes_no_lease() {
    need!("ip", "nft", "setpriv");
    let (node, pod) = (Node::new(), Pod::new());
    node.network("doc", &chain(&node, "doc", "br1", "10.213.1.0/24"));
    node.add(plugin_dir(), "doc", &pod, "one", 8001);
    fs::remove_file(node.entry("doc", "one")).unwrap();
    // The alias of the host's end would be evidence, too.
    let end = node.host.links().into_iter().find(|name| name.starts_with("veth")).unwrap();
    node.host.ip(&format!("link set {end} alias none"));
    let (data_dir, lease) = (node.host.data_dir(), node.host.data_dir().join("doc/10.213.1.2"));
    let args = ["doctor", "--json", "--grace", "0", "--repair", "--data-dir", data_dir.to_str().unwrap()];
    let mut wrapper = node.host.command("setpriv");
    wrapper.args(["--bounding-set", "-sys_ptrace"]);
    let outcome = node.cnimble(plugin_dir(), &args).under(wrapper).run();
    let document: Value = serde_json::from_slice(&outcome.stdout).unwrap();
    let unseen = document["notLookedAt"].as_array().unwrap();
    assert!(unseen.iter().any(|text| text.as_str().unwrap().contains("Permission denied")), "{document:#}");
    assert!(lease.exists(), "{document:#}");
}

#[test]
fn a_table_that_cannot_be_read_is_named() {
    need!("ip", "nft", "unshare", "mount", "iptables-legacy", "iptables-legacy-save");
    let (node, pod) = (Node::new(), Pod::new());
    node.network("doc", &chain(&node, "doc", "br1", "10.213.1.0/24"));
    node.add(plugin_dir(), "doc", &pod, "one", 8001);
    node.host.sh("iptables-legacy -t nat -L");
    let data_dir = node.host.data_dir();
    let args = ["doctor", "--json", "--grace", "0", "--data-dir", data_dir.to_str().unwrap()];
    // All commands of the legacy variant are links to one program.
    let hidden = "mount --bind /dev/null $(readlink -f $(command -v iptables-legacy-save)) && exec \"$@\"";
    let mut wrapper = node.host.command("unshare");
    wrapper.args(["--mount", "sh", "-c", hidden, "-"]);
    let outcome = node.cnimble(plugin_dir(), &args).under(wrapper).run();
    assert_eq!(findings(&outcome, 0), [] as [Value; 0]);
    let document: Value = serde_json::from_slice(&outcome.stdout).unwrap();
    let unread = "/proc/thread-self/net/ip_tables_names lists a table nat, but no command of the legacy \
                  variant of iptables is installed: it can't be looked into";
    assert_eq!(document["notChecked"], json!([unread]));
}

/// A record of another user's runtime can't be read without CAP_DAC_OVERRIDE. Its pod may have the lease, so no lease
/// without an owner is removed.
#[test]
fn a_record_that_cannot_be_read_is_named_and_removes_no_lease() {
    need!("ip", "nft", "setpriv");
    let (node, gone) = (Node::new(), Pod::new());
    node.network("doc", &chain(&node, "doc", "br1", "10.213.1.0/24"));
    node.add(plugin_dir(), "doc", &gone, "one", 8001);
    let ends: Vec<String> = node.host.links().into_iter().filter(|name| name.starts_with("veth")).collect();
    let (record, lease) = (node.entry("doc", "one"), node.host.data_dir().join("doc/10.213.1.2"));
    drop(gone);
    node.gone(&ends);
    chown(&record, Some(1000), None).unwrap();
    let data_dir = node.host.data_dir();
    let args = ["doctor", "--json", "--grace", "0", "--repair", "--data-dir", data_dir.to_str().unwrap()];
    let mut wrapper = node.host.command("setpriv");
    wrapper.args(["--bounding-set", "-dac_override,-dac_read_search"]);
    let outcome = node.cnimble(plugin_dir(), &args).under(wrapper).run();
    let document: Value = serde_json::from_slice(&outcome.stdout).unwrap();
    let unseen = document["notLookedAt"].to_string();
    assert!(unseen.contains(record.to_str().unwrap()) && unseen.contains("Permission denied"), "{unseen}");
    let found = kinds(document["findings"].as_array().unwrap());
    assert!(found.contains(&"lease left one".to_owned()) && lease.exists(), "{document:#}");
}
