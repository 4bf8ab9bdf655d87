//! The power fails: unsynced data is lost, and the machine boots again.
//!
//! The plugins sync nothing (docs/RELIABILITY.md gives the reason). One disk goes through all cuts, and after each cut:
//!
//! - Every address of the range is assigned once.
//! - A late DEL of a pod of an earlier boot takes nothing from a pod of this boot.
//! - GC keeps what belongs to living pods.
//! - An empty entry of the cache does not stop the command.

use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::time::{Duration, Instant};

use nix::fcntl::AtFlags;
use nix::unistd::linkat;
use serde_json::{Value, json};

use cnimble_tests::trace::{Fate, untraceable};
use cnimble_tests::{
    Attachment, Host, Network, Outcome, Pod, announce, command, configs, missing, need, plugin_dir,
    sample_size, skip,
};

use crate::disk::{BTRFS, Cut, Disk, EXT4, EXT4_WRITEBACK, FileSystem, XFS};
use crate::points::{Chance, seed};

/// The number of pod addresses in a /28.
const ROOM: usize = 13;

/// The number of pods that live when the power fails.
const LIVING: usize = 4;

/// The counts of a run.
#[derive(Debug, Default)]
struct Count {
    cuts: usize,
    /// The lease files after a cut, and how many of them are empty.
    leases: usize,
    empty: usize,
    /// The cache entries that a DEL could not use.
    corrupt: usize,
}

/// The node that uses the disk.
struct Machine {
    disk: Disk,
    host: Host,
    /// The address of each container.
    living: BTreeMap<String, String>,
    count: Count,
}

impl Machine {
    fn net(&self) -> Network<'_> {
        let mut config = configs::ipam(&self.host);
        config["ipam"]["dataDir"] = json!(self.disk.path().join("networks"));
        config["ipam"]["ranges"] = json!([[{"subnet": "10.1.2.0/28"}]]);
        Network::new(&self.host, config)
    }

    /// Returns the content of each lease file.
    fn leases(&self) -> BTreeMap<String, String> {
        let Ok(entries) = fs::read_dir(self.disk.path().join("networks/net4")) else {
            return BTreeMap::new();
        };
        let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        let read = |name: String| {
            let path = self.disk.path().join("networks/net4").join(&name);
            (name, String::from_utf8_lossy(&fs::read(path).unwrap()).into_owned())
        };
        names.filter(|name| name.starts_with("10.")).map(read).collect()
    }

    fn attachment(id: &str) -> Attachment {
        // host-local opens no namespace.
        Attachment { id: id.into(), netns: "/proc/none".into(), ifname: "eth0".into(), args: String::new() }
    }

    /// Calls ADD, which must succeed with an address that no living pod has.
    fn add(&mut self, id: &str) {
        let result = self.net().added(&Self::attachment(id));
        let ip = result["ips"][0]["address"].as_str().unwrap().split('/').next().unwrap().to_owned();
        let twice = self.living.iter().find(|(_, other)| **other == ip);
        assert!(twice.is_none(), "{ip} is given to {id}, and {twice:?} has it");
        self.living.insert(id.to_owned(), ip);
    }

    fn del(&mut self, id: &str) {
        self.net().deleted(&Self::attachment(id), None);
        self.living.remove(id);
    }

    /// Checks that every living pod has its lease.
    fn assert_leased(&self, when: &str) {
        let leases = self.leases();
        for (id, ip) in &self.living {
            let content = leases.get(ip).map_or("", String::as_str);
            assert_eq!(content, format!("{id}\r\neth0"), "{when}: the lease of {ip}");
        }
    }

    /// Runs one boot: fills the node, and cuts the power during a verb.
    fn boot(&mut self, n: usize, cut: Cut, chance: &mut Chance) {
        let boots = self.disk.boots;
        while self.living.len() < LIVING {
            self.add(&format!("boot{boots}-{}", self.living.len()));
        }
        if chance.below(2) == 0 {
            let att = Self::attachment("victim");
            self.net().call("ADD", &att, None).traced(&Fate::KilledAt(n));
        } else {
            let id = self.living.keys().next().unwrap().clone();
            self.net().call("DEL", &Self::attachment(&id), None).traced(&Fate::KilledAt(n));
        }
        self.disk.cut(cut, chance);
        self.count.cuts += 1;
        let mut old = std::mem::take(&mut self.living);
        let leases = self.leases();
        self.count.leases += leases.len();
        self.count.empty += leases.values().filter(|content| content.is_empty()).count();

        // A container that comes back, and others until the range is full.
        let back = old.pop_first().unwrap().0;
        self.add(&back);
        self.add("victim");
        while self.living.len() < ROOM {
            self.add(&format!("boot{}-{}", self.disk.boots, self.living.len()));
        }
        let full = self.net().add(&Self::attachment("one-too-many")).error();
        assert_eq!(full.code, 101, "{}", full.all());
        self.assert_leased("when the range is full");
        // The runtime deletes pods of the last boot.
        for id in old.keys() {
            self.net().deleted(&Self::attachment(id), None);
        }
        self.assert_leased("after DEL of pods of the last boot");
        for id in self.living.keys().skip(LIVING).cloned().collect::<Vec<_>>() {
            self.del(&id);
        }
        let valid: Vec<Value> = self.living.keys().map(|id| Self::attachment(id).listed()).collect();
        assert_eq!(self.net().gc(Some(json!(valid))).success().stdout, b"");
        self.assert_leased("after GC");
        assert_eq!(self.leases().len(), LIVING, "after GC");
    }
}

/// Prints how long it takes to sync a new lease, on the disk of /var/tmp.
fn tell_cost() {
    let dir = tempfile::tempdir_in("/var/tmp").unwrap();
    let folder = fs::File::open(dir.path()).unwrap();
    for (how, file, directory) in
        [("not at all", false, false), ("the file", true, false), ("file and directory", true, true)]
    {
        let mut times: Vec<Duration> = (0..101)
            .map(|n| {
                let start = Instant::now();
                let lease =
                    fs::File::options().write(true).custom_flags(libc::O_TMPFILE).open(dir.path()).unwrap();
                (&lease).write_all(b"container\r\neth0").unwrap();
                if file {
                    lease.sync_all().unwrap();
                }
                let name = format!("{how}{n}");
                linkat(&lease, "", &folder, name.as_str(), AtFlags::AT_EMPTY_PATH).unwrap();
                if directory {
                    folder.sync_all().unwrap();
                }
                start.elapsed()
            })
            .collect();
        times.sort();
        announce(
            "NOTE",
            &format!("a lease synced {how}: median {:?} of {}", times[times.len() / 2], times.len()),
        );
    }
}

fn disk(fs: FileSystem) -> Result<Disk, String> {
    match untraceable() {
        Some(why) => Err(why),
        None => Disk::new(fs),
    }
}

/// Tests the address leases on this file system.
fn addresses(fs: FileSystem) {
    if let Some(why) = missing(&[&fs.mkfs(), "mount", "ip"]) {
        skip!("{why}");
    }
    let disk = match disk(fs) {
        Ok(disk) => disk,
        Err(why) => skip!("{why}"),
    };
    let mut machine = Machine { disk, host: Host::hasty(), living: BTreeMap::new(), count: Count::default() };
    let seed = seed();
    let mut chance = Chance::new(seed);
    let all =
        machine.net().call("ADD", &Machine::attachment("first"), None).traced(&Fate::Watched).1.calls.len();
    machine.del("first");
    announce("NOTE", &format!("seed {seed}, {fs}"));
    // The last points are after the end: the verb is done, and its result is printed.
    let points: Vec<usize> = chance.some((0..all + 20).collect(), sample_size(10));
    for cut in [Cut::Everything, Cut::Data] {
        for n in &points {
            machine.boot(*n, cut, &mut chance);
        }
    }
    announce("NOTE", &format!("{fs}: {:?}", machine.count));
    if points.len() > 50 {
        tell_cost();
    }
    assert!(machine.count.leases > 0, "nothing ever outlived a cut");
}

#[test]
fn no_address_is_given_twice_after_a_power_cut() {
    addresses(EXT4);
}

#[test]
fn nor_where_data_may_come_after_names() {
    addresses(EXT4_WRITEBACK);
}

#[test]
fn nor_on_xfs() {
    addresses(XFS);
}

#[test]
fn nor_on_btrfs() {
    addresses(BTRFS);
}

/// Runs `cnimble ARGS…` on a node with its cache and network on the disk.
fn cnimble(host: &Host, disk: &Path, args: &[&str]) -> Outcome {
    let mut call = host.command(command());
    call.args(args).arg("--cache-dir").arg(disk.join("cache"));
    call.env("CNI_PATH", plugin_dir()).env("NETCONFPATH", disk.join("net.d"));
    Outcome::of(&mut call)
}

#[test]
fn the_result_cache_never_stops_a_del() {
    need!("mkfs.ext4", "mount", "ip", "nft");
    let mut disk = match disk(EXT4) {
        Ok(disk) => disk,
        Err(why) => skip!("{why}"),
    };
    let seed = seed();
    let (mut chance, mut count) = (Chance::new(seed), Count::default());
    let first = Host::hasty();
    let mut bridge = configs::v4(&first);
    bridge["ipam"]["dataDir"] = json!(disk.path().join("networks"));
    let tuning = json!({"type": "tuning", "mtu": 1400, "dataDir": disk.path().join("tuning")});
    let (version, name) = (bridge["cniVersion"].clone(), bridge["name"].clone());
    fs::create_dir(disk.path().join("net.d")).unwrap();
    let list = json!({"cniVersion": version, "name": name, "plugins": [bridge, tuning]});
    fs::write(disk.path().join("net.d/net4.conflist"), list.to_string()).unwrap();
    nix::unistd::sync();
    for round in 0..sample_size(12).min(100) {
        // A reboot removes the whole network state.
        let (host, pod) = (Host::hasty(), Pod::new());
        let add = |id: &str| {
            cnimble(&host, &disk.path(), &["add", "net4", pod.path(), "--container-id", id]).success();
        };
        add("one");
        let cut = if round % 4 == 3 { Cut::Everything } else { Cut::Data };
        disk.cut(cut, &mut chance);
        count.cuts += 1;
        let host = Host::hasty();
        let gone = cnimble(&host, &disk.path(), &["del", "net4", "--container-id", "one"]).success();
        count.corrupt += usize::from(gone.stderr.contains("corrupt"));
        for (dir, what) in [("cache/results", "one"), ("tuning", "one")] {
            let Ok(entries) = fs::read_dir(disk.path().join(dir)) else { continue };
            let left: Vec<String> = entries
                .map(|entry| entry.unwrap().file_name().into_string().unwrap())
                .filter(|name| name.contains(what) && !name.starts_with(".corrupt-"))
                .collect();
            assert!(left.is_empty(), "{dir}: {left:?}");
        }
    }
    announce("NOTE", &format!("seed {seed}: {count:?}"));
}
