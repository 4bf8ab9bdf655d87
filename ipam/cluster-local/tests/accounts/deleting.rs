//! Deleting a pool, the definitions, and everything.

use cnimble_tests::{Host, skip};

use super::etcd::{ADMIN, MANIFESTS};
use super::server;

const CLEAR: &str = "blocks.ipam.cnimble.dev,nodeclaims.ipam.cnimble.dev";

#[test]
fn what_is_in_use_cannot_be_deleted_and_the_written_way_leaves_nothing() {
    let host = Host::new();
    let (etcd, [a, ..]) = match server(&host) {
        Ok(found) => found,
        Err(why) => skip!("{why}"),
    };
    a.operate("confirm").unwrap();
    let delete = format!("delete --wait=false -k {MANIFESTS}");
    // A node without a block.
    let err = etcd.kubectl(ADMIN, &delete).unwrap_err();
    assert!(err.contains("in use: NodeClaim net-a-"), "{err}");
    etcd.apply();
    a.added("p1");
    for what in
        ["ippools.ipam.cnimble.dev net", "ippools.ipam.cnimble.dev --all", "crd ippools.ipam.cnimble.dev"]
    {
        let err = etcd.kubectl(ADMIN, &format!("delete --wait=false {what}")).unwrap_err();
        assert!(err.contains("in use: Block net-4-"), "{err}");
    }
    let pool = etcd.objects("ippools");
    assert!(pool[0]["metadata"]["deletionTimestamp"].is_null(), "{pool:?}");
    etcd.kubectl(ADMIN, &delete).unwrap_err();
    let definitions =
        etcd.kubectl(ADMIN, "get crd -o jsonpath={.items[*].metadata.deletionTimestamp}").unwrap();
    assert_eq!(definitions, "");
    // The way that docs/CLUSTER.md has.
    etcd.kubectl(ADMIN, &format!("delete --all --wait=false {CLEAR}")).unwrap();
    let kept = etcd.kubectl(ADMIN, &format!("get {CLEAR} -o name")).unwrap();
    assert!(kept.lines().count() >= 2, "{kept}");
    for name in kept.lines() {
        let patch = r#"{"metadata":{"finalizers":null}}"#;
        etcd.kubectl_with(ADMIN, &["patch", name, "--type=merge", "-p", patch]).unwrap();
    }
    etcd.kubectl(ADMIN, &format!("delete --timeout=60s --ignore-not-found -k {MANIFESTS}")).unwrap();
    assert_eq!(etcd.kubectl(ADMIN, "get crd -o name").unwrap(), "");
    // The same again, with nodes whose files are of the deleted network.
    std::fs::remove_dir_all(a.store()).unwrap();
    etcd.apply();
    etcd.operator(&a).operate("init new").unwrap();
    a.added("p2");
}
