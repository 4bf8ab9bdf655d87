//! Claims that etcd executes long after their process has given up, as with a slow member, and lost answers.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use serde_json::{Value, json};

use cnimble_tests::proxy::proxy;
use cnimble_tests::{Host, PATIENCE, wait_until};

use super::etcd::Etcd;
use super::{Node, answer, cluster, refused};

/// An address in the block that is claimed late.
const LATE: &str = "10.9.200.7";
/// A part of the request that only a claim by node a has.
const CLAIM: &[u8] = b"/owned/a/4-";

/// A part of a boot's record.
const RECORD: &[u8] = b"\"turn\":";

/// Delays a claim.
#[derive(Default)]
struct Gate {
    /// Whether a claim waits, and whether it may continue.
    state: Mutex<(bool, bool)>,
    opened: Condvar,
}

impl Gate {
    /// Passes on everything except a claim, which waits. Nothing after the claim is passed on, because
    /// its process has given up and takes it back.
    fn heed(&self, piece: &[u8]) -> bool {
        if !piece.windows(CLAIM.len()).any(|part| part == CLAIM) {
            return true;
        }
        let mut state = self.state.lock().unwrap();
        state.0 = true;
        drop(self.opened.wait_while(state, |state| !state.1).unwrap());
        false
    }

    fn holds_one(&self) -> bool {
        self.state.lock().unwrap().0
    }

    fn open(&self) {
        self.state.lock().unwrap().1 = true;
        self.opened.notify_all();
    }
}

/// Lets a claim of node a reach etcd after `meanwhile`. Returns the blocks that etcd then has.
fn blocks_after_a_late_claim(
    host: &Host,
    etcd: &Etcd<'_>,
    nodes: &[Node<'_>],
    meanwhile: impl FnOnce(),
) -> Vec<Value> {
    let gate = Arc::new(Gate::default());
    let held = Arc::clone(&gate);
    host.within(move || {
        let (at, server) = ("127.0.0.51:2379".parse().unwrap(), "127.0.0.11:2379".parse().unwrap());
        proxy(at, server, move |is_clients, piece| !is_clients || held.heed(piece));
    });
    let slow = nodes[0].clone().with("etcd", json!({"endpoints": ["http://127.0.0.51:2379"]}));
    let late = slow.begin(&format!("address {LATE}"));
    assert!(wait_until(PATIENCE, || gate.holds_one()), "no claim");
    refused(answer(&late.wait_with_output().unwrap()), 11, "etcd doesn't answer");
    meanwhile();
    let before = etcd.index();
    gate.open();
    // A refused request is in the log, too.
    assert!(wait_until(PATIENCE, || etcd.index() > before), "the claim hasn't reached etcd");
    nodes[1].operate("blocks").unwrap().as_array().unwrap().clone()
}

fn is_claimed(blocks: &[Value]) -> bool {
    blocks.iter().any(|block| block["first"] == "10.9.200.0")
}

#[test]
fn a_claim_that_comes_after_the_next_confirmation_does_nothing() {
    let host = Host::new();
    let (etcd, nodes) = cluster(&host, 1, "10.9.0.0/16");
    nodes[0].added("p1");
    let confirm = || drop(nodes[0].operate("confirm").unwrap());
    let blocks = blocks_after_a_late_claim(&host, &etcd, &nodes, confirm);
    assert!(!is_claimed(&blocks), "{blocks:?}");
    super::assert_no_block_is_lost(&nodes[..2]);
}

#[test]
fn a_claim_that_comes_after_its_node_was_released_does_nothing() {
    let host = Host::new();
    let (etcd, nodes) = cluster(&host, 1, "10.9.0.0/16");
    nodes[0].added("p1");
    let release = || drop(nodes[1].operate("release a").unwrap());
    let blocks = blocks_after_a_late_claim(&host, &etcd, &nodes, release);
    assert!(!is_claimed(&blocks), "{blocks:?}");
    // Another node can get the address at once.
    nodes[1].run("ADD", "p1", &format!("IP={LATE}"), None).unwrap();
}

/// The node was released, so the record is that of another instance. The boot is the same.
#[test]
fn a_boot_goes_on_after_a_lost_answer_to_its_registration() {
    let host = Host::new();
    let (_etcd, nodes) = cluster(&host, 1, "10.9.0.0/16");
    let ip = nodes[0].added("p1");
    nodes[0].run("DEL", "p1", "", Some(&ip)).unwrap();
    nodes[1].operate("release a").unwrap();
    let is_asked = AtomicBool::new(false);
    host.within(move || {
        let (at, server) = ("127.0.0.51:2379".parse().unwrap(), "127.0.0.11:2379".parse().unwrap());
        proxy(at, server, move |is_clients, piece| {
            if is_clients && piece.windows(RECORD.len()).any(|part| part == RECORD) {
                is_asked.store(true, Relaxed);
            }
            while !is_clients && is_asked.load(Relaxed) {
                std::thread::sleep(Duration::from_secs(1));
            }
            true
        });
    });
    let deaf = nodes[0].clone().with("etcd", json!({"endpoints": ["http://127.0.0.51:2379"]}));
    refused(deaf.operate("confirm"), 11, "etcd doesn't answer");
    nodes[0].operate("confirm").unwrap();
}
