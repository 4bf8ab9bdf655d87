//! Turns in etcd, which void late transactions of dead processes, and the record of an earlier build.

use cnimble_leases::store::Store;
use cnimble_tests::{Host, PATIENCE, wait_until};
use serde_json::json;

use super::cluster;

/// A process that returns an address is delayed between its confirmation and the return. Meanwhile the
/// next process of the node confirms. Both can run at once only after a lost lock or with a slow member
/// of etcd.
#[test]
fn a_return_that_comes_after_the_next_confirmation_does_nothing() {
    let host = Host::new();
    let (_etcd, nodes) = cluster(&host, 1, "10.9.0.0/16");
    let node = &nodes[0];
    node.run("ADD", "p1", "IP=10.9.3.63", None).unwrap();
    // Without a prevResult, DEL leaves the single address with the node.
    node.run("DEL", "p1", "", None).unwrap();
    let is_ours = || {
        let claims = node.operate("blocks").unwrap();
        claims.as_array().unwrap().iter().any(|claim| claim["first"] == "10.9.3.63" && claim["node"] == "a")
    };
    assert!(is_ours());
    let turn = || node.share()["identity"]["turn"].as_u64().unwrap();
    let before = turn();
    let leases = Store::lock(&node.store()).unwrap().unwrap();
    let late = node.begin("tidy");
    assert!(wait_until(PATIENCE, || turn() > before), "tidy has confirmed nothing");
    std::fs::remove_file(node.store().join(".cnimble-share-lock")).unwrap();
    node.operate("confirm").unwrap();
    drop(leases);
    super::answer(&late.wait_with_output().unwrap()).unwrap();
    assert!(is_ours(), "the return of an earlier turn was carried out");
}

/// The lock of the leases delays the program, and the test reads its capabilities.
#[test]
fn the_program_that_asks_etcd_keeps_one_capability_and_gains_none() {
    let host = Host::new();
    let (_etcd, nodes) = cluster(&host, 1, "10.9.0.0/16");
    nodes[0].added("p1");
    let turn = || nodes[0].share()["identity"]["turn"].as_u64().unwrap();
    let before = turn();
    let leases = Store::lock(&nodes[0].store()).unwrap().unwrap();
    let program = nodes[0].begin("tidy");
    assert!(wait_until(PATIENCE, || turn() > before), "tidy has confirmed nothing");
    let status = std::fs::read_to_string(format!("/proc/{}/status", program.id())).unwrap();
    drop(leases);
    super::answer(&program.wait_with_output().unwrap()).unwrap();
    // CAP_DAC_OVERRIDE is number 1.
    for line in ["CapPrm:\t0000000000000002", "CapEff:\t0000000000000002", "NoNewPrivs:\t1"] {
        assert!(status.contains(line), "no {line:?}: {status}");
    }
}

/// The files and keys are those of the first build with cluster-local.
#[test]
fn a_node_keeps_its_block_through_an_upgrade_without_a_boot() {
    let host = Host::new();
    let (etcd, nodes) = cluster(&host, 1, "10.9.0.0/16");
    let node = nodes[0].in_boot(1);
    let boot = std::fs::read_to_string(node.boot.as_ref().unwrap()).unwrap();
    let identity = json!({"machine": "m", "name": "a", "instance": "i", "boot": boot.trim(), "offline": 3_600_000, "turn": 3});
    let owned = json!([{"first": "10.9.7.0", "last": "10.9.7.55"}]);
    let share =
        json!({"identity": identity, "registered": true, "revision": 2, "confirmed": 0, "owned": owned});
    std::fs::create_dir_all(node.store()).unwrap();
    std::fs::write(node.store().join(".cnimble-share"), share.to_string()).unwrap();
    etcd.put("/cnimble/ipam/net/nodes/a", &identity.to_string());
    let owner = json!({"node": "a", "instance": "i", "offline": 3_600_000});
    etcd.put("/cnimble/ipam/net/blocks/4-0a090700", &owner.to_string());
    etcd.put("/cnimble/ipam/net/owned/a/4-0a090700", "i");
    node.operate("confirm").unwrap();
    assert!(node.added("p1").starts_with("10.9.7."));
    assert!(!nodes[0].in_boot(2).added("p2").starts_with("10.9.7."));
}
