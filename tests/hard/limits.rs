//! Machines at their limits: no more processes, no more memory, files that don't survive a reboot, a wrong clock.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use cnimble_tests::{
    Attachment, Call, Host, Network, PATIENCE, Pod, Snapshot, cgroup_name, configs, leases, need, skip,
    unique, vm, wait_until,
};
use serde_json::json;

use crate::{End, Feature, all};

/// Returns true in a machine of `scripts/kernels`, which has a separate clock.
pub(crate) fn is_booted() -> bool {
    vm::inside() && Path::new("/run/vm/session").exists()
}

/// Leases belong to a boot, not to a time. At any clock setting a pod keeps its address, and no other pod gets it.
pub(crate) fn clock_set_back_and_forward() -> End {
    let host = Host::new();
    let net = Network::new(&host, configs::v4(&host));
    let pods = [Pod::new(), Pod::new(), Pod::new()];
    let atts: Vec<Attachment> =
        pods.iter().enumerate().map(|(at, pod)| Attachment::new(&format!("clock{at}"), pod)).collect();
    let mut results = Vec::new();
    for (att, days) in atts.iter().zip([-1, 2, -1]) {
        let result = net.added(att);
        assert!(!results.contains(&result), "{result} is another's");
        results.push(result);
        host.shell(&format!("date -s @$(($(date +%s) + {days} * 86400))"));
        let valid: Vec<_> = atts.iter().take(results.len()).map(Attachment::listed).collect();
        net.gc(Some(json!(valid))).success();
        for (att, result) in atts.iter().zip(&results) {
            net.check(att, result).success();
        }
    }
    for (att, result) in atts.iter().zip(&results) {
        net.deleted(att, Some(result));
    }
    let left = leases(&host.data_dir());
    assert!(!left.iter().any(|line| line.contains("/10.1.2.")), "{left:?}");
    Ok(())
}

/// A separate cgroup with a limit, removed at the end.
struct Group(PathBuf);

impl Group {
    /// Creates a cgroup with this value in the limit's file. The first name is that of cgroup v1, the second that of
    /// v2.
    fn new(controller: &str, files: [&str; 2], limit: u64) -> Option<Self> {
        let name = cgroup_name(&unique(controller));
        let top = Path::new("/sys/fs/cgroup");
        for (dir, file) in [top.join(controller), top.to_owned()].into_iter().zip(files) {
            let dir = dir.join(&name);
            if std::fs::create_dir(&dir).is_err() {
                continue;
            }
            let group = Group(dir);
            if std::fs::write(group.0.join(file), limit.to_string()).is_ok() {
                return Some(group);
            }
        }
        None
    }

    /// Runs a call in the cgroup.
    fn wrap<'c>(&self, call: Call<'c>) -> Call<'c> {
        let line = format!("echo 0 >{}/cgroup.procs && exec \"$0\"", self.0.display());
        call.under(&["/bin/sh", "-c", &line])
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        wait_until(PATIENCE, || std::fs::remove_dir(&self.0).is_ok());
    }
}

/// `kernel.pid_max` or a limit of the cgroup is reached, and fork(2) returns EAGAIN.
#[test]
fn where_no_process_can_be_started_only_what_needs_a_command_is_refused() {
    need!("ip", "nft");
    let Some(group) = Group::new("pids", ["pids.max", "pids.max"], 1) else {
        skip!("no cgroup with pids.max can be made here");
    };
    let part = |feature: &Feature| {
        ["bridge ipMasq", "ptp ipMasq", "bandwidth", "tuning"].contains(&feature.name)
            || feature.name.starts_with("portmap")
            || feature.name.starts_with("firewall")
    };
    // Removals try to start a child, too.
    let ends = all(part, &|call| group.wrap(call.env("CNIMBLE_DEL_WAIT", "0")));
    let unexpected =
        |why: &&String| !why.contains("EAGAIN") && !why.contains("Resource temporarily unavailable");
    assert_eq!(ends.wrong.iter().find(unexpected), None);
    assert_eq!(ends.refused, ["portmap iptables", "firewall iptables"]);
}

/// The kernel kills a process that exceeds its cgroup's limit, or refuses its request.
#[test]
fn where_memory_ends_a_del_with_memory_removes_all() {
    need!("ip", "nft");
    let host = Host::hasty();
    let net = Network::new(&host, configs::dual(&host)).with("/ipMasq", json!(true));
    let stays = Pod::new();
    net.added(&Attachment::new("stays", &stays));
    // The last address isn't restored.
    let look = || Snapshot::settled(&host).without_lines("last_reserved_ip");
    let before = look();
    let mut ends = BTreeSet::new();
    for kib in [128, 256, 384, 512, 640, 768, 896, 1024, 1280, 1536, 2048, 4096, 16384] {
        let Some(group) = Group::new("memory", ["memory.limit_in_bytes", "memory.max"], kib << 10) else {
            skip!("no cgroup with a limit of memory can be made here");
        };
        let pod = Pod::new();
        let att = Attachment::new("starved", &pod);
        let added = group.wrap(net.call("ADD", &att, None)).run();
        let deleted = group.wrap(net.call("DEL", &att, None)).run();
        for outcome in [&added, &deleted] {
            // A failure is one error. A killed shell prints nothing.
            if ![0, -9].contains(&outcome.status) && !outcome.stdout.is_empty() {
                outcome.try_error().unwrap_or_else(|why| panic!("{kib} KiB: {why}"));
            }
        }
        ends.insert(added.status == 0);
        net.deleted(&att, None);
        before.assert_same(&look(), &format!("{kib} KiB"));
    }
    assert_eq!(ends, BTreeSet::from([false, true]), "the limits are all too high, or all too low");
}

/// A node with /var on a tmpfs has no leases after a boot, and no pods either.
#[test]
fn with_leases_on_a_tmpfs_all_works() {
    need!("ip");
    let Ok(dir) = tempfile::tempdir_in("/dev/shm") else { skip!("no /dev/shm here") };
    let mut host = Host::new();
    for _boot in 0..2 {
        let net = Network::new(&host, configs::v4(&host)).with("/ipam/dataDir", json!(dir.path()));
        let pods = [Pod::new(), Pod::new()];
        let atts = [Attachment::new("one", &pods[0]), Attachment::new("two", &pods[1])];
        let results = atts.each_ref().map(|att| net.added(att));
        assert_ne!(results[0]["ips"], results[1]["ips"]);
        net.gc(Some(json!([atts[0].listed()]))).success();
        net.check(&atts[0], &results[0]).success();
        assert_ne!(net.check(&atts[1], &results[1]).status, 0);
        net.deleted(&atts[1], Some(&results[1]));
        // Its state is lost with the boot.
        std::fs::remove_dir_all(dir.path().join("net4")).unwrap();
        host.reboot();
        let net = Network::new(&host, configs::v4(&host)).with("/ipam/dataDir", json!(dir.path()));
        net.deleted(&atts[0].clone().netns(""), Some(&results[0]));
    }
}
