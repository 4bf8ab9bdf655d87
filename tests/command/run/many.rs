//! Measures many concurrent pods, as medians of five runs. Skipped by default. Asserts nothing about time.
//!
//! Run `CNIMBLE_MEASURE=1 cargo test -p cnimble-tests --test command -- --nocapture two_hundred`. Set
//! `CNIMBLE_PLUGIN_DIR` and `CNIMBLE_COMMAND` to the programs to measure.

use std::time::Instant;

use cnimble_tests::{PATIENCE, need, skip, wait_until};

use super::{Cluster, bridge};

/// Returns the CPU seconds of a process and of its reaped children (proc(5), stat).
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

/// Returns the median of the values.
fn median(mut of: Vec<f64>) -> f64 {
    of.sort_by(f64::total_cmp);
    of[of.len() / 2]
}

const RUNS: usize = 5;

#[test]
fn two_hundred_pods_at_once() {
    need!("ip", "nft");
    if std::env::var_os("CNIMBLE_MEASURE").is_none() {
        skip!("it is a measurement; CNIMBLE_MEASURE=1 makes it");
    }
    for parallel in [4, 8, 16, 32, 64] {
        let (mut times, mut owns, mut others) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..RUNS {
            let mut cluster = Cluster::new(&bridge("10.7.0.0/16"));
            // Records are on a disk, locks and pins in memory, as on any machine.
            cluster.run_dir = "/run/cnimble".into();
            cluster.socket = cluster.path("cnimble.sock");
            cluster.put_all((0..200).map(|number| format!("web-{number}")));
            let begun = Instant::now();
            let run = cluster.start(&format!("--parallel {parallel} --listen {}", cluster.socket.display()));
            // Reads the log, because a request would add to the measured time.
            let all = || cluster.log().matches(" is ready: ").count() == 200;
            assert!(wait_until(PATIENCE, all), "{}", cluster.log());
            times.push(begun.elapsed().as_secs_f64());
            let (own, plugins) = cpu(&cluster, &run.pid);
            owns.push(own);
            others.push(plugins);
            cluster.assert_whole(&run.wait_for(200));
            run.stop();
        }
        let (took, own, plugins) = (median(times), median(owns), median(others));
        println!(
            "parallel {parallel}: 200 pods ready in {took:.2} s; CPU: invoker {own:.2} s, plugins {plugins:.2} s \
             (the invoker's share is {:.0} %)",
            100.0 * own / (own + plugins)
        );
    }
}
