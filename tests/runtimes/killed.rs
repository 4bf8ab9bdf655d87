//! Kills `cnimble cri up`, `cri down` and `gc --cri --yes` before one of their system calls. The next call finishes the
//! work, and no living pod loses anything.
//!
//! Tries a few points of each command. `scripts/stress cri` tries more.

use serde_json::json;

use cnimble_tests::trace::{Fate, Traced, run, untraceable};
use cnimble_tests::{LIMIT, Node, PATIENCE, announce, command, sample_size, skip, wait_until};

use crate::sandboxes::{LEASES, Shop, cnimble, document};

const MANIFEST: &str = "
apiVersion: v1
kind: Pod
metadata: {name: web, namespace: shop}
spec:
  dnsPolicy: Default
  containers:
  - {name: nginx, image: nginx, ports: [{containerPort: 80, hostPort: 8080}]}
";

/// Runs the command on the node with this `fate`.
fn traced(node: &Node, args: &str, fate: &Fate) -> Traced {
    let mut command = node.command(command().to_str().unwrap());
    let traced = run(command.args(args.split(' ')), b"", fate, LIMIT);
    assert!(!traced.hung, "{args} hung");
    traced
}

/// Runs the command to its end. Returns the points to kill it at, from the first connection to the runtime.
fn points(node: &Node, args: &str) -> Vec<usize> {
    let watched = traced(node, args, &Fate::Watched);
    let stderr = String::from_utf8_lossy(&watched.output.stderr);
    assert!(watched.output.status.success(), "{args}: {stderr}");
    let connects = |number: u64| i64::try_from(number) == Ok(libc::SYS_connect);
    let first = watched.calls.iter().position(|call| call.by_child && connects(call.number)).unwrap();
    let calls = watched.calls.len() - first;
    let steps = sample_size(3).min(calls);
    (0..steps).map(|step| first + calls * step / steps).collect()
}

/// Returns the pods that the runtime lists, Ready or not.
fn listed(node: &Node) -> Vec<String> {
    let pods = document(node, "cri pods", 0);
    let name = |pod: &serde_json::Value| pod["name"].as_str().unwrap().to_owned();
    pods.as_array().unwrap().iter().map(name).collect()
}

#[test]
fn what_a_killed_cri_command_began_is_finished_by_the_next() {
    need_runtime!("containerd", "ctr", "runc", "sha256sum");
    if let Some(why) = untraceable() {
        skip!("{why}");
    }
    let node = Node::new();
    // web-0 lives all the time. Of web-1 only a lease remains.
    let shop = Shop::open(&node, 2);
    shop.lose_sandbox(1);
    let lease = shop.lease(1);
    let aside = node.dir().join("lease").display().to_string();
    let found = || document(&node, "doctor --cri", 0)["findings"].clone();
    let alone = |after: &str| {
        let alone = || listed(&node) == ["web-0"] && node.links().len() == 3;
        assert!(wait_until(PATIENCE, alone), "{after}: {:?} {:?}", listed(&node), node.links());
        assert_eq!(found(), json!([]), "{after}");
        let leases = node.sh(&format!("cat {LEASES}/10.*"));
        assert!(leases.lines().all(|line| [shop.id(0), "eth0"].contains(&line.trim())), "{after}: {leases}");
        assert_eq!(node.sh("ls /run/netns").lines().count(), 1, "{after}");
        assert!(!node.nft("list ruleset").contains("8080"), "{after}");
    };

    let gc = "gc pods --cri --grace 0 --yes";
    let gcs = points(&node, gc);
    assert!(!lease.exists());
    for &point in &gcs {
        node.sh(&format!("cp -a {aside} {LEASES}/"));
        node.sh(&format!("mv {LEASES}/lease {LEASES}/{}", lease.file_name().unwrap().display()));
        traced(&node, gc, &Fate::KilledAt(point));
        assert!(shop.lease(0).exists() && shop.entry(0).exists(), "killed at {point}");
        assert_eq!(document(&node, gc, 0)["leftAlone"], 0, "after a kill at {point}");
        assert!(!lease.exists(), "after a kill at {point}");
        alone(&format!("gc killed at {point}"));
    }

    let file = node.file("web.yaml", MANIFEST);
    let up = format!("cri up {} --cgroup-parent {}", file.display(), shop.cri.cgroup());
    let down = "cri down shop/web";
    // The runtime may still do the work of the killed client. A name in use is an error until that is done.
    let finish_up = |after: &str| {
        let mut last = None;
        let done = wait_until(PATIENCE, || {
            let outcome = cnimble(&node, &up);
            let done = outcome.status == 0;
            last = Some(outcome.describe());
            done
        });
        assert!(done, "{after}: {last:?}");
        assert_eq!(listed(&node).iter().filter(|name| *name == "web").count(), 1, "{after}");
    };
    let finish_down = |after: &str| {
        let mut last = None;
        let done = wait_until(PATIENCE, || {
            last = Some(cnimble(&node, down).describe());
            !listed(&node).contains(&"web".to_owned())
        });
        assert!(done, "{after}: {last:?}");
    };
    let ups = points(&node, &up);
    let downs = points(&node, down);
    alone("untroubled");
    for &point in &ups {
        traced(&node, &up, &Fate::KilledAt(point));
        let after = format!("up killed at {point}");
        finish_up(&after);
        finish_down(&after);
        alone(&after);
    }
    for &point in &downs {
        let after = format!("down killed at {point}");
        finish_up(&after);
        traced(&node, down, &Fate::KilledAt(point));
        finish_down(&after);
        alone(&after);
    }
    shop.cri.stop_and_remove(shop.id(0));
    announce("NOTE", &format!("{} points tried", gcs.len() + ups.len() + downs.len()));
}
