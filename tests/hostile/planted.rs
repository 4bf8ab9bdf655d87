//! Foreign objects in the plugins' directories: links, pipes, devices, directories and sockets, endless files and files
//! of another owner. The plugins follow no link, wait for nothing, and neither read nor write anything outside.

use std::collections::BTreeMap;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink};
use std::path::{Path, PathBuf};

use nix::sys::stat::{Mode, SFlag, makedev, mknod};
use serde_json::json;

use cnimble_tests::{Attachment, Host, Network, Outcome, Pod, configs, need};

const SECRET: &str = "c1\r\neth0";

/// The kinds of foreign objects.
const KINDS: &[&str] =
    &["link", "dangling", "pipe", "directory", "full", "socket", "endless", "zero", "large", "strange"];

/// Creates one of them at `path`. The targets of links are in `outside`.
fn plant(kind: &str, path: &Path, outside: &Path) {
    let secret = outside.join("secret");
    match kind {
        "link" => {
            std::fs::write(&secret, SECRET).unwrap();
            symlink(&secret, path).unwrap();
        }
        "dangling" => symlink(outside.join("nowhere"), path).unwrap(),
        "pipe" => nix::unistd::mkfifo(path, Mode::S_IRWXU).unwrap(),
        "directory" => std::fs::create_dir(path).unwrap(),
        "full" => {
            std::fs::create_dir(path).unwrap();
            std::fs::write(path.join("file"), "x").unwrap();
        }
        "socket" => drop(std::os::unix::net::UnixListener::bind(path).unwrap()),
        "endless" => mknod(path, SFlag::S_IFCHR, Mode::S_IRWXU, makedev(1, 5)).unwrap(),
        "zero" => mknod(path, SFlag::S_IFCHR, Mode::S_IRWXU, makedev(1, 7)).unwrap(),
        // Uses no space on the disk, and all memory if it is read.
        "large" => std::fs::File::create(path).unwrap().set_len(64 << 30).unwrap(),
        "strange" => {
            std::fs::write(path, b"\xff\xfe\0{{[[\r\n\r\n").unwrap();
            std::fs::set_permissions(path, PermissionsExt::from_mode(0o6777)).unwrap();
            chown(path, Some(65534), Some(65534)).unwrap();
        }
        other => panic!("{other}"),
    }
}

/// Checks the files outside of the tested directory.
fn outside_is_untouched(outside: &Path, what: &str) {
    if let Ok(text) = std::fs::read_to_string(outside.join("secret")) {
        assert_eq!(text, SECRET, "{what}: the target of a link was written");
    }
    assert!(!outside.join("nowhere").exists(), "{what}: a file was made behind a dangling link");
}

/// Returns the name, kind and inode of everything in a directory that must stay.
fn listing(dir: &Path) -> BTreeMap<PathBuf, (u32, u64)> {
    std::fs::read_dir(dir)
        .unwrap()
        .map(|entry| {
            let meta = std::fs::symlink_metadata(entry.as_ref().unwrap().path()).unwrap();
            (entry.unwrap().path(), (meta.mode(), meta.ino()))
        })
        .collect()
}

struct Store {
    host: Host,
    pod: Pod,
}

impl Store {
    /// Returns a network's directory with one lease in it, that of container c0.
    fn new() -> Self {
        let store = Store { host: Host::new(), pod: Pod::new() };
        store.run("ADD", "c0").result();
        std::fs::create_dir(store.outside()).unwrap();
        store
    }

    fn dir(&self) -> PathBuf {
        self.host.data_dir().join("net4")
    }

    fn outside(&self) -> PathBuf {
        self.host.dir().join("outside")
    }

    fn run(&self, verb: &str, id: &str) -> Outcome {
        let net = Network::new(&self.host, configs::ipam(&self.host));
        net.call(verb, &Attachment::new(id, &self.pod), None).run()
    }

    fn gc(&self) -> Outcome {
        let mut config = configs::ipam(&self.host);
        config["cni.dev/valid-attachments"] = json!([{"containerID": "c0", "ifname": "eth0"}]);
        self.host.call("host-local").command("GC").config(&config).run()
    }
}

#[test]
fn under_the_name_of_a_lease() {
    need!();
    for kind in KINDS {
        let store = Store::new();
        let path = store.dir().join("10.1.2.3");
        plant(kind, &path, &store.outside());
        let before = listing(&store.dir());
        // An unreadable object counts as a taken address. A file without an owner counts as unused.
        let ip = store.run("ADD", "c1").result()["ips"][0]["address"].clone();
        assert_eq!(ip, if *kind == "strange" { "10.1.2.3/24" } else { "10.1.2.4/24" }, "{kind}");
        store.run("DEL", "c1").success();
        store.run("STATUS", "").success();
        store.gc().success();
        outside_is_untouched(&store.outside(), kind);
        let now = listing(&store.dir());
        assert!(now.contains_key(&store.dir().join("10.1.2.2")), "{kind}: the valid lease is gone");
        if *kind != "strange" {
            assert_eq!(now.get(&path), before.get(&path), "{kind} at {}", path.display());
        }
    }
}

#[test]
fn under_the_name_of_the_last_address() {
    need!();
    for kind in KINDS {
        let store = Store::new();
        let path = store.dir().join("last_reserved_ip.0");
        std::fs::remove_file(&path).unwrap();
        plant(kind, &path, &store.outside());
        let outcome = store.run("ADD", "c1");
        match *kind {
            // A file cannot replace a directory.
            "directory" | "full" => assert_eq!(outcome.error().code, 5, "{kind}"),
            _ => assert_eq!(outcome.result()["ips"][0]["address"], "10.1.2.3/24", "{kind}"),
        }
        store.run("STATUS", "").success();
        store.run("DEL", "c1").success();
        assert!(!store.dir().join("10.1.2.3").exists(), "{kind}");
        outside_is_untouched(&store.outside(), kind);
    }
}

/// A hard link shares its content with a file somewhere else.
#[test]
fn a_hard_link_is_not_written_through() {
    need!();
    for content in ["", "x", "10.1.2.2", "10.1.2.222"] {
        let store = Store::new();
        let (path, other) = (store.dir().join("last_reserved_ip.0"), store.outside().join("precious"));
        std::fs::remove_file(&path).unwrap();
        std::fs::write(&other, content).unwrap();
        std::fs::hard_link(&other, &path).unwrap();
        store.run("ADD", "c1").result();
        assert_eq!(std::fs::read_to_string(&other).unwrap(), content);
    }
}

#[test]
fn under_the_name_of_the_lock() {
    need!();
    for kind in KINDS {
        let store = Store::new();
        let path = store.dir().join("lock");
        std::fs::remove_file(&path).unwrap();
        plant(kind, &path, &store.outside());
        let before = listing(&store.dir()).remove(&path);
        let add = store.run("ADD", "c1");
        assert!(add.status == 0 || add.error().code == 5, "{kind}: {}", add.describe());
        let del = store.run("DEL", "c1");
        assert_eq!(del.status, add.status, "{kind}: {}", del.describe());
        outside_is_untouched(&store.outside(), kind);
        assert_eq!(listing(&store.dir()).remove(&path), before, "{kind}");
        assert!(!store.dir().join("10.1.2.3").exists(), "{kind}");
    }
}

#[test]
fn under_the_name_of_the_index_and_of_unfinished_files() {
    need!();
    for kind in KINDS {
        let store = Store::new();
        // Enough leases for an index.
        for number in 0..70 {
            std::fs::write(store.dir().join(format!("10.1.2.{}", 100 + number)), "other\r\neth0").unwrap();
        }
        let _ = std::fs::remove_file(store.dir().join(".cnimble-index"));
        plant(kind, &store.dir().join(".cnimble-index"), &store.outside());
        for number in 0..20 {
            let outside = store.outside().join(number.to_string());
            std::fs::create_dir(&outside).unwrap();
            plant(kind, &store.dir().join(format!(".cnimble-new-{number}-0")), &outside);
        }
        let ip = store.run("ADD", "c1").result()["ips"][0]["address"].clone();
        assert_eq!(ip, "10.1.2.3/24", "{kind}");
        store.run("DEL", "c1").success();
        assert!(!store.dir().join("10.1.2.3").exists(), "{kind}");
        outside_is_untouched(&store.outside(), kind);
        for number in 0..20 {
            outside_is_untouched(&store.outside().join(number.to_string()), kind);
        }
    }
}

/// Names that are no addresses, some of them not valid text, and leases of another program.
#[test]
fn beside_the_leases() {
    need!();
    use std::os::unix::ffi::OsStrExt;
    let store = Store::new();
    let names: Vec<&[u8]> = vec![
        b"\xff\xfe",
        b"10.1.2.3 ",
        b" 10.1.2.3",
        b"010.1.2.3",
        b"::ffff:10.1.2.3",
        b"10.1.2.3\n",
        b"-rf",
    ];
    for name in names {
        std::fs::write(store.dir().join(std::ffi::OsStr::from_bytes(name)), SECRET).unwrap();
    }
    for number in 0..3000 {
        std::fs::write(store.dir().join(format!("junk{number}")), SECRET).unwrap();
    }
    std::fs::write(store.dir().join("10.1.2.4"), SECRET).unwrap();
    chown(store.dir().join("10.1.2.4"), Some(65534), Some(65534)).unwrap();
    let before = listing(&store.dir()).len();
    assert_eq!(store.run("ADD", "c2").result()["ips"][0]["address"], "10.1.2.3/24");
    assert_eq!(store.run("ADD", "c3").result()["ips"][0]["address"], "10.1.2.5/24");
    store.run("DEL", "c2").success();
    store.run("DEL", "c3").success();
    assert_eq!(listing(&store.dir()).len(), before);
}

/// The directory itself may be a link, as an administrator can move a store that way.
#[test]
fn in_the_place_of_the_directory() {
    need!();
    for kind in ["pipe", "socket", "endless", "large", "dangling"] {
        let store = Store { host: Host::new(), pod: Pod::new() };
        std::fs::create_dir_all(store.host.data_dir()).unwrap();
        std::fs::create_dir(store.outside()).unwrap();
        plant(kind, &store.dir(), &store.outside());
        let before = listing(&store.host.data_dir());
        let code = store.run("ADD", "c1").error().code;
        assert!([5, 11].contains(&code), "{kind}: {code}");
        store.run("DEL", "c1").success();
        outside_is_untouched(&store.outside(), kind);
        assert_eq!(listing(&store.host.data_dir()), before, "{kind}");
    }
}

/// tuning's file with the old values, and its temporary name.
#[test]
fn where_tuning_keeps_its_files() {
    need!("ip");
    for kind in KINDS {
        let host = Host::new();
        let pod = Pod::new();
        let (dir, outside) = (host.dir().join("tuning"), host.dir().join("outside"));
        std::fs::create_dir(&dir).unwrap();
        std::fs::create_dir(&outside).unwrap();
        let file = dir.join("c1_lo.json");
        let fresh = dir.join(format!(".{}", cnimble_cni::hash16(file.to_str().unwrap())));
        let config =
            json!({"cniVersion": "1.1.0", "name": "net", "type": "tuning", "mtu": 1400, "dataDir": dir});
        let prev = json!({"cniVersion": "1.1.0", "interfaces": [{"name": "lo", "sandbox": pod.path()}]});
        let net = Network::new(&host, config.clone());
        let att = Attachment::new("c1", &pod).ifname("lo");
        let run = |verb: &str| net.call(verb, &att, Some(&prev)).run();
        for path in [&fresh, &file] {
            let what = format!("{kind} at {}", path.display());
            plant(kind, path, &outside);
            let add = run("ADD");
            assert!(add.status == 0 || add.error().code == 5, "{what}: {}", add.describe());
            let del = run("DEL");
            assert!(del.status == 0 || del.error().code == 5, "{what}: {}", del.describe());
            assert_eq!(pod.link("lo")["mtu"], 65536, "{what}");
            let mut gc = config.clone();
            gc["cni.dev/valid-attachments"] = json!([]);
            host.call("tuning").command("GC").config(&gc).run().success();
            outside_is_untouched(&outside, &what);
            let _ = std::fs::remove_file(path);
            let _ = std::fs::remove_dir_all(path);
            let _ = std::fs::remove_file(outside.join("secret"));
        }
    }
}

/// resolvConf names a file that the plugin reads as root. Its content is not disclosed unless it is a resolv.conf, and
/// an endless file is not read to the end.
#[test]
fn in_the_place_of_resolv_conf() {
    need!();
    for kind in ["dangling", "pipe", "directory", "socket", "endless", "zero", "large"] {
        let store = Store::new();
        let path = store.outside().join("resolv.conf");
        plant(kind, &path, &store.outside());
        let net = Network::new(&store.host, configs::ipam(&store.host)).with("/ipam/resolvConf", json!(path));
        let call = net.call("ADD", &Attachment::new("c1", &store.pod), None);
        assert_eq!(call.run().error().code, 5, "{kind}");
        store.run("DEL", "c1").success();
    }
    let store = Store::new();
    let net = Network::new(&store.host, configs::ipam(&store.host));
    let shadow = store.outside().join("shadow");
    std::fs::write(&shadow, "root:$y$j9T$secret:20000:0:99999:7:::\n").unwrap();
    let result = net.with("/ipam/resolvConf", json!(shadow)).added(&Attachment::new("c1", &store.pod));
    assert!(!result.to_string().contains("secret"), "{result}");
}
