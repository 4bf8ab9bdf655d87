use std::os::unix::fs::PermissionsExt;

use cnimble_cni::Code;

use super::*;
use cnimble_leases::boot;

#[test]
fn add_writes_what_the_reference_writes() {
    let node = Node::new(json!({
        "ranges": [[{ "subnet": "10.0.0.0/24" }], [{ "subnet": "fd00::/64", "gateway": "fd00::9" }]],
        "routes": [{ "dst": "0.0.0.0/0", "mtu": 1400 }],
    }));
    let result = HostLocal.add(&node.call(Command::Add, "c1", "eth0")).unwrap();
    let value = result.to_value(cnimble_cni::Version::LATEST).unwrap();
    assert_eq!(
        value["ips"],
        json!([
            { "address": "10.0.0.2/24", "gateway": "10.0.0.1" },
            { "address": "fd00::1/64", "gateway": "fd00::9" },
        ])
    );
    assert_eq!(value["routes"], json!([{ "dst": "0.0.0.0/0", "mtu": 1400 }]));

    let expected = [
        ("10.0.0.2", 0o600, "c1\r\neth0"),
        ("fd00::1", 0o600, "c1\r\neth0"),
        ("last_reserved_ip.0", 0o600, "10.0.0.2"),
        ("last_reserved_ip.1", 0o600, "fd00::1"),
        ("lock", 0o750, ""),
    ];
    assert_eq!(node.names(), expected.map(|(name, ..)| name));
    for (name, mode, content) in expected {
        let path = node.store().join(name);
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o7777, mode, "{name}");
        assert_eq!(fs::read_to_string(&path).unwrap(), content, "{name}");
    }
    assert_eq!(fs::metadata(node.store()).unwrap().permissions().mode() & 0o7777, 0o755);

    // The boot's mark is no content.
    let boot_id = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap();
    let file = fs::File::open(node.store().join("10.0.0.2")).unwrap();
    assert_eq!(boot::get_mark(&file).unwrap().as_deref(), Some(boot_id.trim().as_bytes()));

    let err = node.add("c1").unwrap_err();
    assert_eq!(err.code, Code::NO_ADDRESS);
    assert_eq!(
        err.msg,
        "failed to allocate for range 0: 10.0.0.2 has been allocated to c1, duplicate allocation is not allowed"
    );
    node.del("c1");
    assert_eq!(node.names(), ["last_reserved_ip.0", "last_reserved_ip.1", "lock"]);
    assert_eq!(node.add("c1").unwrap(), ["10.0.0.3", "fd00::2"]);
}

#[test]
fn an_excluded_address_is_given_neither_in_turn_nor_on_request() {
    let mut node = Node::new(json!({ "subnet": "10.0.0.0/29", "exclude": ["10.0.0.3", "10.0.0.4/30"] }));
    assert_eq!(node.add("c1").unwrap(), ["10.0.0.2"]);
    let full = node.add("c2").unwrap_err();
    assert_eq!(full.code, Code::NO_ADDRESS);
    assert!(full.msg.ends_with("no IP addresses available in range set: 10.0.0.1-10.0.0.2"), "{}", full.msg);
    node.extra = json!({ "runtimeConfig": { "ips": ["10.0.0.5"] } });
    node.del("c1");
    assert_eq!(node.add("c2").unwrap_err().msg, "failed to allocate all requested IPs: 10.0.0.5");
    assert_eq!(node.names(), ["last_reserved_ip.0", "lock"]);
}

/// As with the Go plugin: it may still be in use, and DEL releases it.
#[test]
fn an_add_in_an_edited_subnet_leaves_the_lease_of_the_old_one_to_its_del() {
    let mut node = Node::small();
    assert_eq!(node.add("c1").unwrap(), ["10.0.0.2"]);
    let old = std::mem::replace(&mut node.ipam, json!({ "subnet": "10.0.1.0/29" }));
    assert_eq!(node.add("c1").unwrap(), ["10.0.1.2"]);
    let names = node.names();
    assert!(["10.0.0.2", "10.0.1.2"].iter().all(|ip| names.iter().any(|name| name == ip)), "{names:?}");
    assert_eq!(node.add("c1").unwrap_err().code, Code::NO_ADDRESS);
    // No other gets it.
    node.ipam = json!({ "subnet": "10.0.0.0/29", "rangeEnd": "10.0.0.2" });
    assert_eq!(node.add("c2").unwrap_err().code, Code::NO_ADDRESS);
    node.del("c1");
    assert_eq!(node.names(), ["last_reserved_ip.0", "lock"]);
    node.ipam = old;
    assert!(node.add("c2").is_ok());
}

#[test]
fn nothing_is_written_if_one_set_has_no_address() {
    let node = Node::new(json!({ "ranges": [[{ "subnet": "10.0.0.0/24" }], [{ "subnet": "10.1.0.0/30" }]] }));
    assert_eq!(node.add("c1").unwrap(), ["10.0.0.2", "10.1.0.2"]);
    let before = node.snapshot();
    let err = node.add("c2").unwrap_err();
    assert_eq!(
        err.msg,
        "failed to allocate for range 1: no IP addresses available in range set: 10.1.0.1-10.1.0.2"
    );
    assert!(err.details.contains(node.store().to_str().unwrap()));
    assert_eq!(node.snapshot(), before);
}

#[test]
fn undo_leaves_the_store_as_it_was() {
    let failed_add = |node: &Node| {
        let before = node.snapshot();
        let call = node.call(Command::Add, "c9", "eth0");
        HostLocal.add(&call).unwrap();
        assert_ne!(node.snapshot(), before);
        assert_eq!(call.undo.rollback(), [""; 0]);
        assert_eq!(node.snapshot(), before);
    };
    // No directory, some of it, all of it.
    let node = Node::small();
    failed_add(&node);
    fs::create_dir(node.dir.path().join("a")).unwrap();
    failed_add(&node);
    fs::create_dir_all(node.store()).unwrap();
    fs::write(node.store().join("lock"), "").unwrap();
    failed_add(&node);
    // Leases of others, with an older release's modes.
    node.add("c1").unwrap();
    let last = node.store().join("last_reserved_ip.0");
    fs::set_permissions(&last, fs::Permissions::from_mode(0o644)).unwrap();
    failed_add(&node);
    // In the way of the next address.
    node.put("10.0.0.3", b"");
    failed_add(&node);
    assert_eq!(node.add("c2").unwrap(), ["10.0.0.3"]);
    // A full range with leases of an earlier boot.
    for n in 4..=6 {
        node.put(&format!("10.0.0.{n}"), b"gone\r\neth0");
        node.mark(&format!("10.0.0.{n}"), "earlier");
    }
    node.put("10.0.0.5", b"c9\r\neth0");
    node.mark("10.0.0.5", "earlier");
    let modified = || fs::metadata(node.store().join("10.0.0.4")).unwrap().modified().unwrap();
    let time = modified();
    failed_add(&node);
    assert_eq!(modified(), time);
    // Restored, it is still void.
    assert_eq!(node.add("c9").unwrap(), ["10.0.0.5"]);
    assert_eq!(node.add("c4").unwrap(), ["10.0.0.6"]);
    assert_eq!(node.add("c5").unwrap(), ["10.0.0.4"]);
    assert!(node.add("c6").is_err());
}

#[test]
fn undo_keeps_what_others_did_meanwhile() {
    let node = Node::small();
    let first = node.call(Command::Add, "c1", "eth0");
    HostLocal.add(&first).unwrap();
    assert_eq!(node.add("c2").unwrap(), ["10.0.0.3"]);
    assert!(first.undo.rollback().is_empty());
    assert_eq!(node.names(), ["10.0.0.3", "last_reserved_ip.0", "lock"]);
    assert_eq!(node.add("c3").unwrap(), ["10.0.0.4"]);

    // Given to another attachment before the undo runs.
    let call = node.call(Command::Add, "c4", "eth0");
    assert_eq!(addresses(&HostLocal.add(&call).unwrap()), ["10.0.0.5"]);
    node.del("c4");
    node.put("10.0.0.5", b"c5\r\neth0");
    assert!(call.undo.rollback().is_empty());
    assert_eq!(fs::read(node.store().join("10.0.0.5")).unwrap(), b"c5\r\neth0");
}
