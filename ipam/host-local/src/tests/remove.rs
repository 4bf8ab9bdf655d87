use super::*;

#[test]
fn del_removes_only_the_attachments_leases() {
    let node = Node::small();
    node.del("c1");
    assert!(!node.store().exists() && !node.dir.path().join("a").exists());
    let keep = [
        ("10.0.0.3", "c1\r\neth1"),
        ("10.0.0.4", "c11\r\neth0"),
        ("10.0.0.5", "c1"),
        ("notes", "c1\r\neth0"),
        ("FD00::0007", "c1\r\neth0"),
        // A container may be called like an address.
        ("last_reserved_ip.0", "10.0.0.9"),
    ];
    for (name, content) in keep {
        node.put(name, content.as_bytes());
    }
    node.put("10.0.0.2", b"c1\r\neth0\n");
    node.put("fd00::2", b"c1\r\neth0");
    // Also outside of today's ranges.
    node.put("192.168.0.1", b"c1\r\neth0");
    node.del("c1");
    node.del("10.0.0.9");
    let mut names: Vec<&str> = keep.iter().map(|(name, _)| *name).chain(["lock"]).collect();
    names.sort_unstable();
    assert_eq!(node.names(), names);
    // The old form counts last.
    node.del("c1");
    assert!(!node.names().contains(&"10.0.0.5".to_owned()));
    assert!(node.names().contains(&"10.0.0.3".to_owned()));
}

#[test]
fn del_works_with_an_invalid_configuration() {
    let mut node = Node::small();
    node.add("c1").unwrap();
    node.ipam = json!({ "ranges": "none", "routes": 7, "resolvConf": "/missing" });
    node.extra = json!({ "runtimeConfig": { "ipRanges": 5 } });
    node.del("c1");
    assert!(node.leases().is_empty());
    // A file in place of the directory holds no lease.
    fs::remove_dir_all(node.store()).unwrap();
    fs::write(node.store(), "").unwrap();
    node.del("c1");
    node.extra = json!({ "cni.dev/valid-attachments": null });
    node.gc().unwrap();
}

#[test]
fn gc_leaves_the_valid_leases() {
    let mut node = Node::small();
    for (name, content) in [
        ("10.0.0.2", "c1\r\neth0"),
        ("10.0.0.3", "c1\r\neth1"),
        ("10.0.0.4", "c2\r\neth0"),
        ("10.0.0.5", "c1"),
        ("10.0.0.6", "c3"),
        ("10.0.0.7", ""),
        ("fd00::1", "broken content"),
        ("last_reserved_ip.0", "10.0.0.7"),
    ] {
        node.put(name, content.as_bytes());
    }
    let before = node.leases();
    node.gc().unwrap();
    assert_eq!(node.leases(), before, "no list is not an empty list");
    node.extra = json!({ "cni.dev/valid-attachments": [{ "containerID": "c1", "ifname": "eth0" }] });
    node.gc().unwrap();
    assert_eq!(node.leases(), ["10.0.0.2", "10.0.0.5"]);
    node.extra = json!({ "cni.dev/valid-attachments": null });
    node.gc().unwrap();
    assert_eq!(node.names(), ["last_reserved_ip.0", "lock"]);
}

/// A lease may change its owner before the removal.
#[test]
fn only_an_unchanged_lease_is_removed() {
    let node = Node::small();
    node.add("c1").unwrap();
    let store = cnimble_leases::store::Store::lock(&node.store()).unwrap().unwrap();
    assert_eq!(store.names().unwrap(), [".", "..", "10.0.0.2", "last_reserved_ip.0", "lock"]);
    assert_eq!(store.addresses().unwrap(), [std::net::IpAddr::from([10, 0, 0, 2])]);
    let found = store.identity("10.0.0.2").unwrap().unwrap();
    store.remove_found("10.0.0.2", found).unwrap();
    assert_eq!(store.identity("10.0.0.2").unwrap(), None);
    node.put("10.0.0.2", b"c2\r\neth0");
    store.remove_found("10.0.0.2", found).unwrap();
    assert_eq!(node.leases(), ["10.0.0.2"]);
}

/// A directory that can't be opened may be full of leases.
#[test]
fn a_store_that_is_no_directory_is_an_error() {
    let node = Node::small();
    fs::create_dir_all(node.store().parent().unwrap()).unwrap();
    std::os::unix::fs::symlink(node.store(), node.store()).unwrap();
    assert_eq!(
        HostLocal.del(&node.call(Command::Del, "c1", "eth0")).unwrap_err().code,
        cnimble_cni::Code::IO
    );
    assert_eq!(node.add("c1").unwrap_err().code, cnimble_cni::Code::IO);
    fs::remove_file(node.store()).unwrap();
    fs::write(node.store(), "").unwrap();
    let err = node.add("c1").unwrap_err();
    assert!(err.msg.contains("Not a directory"), "{err}");
}
