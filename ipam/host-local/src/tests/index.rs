//! Many leases, and the index beside them.

use std::os::unix::fs::symlink;
use std::time::Duration;

use cnimble_cni::{Attachment, Code};

use super::*;

/// So many leases that there is an index, and one of `c1`: 10.0.0.82.
fn indexed() -> Node {
    let node = Node::new(json!({ "subnet": "10.0.0.0/16" }));
    for n in 0..80 {
        node.add(&format!("old{n}")).unwrap();
    }
    assert_eq!(node.add("c1").unwrap(), ["10.0.0.82"]);
    assert!(asks_the_index(&node));
    node
}

/// The next verb believes the index.
fn asks_the_index(node: &Node) -> bool {
    let dir = cnimble_leases::store::Directory::open(&node.store()).unwrap().unwrap();
    !dir.leases_of("c1", &[]).unwrap().are_all()
}

#[test]
fn the_index_keeps_up_with_add_and_del() {
    let node = indexed();
    for n in 0..300 {
        let id = format!("new{n}");
        node.add(&id).unwrap();
        node.check(&id).unwrap();
        assert_eq!(node.add(&id).unwrap_err().code, Code::NO_ADDRESS);
        if n % 3 > 0 {
            node.del(&id);
            assert!(node.check(&id).is_err());
        }
        assert!(asks_the_index(&node), "{n}");
    }
    assert_eq!(node.leases().len(), 81 + 100);
    node.del("c1");
    assert!(!node.leases().contains(&"10.0.0.82".to_owned()));
}

#[test]
fn any_foreign_change_makes_the_index_stale() {
    let node = indexed();
    let path = node.store().join("10.0.99.99");
    for round in 0..50 {
        // Mostly within the same tick of the kernel's clock.
        fs::write(&path, "c2\r\neth0").unwrap();
        assert!(!asks_the_index(&node), "{round}: a new lease");
        node.check("c2").unwrap();
        node.add(&format!("a{round}")).unwrap();
        assert!(asks_the_index(&node));
        fs::rename(&path, path.with_extension("98")).unwrap();
        assert!(!asks_the_index(&node), "{round}: a lease with a new name");
        node.add(&format!("b{round}")).unwrap();
        fs::remove_file(path.with_extension("98")).unwrap();
        assert!(!asks_the_index(&node), "{round}: a lease that went");
        node.add(&format!("d{round}")).unwrap();
    }
    // A backup restores the time of modification, but not that of change.
    let before = fs::metadata(node.store()).unwrap().modified().unwrap();
    fs::write(&path, "c2\r\neth0").unwrap();
    std::thread::sleep(Duration::from_millis(20));
    fs::File::open(node.store()).unwrap().set_modified(before).unwrap();
    assert!(!asks_the_index(&node));
    node.del("c2");
    assert!(!path.exists());
}

/// With any content of the index, and any other object in its place.
#[test]
fn a_lying_index_does_no_harm() {
    use std::os::unix::fs::FileExt;
    let lie = |what: &str, node: &Node| {
        let path = node.store().join(cnimble_leases::INDEX);
        let file = fs::File::options().read(true).write(true).open(&path).unwrap();
        let length = file.metadata().unwrap().len();
        match what {
            // In place: the header stays true.
            "knows nothing" => file.write_all_at(&vec![0; length as usize - 80], 80).unwrap(),
            "garbage" => file.write_all_at(&vec![0xa5; length as usize - 80], 80).unwrap(),
            // Every slot names c1 and old0's address.
            "somebody else's" => {
                let mut slot = [0; 32];
                slot[..8].copy_from_slice(&cnimble_leases::index::key("c1").to_le_bytes());
                slot[8..12].copy_from_slice(&0x0a00_0002u32.to_le_bytes());
                slot[24] = 4;
                let slots = slot.repeat((length as usize - 80) / 32);
                file.write_all_at(&slots, 80).unwrap();
            }
            "truncated" => file.set_len(100).unwrap(),
            "empty" => file.set_len(0).unwrap(),
            "huge" => file.write_all_at(&u64::MAX.to_le_bytes(), 8).unwrap(),
            "a link" => {
                fs::rename(&path, node.dir.path().join("elsewhere")).unwrap();
                symlink(node.dir.path().join("elsewhere"), &path).unwrap();
            }
            // Another file would change, too.
            "a hard link" => {
                fs::hard_link(&path, node.dir.path().join("elsewhere")).unwrap();
                assert!(!asks_the_index(node));
            }
            "a directory" => {
                fs::remove_file(&path).unwrap();
                fs::create_dir(&path).unwrap();
            }
            "a pipe" => {
                fs::remove_file(&path).unwrap();
                nix::unistd::mkfifo(&path, nix::sys::stat::Mode::S_IRWXU).unwrap();
            }
            _ => panic!("{what}"),
        }
    };
    for what in [
        "knows nothing",
        "garbage",
        "somebody else's",
        "truncated",
        "empty",
        "huge",
        "a link",
        "a hard link",
        "a directory",
        "a pipe",
    ] {
        let node = indexed();
        lie(what, &node);
        node.check("c1").unwrap();
        assert!(node.check("c2").is_err(), "{what}");
        // The index can't know the owner of the next address.
        fs::write(node.store().join("last_reserved_ip.0"), "10.0.0.40").unwrap();
        assert_eq!(node.add("c2").unwrap(), ["10.0.0.83"], "{what}");
        node.del("c1");
        node.del("c2");
        let left = node.leases();
        assert_eq!(left.len(), 80, "{what}: {left:?}");
        assert!(left.contains(&"10.0.0.2".to_owned()), "{what}");
    }
}

/// Releases share an index: with another key, place or boot none finds the other's.
#[test]
fn the_index_is_written_as_in_every_release() {
    use cnimble_leases::index::key;
    assert_eq!(key("c1"), 0xf345_853b_6287_72b6);
    let node = indexed();
    let bytes = fs::read(node.store().join(cnimble_leases::INDEX)).unwrap();
    let word = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap());
    assert_eq!(&bytes[..8], b"cnimidx2");
    let slots = word(8);
    assert_eq!(bytes.len() as u64, 80 + (slots + 96) * 32);
    assert_eq!((word(64), word(72)), (key(&cnimble_leases::boot::boot_id().unwrap()), 81));
    let home = 80 + ((key("c1") >> 32) & (slots - 1)) * 32;
    let window = &bytes[usize::try_from(home).unwrap()..][..96 * 32];
    let own = window.chunks(32).find(|slot| slot[..8] == key("c1").to_le_bytes()).unwrap();
    assert_eq!(own[8..12], 0x0a00_0052_u32.to_le_bytes());
    assert_eq!(own[24], 4);
}

/// The index is stale and not wrong.
#[test]
fn undo_makes_the_index_stale() {
    let node = indexed();
    let call = node.call(Command::Add, "c2", "eth0");
    HostLocal.add(&call).unwrap();
    assert!(asks_the_index(&node));
    call.undo.rollback();
    assert!(!asks_the_index(&node));
    assert!(node.check("c2").is_err());
    node.add("c2").unwrap();
}

#[test]
fn the_index_is_removed_with_the_last_lease() {
    let is_there = |node: &Node| node.names().iter().any(|name| name == cnimble_leases::INDEX);
    let node = indexed();
    for n in 0..80 {
        node.del(&format!("old{n}"));
        if n < 10 {
            // It reads all leases, and makes the index anew.
            node.del(&format!("old{n}"));
        }
    }
    assert_eq!(node.leases(), ["10.0.0.82"]);
    assert!(is_there(&node) && asks_the_index(&node), "one is left");
    node.del("c1");
    assert!(node.leases().is_empty());
    assert!(!is_there(&node));
    // Nor does GC leave it.
    let node = indexed();
    let call = node.call(Command::Gc, "", "");
    HostLocal.gc(&call, &[]).unwrap();
    assert!(node.leases().is_empty());
    assert!(!is_there(&node), "after GC");
    // With many left it stays.
    let node = indexed();
    let valid: Vec<_> =
        (0..70).map(|n| Attachment { container_id: format!("old{n}"), ifname: "eth0".into() }).collect();
    HostLocal.gc(&node.call(Command::Gc, "", ""), &valid).unwrap();
    assert_eq!(node.leases().len(), 70);
    assert!(is_there(&node));
}

#[test]
fn few_leases_need_no_index() {
    let node = indexed();
    for n in 0..70 {
        fs::remove_file(node.store().join(format!("10.0.0.{}", n + 2))).unwrap();
    }
    node.add("c2").unwrap();
    assert!(!node.names().iter().any(|name| name == cnimble_leases::INDEX));
}

#[test]
fn twenty_thousand_leases_are_no_trouble() {
    let node = Node::new(json!({ "subnet": "10.0.0.0/17" }));
    fs::create_dir_all(node.store()).unwrap();
    // One file under all names: 20,000 files take too long.
    let one = node.store().join("10.0.0.2");
    fs::write(&one, format!("{}\r\neth0", "e".repeat(64))).unwrap();
    for n in 1..20_000u32 {
        let ip = std::net::Ipv4Addr::from(0x0A00_0002 + n);
        fs::hard_link(&one, node.store().join(ip.to_string())).unwrap();
    }
    assert_eq!(node.add("c1").unwrap(), ["10.0.78.34"]);
    node.del("c1");
    assert_eq!(node.leases().len(), 20_000);
}
