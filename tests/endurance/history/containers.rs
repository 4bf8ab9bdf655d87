//! containerd with its own client and a directory as the root file system. Its pods use the real libcni.

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use cnimble_tests::containerd::Cgroups;
use cnimble_tests::{Background, PATIENCE, cgroup_name, wait_until};

use super::log::{Facts, Meaning, Outcome};
use super::look::Claim;
use super::plan::{Net, containers as plan};
use super::site::Site;
use super::{Board, Busy};

const SOCKET: &str = "/run/containerd/containerd.sock";
const SLOTS: usize = 2;

/// Returns the reason why containerd can't take part, if there is one.
pub(super) fn why_not() -> Option<String> {
    let groups = ["cgroup.controllers", "pids"].map(|file| Path::new("/sys/fs/cgroup").join(file));
    if !groups.iter().any(|file| file.exists()) {
        return Some("no cgroups are mounted".into());
    }
    cnimble_tests::missing(&["containerd", "ctr", "runc", "busybox"])
}

/// Starts and stops containers until the time is over.
pub(super) fn containers(board: &Board<'_>, seed: u64, busy: Busy<'_>) {
    let _cgroups = Cgroups(group());
    let _daemon = daemon(board.site);
    let rootfs = board.site.node.rootfs();
    std::thread::scope(|scope| {
        for slot in 0..SLOTS {
            let rootfs = rootfs.to_str().unwrap();
            scope.spawn(move || {
                for (count, hold) in plan(seed, slot).enumerate() {
                    if board.is_over() {
                        break;
                    }
                    live(board, rootfs, &format!("ctr{slot}n{count}"), hold);
                }
            });
        }
    });
    drop(busy);
}

/// Returns the cgroup of all containers.
fn group() -> String {
    cgroup_name("history")
}

fn daemon(site: &Site) -> Background {
    let dir = site.node.dir().display();
    let off = [
        "grpc.v1.cri",
        "internal.v1.opt",
        "snapshotter.v1.btrfs",
        "snapshotter.v1.zfs",
        "snapshotter.v1.aufs",
        "snapshotter.v1.devmapper",
    ];
    let off = off.map(|plugin| format!("\"io.containerd.{plugin}\"")).join(", ");
    let config = format!(
        "version = 2\nroot = \"{dir}/containerd\"\nstate = \"/run/containerd\"\ndisabled_plugins = [{off}]\n\
         [grpc]\naddress = \"{SOCKET}\"\n"
    );
    let config = site.node.file("containerd.toml", &config);
    let log = std::fs::File::create(site.node.dir().join("containerd.log")).unwrap();
    let mut command = site.node.command("containerd");
    command.arg("--config").arg(config).stdin(Stdio::null());
    command.stdout(log.try_clone().unwrap()).stderr(log);
    let daemon = Background::start(&mut command);
    let up = wait_until(PATIENCE, || ctr(site, &["version"]).status().is_ok_and(|status| status.success()));
    let log = || std::fs::read_to_string(site.node.dir().join("containerd.log")).unwrap_or_default();
    assert!(up, "containerd does not come up: {}", log());
    daemon
}

fn ctr(site: &Site, args: &[&str]) -> Command {
    let mut ctr = site.node.command("ctr");
    ctr.args(["--address", SOCKET])
        .args(args)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    ctr
}

/// Runs one container. It has its network when it prints a line, and loses it when it is told to stop.
fn live(board: &Board<'_>, rootfs: &str, id: &str, hold: u64) {
    let site = board.site;
    let said = site.node.dir().join(format!("{id}.out"));
    let out = std::fs::File::create(&said).unwrap();
    let pause = "echo up; trap 'exit 0' TERM; while :; do sleep 0.1; done";
    let group = format!("{}/{id}", group());
    let args = [
        "run",
        "--rootfs",
        "--cni",
        "--rm",
        "--env",
        "PATH=/bin",
        "--cgroup",
        &group,
        rootfs,
        id,
        "/bin/sh",
        "-c",
        pause,
    ];
    let begun = site.log.begin("ctr", Meaning::Adds, id, "ctr run --cni");
    let mut run = ctr(site, &args).stdout(out.try_clone().unwrap()).stderr(out).spawn().unwrap();
    let text = || std::fs::read_to_string(&said).unwrap_or_default();
    let up = wait_until(PATIENCE, || text().contains("up") || !matches!(run.try_wait(), Ok(None)));
    let cache = format!("/var/lib/cni/results/pods-default-{id}-eth0");
    let netns = format!("/proc/{}/ns/net", pid(site, id));
    match Claim::cached(site, &format!("default-{id}"), Net::Pods, &netns, None, &cache) {
        Ok(claim) if up && text().contains("up") => {
            site.log.end(begun, Outcome::Done, claim.told.clone());
            board.enter(id, claim);
        }
        other => site.log.end(begun, Outcome::Failed(format!("{:?} {}", other.err(), text())), Facts::new()),
    }
    std::thread::sleep(Duration::from_millis(hold));
    if let Some(claim) = board.claim(id) {
        site.look(&[(id.to_owned(), claim)]);
    }
    let begun = site.log.begin("ctr", Meaning::Ends, id, "ctr task kill");
    board.leave(id);
    let _ = ctr(site, &["task", "kill", "--signal", "SIGTERM", id]).status();
    let ended = gone(&mut run);
    let outcome = if ended { Outcome::Done } else { Outcome::Failed(text()) };
    site.log.end(begun, outcome, Facts::new());
}

/// Returns the process ID of its container on the node.
fn pid(site: &Site, id: &str) -> String {
    let listed = site.node.run(&format!("ctr --address {SOCKET} task ls")).text();
    let line = listed.lines().find(|line| line.split_whitespace().next() == Some(id)).unwrap_or_default();
    line.split_whitespace().nth(1).unwrap_or("none").to_owned()
}

/// Returns true if the client ends without help. Otherwise it is killed.
fn gone(run: &mut Child) -> bool {
    let end = Instant::now() + Duration::from_secs_f32(PATIENCE);
    while Instant::now() < end {
        if !matches!(run.try_wait(), Ok(None)) {
            return true;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    let _ = run.kill();
    let _ = run.wait();
    false
}
