//! Many pods at once, measured. Skipped by default: nothing is asserted about time.
//!
//! `CNIMBLE_MEASURE=1 cargo test -p cnimble-tests --test run -- --nocapture two_hundred` with
//! `CNIMBLE_PLUGIN_DIR` and `CNIMBLE_COMMAND` set to what is to be measured.

use std::time::Instant;

use cnimble_tests::{PATIENCE, need, skip, wait_until};

use super::{Cluster, bridge};

/// CPU seconds of a process, and of the children that it has waited for (proc(5), stat).
fn cpu(cluster: &Cluster, pid: &str) -> (f64, f64) {
    let stat = cluster.node.sh(&format!("cat /proc/{pid}/stat"));
    let fields: Vec<f64> = stat
        .rsplit_once(')')
        .unwrap()
        .1
        .split_whitespace()
        .map(|field| field.parse().unwrap_or(0.0))
        .collect();
    let ticks = 100.0;
    ((fields[11] + fields[12]) / ticks, (fields[13] + fields[14]) / ticks)
}

#[test]
fn two_hundred_pods_at_once() {
    need!("ip", "nft");
    if std::env::var_os("CNIMBLE_MEASURE").is_none() {
        skip!("it is a measurement; CNIMBLE_MEASURE=1 makes it");
    }
    for parallel in [4, 8, 16, 32, 64] {
        let cluster = Cluster::new(&bridge("10.7.0.0/16"));
        cluster.put_all((0..200).map(|number| format!("web-{number}")));
        let begun = Instant::now();
        let run = cluster.start(&format!("--parallel {parallel}"));
        let all = || {
            run.page("/metrics").is_some_and(|(_, text)| text.contains("cnimble_pods{phase=\"Ready\"} 200"))
        };
        assert!(wait_until(PATIENCE, all), "{}", cluster.log());
        let took = begun.elapsed().as_secs_f64();
        let (own, plugins) = cpu(&cluster, &run.pid);
        println!(
            "parallel {parallel}: 200 pods ready in {took:.2} s; CPU: invoker {own:.2} s, plugins {plugins:.2} s \
             (the invoker's share is {:.0} %)",
            100.0 * own / (own + plugins)
        );
        cluster.assert_whole(&run.wait_for(200));
        run.stop();
    }
}
