//! The verbs, on real directories.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use cnimble::plugin::{Call, Command, Plugin, Undo};
use cnimble::spec::{CniResult, Code, Error, PluginConfig};
use serde_json::{Value, json};

use super::HostLocal;
use crate::boot;

/// A data directory and a configuration.
struct Node {
    dir: tempfile::TempDir,
    ipam: Value,
    extra: Value,
}

impl Node {
    fn new(ipam: Value) -> Self {
        Node { dir: tempfile::tempdir().unwrap(), ipam, extra: json!({}) }
    }

    fn small() -> Self {
        Node::new(json!({ "subnet": "10.0.0.0/29" }))
    }

    fn call(&self, command: Command, id: &str, ifname: &str) -> Call {
        call(&self.dir.path().join("a/b"), &self.ipam, &self.extra, command, id, ifname)
    }

    fn store(&self) -> PathBuf {
        self.dir.path().join("a/b/net")
    }

    fn add(&self, id: &str) -> Result<Vec<String>, Error> {
        HostLocal.add(&self.call(Command::Add, id, "eth0")).map(|result| addresses(&result))
    }

    fn del(&self, id: &str) {
        HostLocal.del(&self.call(Command::Del, id, "eth0")).unwrap();
    }

    /// Puts a file into the store.
    fn put(&self, name: &str, content: &[u8]) {
        fs::create_dir_all(self.store()).unwrap();
        fs::write(self.store().join(name), content).unwrap();
    }

    fn mark(&self, name: &str, mark: &str) {
        boot::set_mark(&fs::File::open(self.store().join(name)).unwrap(), mark.as_bytes());
    }

    /// Name, mode and content of everything below the data directory.
    fn snapshot(&self) -> BTreeSet<String> {
        fn walk(dir: &Path, into: &mut BTreeSet<String>) {
            for entry in fs::read_dir(dir).unwrap() {
                let path = entry.unwrap().path();
                let meta = fs::symlink_metadata(&path).unwrap();
                let content = if meta.is_file() { fs::read(&path).unwrap() } else { Vec::new() };
                let mode = meta.permissions().mode();
                into.insert(format!("{} {mode:o} {:?}", path.display(), String::from_utf8_lossy(&content)));
                if meta.is_dir() {
                    walk(&path, into);
                }
            }
        }
        let mut all = BTreeSet::new();
        walk(self.dir.path(), &mut all);
        all
    }

    fn names(&self) -> Vec<String> {
        let names = fs::read_dir(self.store()).unwrap();
        let mut names: Vec<String> = names.map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    fn leases(&self) -> Vec<String> {
        self.names()
            .into_iter()
            .filter(|name| !name.starts_with('l') && name != crate::index::INDEX)
            .collect()
    }
}

fn call(data_dir: &Path, ipam: &Value, extra: &Value, command: Command, id: &str, ifname: &str) -> Call {
    let mut document = json!({ "cniVersion": "1.1.0", "name": "net", "type": "x", "ipam": ipam });
    document["ipam"]["type"] = "host-local".into();
    document["ipam"]["dataDir"] = data_dir.to_str().unwrap().into();
    let object = document.as_object_mut().unwrap();
    object.extend(extra.as_object().unwrap().clone());
    let stdin = document.to_string().into_bytes();
    Call {
        command,
        container_id: id.into(),
        netns: "/none".into(),
        ifname: ifname.into(),
        raw_args: String::new(),
        path: Vec::new(),
        config: PluginConfig::parse(&stdin).unwrap(),
        stdin,
        undo: Undo::new(),
        plugins: &[],
        program: PathBuf::new(),
        home: None,
    }
}

fn addresses(result: &CniResult) -> Vec<String> {
    result.ips.iter().map(|ip| ip.address.ip().to_string()).collect()
}

#[test]
fn add_writes_what_the_reference_writes() {
    let node = Node::new(json!({
        "ranges": [[{ "subnet": "10.0.0.0/24" }], [{ "subnet": "fd00::/64", "gateway": "fd00::9" }]],
        "routes": [{ "dst": "0.0.0.0/0", "mtu": 1400 }],
    }));
    let result = HostLocal.add(&node.call(Command::Add, "c1", "eth0")).unwrap();
    let value = result.to_value(cnimble::spec::Version::LATEST).unwrap();
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

    // The boot's mark is no part of the content.
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
    // No directory at all, some of it, all of it.
    let node = Node::small();
    failed_add(&node);
    fs::create_dir(node.dir.path().join("a")).unwrap();
    failed_add(&node);
    fs::create_dir_all(node.store()).unwrap();
    fs::write(node.store().join("lock"), "").unwrap();
    failed_add(&node);
    // Leases of others, with the modes of an older release.
    node.add("c1").unwrap();
    let last = node.store().join("last_reserved_ip.0");
    fs::set_permissions(&last, fs::Permissions::from_mode(0o644)).unwrap();
    failed_add(&node);
    // A broken lease in the way of the next address.
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
    // What came back is still void.
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

    // Deleted and given to somebody else before the undo runs.
    let call = node.call(Command::Add, "c4", "eth0");
    assert_eq!(addresses(&HostLocal.add(&call).unwrap()), ["10.0.0.5"]);
    node.del("c4");
    node.put("10.0.0.5", b"c5\r\neth0");
    assert!(call.undo.rollback().is_empty());
    assert_eq!(fs::read(node.store().join("10.0.0.5")).unwrap(), b"c5\r\neth0");
}

#[test]
fn del_takes_the_attachments_leases_and_nothing_else() {
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
    // Addresses outside of today's ranges are the attachment's as well.
    node.put("192.168.0.1", b"c1\r\neth0");
    node.del("c1");
    node.del("10.0.0.9");
    let mut names: Vec<&str> = keep.iter().map(|(name, _)| *name).chain(["lock"]).collect();
    names.sort_unstable();
    assert_eq!(node.names(), names);
    // The old form counts once nothing else does.
    node.del("c1");
    assert!(!node.names().contains(&"10.0.0.5".to_owned()));
    assert!(node.names().contains(&"10.0.0.3".to_owned()));
}

#[test]
fn del_works_with_a_configuration_that_has_gone_bad() {
    let mut node = Node::small();
    node.add("c1").unwrap();
    node.ipam = json!({ "ranges": "none", "routes": 7, "resolvConf": "/missing" });
    node.extra = json!({ "runtimeConfig": { "ipRanges": 5 } });
    node.del("c1");
    assert!(node.leases().is_empty());
    // A file where the directory should be holds no lease.
    fs::remove_dir_all(node.store()).unwrap();
    fs::write(node.store(), "").unwrap();
    node.del("c1");
    HostLocal
        .gc(&{
            node.extra = json!({ "cni.dev/valid-attachments": null });
            node.call(Command::Gc, "", "")
        })
        .unwrap();
}

#[test]
fn broken_leases_are_healed() {
    let node = Node::small();
    node.put("10.0.0.2", b"");
    node.put("10.0.0.3", b"\0\0\0\0\0\0\0\0");
    node.put(".cnimble-new-1-0", b"c1\r\neth0");
    assert_eq!(node.add("c1").unwrap(), ["10.0.0.2"]);
    assert_eq!(node.add("c2").unwrap(), ["10.0.0.3"]);
    assert_eq!(fs::read(node.store().join("10.0.0.3")).unwrap(), b"c2\r\neth0");
    assert_eq!(node.names(), ["10.0.0.2", "10.0.0.3", "last_reserved_ip.0", "lock"]);
}

#[test]
fn what_is_no_file_is_left_alone_and_not_given_out() {
    let node = Node::small();
    let at = |name: &str| node.store().join(name);
    node.put("outside", b"c1\r\neth0");
    symlink(at("outside"), at("10.0.0.2")).unwrap();
    fs::create_dir(at("10.0.0.3")).unwrap();
    nix::unistd::mkfifo(&at("10.0.0.4"), nix::sys::stat::Mode::S_IRWXU).unwrap();
    node.put("10.0.0.5", &vec![b'x'; 100_000]);
    let before = node.snapshot();
    node.del("c1");
    assert_eq!(node.add("c1").unwrap(), ["10.0.0.6"]);
    assert!(node.add("c2").unwrap_err().msg.contains("no IP addresses available"));
    node.del("c1");
    fs::remove_file(at("last_reserved_ip.0")).unwrap();
    fs::remove_file(at("lock")).unwrap();
    assert_eq!(node.snapshot(), before);
    // A planted lock isn't followed either.
    symlink("/etc/passwd", at("lock")).unwrap();
    assert_eq!(node.add("c1").unwrap_err().code, Code::IO);
}

#[test]
fn a_full_range_takes_back_leases_of_earlier_boots_only() {
    let node = Node::small();
    for n in 2..=6 {
        assert_eq!(node.add(&format!("c{n}")).unwrap(), [format!("10.0.0.{n}")]);
    }
    // Old times alone say nothing about a lease that carries this boot's mark.
    let file = fs::File::open(node.store().join("10.0.0.2")).unwrap();
    file.set_modified(std::time::UNIX_EPOCH + Duration::from_secs(1_000_000)).unwrap();
    // Nor is a Go lease of a minute ago old.
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
fn a_container_that_comes_back_after_a_reboot_is_no_duplicate() {
    let node = Node::small();
    node.add("c1").unwrap();
    node.mark("10.0.0.2", "earlier");
    assert_eq!(node.add("c1").unwrap(), ["10.0.0.3"]);
    assert_eq!(node.leases(), ["10.0.0.3"]);
}

impl Node {
    fn status(&self) -> Result<(), Error> {
        HostLocal.status(&self.call(Command::Status, "", ""))
    }

    fn check(&self, id: &str) -> Result<(), Error> {
        HostLocal.check(&self.call(Command::Check, id, "eth0"))
    }
}

#[test]
fn check_wants_a_lease_for_every_address_of_ours() {
    let mut node = Node::small();
    let text = "host-local: Failed to find address added by container c1";
    let err = node.check("c1").unwrap_err();
    assert_eq!((err.code, err.msg.as_str()), (Code::CHECK_FAILED, text));
    assert!(!node.store().exists());
    node.add("c1").unwrap();
    node.check("c1").unwrap();
    let result = |ips: &[&str]| {
        let ips: Vec<Value> = ips.iter().map(|ip| json!({ "address": ip })).collect();
        json!({ "prevResult": { "cniVersion": "1.0.0", "ips": ips } })
    };
    // An address from elsewhere isn't ours to check.
    node.extra = result(&["10.0.0.2/29", "172.16.0.1/16"]);
    node.check("c1").unwrap();
    for other in ["10.0.0.3/29", "10.0.0.5/29"] {
        node.put("10.0.0.3", b"c2\r\neth0");
        node.extra = result(&["10.0.0.2/29", other]);
        let err = node.check("c1").unwrap_err();
        assert_eq!(err.msg, text);
        assert!(err.details.starts_with(other.trim_end_matches("/29")), "{}", err.details);
    }
    assert!(node.check("c3").is_err());
}

#[test]
fn gc_leaves_the_valid_leases() {
    let mut node = Node::small();
    let gc = |node: &Node| HostLocal.gc(&node.call(Command::Gc, "", ""));
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
    gc(&node).unwrap();
    assert_eq!(node.leases(), before, "no list is not an empty list");
    node.extra = json!({ "cni.dev/valid-attachments": [{ "containerID": "c1", "ifname": "eth0" }] });
    gc(&node).unwrap();
    assert_eq!(node.leases(), ["10.0.0.2", "10.0.0.5"]);
    node.extra = json!({ "cni.dev/valid-attachments": null });
    gc(&node).unwrap();
    assert_eq!(node.names(), ["last_reserved_ip.0", "lock"]);
}

#[test]
fn status_tells_a_full_range_and_leaves_no_trace() {
    let node = Node::small();
    node.status().unwrap();
    assert!(node.snapshot().is_empty());
    for n in 2..=6 {
        node.add(&format!("c{n}")).unwrap();
    }
    let before = node.snapshot();
    let err = node.status().unwrap_err();
    assert_eq!(err.code, Code::NOT_AVAILABLE);
    assert!(err.msg.contains("no IP addresses available in range set: 10.0.0.1-10.0.0.6"), "{}", err.msg);
    assert_eq!(node.snapshot(), before);
    // A broken lease counts as free.
    node.put("10.0.0.4", b"");
    node.status().unwrap();
    node.del("c5");
    node.status().unwrap();
}

#[test]
fn a_store_that_cant_be_written_is_said_by_status_and_add() {
    let file = tempfile::NamedTempFile::new().unwrap();
    for data_dir in [file.path(), Path::new("/proc/1"), Path::new("/sys/kernel/x")] {
        let call =
            |command| call(data_dir, &json!({ "subnet": "10.0.0.0/29" }), &json!({}), command, "c1", "eth0");
        let err = HostLocal.status(&call(Command::Status)).unwrap_err();
        assert_eq!(err.code, Code::NOT_AVAILABLE, "{}", err.msg);
        let err = HostLocal.add(&call(Command::Add)).unwrap_err();
        assert_eq!(err.code, Code::IO, "{}", err.msg);
        assert!(err.msg.contains(data_dir.to_str().unwrap()), "{}", err.msg);
    }
}

#[test]
fn many_at_once_get_different_addresses() {
    let node = Node::new(json!({ "ranges": [[{ "subnet": "10.0.0.0/24" }], [{ "subnet": "fd00::/64" }]] }));
    let data_dir = node.dir.path().join("a/b");
    let given: Vec<String> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..64)
            .map(|n| {
                let (data_dir, ipam) = (&data_dir, &node.ipam);
                scope.spawn(move || {
                    let call = call(data_dir, ipam, &json!({}), Command::Add, &format!("c{n}"), "eth0");
                    addresses(&HostLocal.add(&call).unwrap())
                })
            })
            .collect();
        threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
    });
    let different: BTreeSet<&String> = given.iter().collect();
    assert_eq!((given.len(), different.len()), (128, 128));
    assert_eq!(node.leases().len(), 128);
}

/// ADDs that fail remove the directory that they made, again and again, under the eyes of
/// ADDs that don't: those must neither fail nor lose their lease with the directory.
#[test]
fn a_directory_that_goes_away_under_a_waiting_add_is_made_again() {
    for round in 0..20 {
        let node = Node::new(json!({ "subnet": "10.0.0.0/24" }));
        let data_dir = node.dir.path().join("a/b");
        std::thread::scope(|scope| {
            for n in 0..12 {
                let (data_dir, ipam) = (&data_dir, &node.ipam);
                scope.spawn(move || {
                    let call = call(data_dir, ipam, &json!({}), Command::Add, &format!("c{n}"), "eth0");
                    HostLocal.add(&call).unwrap();
                    if n % 4 != 0 {
                        assert_eq!(call.undo.rollback(), [""; 0]);
                    }
                });
            }
        });
        let mut owners: Vec<String> =
            node.leases().iter().map(|name| fs::read_to_string(node.store().join(name)).unwrap()).collect();
        owners.sort();
        assert_eq!(owners, ["c0\r\neth0", "c4\r\neth0", "c8\r\neth0"], "round {round}");
    }
}

/// A rollback that has given up its lock's name leaves the next one, under which somebody else
/// may be at work by now, in peace.
#[test]
fn a_rollback_leaves_the_lock_of_the_next() {
    let node = Node::small();
    fs::create_dir_all(node.store()).unwrap();
    let first = crate::store::Store::lock(&node.store()).unwrap().unwrap();
    first.remove_if_empty().unwrap();
    let path = node.store();
    // In a thread of its own, as a lock is no obstacle to its own thread.
    let (send, receive) = std::sync::mpsc::channel();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            let second = crate::store::Store::lock(&path).unwrap().unwrap();
            send.send(()).unwrap();
            std::thread::sleep(Duration::from_millis(50));
            drop(second);
        });
        receive.recv_timeout(Duration::from_secs(20)).unwrap();
        first.remove_if_empty().unwrap();
        assert!(node.store().join("lock").exists());
    });
}

/// A file system without extended attributes has no mark: the times have to do, and what was
/// made today, be it a restored backup, is not taken back.
#[test]
fn without_extended_attributes_the_times_tell() {
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
            let boot = crate::boot::Boot::current();
            let file = fs::File::create(path.join("10.0.0.2")).unwrap();
            boot.mark(&file);
            assert_eq!(crate::boot::get_mark(&file).unwrap(), None);
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

/// The panic hook rolls back while the verb's own lock is still held by the thread.
#[test]
fn undo_doesnt_wait_for_the_lock_of_its_own_thread() {
    let node = Node::small();
    let (path, done) = (node.store(), std::sync::mpsc::channel());
    let (data_dir, ipam) = (node.dir.path().join("a/b"), node.ipam.clone());
    let thread = std::thread::spawn(move || {
        let call = call(&data_dir, &ipam, &json!({}), Command::Add, "c1", "eth0");
        HostLocal.add(&call).unwrap();
        let held = crate::store::Store::lock(&path).unwrap().unwrap();
        assert_eq!(call.undo.rollback(), [""; 0]);
        assert!(held.leases().unwrap().list.is_empty());
        done.0.send(()).unwrap();
    });
    done.1.recv_timeout(Duration::from_secs(20)).expect("it waits for itself");
    thread.join().unwrap();
    // Afterwards the lock is free for others.
    let path = node.store();
    fs::create_dir_all(&path).unwrap();
    std::thread::spawn(move || crate::store::Store::lock(&path).unwrap().is_some()).join().unwrap();
}

#[test]
fn twenty_thousand_leases_are_no_trouble() {
    let node = Node::new(json!({ "subnet": "10.0.0.0/17" }));
    fs::create_dir_all(node.store()).unwrap();
    // One file under all names: making 20,000 files takes longer than anything tested here.
    let one = node.store().join("10.0.0.2");
    fs::write(&one, format!("{}\r\neth0", "e".repeat(64))).unwrap();
    for n in 1..20_000u32 {
        let ip = std::net::Ipv4Addr::from(0x0A00_0002 + n);
        fs::hard_link(&one, node.store().join(ip.to_string())).unwrap();
    }
    let start = Instant::now();
    assert_eq!(node.add("c1").unwrap(), ["10.0.78.34"]);
    node.del("c1");
    let taken = start.elapsed();
    assert_eq!(node.leases().len(), 20_000);
    assert!(taken < Duration::from_secs(10), "{taken:?}");
}

/// A store with so many leases that it has an index, and one of `c1`: 10.0.0.82.
fn indexed() -> Node {
    let node = Node::new(json!({ "subnet": "10.0.0.0/16" }));
    for n in 0..80 {
        node.add(&format!("old{n}")).unwrap();
    }
    assert_eq!(node.add("c1").unwrap(), ["10.0.0.82"]);
    assert!(asks_the_index(&node));
    node
}

/// Whether a verb that comes now believes the index.
fn asks_the_index(node: &Node) -> bool {
    let dir = crate::store::Directory::open(&node.store()).unwrap().unwrap();
    !dir.leases_of("c1", &[]).unwrap().are_all()
}

fn check(node: &Node, id: &str) -> Result<(), Error> {
    HostLocal.check(&node.call(Command::Check, id, "eth0"))
}

#[test]
fn the_index_keeps_up_with_add_and_del() {
    let node = indexed();
    for n in 0..300 {
        let id = format!("new{n}");
        node.add(&id).unwrap();
        check(&node, &id).unwrap();
        assert_eq!(node.add(&id).unwrap_err().code, Code::NO_ADDRESS);
        if n % 3 > 0 {
            node.del(&id);
            assert!(check(&node, &id).is_err());
        }
        assert!(asks_the_index(&node), "{n}");
    }
    assert_eq!(node.leases().len(), 81 + 100);
    node.del("c1");
    assert!(!node.leases().contains(&"10.0.0.82".to_owned()));
}

#[test]
fn any_change_by_somebody_else_makes_the_index_stale() {
    let node = indexed();
    let path = node.store().join("10.0.99.99");
    for round in 0..50 {
        // At once, so mostly within the same tick of the kernel's clock.
        fs::write(&path, "c2\r\neth0").unwrap();
        assert!(!asks_the_index(&node), "{round}: a new lease");
        check(&node, "c2").unwrap();
        node.add(&format!("a{round}")).unwrap();
        assert!(asks_the_index(&node));
        fs::rename(&path, path.with_extension("98")).unwrap();
        assert!(!asks_the_index(&node), "{round}: a lease with a new name");
        node.add(&format!("b{round}")).unwrap();
        fs::remove_file(path.with_extension("98")).unwrap();
        assert!(!asks_the_index(&node), "{round}: a lease that went");
        node.add(&format!("d{round}")).unwrap();
    }
    // A backup gives the directory its time of modification back, but not that of change.
    let before = fs::metadata(node.store()).unwrap().modified().unwrap();
    fs::write(&path, "c2\r\neth0").unwrap();
    std::thread::sleep(Duration::from_millis(20));
    fs::File::open(node.store()).unwrap().set_modified(before).unwrap();
    assert!(!asks_the_index(&node));
    node.del("c2");
    assert!(!path.exists());
}

/// Whatever is in the index, or in its place: the verbs do what is right.
#[test]
fn a_lying_index_does_no_harm() {
    use std::os::unix::fs::FileExt;
    let lie = |what: &str, node: &Node| {
        let path = node.store().join(crate::index::INDEX);
        let file = fs::File::options().read(true).write(true).open(&path).unwrap();
        let length = file.metadata().unwrap().len();
        match what {
            // In place, so that the header stays true.
            "knows nothing" => file.write_all_at(&vec![0; length as usize - 80], 80).unwrap(),
            "garbage" => file.write_all_at(&vec![0xa5; length as usize - 80], 80).unwrap(),
            // Every slot names c1 and an address that is old0's.
            "somebody else's" => {
                let mut slot = [0; 32];
                slot[..8].copy_from_slice(&crate::index::key("c1").to_le_bytes());
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
        "a directory",
        "a pipe",
    ] {
        let node = indexed();
        lie(what, &node);
        check(&node, "c1").unwrap();
        assert!(check(&node, "c2").is_err(), "{what}");
        // The next in turn is taken by somebody whom the index can't know.
        fs::write(node.store().join("last_reserved_ip.0"), "10.0.0.40").unwrap();
        assert_eq!(node.add("c2").unwrap(), ["10.0.0.83"], "{what}");
        node.del("c1");
        node.del("c2");
        let left = node.leases();
        assert_eq!(left.len(), 80, "{what}: {left:?}");
        assert!(left.contains(&"10.0.0.2".to_owned()), "{what}");
    }
}

/// An ADD that failed has left the index stale, not wrong.
#[test]
fn undo_makes_the_index_stale() {
    let node = indexed();
    let call = node.call(Command::Add, "c2", "eth0");
    HostLocal.add(&call).unwrap();
    assert!(asks_the_index(&node));
    call.undo.rollback();
    assert!(!asks_the_index(&node));
    assert!(check(&node, "c2").is_err());
    node.add("c2").unwrap();
}

#[test]
fn with_few_leases_there_is_no_index() {
    let node = indexed();
    for n in 0..70 {
        fs::remove_file(node.store().join(format!("10.0.0.{}", n + 2))).unwrap();
    }
    node.add("c2").unwrap();
    assert!(!node.names().iter().any(|name| name == crate::index::INDEX));
}
