//! The objects as an operator sees them, and the number of writes.

use serde_json::{Value, json};

use cnimble_tests::{Host, PATIENCE, wait_until};

use super::boots::owned;
use super::watch::Watch;
use super::{Etcd, Node, cluster, cluster_of, refused, wanted};

/// Returns the only object of a kind.
#[track_caller]
pub(super) fn only(etcd: &Etcd<'_>, plural: &str) -> Value {
    let all = etcd.server.objects(plural);
    let [object] = all.as_slice() else { panic!("{all:?}") };
    object.clone()
}

#[test]
fn an_operator_sees_the_pool_the_blocks_their_nodes_and_the_addresses_in_use() {
    let host = Host::new();
    let (etcd, nodes) = cluster(&host, 1, "10.9.0.0/16");
    let pool = only(&etcd, "ippools");
    assert_eq!(pool["metadata"]["name"], "net");
    assert_eq!(pool["spec"], json!({"blockSize": 26, "subnets": ["10.9.0.0/16"]}));
    assert_eq!(pool["status"]["conditions"][0]["status"], "True");
    nodes[0].added("p1");
    nodes[0].operate("tend 192.0.2.1").unwrap();
    let block = only(&etcd, "blocks");
    assert_eq!(block["spec"]["node"], "a");
    assert_eq!(block["spec"]["first"], json!(owned(&nodes[0]).first().unwrap()));
    let claim = only(&etcd, "nodeclaims");
    assert_eq!((&claim["spec"]["name"], &claim["spec"]["addresses"]), (&json!("a"), &json!(["192.0.2.1"])));
    assert_eq!((&claim["status"]["blocks"], &claim["status"]["inUse"]), (&json!(1), &json!(1)));
}

#[test]
fn a_block_costs_one_write_and_a_pod_none() {
    let host = Host::new();
    let (etcd, nodes) = cluster_of(&host, 1, "10.9.0.0/16", 29);
    nodes[0].added("p0");
    let before = etcd.server.writes();
    let blocks = owned(&nodes[0]).len();
    for n in 1..40 {
        nodes[0].added(&format!("p{n}"));
    }
    let claimed = owned(&nodes[0]).len() - blocks;
    assert!(claimed > 3, "{claimed}");
    assert_eq!(etcd.server.writes() - before, claimed);
    for n in 0..40 {
        nodes[0].run("DEL", &format!("p{n}"), "", None).unwrap();
    }
    assert_eq!(etcd.server.writes() - before, claimed);
}

/// Panics unless these were the requests since the last call. Each process reads the pool and what its node has.
#[track_caller]
fn asked(etcd: &Etcd<'_>, others: &[(&str, usize)]) {
    let own = ["LIST ippools", "LIST nodeclaims of a node", "LIST blocks of a node"].map(|kind| (kind, 1));
    let wanted = own.iter().chain(others).map(|(kind, count)| ((*kind).to_owned(), *count)).collect();
    assert_eq!(etcd.server.requests(), wanted);
}

#[test]
fn a_claim_lists_no_blocks_of_other_nodes() {
    let host = Host::new();
    let (etcd, nodes) = cluster_of(&host, 1, "10.9.0.0/16", 29);
    nodes[0].added("p1");
    etcd.server.requests();
    for _ in 0..3 {
        nodes[0].operate("more 0 100").unwrap();
        asked(&etcd, &[("GET blocks", 1), ("POST blocks", 1)]);
    }
}

#[test]
fn a_full_subnet_is_listed_once() {
    let host = Host::new();
    let (etcd, nodes) = cluster_of(&host, 1, "10.9.0.0/27", 29);
    let full = (0..32).find_map(|n| nodes[0].add(&format!("p{n}")).err());
    assert_eq!(full.unwrap()["code"], 101);
    nodes[1].operate("confirm").unwrap();
    etcd.server.requests();
    refused(nodes[1].add("p1"), 101, "no address left in the cluster");
    asked(&etcd, &[("GET blocks", 1), ("LIST blocks", 1), ("LIST nodeclaims", 1)]);
}

/// A server refuses requests while it loads objects of a new kind.
#[test]
fn a_busy_server_is_asked_again() {
    let host = Host::new();
    let (etcd, nodes) = cluster(&host, 1, "10.9.0.0/16");
    etcd.server.refuse(429, &["GET", "POST"]);
    nodes[0].added("p1");
    assert!(!etcd.server.refuses());
}

#[test]
fn the_number_of_addresses_in_use_is_written_once_a_minute() {
    let host = Host::new();
    let (etcd, nodes) = cluster(&host, 1, "10.9.0.0/16");
    let node = &nodes[0];
    node.added("p1");
    node.operate("tend 192.0.2.1").unwrap();
    let before = etcd.server.writes();
    node.added("p2");
    for _ in 0..3 {
        assert_eq!(node.operate("tend 192.0.2.1").unwrap(), json!({"asked": false}));
    }
    assert_eq!(etcd.server.writes(), before);
    if a_minute_later(node) {
        assert_eq!(node.operate("tend 192.0.2.1").unwrap(), json!({"asked": true}));
        assert_eq!(only(&etcd, "nodeclaims")["status"]["inUse"], 2);
        assert_eq!(etcd.server.writes(), before + 1);
    }
}

#[test]
fn another_block_is_counted_when_no_address_is() {
    let host = Host::new();
    let (etcd, nodes) = cluster(&host, 1, "10.9.0.0/16");
    let node = &nodes[0];
    node.added("p1");
    node.operate("tend 192.0.2.1").unwrap();
    node.operate("address 10.9.77.7").unwrap();
    if a_minute_later(node) {
        assert_eq!(node.operate("tend 192.0.2.1").unwrap(), json!({"asked": true}));
        let status = only(&etcd, "nodeclaims")["status"].clone();
        assert_eq!((&status["blocks"], &status["inUse"]), (&json!(2), &json!(1)));
    }
}

/// Makes the latest numbers a minute older. Returns false if the boot is younger.
fn a_minute_later(node: &Node<'_>) -> bool {
    let mut share = node.share();
    let at = share["used"]["at"].as_u64().unwrap();
    share["used"]["at"] = at.saturating_sub(60_000).into();
    std::fs::write(node.store().join(".cnimble-share"), share.to_string()).unwrap();
    at > 60_000
}

/// Deletes an object as `kubectl delete` does: its finalizer keeps it.
fn delete(etcd: &Etcd<'_>, plural: &str, mut object: Value) {
    object["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
    etcd.server.put(plural, object);
}

#[test]
fn a_deleted_block_returns_when_its_last_pod_is_gone() {
    let host = Host::new();
    let (etcd, nodes) = cluster(&host, 1, "10.9.0.0/16");
    let node = &nodes[0];
    let ip = node.added("p1");
    delete(&etcd, "blocks", only(&etcd, "blocks"));
    node.operate("tidy").unwrap();
    assert_eq!(owned(node).len(), 1);
    refused(nodes[1].run("ADD", "p2", &wanted(&ip), None), 101, "node a");
    node.run("DEL", "p1", "", Some(&ip)).unwrap();
    node.operate("tidy").unwrap();
    assert_eq!((owned(node).len(), etcd.server.objects("blocks").len()), (0, 0));
    nodes[1].run("ADD", "p2", &wanted(&ip), None).unwrap();
}

#[test]
fn a_deleted_nodeclaim_is_a_release() {
    let host = Host::new();
    let (etcd, nodes) = cluster(&host, 1, "10.9.0.0/16");
    let node = nodes[0].offline(2);
    let ip = node.added("p1");
    let before = only(&etcd, "nodeclaims");
    delete(&etcd, "nodeclaims", before.clone());
    refused(node.operate("confirm"), 50, "the operator has released its addresses");
    node.run("DEL", "p1", "", Some(&ip)).unwrap();
    node.operate("confirm").unwrap();
    let claim = only(&etcd, "nodeclaims");
    assert_ne!(claim["spec"]["instance"], before["spec"]["instance"]);
    let is_free = || nodes[1].run("ADD", "p2", &wanted(&ip), None).is_ok();
    assert!(wait_until(PATIENCE, is_free));
}

/// An operator removes the finalizer, or the custom resource definitions and all objects with them.
#[test]
fn a_nodeclaim_that_is_gone_without_a_release_frees_no_block() {
    for are_blocks_gone in [false, true] {
        let host = Host::new();
        let (etcd, nodes) = cluster(&host, 1, "10.9.0.0/16");
        let node = &nodes[0];
        let ip = node.added("p1");
        let block = only(&etcd, "blocks");
        etcd.server.remove("nodeclaims", only(&etcd, "nodeclaims"));
        if are_blocks_gone {
            etcd.server.remove("blocks", block.clone());
        }
        refused(node.operate("confirm"), 50, "it lacks");
        refused(nodes[1].run("ADD", "p2", &wanted(&ip), None), 50, "restored from a backup");
        node.added("p3");
        refused(node.operate("confirm"), 50, "nodes claim again what they own");
        let again = only(&etcd, "blocks")["spec"].clone();
        assert_eq!((&again["first"], &again["node"]), (&block["spec"]["first"], &json!("a")));
    }
}

/// Its boot may give addresses for the time `offline` from the last confirmation on, which nobody knows any more.
#[test]
fn a_block_without_a_nodeclaim_waits_from_the_first_look() {
    let host = Host::new();
    let (etcd, nodes) = cluster_of(&host, 1, "10.9.0.0/29", 29);
    let ip = nodes[0].added("p1");
    etcd.server.remove("nodeclaims", only(&etcd, "nodeclaims"));
    let mut block = only(&etcd, "blocks");
    block["spec"]["claimed"] = json!(1);
    let wanted = wanted(&ip);
    for attempt in ["", wanted.as_str()] {
        etcd.server.put("blocks", block.clone());
        let _ = nodes[1].run("ADD", "p2", attempt, None);
        let all = etcd.server.objects("blocks");
        let orphan = all.iter().find(|other| other["metadata"]["name"] == block["metadata"]["name"]).unwrap();
        assert_eq!(orphan["spec"]["node"], "a");
        assert!(orphan["spec"]["free"].as_i64() > Some(jiff::Timestamp::now().as_millisecond()), "{orphan}");
    }
    refused(nodes[0].operate("confirm"), 50, "released its addresses");
}

/// The server answers their deletion with a Status.
#[test]
fn objects_without_a_finalizer_are_released_and_returned() {
    let host = Host::new();
    let (etcd, nodes) = cluster(&host, 1, "10.9.0.0/16");
    let strip = |plural: &str, node: &str| {
        for mut object in etcd.server.objects(plural) {
            if object["metadata"]["labels"]["ipam.cnimble.dev/node"] == node {
                object["metadata"]["finalizers"] = json!([]);
                etcd.server.put(plural, object);
            }
        }
    };
    nodes[0].run("ADD", "p1", "IP=10.9.3.63", None).unwrap();
    nodes[1].added("p1");
    strip("blocks", "a");
    nodes[0].run("DEL", "p1", "", Some("10.9.3.63/16")).unwrap();
    assert!(owned(&nodes[0]).is_empty());
    strip("nodeclaims", "b");
    nodes[2].operate("release b").unwrap();
    assert_eq!(only(&etcd, "nodeclaims")["spec"]["name"], "a");
    assert!(only(&etcd, "blocks")["spec"]["free"].is_u64());
    let requests = etcd.server.requests();
    assert!(!requests.keys().any(|kind| kind.starts_with("DELETECOLLECTION")), "{requests:?}");
}

/// A person made it: the name is that of a block, and the labels that lists select are missing.
#[test]
fn an_object_with_the_name_of_a_block_alone_is_left_out() {
    let host = Host::new();
    let (etcd, nodes) = cluster_of(&host, 1, "10.9.0.0/27", 29);
    nodes[0].added("p1");
    let name = |n: u32| format!("net-4-{:08x}", 0x0a09_0000 + n % 4 * 8);
    let mut block = only(&etcd, "blocks");
    let ours = (0..4).find(|n| block["metadata"]["name"] == name(*n)).unwrap();
    // The node tries these before the last one.
    for n in [ours + 1, ours + 2] {
        block["metadata"] = json!({"name": name(n), "uid": name(n)});
        etcd.server.put("blocks", block.clone());
    }
    nodes[0].operate("more 0 9").unwrap();
    assert_eq!(owned(&nodes[0]).len(), 2);
    assert!(etcd.server.objects("blocks").iter().any(|block| block["metadata"]["name"] == name(ours + 3)));
}

/// A dead process may have sent the request to return a block.
#[test]
fn an_adopted_block_outlives_a_late_deletion() {
    let host = Host::new();
    let (etcd, nodes) = cluster(&host, 1, "10.9.0.0/16");
    let node = &nodes[0];
    let ip = node.added("p1");
    node.run("DEL", "p1", "", Some(&ip)).unwrap();
    let before = only(&etcd, "blocks");
    let mut share = node.share();
    share["owned"] = json!([]);
    std::fs::write(node.store().join(".cnimble-share"), share.to_string()).unwrap();
    node.operate("confirm").unwrap();
    assert_eq!(owned(node).len(), 1);
    assert_ne!(only(&etcd, "blocks")["metadata"]["resourceVersion"], before["metadata"]["resourceVersion"]);
}

/// Some operators let a restored etcd begin far behind the revisions of the lost one.
#[test]
fn a_revision_that_jumps_is_a_restored_backup() {
    let host = Host::new();
    let (mut etcd, nodes) = cluster(&host, 1, "10.9.0.0/16");
    nodes[0].added("p1");
    let mut backup = etcd.backup();
    nodes[1].added("p1");
    backup.bump(1_000_000_000);
    etcd.restore(&backup);
    refused(nodes[0].operate("address 10.9.77.7"), 50, "its revision rose");
    refused(nodes[2].add("p1"), 50, "restored from a backup");
}

/// The leases of 5,000 nodes alone make 500 revisions a second.
#[test]
fn a_machine_that_was_off_for_weeks_sees_no_jump() {
    let host = Host::new();
    let (mut etcd, nodes) = cluster(&host, 1, "10.9.0.0/16");
    nodes[0].added("p1");
    let mut backup = etcd.backup();
    backup.bump(1_000_000_000);
    etcd.restore(&backup);
    let mut share = nodes[0].share();
    let weeks = jiff::SignedDuration::from_hours(3 * 7 * 24);
    share["answered"] = (jiff::Timestamp::now() - weeks).as_millisecond().into();
    std::fs::write(nodes[0].store().join(".cnimble-share"), share.to_string()).unwrap();
    nodes[0].operate("confirm").unwrap();
}

#[test]
fn a_pool_that_is_gone_or_never_was_gives_nothing() {
    let host = Host::new();
    let _etcd = Etcd::start(&host, 1);
    let node = Node::new(&host, 1, "a", "10.9.0.0/16");
    refused(node.add("p1"), 50, "the API server has nothing of network net");
    refused(node.clone().with("nodeName", "A_b".into()).add("p1"), 7, "can't name an API object");
}

#[test]
fn without_the_custom_resource_definitions_each_task_tells_how_to_apply_them() {
    let host = Host::new();
    let etcd = Etcd::start(&host, 1);
    let node = Node::new(&host, 1, "a", "10.9.0.0/16");
    etcd.server.undefine();
    for task in ["init new", "blocks", "confirm"] {
        refused(node.operate(task), 50, "kubectl apply -k deploy/cluster-local");
    }
    etcd.server.revive();
    node.operate("init new").unwrap();
    node.added("p1");
}

/// The nodes' files still have the blocks of the pool that was deleted.
#[test]
fn a_pool_begins_again_with_the_size_of_its_blocks_alone() {
    let host = Host::new();
    let (etcd, nodes) = cluster(&host, 1, "10.9.0.0/16");
    nodes[0].added("p1");
    nodes[0].run("ADD", "p2", "IP=10.9.0.63", None).unwrap();
    etcd.server.remove("ippools", only(&etcd, "ippools"));
    for size in [25, 27] {
        let other = nodes[1].clone().with("blockSize", size.into());
        refused(other.operate("init recover"), 7, "of another size");
    }
    refused(nodes[1].operate("init new"), 7, "the API server has blocks of it");
    nodes[1].operate("init recover").unwrap();
    refused(nodes[0].operate("confirm"), 50, "nodes claim again what they own");
    nodes[0].added("p3");
}

#[test]
fn a_nodeclaim_with_an_impossible_name_reaches_no_agent() {
    let host = Host::new();
    let (etcd, nodes) = cluster(&host, 1, "10.9.0.0/16");
    nodes[0].operate("tend 192.0.2.1").unwrap();
    let mut claim = only(&etcd, "nodeclaims");
    claim["metadata"]["name"] = json!("net-x-1");
    claim["spec"]["name"] = json!("../x");
    etcd.server.put("nodeclaims", claim);
    let watch = Watch::start(&host, &nodes[0], 0);
    watch.tells("one node", |nodes| nodes["a"]["ips"] == json!(["192.0.2.1"]) && nodes["../x"].is_null());
}
