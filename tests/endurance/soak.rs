//! Pods in sequence: files, rules, memory and kernel objects don't grow.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;

use cnimble_tests::{
    Attachment, Host, PATIENCE, Pod, Role, Sample, Snapshot, announce, leases, need, wait_until,
};

use super::chain::{Chain, Part, Set};
use super::number;

/// Returns a chain of bridge with both address families, and every chained plugin.
fn chain(host: &Host) -> Chain<'_> {
    let chained = Sample::with(Role::Chained).filter(|sample| sample.missing().is_none());
    let plugins = std::iter::once(Sample::of("bridge")).chain(chained).map(Part::Sample).collect();
    Chain { host, name: "soak", plugins }
}

/// Returns the directory of tuning's backups, separate from those of other tests on the machine.
fn tuning_dir(host: &Host) -> PathBuf {
    host.data_dir().join("tuning")
}

/// The sizes that must not grow, by name.
type Sizes = BTreeMap<&'static str, u64>;

fn sizes(host: &Host) -> Sizes {
    // Waits until the kernel has finished its work.
    Snapshot::of(host);
    let mut sizes = Sizes::new();
    let files = leases(&host.data_dir());
    sizes.insert("files", files.len() as u64);
    sizes.insert("bytes in files", files.iter().map(|line| line.len() as u64).sum());
    sizes.insert("rule lines", host.nft("list ruleset").lines().count() as u64);
    sizes.insert("links", host.links().len() as u64);
    // The kernel forgets learned neighbours by itself (arp(7), gc_thresh1 to 3).
    sizes.insert("neighbours", host.ip("neigh show nud permanent").lines().count() as u64);
    sizes.insert("routes", host.ip("route show table all").lines().count() as u64);
    let tuned = fs::read_dir(tuning_dir(host)).map_or(0, Iterator::count);
    sizes.insert("backups of tuning", tuned as u64);
    sizes
}

/// Returns memory figures of the whole machine in KiB. Other tests run at the same time, so they are only reported.
fn memory() -> BTreeMap<String, i64> {
    let text = fs::read_to_string("/proc/meminfo").unwrap();
    let wanted = ["Slab", "SUnreclaim", "Percpu", "KernelStack", "PageTables", "VmallocUsed"];
    text.lines()
        .filter_map(|line| {
            let (name, value) = line.split_once(':')?;
            let number = value.split_whitespace().next()?.parse().ok()?;
            wanted.contains(&name).then(|| (name.to_owned(), number))
        })
        .collect()
}

#[test]
fn soak_of_pod_lives_lets_nothing_grow() {
    need!("ip", "nft");
    let lives = number("CNIMBLE_SOAK_LIVES", 48);
    let host = Host::hasty();
    let chain = chain(&host);
    // An attachment that stays keeps the shared state.
    let (resident, pod) = (Pod::new(), Pod::new());
    let stays = Attachment::new("resident", &resident);
    let result = chain.add(Set::Ours, &stays, 0).unwrap();
    let life = |number: u64, kept: &Pod| {
        // Every eighth pod has a separate namespace that is removed before DEL.
        let own = number.is_multiple_of(8).then(Pod::new);
        let attachment = Attachment::new(&format!("life-{number}"), own.as_ref().unwrap_or(kept));
        let port = 1 + u16::try_from(number % 1000).unwrap();
        let result = chain.add(Set::Ours, &attachment, port).unwrap();
        if number.is_multiple_of(16) {
            chain.check(Set::Ours, &attachment, port, &result).unwrap();
        }
        drop(own);
        // Every fourth DEL has no result.
        chain.del(Set::Ours, &attachment, port, Some(&result).filter(|_| !number.is_multiple_of(4))).unwrap();
    };
    // The first pods create the state that is created only once.
    let settled = |wanted: Option<&Sizes>| {
        let mut now = sizes(&host);
        wait_until(PATIENCE, || {
            now = sizes(&host);
            wanted.is_none_or(|wanted| now == *wanted)
        });
        now
    };
    (0..lives.min(24)).for_each(|number| life(number, &pod));
    let (before, memory_before) = (settled(None), memory());
    announce("NOTE", &format!("before {lives} lives: {before:?}; KiB of the machine: {memory_before:?}"));
    for number in 0..lives {
        life(number, &pod);
        if (number + 1).is_multiple_of(1000) {
            announce("NOTE", &format!("{} lives; KiB of the machine: {:?}", number + 1, memory()));
        }
    }
    let mut after = settled(Some(&before));
    announce("NOTE", &format!("after {lives} lives: {after:?}; KiB of the machine: {:?}", memory()));
    // One address may have more digits than another.
    let mut before = before;
    for sizes in [&mut before, &mut after] {
        sizes.remove("bytes in files");
    }
    assert_eq!(before, after);
    chain.check(Set::Ours, &stays, 0, &result).unwrap();
    chain.del(Set::Ours, &stays, 0, Some(&result)).unwrap();
    // A bridge's policy stays as long as the bridge may get another pod.
    chain.gc(&[]).unwrap();
    assert_eq!(host.nft("list ruleset"), "");
    drop(resident);
}
