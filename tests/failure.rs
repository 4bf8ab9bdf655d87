//! An ADD that fails at each of its steps in turn leaves host, pod, rules and leases as
//! they were.
//!
//! No hooks in the product: strace(1) makes one system call of the shipped binary fail,
//! then the next, until every one that ADD makes has been tried.
// Tests stop at the first surprise; clippy doesn't see that this whole crate is one.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use cnimble_tests::{
    Attachment, Host, Network, Outcome, Pod, Snapshot, announce, configs, need, skip, wait_until,
};
use serde_json::json;

/// Not tried: memory, which Linux grants and takes back by killing, and calls that can't
/// fail or return.
const LEFT_OUT: &[&str] = &[
    "mmap",
    "munmap",
    "mremap",
    "mprotect",
    "madvise",
    "brk",
    "execve",
    "exit_group",
    "exit",
    "rt_sigreturn",
    "sigaltstack",
];

/// One system call of ADD.
#[derive(Debug, Clone)]
struct Point {
    syscall: String,
    /// It is the n-th of its name.
    number: usize,
    /// Before the plugin reads its configuration: the C library and Rust's runtime.
    start_up: bool,
    /// The process aborts rather than go on in the pod's namespace; DEL has to tidy up.
    way_home: bool,
    /// As strace shows it.
    line: String,
}

/// The calls in an output of strace -f.
fn points(trace: &str) -> Vec<Point> {
    let mut counts: BTreeMap<String, usize> = BTreeMap::new();
    let mut points = Vec::new();
    let mut start_up = true;
    for line in trace.lines() {
        // `PID name(arguments) = result`
        let Some((_, call)) = line.split_once(' ') else {
            continue;
        };
        let call = call.trim_start();
        let Some((name, arguments)) = call.split_once('(') else {
            continue;
        };
        if !name.chars().all(|letter| letter.is_ascii_alphanumeric() || letter == '_') {
            continue;
        }
        let count = counts.entry(name.to_owned()).or_default();
        *count += 1;
        if name == "read" && arguments.starts_with("0,") {
            start_up = false;
        }
        let way_home = name == "setns" && count.is_multiple_of(2);
        points.push(Point {
            syscall: name.to_owned(),
            number: *count,
            start_up,
            way_home,
            line: call.chars().take(160).collect(),
        });
    }
    points.retain(|point| !LEFT_OUT.contains(&point.syscall.as_str()));
    points
}

/// A node on which ADD is tried again and again.
struct Stage {
    host: Host,
    pod: Pod,
    before: Snapshot,
    pod_before: Snapshot,
    neighbour: Option<Pod>,
}

impl Stage {
    fn new(with_a_pod: bool) -> Self {
        let host = Host::hasty();
        let pod = Pod::new();
        let neighbour = with_a_pod.then(|| {
            let neighbour = Pod::new();
            network(&host).added(&Attachment::new("neighbour", &neighbour));
            neighbour
        });
        Stage { before: Snapshot::of(&host), pod_before: Snapshot::of_ns(&pod), host, pod, neighbour }
    }

    fn diff(&self) -> String {
        self.settled_diff(|host| host)
    }

    /// What no DEL may leave either; which address was given last is remembered.
    fn diff_after_del(&self) -> String {
        self.settled_diff(|host| host.without_lines("last_reserved_ip"))
    }

    /// What of `part` of the host, or of the pod, is different and stays so.
    fn settled_diff(&self, part: impl Fn(Snapshot) -> Snapshot) -> String {
        let before = part(self.before.clone());
        let mut diff = String::new();
        wait_until(2.0, || {
            diff = before.diff(&part(Snapshot::of(&self.host)));
            diff += &self.pod_before.diff(&Snapshot::of_ns(&self.pod));
            diff.is_empty()
        });
        diff
    }

    /// ADD, under strace with these arguments.
    fn add(&self, strace: &[&str]) -> (Result<Outcome, String>, String) {
        let file = self.host.dir().join("trace");
        let mut wrapper = vec!["strace", "-f", "-o", file.to_str().unwrap()];
        wrapper.extend(strace);
        let att = Attachment::new("victim", &self.pod);
        let outcome = network(&self.host).call("ADD", &att, None).under(&wrapper);
        let outcome = outcome.limit(Duration::from_secs(60)).try_run();
        let trace = std::fs::read(&file).unwrap_or_default();
        (outcome, String::from_utf8_lossy(&trace).into_owned())
    }

    /// Its DEL.
    fn del(&self) -> Result<Outcome, String> {
        let att = Attachment::new("victim", &self.pod);
        let del = network(&self.host).call("DEL", &att, None);
        del.limit(Duration::from_secs(60)).try_run()
    }
}

/// Dual stack with everything that leaves something on the host.
fn network(host: &Host) -> Network<'_> {
    Network::new(host, configs::dual(host))
        .with("/ipMasq", json!(true))
        // Otherwise a failure to ask nf_tables means iptables.
        .with("/ipMasqBackend", json!("nftables"))
        .with("/macspoofchk", json!(true))
        .with("/promiscMode", json!(true))
}

/// What came of one point.
enum Verdict {
    /// ADD succeeded all the same, or failed and left nothing.
    Good,
    /// The call was not made this time.
    NotReached,
    Bad(String),
}

fn try_point(stage: &Stage, point: &Point) -> (Verdict, bool) {
    let inject = format!("inject={}:error=EIO:when={}", point.syscall, point.number);
    let (outcome, trace) = stage.add(&["-e", &inject]);
    let hit = trace.contains("(INJECTED)");
    let mut wrong = Vec::new();
    let succeeded = outcome.as_ref().is_ok_and(|outcome| outcome.status == 0);
    let answer = match &outcome {
        Ok(outcome) if succeeded => outcome.try_result().map(drop),
        Ok(outcome) if !point.start_up && !point.way_home => outcome.try_error().map(drop),
        Ok(_) => Ok(()),
        Err(slow) => Err(slow.clone()),
    };
    wrong.extend(answer.err());
    if !succeeded && !point.way_home {
        let diff = stage.diff();
        if !diff.is_empty() {
            let text = outcome.map_or_else(|slow| slow, |outcome| outcome.text());
            wrong.push(format!("{text}\nleft after the failure:\n{diff}"));
        }
    }
    match stage.del() {
        Ok(del) if del.status == 0 => {
            // With a neighbour the bridge was there before, so nothing but DEL's own work
            // is to be seen.
            let diff = stage.neighbour.as_ref().map(|_| stage.diff_after_del());
            if let Some(diff) = diff.filter(|diff| !diff.is_empty()) {
                wrong.push(format!("left after DEL:\n{diff}"));
            }
        }
        Ok(del) => wrong.push(format!("DEL: {}", del.describe())),
        Err(slow) => wrong.push(slow),
    }
    let verdict = if !wrong.is_empty() {
        Verdict::Bad(wrong.join("\n"))
    } else if hit {
        Verdict::Good
    } else {
        Verdict::NotReached
    };
    (verdict, succeeded)
}

/// Tries all points of ADD on such a node.
fn every_step(with_a_pod: bool) {
    need!("ip", "nft", "strace");
    // The shortest of three: an ADD may have had to try something again.
    let mut points: Vec<Point> = Vec::new();
    for _ in 0..3 {
        let (outcome, trace) = Stage::new(with_a_pod).add(&[]);
        let outcome = outcome.unwrap();
        if trace.is_empty() {
            skip!("strace may not trace here: {}", outcome.stderr);
        }
        outcome.result();
        let these = self::points(&trace);
        if points.is_empty() || these.len() < points.len() {
            points = these;
        }
    }
    let steps = points.iter().filter(|point| !point.start_up).count();
    assert!(steps > 20, "only {steps} system calls?");
    let (reached, succeeded) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let failures: Vec<String> = std::thread::scope(|scope| {
        let workers = 3;
        let threads: Vec<_> = (0..workers)
            .map(|worker| {
                let (points, reached, succeeded) = (&points, &reached, &succeeded);
                scope.spawn(move || {
                    let mut failures = Vec::new();
                    let mut stage = Stage::new(with_a_pod);
                    for point in points.iter().skip(worker).step_by(workers) {
                        let (verdict, worked) = try_point(&stage, point);
                        match &verdict {
                            Verdict::Good => {
                                reached.fetch_add(1, Ordering::Relaxed);
                                succeeded.fetch_add(usize::from(worked), Ordering::Relaxed);
                            }
                            Verdict::NotReached => {}
                            Verdict::Bad(why) => {
                                failures.push(format!(
                                    "{} number {}: {}\n{why}",
                                    point.syscall, point.number, point.line
                                ));
                            }
                        }
                        // What a success leaves (the bridge) would be there for the next one.
                        if worked || point.way_home || matches!(verdict, Verdict::Bad(_)) {
                            stage = Stage::new(with_a_pod);
                        }
                    }
                    failures
                })
            })
            .collect();
        threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
    });
    let (reached, succeeded) = (reached.into_inner(), succeeded.into_inner());
    announce(
        "NOTE",
        &format!("{} points tried, {reached} reached, {succeeded} of them harmless", points.len()),
    );
    assert!(failures.is_empty(), "{} of {} points:\n{}", failures.len(), points.len(), failures.join("\n"));
    assert!(reached * 10 > points.len() * 9, "only {reached} of {} points were reached", points.len());
}

#[test]
fn at_every_step_on_a_fresh_host() {
    every_step(false);
}

#[test]
fn at_every_step_beside_another_pod() {
    every_step(true);
}
