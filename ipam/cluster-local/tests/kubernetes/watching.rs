//! What a program that watches asks of the API server, and how much memory it takes.

use std::time::Instant;

use serde_json::json;

use cnimble_tests::{Host, PATIENCE, wait_until};

use super::objects::only;
use super::watch::Watch;
use super::{cluster, cluster_of};

/// A program that starts again reads everything.
#[test]
fn a_look_that_a_busy_server_refuses_ends_no_watch() {
    let host = Host::new();
    let (etcd, nodes) = cluster(&host, 1, "10.9.0.0/16");
    let watch = Watch::start(&host, &nodes[0], 0);
    watch.tells("nothing at first", |nodes| *nodes == json!({}));
    // The first lines come before the requests to watch.
    let mut watches = 0;
    assert!(wait_until(PATIENCE, || {
        watches += etcd.server.requests().keys().filter(|kind| kind.starts_with("WATCH")).count();
        watches >= 2
    }));
    etcd.server.refuse(503, &["GET"]);
    // A changed pool has to be read.
    etcd.server.put("ippools", only(&etcd, "ippools"));
    watch.looks();
    let requests = etcd.server.requests();
    assert!(requests["LIST ippools"] > 1 && !requests.contains_key("LIST blocks"), "{requests:?}");
}

#[test]
fn a_watch_that_the_server_ends_at_once_is_asked_for_after_a_pause() {
    let host = Host::new();
    let (etcd, nodes) = cluster(&host, 1, "10.9.0.0/16");
    let watch = Watch::start(&host, &nodes[0], 0);
    watch.tells("nothing at first", |nodes| *nodes == json!({}));
    etcd.server.end_watches();
    etcd.server.requests();
    let begun = Instant::now();
    watch.looks();
    // A second is between two requests to watch, however long this took.
    let requests = etcd.server.requests();
    assert!(requests["WATCH blocks"] as u64 <= begun.elapsed().as_secs() + 2, "{requests:?}");
    etcd.server.revive();
    nodes[0].added("p1");
    watch.tells("a block", |nodes| nodes["a"]["blocks"].is_array());
}

/// Each agent watches, so with a thousand nodes a list every ten seconds is a hundred a second.
#[test]
fn a_quiet_pool_is_watched_and_not_listed() {
    let host = Host::new();
    let (etcd, nodes) = cluster(&host, 1, "10.9.0.0/16");
    let begun = Instant::now();
    let watch = Watch::start(&host, &nodes[0], 0);
    let mut watches = 0;
    assert!(wait_until(PATIENCE, || {
        watches += etcd.server.requests().keys().filter(|kind| kind.starts_with("WATCH")).count();
        watches >= 3
    }));
    watch.looks();
    watch.looks();
    // By HTTP/1 the pool is read each half minute all the same, and a busy machine may need longer for this test.
    let lists = etcd.server.requests().get("LIST ippools").copied().unwrap_or(0);
    assert!(lists as u64 <= begun.elapsed().as_secs() / 25, "{lists}");
    // Its loss is reported by the watch.
    etcd.server.remove("ippools", only(&etcd, "ippools"));
    assert!(wait_until(PATIENCE, || watch.all().contains("has lost network")), "{}", watch.all());
}

/// The role of an earlier version does not allow to watch it.
#[test]
fn a_pool_whose_watch_is_forbidden_is_read_at_each_look() {
    let host = Host::new();
    let (etcd, nodes) = cluster(&host, 1, "10.9.0.0/16");
    etcd.server.forbid("WATCH ippools");
    etcd.server.requests();
    // The watch may be tried before the program says anything, so its requests are counted from its start.
    let watch = Watch::start(&host, &nodes[0], 0);
    watch.tells("nothing at first", |nodes| *nodes == json!({}));
    watch.looks();
    watch.looks();
    let requests = etcd.server.requests();
    assert!(requests["LIST ippools"] >= 3 && requests["WATCH ippools"] == 1, "{requests:?}");
    nodes[0].added("p1");
    watch.tells("a block", |nodes| nodes["a"]["blocks"].is_array());
    etcd.server.remove("ippools", only(&etcd, "ippools"));
    assert!(wait_until(PATIENCE, || watch.all().contains("has lost network")), "{}", watch.all());
}

/// Returns the most memory that the program has had, in kB.
fn peak_memory(watch: &Watch) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", watch.process.pid())).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.trim().strip_suffix(" kB").unwrap().parse().unwrap()
}

/// The program keeps what it needs of each object, not the objects.
#[test]
fn the_memory_of_a_watch_does_not_grow_with_the_blocks_objects() {
    let host = Host::new();
    let (etcd, nodes) = cluster_of(&host, 1, "10.0.0.0/8", 29);
    nodes[0].added("p1");
    let mut block = only(&etcd, "blocks");
    // A server notes who has written each field.
    let fields = json!({"f:metadata": {"f:finalizers": {".": {}, "v:\"ipam.cnimble.dev/owner\"": {}},
        "f:labels": {".": {}, "f:ipam.cnimble.dev/network": {}, "f:ipam.cnimble.dev/node": {}}},
        "f:spec": {".": {}, "f:first": {}, "f:last": {}, "f:node": {}, "f:owner": {".": {}, "f:instance": {},
        "f:node": {}, "f:offline": {}}}});
    let manager = json!({"apiVersion": "ipam.cnimble.dev/v1alpha1", "fieldsType": "FieldsV1", "fieldsV1": fields,
        "manager": "cnimble", "operation": "Update", "time": "2026-01-01T00:00:00Z"});
    block["metadata"]["managedFields"] = json!([manager]);
    for n in 0..5000_u32 {
        let mut block = block.clone();
        let first = std::net::Ipv4Addr::from(0x0a40_0000 + n * 8);
        block["metadata"]["name"] = json!(format!("net-4-{:08x}", 0x0a40_0000 + n * 8));
        block["metadata"]["uid"] = json!(format!("many-{n}"));
        block["spec"]["first"] = json!(first);
        block["spec"]["last"] = json!(std::net::Ipv4Addr::from(0x0a40_0000 + n * 8 + 7));
        etcd.server.put("blocks", block);
    }
    let watch = Watch::start(&host, &nodes[0], 0);
    watch.tells("all blocks", |nodes| nodes["a"]["blocks"].as_array().is_some_and(|all| all.len() > 5000));
    let peak = peak_memory(&watch);
    assert!(peak < 40 << 10, "{peak} kB");
}
