//! Pod lives one after the other: files, rules, memory and kernel objects don't grow.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;

use serde_json::json;

use cnimble_tests::{Attachment, Host, PATIENCE, Pod, Snapshot, announce, leases, need, wait_until};

use super::chain::{Chain, Set};
use super::number;

/// The chain with both families.
fn chain(host: &Host) -> Chain<'_> {
    let bridge = json!({
        "type": "bridge", "bridge": "br0", "isGateway": true, "ipMasq": true, "macspoofchk": true,
        "ipam": {
            "type": "host-local", "dataDir": host.data_dir(),
            "ranges": [[{"subnet": "10.216.0.0/22"}], [{"subnet": "fd00:216::/64"}]],
        },
    });
    let limits = json!({
        "type": "bandwidth", "ingressRate": 80_000_000, "ingressBurst": 8_000_000,
        "egressRate": 80_000_000, "egressBurst": 8_000_000,
    });
    let tuning = json!({
        "type": "tuning", "dataDir": tuning_dir(host), "sysctl": {"net.ipv4.conf.IFNAME.arp_filter": "1"},
    });
    let others = ["portmap", "firewall"].map(|name| json!({"type": name}));
    let [portmap, firewall] = others;
    Chain { host, name: "soak", plugins: vec![bridge, portmap, firewall, tuning, limits] }
}

/// Where tuning keeps what it has changed, so that no other test on the machine counts.
fn tuning_dir(host: &Host) -> PathBuf {
    host.dir().join("tuning")
}

/// What may grow, by name.
type Sizes = BTreeMap<&'static str, u64>;

fn sizes(host: &Host) -> Sizes {
    // Waits until the kernel has done its part.
    Snapshot::of(host);
    let mut sizes = Sizes::new();
    let files = leases(&host.data_dir());
    sizes.insert("files", files.len() as u64);
    sizes.insert("bytes in files", files.iter().map(|line| line.len() as u64).sum());
    sizes.insert("rule lines", host.nft("list ruleset").lines().count() as u64);
    sizes.insert("links", host.links().len() as u64);
    // What the kernel has learnt it forgets by itself (arp(7), gc_thresh1 to 3).
    sizes.insert("neighbours", host.ip("neigh show nud permanent").lines().count() as u64);
    sizes.insert("routes", host.ip("route show table all").lines().count() as u64);
    let tuned = fs::read_dir(tuning_dir(host)).map_or(0, Iterator::count);
    sizes.insert("backups of tuning", tuned as u64);
    sizes
}

/// Of the whole machine, in KiB: other tests run beside this one, so it is told and not judged.
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
    let lives = number("CNIMBLE_SOAK_LIVES", 200);
    let host = Host::hasty();
    let chain = chain(&host);
    // One that stays, so that what pods share does.
    let (resident, pod) = (Pod::new(), Pod::new());
    let stays = Attachment::new("resident", &resident);
    let result = chain.add(Set::Ours, &stays, 8000).unwrap();
    let life = |number: u64, kept: &Pod| {
        // Every eighth in a namespace of its own that is gone before DEL.
        let own = number.is_multiple_of(8).then(Pod::new);
        let attachment = Attachment::new(&format!("life-{number}"), own.as_ref().unwrap_or(kept));
        let port = 8001 + u16::try_from(number % 1000).unwrap();
        let result = chain.add(Set::Ours, &attachment, port).unwrap();
        if number.is_multiple_of(16) {
            chain.check(Set::Ours, &attachment, port, &result).unwrap();
        }
        drop(own);
        // Every fourth without the result.
        chain.del(Set::Ours, &attachment, port, Some(&result).filter(|_| !number.is_multiple_of(4))).unwrap();
    };
    // The first ones make what is made once.
    let settled = |wanted: Option<&Sizes>| {
        let mut now = sizes(&host);
        wait_until(PATIENCE, || {
            now = sizes(&host);
            wanted.is_none_or(|wanted| now == *wanted)
        });
        now
    };
    (0..lives.min(64)).for_each(|number| life(number, &pod));
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
    // An address may have more digits than another.
    let mut before = before;
    for sizes in [&mut before, &mut after] {
        sizes.remove("bytes in files");
    }
    assert_eq!(before, after);
    chain.check(Set::Ours, &stays, 8000, &result).unwrap();
    chain.del(Set::Ours, &stays, 8000, Some(&result)).unwrap();
    assert_eq!(host.nft("list ruleset"), "");
    drop(resident);
}
