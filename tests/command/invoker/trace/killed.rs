//! `cnimble trace` is killed before each of its system calls. Nothing of it may last: no link, route, rule or packet
//! filter. An entry of connection tracking expires, and neighbour entries stay as after a ping.

use cnimble_tests::trace::{self, Fate, untraceable};
use cnimble_tests::{
    LIMIT, Ns, PATIENCE, Snapshot, announce, need, plugin_dir, sample_size, skip, wait_until,
};

use super::{FAR, FAR6, Site};

/// The points of a sample for each probe.
const POINTS: usize = 6;

/// The snapshot of a namespace with its queueing disciplines.
fn state(ns: &Ns) -> (Snapshot, String) {
    (Snapshot::of_ns(ns), ns.sh("tc qdisc show"))
}

#[test]
fn a_trace_may_be_killed_at_any_call() {
    need!("ip", "nft", "tc");
    if let Some(why) = untraceable() {
        skip!("{why}");
    }
    let site = Site::new();
    let pod = site.publish("nftables");
    let places = [("host", &*site.node.host), ("router", &site.router), ("pod", &pod)];
    let probes: [&[&str]; 5] = [
        &["web", FAR],
        &["web", FAR6],
        &["web", "192.0.2.1:9/udp"],
        &["web", "10.7.0.99:9", "--wait", "1"],
        &["--from", FAR, "10.7.0.2:8080"],
    ];
    for probe in probes {
        let mut args = vec!["trace", "--json"];
        args.extend(probe);
        let run =
            |fate: &Fate| trace::run(&mut site.node.cnimble(plugin_dir(), &args).command, &[], fate, LIMIT);
        let all = run(&Fate::Watched).calls.len();
        let before = places.map(|(_, ns)| state(ns));
        let points = sample_size(POINTS).min(all);
        let mut reached = 0;
        for point in 0..points {
            let n = all * point / points;
            reached += usize::from(run(&Fate::KilledAt(n)).met);
            for ((name, ns), before) in places.iter().zip(&before) {
                // The kernel removes the links of an unnamed namespace a moment after the process.
                wait_until(PATIENCE, || state(ns) == *before);
                let after = state(ns);
                before.0.assert_same(&after.0, &format!("{probe:?} killed at call {n}: {name}"));
                assert_eq!(before.1, after.1, "{probe:?} killed at call {n}: {name}");
            }
        }
        announce("NOTE", &format!("{probe:?}: killed at {reached} of {points} points among {all} calls"));
        // The number of calls depends on the kernel's answers.
        assert!(reached * 10 >= points * 8, "{probe:?}: only {reached} of {points} points were reached");
    }
}
