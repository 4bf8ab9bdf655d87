//! `cnimble guard` beside pods that come and go, while another program flushes the ruleset again and again.

mod hostile;

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::json;

use cnimble_tests::{
    Background, Host, Outcome, PATIENCE, Pod, announce, command, need, plugin_dir, wait_until,
};

use super::{Chance, number};

const WORKERS: usize = 2;

/// A node with a network, and its flushes.
struct Node {
    host: Host,
}

impl Node {
    fn new() -> Self {
        Node::with(|_| {})
    }

    /// A node whose plugin bridge has other keys.
    fn with(change: impl FnOnce(&mut serde_json::Value)) -> Self {
        let host = Host::hasty();
        let ipam = json!({
            "type": "host-local", "dataDir": host.data_dir(), "ranges": [[{"subnet": "10.218.0.0/22"}]],
        });
        let mut list = json!({"cniVersion": "1.0.0", "name": "guarded", "plugins": [
            {"type": "bridge", "bridge": "br0", "isDefaultGateway": true, "ipMasq": true, "macspoofchk": true, "ipam": ipam},
            {"type": "portmap", "capabilities": {"portMappings": true}},
            {"type": "firewall"},
        ]});
        change(&mut list["plugins"]);
        let conf = host.dir().join("net.d");
        fs::create_dir(&conf).unwrap();
        fs::write(conf.join("guarded.conflist"), list.to_string()).unwrap();
        Node { host }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.host.dir().join(name)
    }

    fn cnimble(&self, args: &[&str]) -> std::process::Command {
        let mut cnimble = self.host.command(command().to_str().unwrap());
        cnimble.args(args).arg("--cache-dir").arg(self.path("cache"));
        cnimble.env("CNI_PATH", plugin_dir()).env("NETCONFPATH", self.path("net.d"));
        cnimble
    }

    fn guard(&self) -> (Background, PathBuf) {
        let (log, data) = (self.path("guard.log"), self.host.data_dir());
        let mut guard = self.cnimble(&["guard", "--data-dir", data.to_str().unwrap()]);
        guard.stderr(File::create(&log).unwrap());
        (Background::start(&mut guard), log)
    }

    fn verb(&self, verb: &str, pod: &Pod, id: &str, port: usize) -> Outcome {
        let ports = json!({"portMappings": [{"hostPort": port, "containerPort": 80, "protocol": "tcp"}]});
        let ports = ports.to_string();
        let args = [verb, "guarded", pod.path(), "--container-id", id, "--cap-args", &ports];
        Outcome::of(&mut self.cnimble(&args))
    }

    /// CHECK of a pod, which may have lost its rules a moment ago.
    fn comes_to_be_whole(&self, pod: &Pod, id: &str, port: usize) {
        let mut outcome = self.verb("check", pod, id, port);
        let whole = wait_until(PATIENCE, || {
            outcome = self.verb("check", pod, id, port);
            outcome.status == 0
        });
        assert!(whole, "{}", outcome.describe());
    }
}

/// Adds and deletes pods until the time is over, at least three. Returns their number.
fn work(node: &Node, worker: usize, is_over: &AtomicBool) -> usize {
    let pod = Pod::new();
    let mut lives = 0_usize;
    while lives < 3 || !is_over.load(Ordering::Relaxed) {
        let (id, port) = (format!("worker-{worker}-{lives}"), 20_000 + worker);
        node.verb("add", &pod, &id, port).success();
        if lives.is_multiple_of(8) {
            node.comes_to_be_whole(&pod, &id, port);
        }
        node.verb("del", &pod, &id, port).success();
        lives += 1;
        // A long run leaves the machine to others.
        if number("CNIMBLE_GUARD_SECONDS", 0) > 60 {
            std::thread::sleep(Duration::from_millis(500));
        }
    }
    lives
}

#[test]
fn flushes_beside_a_guard_cost_no_pod_its_rules() {
    need!("ip", "nft");
    let node = Node::new();
    let (seconds, pods) = (number("CNIMBLE_GUARD_SECONDS", 5), number("CNIMBLE_GUARD_PODS", 6));
    let residents: Vec<(Pod, String, usize)> = (0..usize::try_from(pods).unwrap())
        .map(|of| (Pod::new(), format!("resident-{of}"), 10_000 + of))
        .collect();
    for (pod, id, port) in &residents {
        node.verb("add", pod, id, *port).success();
    }
    let data = node.host.data_dir();
    let (guard, log) = node.guard();

    let (is_over, lives) = (AtomicBool::new(false), AtomicUsize::new(0));
    let mut slowest = Duration::ZERO;
    let mut flushes = 0;
    std::thread::scope(|scope| {
        for worker in 0..WORKERS {
            let (node, is_over, lives) = (&node, &is_over, &lives);
            scope.spawn(move || lives.fetch_add(work(node, worker, is_over), Ordering::Relaxed));
        }
        let mut chance = Chance(number("CNIMBLE_SEED", 7));
        let end = Instant::now() + Duration::from_secs(seconds);
        while flushes < 3 || Instant::now() < end {
            let begun = Instant::now();
            let text = ["flush ruleset", "delete table inet cnimble"][chance.below(2)];
            node.host.nft(text);
            let (pod, id, port) = &residents[chance.below(residents.len())];
            node.comes_to_be_whole(pod, id, *port);
            slowest = slowest.max(begun.elapsed());
            flushes += 1;
            // A pause between two flushes, which no assertion depends on.
            std::thread::sleep(Duration::from_millis(200 + chance.next() % (1000 * (seconds / 60).max(1))));
        }
        is_over.store(true, Ordering::Relaxed);
    });
    for (pod, id, port) in &residents {
        node.comes_to_be_whole(pod, id, *port);
    }
    let read = |name: &str| usage(&guard, name);
    announce(
        "NOTE",
        &format!(
            "{flushes} flushes beside {} pods and {} lives; a pod was whole again within {} ms; the guard: {}, {}",
            residents.len(),
            lives.load(Ordering::Relaxed),
            slowest.as_millis(),
            read("VmHWM"),
            read("RssAnon"),
        ),
    );
    for (pod, id, port) in &residents {
        node.verb("del", pod, id, *port).success();
    }
    kill(Pid::from_raw(i32::try_from(guard.pid()).unwrap()), Signal::SIGTERM).unwrap();
    assert!(guard.finish(Duration::from_secs_f32(PATIENCE)).status.success());
    let told = fs::read_to_string(&log).unwrap();
    // On a busy machine it says that it waits for the network's lock.
    let harmless = |line: &str| line.contains("warning: waiting for network");
    let is_wrong = |line: &str| line.contains("warning:") && !harmless(line) || line.contains("panicked");
    assert!(!told.lines().any(is_wrong), "{told}");
    // No rule of a deleted pod was put back.
    let doctor =
        Outcome::of(&mut node.cnimble(&["doctor", "--grace", "0", "--data-dir", data.to_str().unwrap()]));
    assert_eq!(doctor.status, 0, "{}", doctor.describe());
}

/// A line of proc_pid_status(5).
fn usage(process: &Background, name: &str) -> String {
    let status =
        fs::read_to_string(Path::new("/proc").join(process.pid().to_string()).join("status")).unwrap();
    let line = status.lines().find(|line| line.starts_with(name)).unwrap_or_default();
    line.split_whitespace().collect::<Vec<_>>().join(" ")
}
