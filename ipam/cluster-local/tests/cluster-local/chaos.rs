//! Many pods on three nodes. Meanwhile members of etcd are killed, cut off and paused, and our processes
//! are killed.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Mutex;
use std::thread::ScopedJoinHandle;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use cnimble_tests::Host;

use super::{Node, assert_no_block_is_lost, cluster, cluster_of};

/// The owner of each address, according to the answers of ADD and DEL.
#[derive(Default)]
struct Checker(Mutex<BTreeMap<String, String>>);

impl Checker {
    fn gave(&self, ip: &str, pod: &str) {
        let other = self.0.lock().unwrap().insert(ip.to_owned(), pod.to_owned());
        assert_eq!(other, None, "{ip} has two owners: the other is {pod}");
    }

    /// Called before DEL starts.
    fn takes_back(&self, ip: &str) {
        self.0.lock().unwrap().remove(ip);
    }
}

/// The result of [`live`] for a node.
#[derive(Default)]
struct Life {
    /// The number of DELs, and of ADDs that returned an address.
    calls: usize,
    /// The number of pods at the end.
    pods: usize,
}

/// Runs ADDs on a node, at least `pods` and until the time has passed. A DEL follows every third one.
/// Then the oldest pods are removed. An ADD that fails because of etcd's state is tried again.
fn live(node: &Node<'_>, pods: usize, until: Instant, checker: &Checker) -> Life {
    let mut living = VecDeque::new();
    let mut calls = 0;
    let del = |pod: &str, ip: &str| {
        checker.takes_back(ip);
        node.run("DEL", pod, "", Some(ip)).unwrap();
    };
    for n in (0..).take_while(|n| *n < pods || Instant::now() < until) {
        let pod = format!("pod{n}");
        let mut tries = 0;
        let ip = loop {
            match node.add(&pod) {
                Ok(ip) => break ip,
                Err(err) => {
                    assert_eq!(err["code"], 11, "{err}");
                    tries += 1;
                    assert!(tries < 100, "{err}");
                    std::thread::sleep(Duration::from_millis(100));
                }
            }
        };
        calls += 1;
        checker.gave(&ip, &format!("{pod} on {}", node.name));
        living.push_back((pod, ip));
        let goes = if n % 3 == 0 { living.pop_back() } else { None };
        let oldest = (living.len() > pods - pods.div_ceil(3)).then(|| living.pop_front()).flatten();
        for (pod, ip) in goes.into_iter().chain(oldest) {
            del(&pod, &ip);
            calls += 1;
        }
    }
    Life { calls, pods: living.len() }
}

/// Returns the number of pods of a node. `scripts/stress cluster` sets more.
fn pods() -> usize {
    std::env::var("CNIMBLE_CLUSTER_PODS").ok().and_then(|text| text.parse().ok()).unwrap_or(150)
}

/// Returns the minimum duration of the test in seconds.
fn seconds() -> Option<u64> {
    std::env::var("CNIMBLE_CLUSTER_SECONDS").ok().and_then(|text| text.parse().ok())
}

#[test]
fn no_address_has_two_owners_while_members_die_pause_and_are_cut_off() {
    let host = Host::new();
    // In small blocks every seventh ADD claims one. In a small subnet nodes claim the same ones.
    let subnet = if pods() <= 200 { "10.9.0.0/23" } else { "10.9.0.0/21" };
    let (mut etcd, nodes) = cluster_of(&host, 3, subnet, 29);
    let checker = Checker::default();
    let (begun, mut mishaps) = (Instant::now(), 0);
    let until = begun + Duration::from_secs(seconds().unwrap_or(0));
    let lives: Vec<Life> = std::thread::scope(|scope| {
        let lives: Vec<_> =
            nodes.iter().map(|node| scope.spawn(|| live(node, pods(), until, &checker))).collect();
        let pause = || std::thread::sleep(Duration::from_millis(700));
        // This runs in the main thread, because the processes that a thread starts end with it.
        for n in (0..3).cycle().take_while(|_| !lives.iter().all(ScopedJoinHandle::is_finished)) {
            etcd.kill(n);
            pause();
            etcd.member(n);
            etcd.settle();
            let next = (n + 1) % 3;
            etcd.cut(next);
            pause();
            etcd.heal();
            etcd.settle();
            etcd.signal(next, Signal::SIGSTOP);
            pause();
            etcd.signal(next, Signal::SIGCONT);
            etcd.settle();
            mishaps += 3;
        }
        lives.into_iter().map(|life| life.join().unwrap()).collect()
    });
    let took = begun.elapsed().as_secs_f32();
    etcd.settle();
    assert_no_block_is_lost(&nodes);
    let given = checker.0.into_inner().unwrap();
    assert_eq!(given.len(), lives.iter().map(|life| life.pods).sum::<usize>());
    if seconds().is_some() {
        let calls: usize = lives.iter().map(|life| life.calls).sum();
        let rate = calls as f32 / took;
        eprintln!(
            "{calls} ADDs and DELs in {took:.0} s, {rate:.0} a second; {mishaps} mishaps of etcd; {} pods live",
            given.len()
        );
    }
}

/// Sends SIGKILL to the present children of `pid`.
fn kill_children(pid: u32) {
    let children = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
    for child in children.split_whitespace() {
        let _ = kill(Pid::from_raw(child.parse().unwrap()), Signal::SIGKILL);
    }
}

/// Sends SIGKILL to the plugin and to the program that it started, after a delay that grows in steps.
#[test]
fn a_kill_at_any_moment_loses_no_block_and_gives_no_address_twice() {
    let host = Host::new();
    let (_etcd, nodes) = cluster(&host, 1, "10.9.0.0/16");
    let checker = Checker::default();
    for n in 0..60_u64 {
        let node = &nodes[(n % 2) as usize];
        let pod = format!("killed{n}");
        // The fixed address is in an unclaimed block, so each of these ADDs asks etcd.
        let args = format!("IP=10.9.{}.1", 10 + n);
        let mut child = node.start("ADD", &pod, &args, None);
        std::thread::sleep(Duration::from_micros(n * 400));
        if n % 2 == 0 {
            kill_children(child.id());
            let _ = child.wait();
        } else {
            let _ = child.kill();
            let _ = child.wait();
        }
        node.run("DEL", &pod, "", None).unwrap();
        let after = format!("after{n}");
        let ip = node.added(&after);
        checker.gave(&ip, &after);
    }
    assert_no_block_is_lost(&nodes[..2]);
}

/// In each round three nodes claim an address of the same unclaimed block at the same time.
#[test]
fn of_nodes_that_claim_one_block_at_once_one_gets_it() {
    let host = Host::new();
    let (_etcd, nodes) = cluster(&host, 1, "10.9.0.0/16");
    for round in 10..40 {
        let wanted = format!("IP=10.9.{round}.1");
        let start = |node: &Node<'_>| node.start("ADD", &format!("pod{round}"), &wanted, None);
        let children: Vec<_> = nodes.iter().map(start).collect();
        let outcomes = children.into_iter().map(|child| super::answer(&child.wait_with_output().unwrap()));
        let (given, refused): (Vec<_>, Vec<_>) = outcomes.partition(Result::is_ok);
        assert_eq!(given.len(), 1, "round {round}: {given:?} {refused:?}");
        assert!(refused.iter().all(|err| err.as_ref().is_err_and(|err| err["code"] == 101)), "{refused:?}");
    }
    assert_no_block_is_lost(&nodes);
}

/// In each round a node owns nothing, and its pods notice this at the same time.
#[test]
fn adds_of_one_node_that_lack_a_block_at_once_claim_one() {
    let host = Host::new();
    let (_etcd, _) = cluster(&host, 1, "10.9.0.0/16");
    let mut nodes = Vec::new();
    for round in 0..6_u32 {
        let node = Node::new(&host, 1, &format!("node{round}"), "10.9.0.0/16");
        // The pods ask for any address, or for fixed ones in one unclaimed block.
        let fixed = |n: u32| format!("IP=10.9.{}.{n}", 100 + round);
        let args = |n: u32| if round % 2 == 0 { String::new() } else { fixed(n) };
        let children: Vec<_> =
            (1..9).map(|n| node.start("ADD", &format!("pod{n}"), &args(n), None)).collect();
        let outcomes = children.into_iter().map(|child| super::answer(&child.wait_with_output().unwrap()));
        let given: std::collections::BTreeSet<String> =
            outcomes.map(|outcome| super::address(&outcome.unwrap())).collect();
        assert_eq!(given.len(), 8, "round {round}: {given:?}");
        let owned = node.share()["owned"].clone();
        assert_eq!(owned.as_array().unwrap().len(), 1, "round {round}: {owned}");
        nodes.push(node);
    }
    assert_no_block_is_lost(&nodes);
}
