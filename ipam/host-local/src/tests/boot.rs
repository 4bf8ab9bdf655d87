//! Leases from before a reboot.

use std::time::Duration;

use cnimble_cni::Code;

use super::*;

#[test]
fn a_full_range_takes_back_leases_of_earlier_boots_only() {
    let mut node = Node::small();
    node.ipam["notReadyWhenFull"] = json!(true);
    for n in 2..=6 {
        assert_eq!(node.add(&format!("c{n}")).unwrap(), [format!("10.0.0.{n}")]);
    }
    // A lease with this boot's mark, though with old times.
    let file = fs::File::open(node.store().join("10.0.0.2")).unwrap();
    file.set_modified(std::time::UNIX_EPOCH + Duration::from_secs(1_000_000)).unwrap();
    // A Go lease of a minute ago isn't old either.
    node.put("10.0.0.3", b"go\r\neth0");
    assert!(node.add("c7").unwrap_err().msg.contains("no IP addresses available"));
    assert_eq!(node.status().unwrap_err().code, Code::NOT_AVAILABLE);

    node.mark("10.0.0.4", "1d7fe3a3-0000-4000-8000-000000000000");
    node.status().unwrap();
    assert_eq!(node.add("c7").unwrap(), ["10.0.0.4"]);
    assert_eq!(fs::read(node.store().join("10.0.0.4")).unwrap(), b"c7\r\neth0");
    assert!(node.add("c8").is_err());
}

#[test]
fn a_container_gets_an_address_again_after_a_reboot() {
    let node = Node::small();
    node.add("c1").unwrap();
    node.mark("10.0.0.2", "earlier");
    assert_eq!(node.add("c1").unwrap(), ["10.0.0.3"]);
    assert_eq!(node.leases(), ["10.0.0.3"]);
}

/// Without extended attributes the times decide: a file of today, such as a restored backup, stays.
#[test]
fn without_extended_attributes_times_decide() {
    let node = Node::small();
    fs::create_dir_all(node.store()).unwrap();
    let mounted = {
        let path = node.store();
        std::thread::spawn(move || {
            use nix::mount::{MsFlags, mount};
            use nix::sched::{CloneFlags, unshare};
            let none: Option<&str> = None;
            let private = unshare(CloneFlags::CLONE_FS | CloneFlags::CLONE_NEWNS)
                .and_then(|()| mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_PRIVATE, none))
                .and_then(|()| mount(Some("none"), &path, Some("ramfs"), MsFlags::empty(), none));
            if let Err(err) = private {
                return Err(err.to_string());
            }
            let boot = cnimble_leases::boot::Boot::current();
            let file = fs::File::create(path.join("10.0.0.2")).unwrap();
            boot.mark(&file);
            assert_eq!(cnimble_leases::boot::get_mark(&file).unwrap(), None);
            assert!(!boot.is_after(&file));
            // Restored with its times; the inode tells.
            file.set_modified(std::time::UNIX_EPOCH + Duration::from_secs(1)).unwrap();
            assert!(!boot.is_after(&file));
            Ok(())
        })
    };
    if let Err(why) = mounted.join().unwrap() {
        cnimble_tests::skip!("can't mount a ramfs: {why}");
    }
}

/// With a boot ID of its own, as in systemd-nspawn and LXC: a file over the kernel's.
fn in_machine<T: Send>(id: &str, act: impl FnOnce() -> T + Send) -> Result<T, String> {
    use nix::mount::{MsFlags, mount};
    use nix::sched::{CloneFlags, unshare};
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("boot_id");
    fs::write(&file, format!("{id}\n")).unwrap();
    std::thread::scope(|scope| {
        let machine = scope.spawn(|| {
            let none: Option<&str> = None;
            unshare(CloneFlags::CLONE_FS | CloneFlags::CLONE_NEWNS)
                .and_then(|()| mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_PRIVATE, none))
                .and_then(|()| {
                    mount(Some(&file), cnimble_leases::boot::BOOT_ID, none, MsFlags::MS_BIND, none)
                })
                .map_err(|err| err.to_string())?;
            assert_eq!(cnimble_leases::boot::boot_id().unwrap(), id);
            Ok(act())
        });
        machine.join().unwrap()
    })
}

#[test]
fn machines_of_one_kernel_keep_their_addresses_apart() {
    let node = Node::small();
    let mut given = vec![node.add("host1").unwrap(), node.add("host2").unwrap()];
    let first = in_machine("00000000-0000-4000-8000-000000000001", || {
        let added = ["a1", "a2", "a3"].map(|id| node.add(id).unwrap());
        assert!(node.add("a4").unwrap_err().msg.contains("no IP addresses available"));
        added
    });
    match first {
        Ok(added) => given.extend(added),
        Err(why) => cnimble_tests::skip!("no boot ID of its own: {why}"),
    }
    let second = in_machine("00000000-0000-4000-8000-000000000002", || node.add("b1").unwrap_err());
    assert!(second.unwrap().msg.contains("no IP addresses available"));
    assert!(node.add("host3").unwrap_err().msg.contains("no IP addresses available"));
    // The host's earlier boot frees it for the host.
    node.mark("10.0.0.2", "1d7fe3a3-0000-4000-8000-000000000000");
    assert_eq!(node.add("host3").unwrap(), ["10.0.0.2"]);
    given.sort();
    given.dedup();
    assert_eq!(given.len(), 5);
}
