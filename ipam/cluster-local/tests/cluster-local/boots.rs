//! Each boot has blocks of its own: a copy of a node's disk, and a node that has booted again.

use std::collections::BTreeSet;
use std::process::Command;
use std::time::{Duration, Instant};

use cnimble_tests::{Host, PATIENCE, wait_until};
use serde_json::{Value, json};

use super::agent::{agent, metric};
use super::{Node, cluster, refused};

const WARNING: &str = "another machine runs with this node's name";

/// Returns a machine with a copy of the node's disk, in that boot.
fn copy<'h>(node: &Node<'h>, boot: u32) -> Node<'h> {
    let dir = node.host.dir().join(format!("copy{boot}"));
    let from = node.store().parent().unwrap().to_owned();
    assert!(Command::new("cp").arg("-a").arg(from).arg(&dir).status().unwrap().success());
    node.clone().with("dataDir", json!(dir)).in_boot(boot)
}

/// Adds pods on all machines in turn, and asserts that no address is given twice.
#[track_caller]
fn all_differ(machines: &[&Node<'_>], mut given: BTreeSet<String>) {
    for n in 0..4 {
        for machine in machines {
            let ip = machine.added(&format!("all{n}"));
            assert!(given.insert(ip.clone()), "{ip} is given twice: {given:?}");
        }
    }
}

/// Returns the first addresses of blocks, by the node's file.
pub(super) fn owned(node: &Node<'_>) -> BTreeSet<String> {
    let owned = node.share()["owned"].clone();
    owned.as_array().unwrap().iter().map(|owned| owned["first"].as_str().unwrap().to_owned()).collect()
}

/// Returns the first addresses of blocks, by etcd.
pub(super) fn claimed(node: &Node<'_>) -> BTreeSet<String> {
    let blocks = node.operate("blocks").unwrap();
    blocks.as_array().unwrap().iter().map(|block| block["first"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn a_copy_of_the_disk_of_a_living_node_gives_other_addresses() {
    let host = Host::new();
    let (_etcd, nodes) = cluster(&host, 1, "10.9.0.0/16");
    let original = nodes[0].in_boot(1);
    let given = BTreeSet::from([original.added("p1")]);
    let copied = copy(&original, 2);
    all_differ(&[&copied, &original], given);
    // Both go on.
    for machine in [&original, &copied, &original, &copied] {
        machine.operate("confirm").unwrap();
    }
    assert!(owned(&original).is_disjoint(&owned(&copied)));
    assert_eq!(claimed(&original), owned(&original).union(&owned(&copied)).cloned().collect());
}

#[test]
fn of_a_node_and_a_copy_of_its_disk_either_may_boot_first() {
    let host = Host::new();
    let (_etcd, nodes) = cluster(&host, 1, "10.9.0.0/16");
    for (node, is_copy_first) in [(&nodes[0], true), (&nodes[1], false)] {
        let before = node.in_boot(1);
        let given = BTreeSet::from([before.added("p1")]);
        let (copied, original) = (copy(&before, 2 + u32::from(is_copy_first)), node.in_boot(4));
        let machines = if is_copy_first { [&copied, &original] } else { [&original, &copied] };
        all_differ(&machines, given);
    }
}

#[test]
fn a_copy_of_the_disk_with_another_name_is_a_node_of_its_own() {
    let host = Host::new();
    let (_etcd, nodes) = cluster(&host, 1, "10.9.0.0/16");
    let original = nodes[0].in_boot(1);
    let given = BTreeSet::from([original.added("p1")]);
    let copied = copy(&original, 2).with("nodeName", "z".into());
    all_differ(&[&copied, &original], given);
    // In one boot a name stays.
    refused(copied.with("nodeName", "y".into()).operate("confirm"), 50, "this machine was z");
}

#[test]
fn without_etcd_a_boot_gives_no_address_and_says_why() {
    let host = Host::new();
    let (mut etcd, nodes) = cluster(&host, 1, "10.9.0.0/16");
    let before = nodes[0].in_boot(1).added("p1");
    etcd.kill(0);
    nodes[0].in_boot(1).added("p2");
    let node = nodes[0].in_boot(2);
    refused(node.add("p3"), 11, "after a boot the node has no address until");
    refused(node.run("STATUS", "", "", None), 50, "after a boot the node has no address until");
    node.run("DEL", "p1", "", Some(&before)).unwrap();
    etcd.member(0);
    etcd.settle();
    node.added("p3");
}

#[test]
fn the_block_of_an_earlier_boot_returns_after_the_time_offline() {
    let host = Host::new();
    let (etcd, nodes) = cluster(&host, 1, "10.9.0.0/16");
    let boot = |number| nodes[0].offline(4).in_boot(number);
    boot(1).added("p1");
    let earlier = owned(&boot(1));
    let node = boot(2);
    node.added("p2");
    assert!(owned(&node).is_disjoint(&earlier));
    let only_own = || {
        node.operate("confirm").unwrap();
        claimed(&node) == owned(&node)
    };
    assert!(wait_until(PATIENCE, only_own), "{:?}", node.operate("blocks"));
    assert!(wait_until(PATIENCE, || {
        node.operate("confirm").unwrap();
        etcd.get("/cnimble/ipam/net/boots/").is_empty()
    }));
    assert_eq!(node.share()["others"], Value::Null);
    // Its addresses are free for any node.
    let ip = earlier.first().unwrap().replace(".0", ".1");
    nodes[1].run("ADD", "p1", &format!("IP={ip}"), None).unwrap();
}

/// Each boot is shorter than the time `offline`.
#[test]
fn a_node_that_boots_often_returns_the_blocks_of_its_earlier_boots() {
    let host = Host::new();
    let (_etcd, nodes) = cluster(&host, 1, "10.9.0.0/16");
    let node = nodes[0].offline(2);
    node.in_boot(0).added("p1");
    let mut boot = 0;
    let has_returned = || {
        boot += 1;
        for _ in 0..3 {
            node.in_boot(boot).operate("confirm").unwrap();
        }
        claimed(&node.in_boot(boot)).is_empty()
    };
    assert!(wait_until(PATIENCE, has_returned), "{}", node.share());
}

/// Lives boots of a node until the blocks of the first one have returned. Each is shorter than half the time `offline`.
#[track_caller]
fn short_boots(live: impl Fn(&Node<'_>)) {
    let host = Host::new();
    let (_etcd, nodes) = cluster(&host, 1, "10.9.0.0/16");
    let node = nodes[0].offline(6);
    node.in_boot(0).added("p0");
    let earlier = owned(&node.in_boot(0));
    let mut boot = 0;
    let has_returned = || {
        boot += 1;
        live(&node.in_boot(boot));
        claimed(&node).is_disjoint(&earlier)
    };
    assert!(wait_until(PATIENCE, has_returned), "{}", node.share());
}

/// Without an agent the ADDs confirm the boot.
#[test]
fn the_adds_of_short_boots_return_the_blocks_of_earlier_ones() {
    short_boots(|node| {
        let began = Instant::now();
        while began.elapsed() < Duration::from_secs(2) {
            let ip = node.added("p");
            node.run("DEL", "p", "", Some(&ip)).unwrap();
            std::thread::sleep(Duration::from_millis(200));
        }
    });
}

/// Each boot has one pod for two seconds.
#[test]
fn boots_with_one_add_and_one_del_return_the_blocks_of_earlier_ones() {
    short_boots(|node| {
        let ip = node.added("p");
        std::thread::sleep(Duration::from_secs(2));
        node.run("DEL", "p", "", Some(&ip)).unwrap();
    });
}

/// An ADD may wait for it.
#[test]
fn a_process_returns_some_blocks_of_all_earlier_boots_and_a_later_one_the_rest() {
    let host = Host::new();
    let (etcd, nodes) = cluster(&host, 1, "10.9.0.0/16");
    for n in 0..34 {
        nodes[0].in_boot(1 + n / 17).operate(&format!("address 10.9.{n}.1")).unwrap();
    }
    let node = nodes[0].in_boot(3);
    node.operate("confirm").unwrap();
    // Both are over at once.
    let boots = etcd.get("/cnimble/ipam/net/boots/a/");
    let lines: Vec<&str> = boots.lines().collect();
    assert_eq!(lines.len(), 4, "{boots}");
    for record in lines.chunks(2) {
        let mut identity: Value = serde_json::from_str(record[1]).unwrap();
        identity["offline"] = 1.into();
        etcd.put(record[0], &identity.to_string());
    }
    let left = || {
        node.operate("confirm").unwrap();
        etcd.get("/cnimble/ipam/net/owned/a/").lines().count() / 2
    };
    assert_eq!(left(), 2);
    assert_eq!(left(), 0);
    assert_eq!(etcd.get("/cnimble/ipam/net/boots/a/"), "");
}

/// The time is an hour.
#[test]
fn before_the_time_offline_no_node_gets_a_block_of_an_earlier_boot() {
    let host = Host::new();
    let (_etcd, nodes) = cluster(&host, 1, "10.9.0.0/16");
    let ip =
        nodes[0].in_boot(1).run("ADD", "p1", "IP=10.9.200.7", None).map(|result| super::address(&result));
    assert_eq!(ip.unwrap(), "10.9.200.7/16");
    let node = nodes[0].in_boot(2);
    for _ in 0..3 {
        node.operate("confirm").unwrap();
    }
    assert!(claimed(&node).contains("10.9.200.0"));
    refused(node.run("ADD", "p2", "IP=10.9.200.7", None), 101, "in the block of node a in another boot");
    refused(nodes[1].run("ADD", "p2", "IP=10.9.200.7", None), 101, "in the block of node a");
}

#[test]
fn two_active_boots_of_a_name_are_told_and_a_node_that_boots_again_is_not() {
    let host = Host::new();
    let (_etcd, nodes) = cluster(&host, 1, "10.9.0.0/16");
    let original = nodes[0].in_boot(1);
    original.added("p1");
    let copied = copy(&original, 2);
    let namesakes = |machine: &Node<'_>| {
        machine.operate("confirm").unwrap();
        machine.operate("tend").unwrap()["namesakes"].clone()
    };
    assert_eq!(namesakes(&copied), Value::Null, "the original may be over");
    assert_eq!(namesakes(&original), 1);
    assert_eq!(namesakes(&copied), 1);
    for machine in [&original, &copied] {
        let output = machine.start("ADD", "told", "", None).wait_with_output().unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() && stderr.contains(WARNING), "{stderr}");
    }
    let node = &nodes[1];
    for boot in 3..6 {
        node.in_boot(boot).added(&format!("p{boot}"));
        assert_eq!(namesakes(&node.in_boot(boot)), Value::Null);
    }
}

#[test]
fn the_agents_of_two_active_boots_warn_and_count() {
    let host = Host::new();
    let (_etcd, nodes) = cluster(&host, 1, "10.9.0.0/16");
    let original = nodes[0].offline(30).in_boot(1);
    original.added("p1");
    let copied = copy(&original, 2);
    let dirs = [host.dir().join("agent1"), host.dir().join("agent2")];
    let _agents = [agent(&dirs[0], &original), agent(&dirs[1], &copied)];
    for dir in &dirs {
        let counted = || metric(&dir.join("sock"), "namesakes") == Some(1);
        let log = || std::fs::read_to_string(dir.join("log")).unwrap();
        assert!(wait_until(PATIENCE, counted), "{}", log());
        assert!(wait_until(PATIENCE, || log().contains(WARNING)), "{}", log());
    }
}

#[test]
fn a_node_has_its_name_back_after_a_copy_is_gone_and_the_copy_claims_anew() {
    let host = Host::new();
    let (etcd, nodes) = cluster(&host, 1, "10.9.0.0/16");
    let original = nodes[0].offline(4).in_boot(1);
    original.operate("tend 192.0.2.1").unwrap();
    let copied = copy(&original, 2);
    copied.operate("tend 192.0.2.2").unwrap();
    let told = || etcd.get("/cnimble/ipam/net/hosts/a");
    assert!(told().contains("192.0.2.2"), "{}", told());
    let has_name = || {
        original.operate("tend 192.0.2.1").unwrap();
        let instance = original.share()["identity"]["instance"].as_str().unwrap().to_owned();
        etcd.get("/cnimble/ipam/net/nodes/a").contains(&instance) && told().contains("192.0.2.1")
    };
    assert!(wait_until(PATIENCE, has_name), "{}", original.share());
    assert_eq!(claimed(&original), owned(&original));
    // A machine that was paused for so long has lost its addresses, and claims as another boot.
    let lost = copied.share()["identity"]["instance"].clone();
    copied.added("p1");
    assert_ne!(copied.share()["identity"]["instance"], lost);
    original.added("p1");
    assert_eq!(claimed(&original), owned(&original).union(&owned(&copied)).cloned().collect());
    assert!(owned(&original).is_disjoint(&owned(&copied)));
}
