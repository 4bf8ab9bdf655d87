//! What the account of one node may write.

use cnimble_tests::{Host, PATIENCE, skip, wait_until};
use serde_json::{Value, json};

use super::etcd::ADMIN;
use super::node::{address, refused, wanted};
use super::{Etcd, server};

const A: &str = "system:node:a";

/// Updates an object as node a, with these keys changed. A null removes a key.
fn patch(etcd: &Etcd<'_>, plural: &str, name: &str, patch: &Value) -> Result<String, String> {
    let all = etcd.objects(plural);
    let found = all.into_iter().find(|object| object["metadata"]["name"] == name);
    let mut object = found.unwrap_or_else(|| panic!("no {name}"));
    merge(&mut object, patch);
    let file = etcd.dir().join("changed.json");
    std::fs::write(&file, object.to_string()).unwrap();
    etcd.kubectl(A, &format!("replace --validate=false -f {}", file.display()))
}

fn merge(value: &mut Value, patch: &Value) {
    for (key, patch) in patch.as_object().unwrap() {
        if patch.is_object() {
            merge(&mut value[key], patch);
        } else {
            value[key] = patch.clone();
        }
    }
}

/// Panics unless a policy has refused the request with this text.
#[track_caller]
fn forbidden(outcome: Result<String, String>, text: &str) {
    let err = outcome.expect_err(text);
    assert!(err.contains("denied request") && err.contains(text), "{err}");
}

/// Creates a Block of node a with this name and first address.
fn create(etcd: &Etcd<'_>, host: &Host, name: &str, first: &str) -> Result<String, String> {
    let block = json!({"apiVersion": "ipam.cnimble.dev/v1alpha1", "kind": "Block",
        "metadata": {"name": name, "labels": {"ipam.cnimble.dev/node": "a", "ipam.cnimble.dev/pool": "net"}},
        "spec": {"pool": "net", "node": "a", "instance": "x", "first": first, "last": first, "offline": 1,
            "claimed": 1}});
    let file = host.dir().join("block.json");
    std::fs::write(&file, block.to_string()).unwrap();
    etcd.kubectl(A, &format!("create --validate=false --dry-run=server -f {}", file.display()))
}

#[test]
fn a_node_changes_its_own_objects_and_no_others() {
    let host = Host::new();
    let (etcd, [a, b, _]) = match server(&host) {
        Ok(found) => found,
        Err(why) => skip!("{why}"),
    };
    a.added("p1");
    b.added("p1");
    a.operate("tend 192.0.2.1").unwrap();
    let (own, block) = (etcd.name_of("blocks", "a"), etcd.name_of("blocks", "b"));
    let (own_claim, claim) = (etcd.name_of("nodeclaims", "a"), etcd.name_of("nodeclaims", "b"));
    let theirs = "belongs to system:node:b";
    for (plural, name) in [("blocks", &block), ("nodeclaims", &claim)] {
        forbidden(etcd.kubectl(A, &format!("delete --wait=false {plural}.ipam.cnimble.dev {name}")), theirs);
        forbidden(patch(&etcd, plural, name, &json!({"metadata": {"finalizers": []}})), theirs);
        forbidden(patch(&etcd, plural, name, &json!({"spec": {"offline": 7}})), theirs);
    }
    let taken = |spec: Value| json!({"metadata": {"labels": {"ipam.cnimble.dev/node": "a"}}, "spec": spec});
    forbidden(patch(&etcd, "blocks", &block, &taken(json!({"node": "a"}))), "denied request");
    let again = taken(json!({"node": "a", "again": {"epoch": 1, "seen": [9, 9]}}));
    forbidden(patch(&etcd, "blocks", &block, &again), "only after a backup was restored");
    forbidden(patch(&etcd, "blocks", &own, &json!({"spec": {"node": "b"}})), "itself alone");
    let labels = json!({"metadata": {"labels": {"ipam.cnimble.dev/node": "b"}}});
    forbidden(patch(&etcd, "blocks", &own, &labels), "itself alone");
    forbidden(patch(&etcd, "nodeclaims", &own_claim, &labels), "the labels of a NodeClaim");
    patch(&etcd, "blocks", &own, &json!({"spec": {"adopted": 7}})).unwrap();
    // A second object for an address would lead its packets to another node.
    for (name, first) in [
        ("net-4-0a090000", "10.9.0.64"),
        ("net-4-0A090000", "10.9.0.0"),
        ("other", "10.9.0.0"),
        ("net-6-0a090000", "10.9.0.0"),
    ] {
        let err = create(&etcd, &host, name, first).unwrap_err();
        assert!(err.contains("the name of a Block") || err.contains("Invalid value"), "{name}: {err}");
    }
    create(&etcd, &host, "net-4-0a09fdc0", "10.9.253.192").unwrap();
    create(&etcd, &host, "net-6-fd000000000000000000000000000040", "fd00::40").unwrap();
    let pool = |status: Value| patch(&etcd, "ippools", "net", &status);
    forbidden(pool(json!({"spec": {"subnets": []}})), "the status alone");
    forbidden(pool(json!({"status": {"offline": 1}})), "neither epoch nor offline can fall");
    let err = etcd.kubectl(A, "delete ippools.ipam.cnimble.dev net").unwrap_err();
    assert!(err.contains("orbidden"), "{err}");
    b.added("p2");
}

#[test]
fn a_released_block_is_claimed_by_another_node() {
    let host = Host::new();
    let (etcd, [a, b, _]) = match server(&host) {
        Ok(found) => found,
        Err(why) => skip!("{why}"),
    };
    let (a, b) = (a.offline(2), b.offline(2));
    let ip = b.added("p1");
    refused(a.operate("release b"), 50, "belongs to system:node:b");
    b.run("DEL", "p1", "", Some(&ip)).unwrap();
    etcd.operator(&a).operate("release b").unwrap();
    let block = etcd.name_of("blocks", "b");
    let early = json!({"metadata": {"labels": {"ipam.cnimble.dev/node": "a"}}, "spec": {"node": "a"}});
    forbidden(patch(&etcd, "blocks", &block, &early), "denied request");
    let mut last = Value::Null;
    let is_free = || match a.run("ADD", "p1", &wanted(&ip), None) {
        Ok(added) => address(&added) == ip,
        Err(err) => {
            last = err;
            false
        }
    };
    assert!(wait_until(PATIENCE, is_free), "{last}");
}

/// The backup has the block for another node, which had returned it.
#[test]
fn after_a_restored_backup_a_node_claims_again_what_its_file_has() {
    let host = Host::new();
    let (etcd, [a, b, _]) = match server(&host) {
        Ok(found) => found,
        Err(why) => skip!("{why}"),
    };
    let (a, b) = (a.offline(3), b.offline(3));
    a.added("p1");
    b.added("p1");
    let block = etcd.name_of("blocks", "a");
    let instance = b.share()["identity"]["instance"].clone();
    let older = json!({"metadata": {"labels": {"ipam.cnimble.dev/node": "b"}}, "spec": {"node": "b", "instance": instance}});
    etcd.kubectl_with(
        ADMIN,
        &["patch", "blocks.ipam.cnimble.dev", &block, "--type=merge", "-p", &older.to_string()],
    )
    .unwrap();
    refused(a.operate("confirm"), 50, "it lacks");
    // The pool is suspect for longer than this test, and the claim comes at once.
    let is_claimed = || {
        let _ = a.operate("confirm");
        etcd.objects("blocks").iter().any(|object| {
            object["metadata"]["name"] == block.as_str()
                && object["spec"]["node"] == "a"
                && object["spec"]["again"].is_object()
        })
    };
    assert!(wait_until(PATIENCE, is_claimed), "{:?}", etcd.objects("blocks"));
}
