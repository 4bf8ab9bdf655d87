//! Our processes are killed at any moment, and nodes claim at the same time.

use std::collections::BTreeSet;
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use cnimble_tests::Host;

use super::{Node, assert_no_block_is_lost, cluster};

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
    let mut given = BTreeSet::new();
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
        let ip = node.added(&format!("after{n}"));
        assert!(given.insert(ip.clone()), "{ip} has two owners");
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
        let given: BTreeSet<String> = outcomes.map(|outcome| super::address(&outcome.unwrap())).collect();
        assert_eq!(given.len(), 8, "round {round}: {given:?}");
        let owned = node.share()["owned"].clone();
        assert_eq!(owned.as_array().unwrap().len(), 1, "round {round}: {owned}");
        nodes.push(node);
    }
    assert_no_block_is_lost(&nodes);
}
