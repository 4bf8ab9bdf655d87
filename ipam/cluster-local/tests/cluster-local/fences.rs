//! Nodes that don't match their records in etcd, and an etcd that was restored: each ends in an error.

use cnimble_tests::Host;
use serde_json::json;

use super::etcd::NEEDS_AGENTS;
use super::{Node, cluster, refused};

#[test]
fn nothing_is_claimed_in_an_etcd_that_was_never_set_up() {
    let host = Host::new();
    let _etcd = super::Etcd::start(&host, 1);
    let node = Node::new(&host, 1, "a", "10.9.0.0/16");
    refused(node.add("p1"), 50, "cnimble ipam init");
}

#[test]
fn a_restored_backup_is_refused_by_old_and_new_nodes() {
    let host = Host::new();
    let (mut etcd, nodes) = cluster(&host, 1, "10.9.0.0/16");
    nodes[0].added("p1");
    let backup = etcd.backup();
    // It was claimed after the backup, so this block is free in the restored etcd.
    nodes[1].added("p1");
    let ask = || drop(nodes[0].operate("confirm"));
    if NEEDS_AGENTS {
        ask();
    }
    etcd.restore(&backup);
    if NEEDS_AGENTS {
        ask();
    }
    refused(nodes[2].add("p1"), 50, "restored from a backup");
    let fixed = nodes[0].run("ADD", "p2", "IP=10.9.77.7", None).map(|result| super::address(&result));
    refused(fixed, 50, "restored from a backup");
    // The nodes keep using their earlier blocks until their share expires.
    nodes[1].added("p2");
}

#[test]
fn a_second_node_of_the_same_name_is_refused() {
    let host = Host::new();
    let (_etcd, nodes) = cluster(&host, 1, "10.9.0.0/16");
    nodes[0].added("p1");
    let other = nodes[0].clone().with("dataDir", json!(host.dir().join("other")));
    refused(other.add("p1"), 50, "another machine has this name");
    // One with another machine ID is refused in its own boot as well.
    let mut share = other.in_boot(2).share();
    share["identity"]["machine"] = "another".into();
    std::fs::write(other.store().join(".cnimble-share"), share.to_string()).unwrap();
    refused(other.in_boot(2).add("p1"), 50, "another machine has this name");
}

/// An earlier build on a copy of the disk has kept the instance in its own boot.
#[test]
fn a_record_that_another_boot_has_taken_over_is_refused() {
    let host = Host::new();
    let (etcd, nodes) = cluster(&host, 1, "10.9.0.0/16");
    nodes[0].added("p1");
    let mut record = nodes[0].share()["identity"].clone();
    record["boot"] = "11111111-1111-4111-8111-111111111111".into();
    etcd.put("/cnimble/ipam/net/nodes/a", &record.to_string());
    refused(nodes[0].operate("confirm"), 50, "copy of this one's disk");
}

#[test]
fn a_released_block_waits_until_its_node_may_not_use_it_any_more() {
    let host = Host::new();
    // The subnet has two blocks.
    let (etcd, nodes) = cluster(&host, 1, "10.9.0.0/25");
    let first = nodes[0].added("p1");
    nodes[1].added("p1");
    nodes[0].operate("release a").unwrap();
    // Node a may still use the block, so it isn't free. Only single addresses are.
    let claims = nodes[1].operate("blocks").unwrap();
    let released = claims.as_array().unwrap().iter().find(|claim| claim["node"] == "a").unwrap().clone();
    assert!(released["freeAt"].is_u64(), "{released}");
    assert_ne!(nodes[0].added("p2"), first);
    nodes[2].added("p1");
    let owned = nodes[2].share()["owned"].clone();
    assert_eq!(owned[0]["first"], owned[0]["last"], "a block that another node may use: {owned}");
    // The share has expired, on the node's clock and in etcd.
    let mut share = nodes[0].share();
    share["identity"]["offline"] = 1.into();
    std::fs::write(nodes[0].store().join(".cnimble-share"), share.to_string()).unwrap();
    refused(nodes[0].add("p3"), 50, "released");
    let ip: std::net::Ipv4Addr = released["first"].as_str().unwrap().parse().unwrap();
    let key = format!("/cnimble/ipam/net/blocks/4-{:08x}", u32::from(ip));
    let value = json!({"node": "a", "instance": "i", "offline": 1, "free": 1}).to_string();
    etcd.put(&key, &value);
    nodes[2].operate("address 10.9.0.127").unwrap();
    nodes[2].operate(&format!("address {ip}")).unwrap();
    let owned = nodes[2].share()["owned"].clone();
    assert!(owned.as_array().unwrap().iter().any(|owned| owned["first"] == released["first"]), "{owned}");
}
