//! Concurrent and killed verbs, records of another build, and a read-only directory.

use std::path::Path;

use cnimble_tests::trace::{Fate, untraceable};
use cnimble_tests::{Call, Snapshot, need, skip};

use super::*;

/// CNIMBLE_STRESS sets another number.
fn rounds() -> usize {
    std::env::var("CNIMBLE_STRESS").ok().and_then(|count| count.parse().ok()).unwrap_or(20)
}

#[test]
fn an_add_concurrent_with_a_del_gets_the_device_whole_or_an_error() {
    let (host, pods) = (Host::hasty(), [Pod::new(), Pod::new()]);
    let _lan = card(&host);
    let before = Snapshot::of_ns(&host);
    let attachments = [attachment("c0", &pods[0]), attachment("c1", &pods[1])];
    network(&host).added(&attachments[0]);
    let mut at_once = 0;
    for round in 0..rounds() {
        let (old, new) = (&attachments[round % 2], &attachments[1 - round % 2]);
        let (deleted, added) = std::thread::scope(|scope| {
            let del = scope.spawn(|| network(&host).del(old, None));
            // At another moment of the DEL in each round.
            std::thread::sleep(std::time::Duration::from_millis(round as u64 * 3 % 40));
            let added = network(&host).add(new);
            (del.join().unwrap(), added)
        });
        deleted.success();
        let result = match added.status {
            0 => {
                at_once += 1;
                added.result()
            }
            _ => {
                refused(&added, 100, "device \"card\" is missing on the host");
                network(&host).added(new)
            }
        };
        network(&host).check(new, &result).success();
        assert_eq!(recorded(&host), 1, "round {round}");
    }
    cnimble_tests::announce("NOTE", &format!("{at_once} of {} ADDs succeeded beside the DEL", rounds()));
    network(&host).deleted(&attachments[rounds() % 2], None);
    before.assert_same(&Snapshot::of_ns(&host), "after all");
    assert_eq!((leases(&host), recorded(&host)), (Vec::new(), 0));
}

/// A pod tampers with the device. The next DEL completes the killed one's work.
#[test]
fn a_del_that_is_killed_anywhere_leaves_a_record_for_the_next_one() {
    if let Some(why) = untraceable() {
        skip!("{why}");
    }
    let host = Host::hasty();
    let _lan = card(&host);
    let before = Snapshot::of_ns(&host);
    let network = network(&host).with("/ipam", json!({}));
    let (mut at, mut met) = (0, true);
    while met {
        let pod = Pod::new();
        let attachment = attachment("c1", &pod);
        network.added(&attachment);
        pod.shell(
            "ip link set net1 promisc on txqueuelen 7 mtu 1300 alias x; ip link property add dev net1 altname y",
        );
        let call = network.call("DEL", &attachment, None);
        met = call.traced(&Fate::KilledAt(at)).1.met;
        network.deleted(&attachment, None);
        before.assert_same(&Snapshot::of_ns(&host), &format!("killed before call {at}, and the next DEL"));
        let files: Vec<_> = std::fs::read_dir(records(&host)).unwrap().collect();
        assert!(files.is_empty(), "{at}: {files:?}");
        at += STRIDE;
    }
    assert!(at > 10 * STRIDE, "{at} calls are too few");
}

/// tests/faults tries all system calls of a sample.
const STRIDE: usize = 7;

/// It has neither marks nor settings.
#[test]
fn the_record_of_the_build_before_is_understood() {
    for change in [
        "ip link set net1 down; ip link set net1 name other up",
        "ip link set net1 mtu 1300 address 02:00:00:00:00:01",
        "ip link set net1 alias x",
    ] {
        let (host, pod) = (Host::hasty(), Pod::new());
        let _lan = card(&host);
        let before = Snapshot::of_ns(&host);
        let attachment = attachment("c1", &pod);
        let result = network(&host).added(&attachment);
        let file = std::fs::read_dir(records(&host)).unwrap().next().unwrap().unwrap().path();
        let mut record: Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
        for key in ["marks", "settings"] {
            record.as_object_mut().unwrap().remove(key).unwrap();
        }
        let mut keys: Vec<_> = record.as_object().unwrap().keys().map(String::as_str).collect();
        keys.sort_unstable();
        assert_eq!(
            keys,
            [
                "addresses",
                "alias",
                "containerID",
                "ifname",
                "index",
                "kind",
                "mac",
                "mtu",
                "name",
                "netns",
                "network",
                "up"
            ]
        );
        std::fs::write(&file, record.to_string()).unwrap();
        network(&host).check(&attachment, &result).success();
        pod.shell(change);
        network(&host).deleted(&attachment, Some(&result));
        before.assert_same(&Snapshot::of_ns(&host), change);
        assert_eq!(recorded(&host), 0);
    }
}

/// The directory `dir` is read-only.
fn read_only<'h>(call: Call<'h>, dir: &Path) -> Call<'h> {
    let script =
        format!("mount --bind {0} {0} && mount -o remount,bind,ro {0} && exec \"$0\"", dir.display());
    call.under(&["unshare", "--mount", "--propagation", "private", "sh", "-ec", &script])
}

#[test]
fn a_read_only_directory_of_records_is_an_error_before_the_device_moves_and_none_of_del() {
    need!("unshare", "mount");
    let (host, pods) = (Host::hasty(), [Pod::new(), Pod::new()]);
    let _lan = card(&host);
    std::fs::create_dir(records(&host)).unwrap();
    let (before, inside) = (Snapshot::of_ns(&host), Snapshot::of_ns(&pods[0]));
    let (one, two) = (attachment("c1", &pods[0]), attachment("c2", &pods[1]));
    let call = |verb, att| read_only(network(&host).call(verb, att, None), &records(&host));
    for network in [network(&host), network(&host).with("/dataDir", json!(records(&host).join("none")))] {
        let add = read_only(network.call("ADD", &one, None), &records(&host));
        refused(&add.run(), 5, "Read-only file system");
        before.assert_same(&Snapshot::of_ns(&host), "after an ADD that failed");
        inside.assert_same(&Snapshot::of_ns(&pods[0]), "after an ADD that failed");
    }
    network(&host).added(&one);
    // Older kernels rename no link that is up.
    pods[0].shell("ip link set net1 promisc on down; ip link set net1 name other");
    for _ in 0..2 {
        let outcome = call("DEL", &one).run().success();
        assert!(outcome.stderr.contains("Read-only file system"), "{}", outcome.describe());
        before.assert_same(&Snapshot::of_ns(&host), "after DEL");
        assert_eq!((leases(&host), recorded(&host)), (Vec::new(), 1));
    }
    // The remaining record doesn't affect the next pod.
    let result = network(&host).added(&two);
    assert_eq!(recorded(&host), 1);
    network(&host).gc(Some(json!([two.listed()]))).success();
    network(&host).deleted(&one, None);
    network(&host).check(&two, &result).success();
    network(&host).deleted(&two, Some(&result));
    before.assert_same(&Snapshot::of_ns(&host), "after all");
    assert_eq!(recorded(&host), 0);
}

/// The directory `dir` has no room for another file.
fn full<'h>(call: Call<'h>, dir: &Path) -> Call<'h> {
    let script = format!(
        "cp -r {0} {0}.copy && mount -t tmpfs -o nr_inodes=$(($(ls {0} | wc -l) + 1)) tmpfs {0} && \
         cp -r {0}.copy/. {0} && rm -r {0}.copy && exec \"$0\"",
        dir.display()
    );
    call.under(&["unshare", "--mount", "--propagation", "private", "sh", "-ec", &script])
}

#[test]
fn a_full_directory_of_records_is_an_error_before_the_device_moves_and_none_of_del() {
    need!("unshare", "mount");
    let (host, pod) = (Host::hasty(), Pod::new());
    let _lan = card(&host);
    std::fs::create_dir(records(&host)).unwrap();
    let (before, inside) = (Snapshot::of_ns(&host), Snapshot::of_ns(&pod));
    let (network, one) = (network(&host), attachment("c1", &pod));
    let add = full(network.call("ADD", &one, None), &records(&host));
    refused(&add.run(), 5, "No space left on device");
    before.assert_same(&Snapshot::of_ns(&host), "after an ADD that failed");
    inside.assert_same(&Snapshot::of_ns(&pod), "after an ADD that failed");
    network.added(&one);
    full(network.call("DEL", &one, None), &records(&host)).run().success();
    before.assert_same(&Snapshot::of_ns(&host), "after DEL");
    assert_eq!(leases(&host), [""; 0]);
}
