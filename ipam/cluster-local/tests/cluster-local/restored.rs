//! A restored backup of etcd, which has forgotten claims and returns. The nodes go on with their blocks, and claim others
//! after the time `offline`.

use serde_json::Value;

use cnimble_tests::{Host, PATIENCE, wait_until};

use super::boots::{claimed, owned};
use super::etcd::{Backup, NEEDS_AGENTS};
use super::{Etcd, Node, address, assert_no_block_is_lost, refused, wanted};

/// Starts etcd, and returns three nodes with this time `offline`. No node has had a longer one.
fn short_cluster<'h>(host: &'h Host, seconds: u32) -> (Etcd<'h>, [Node<'h>; 3]) {
    let etcd = Etcd::start(host, 1);
    let nodes = ["a", "b", "c"].map(|name| Node::new(host, 1, name, "10.9.0.0/16").offline(seconds));
    nodes[0].operate("init new").unwrap();
    (etcd, nodes)
}

/// Waits until etcd confirms all of the nodes.
#[track_caller]
fn go_on(nodes: &[&Node<'_>]) {
    let is_over = || nodes.iter().map(|node| node.operate("confirm")).filter(Result::is_err).count() == 0;
    assert!(wait_until(PATIENCE, is_over), "{:?}", nodes[0].operate("confirm"));
}

/// The operator releases the node, and the time until others may claim its blocks has passed.
fn release_and_wait(etcd: &Etcd<'_>, node: &Node<'_>) {
    node.operate(&format!("release {}", node.name)).unwrap();
    let blocks = etcd.get("/cnimble/ipam/net/blocks/");
    for pair in blocks.lines().collect::<Vec<_>>().chunks(2) {
        let mut owner: Value = serde_json::from_str(pair[1]).unwrap();
        if owner["node"] == node.name {
            owner["free"] = 1.into();
            etcd.put(pair[0], &owner.to_string());
        }
    }
}

fn has(node: &Node<'_>, ip: &str) -> Value {
    let claims = node.operate("blocks").unwrap();
    claims.as_array().unwrap().iter().find(|claim| claim["first"] == ip).unwrap()["node"].clone()
}

#[test]
fn nodes_go_on_with_blocks_that_a_restored_etcd_has_forgotten() {
    let host = Host::new();
    let (mut etcd, [a, b, c]) = short_cluster(&host, 8);
    a.added("p1");
    let backup = etcd.backup();
    // It and its claim are forgotten, and so is the second block of the other.
    b.added("p1");
    a.run("ADD", "p2", "IP=10.9.200.7", None).unwrap();
    let blocks = [owned(&a), owned(&b)];
    // The same backup is restored again later.
    for round in 0..2 {
        etcd.restore(&backup);
        refused(a.operate("confirm"), 50, "nodes claim again what they own");
        refused(b.operate("confirm"), 50, "nodes claim again what they own");
        refused(c.in_boot(round).add("new"), 50, "restored from a backup");
        refused(a.run("ADD", "fixed", "IP=10.9.77.7", None), 50, "restored from a backup");
        // Each gives addresses of its blocks meanwhile.
        for node in [&a, &b] {
            node.added(&format!("during{round}"));
        }
        go_on(&[&a, &b]);
        assert_eq!([owned(&a), owned(&b)], blocks);
        assert_no_block_is_lost(&[a.clone(), b.clone()]);
    }
    c.added("p1");
    assert!(owned(&c).is_disjoint(&blocks[0]) && owned(&c).is_disjoint(&blocks[1]));
    assert_no_block_is_lost(&[a, b, c]);
}

/// The restored etcd has the address for the node that has returned it.
#[test]
fn a_returned_address_stays_with_its_later_owner() {
    for is_earlier_first in [true, false] {
        let host = Host::new();
        let (mut etcd, [earlier, later, _]) = short_cluster(&host, 3);
        earlier.run("ADD", "p1", "IP=10.9.3.63", None).unwrap();
        let backup = etcd.backup();
        earlier.run("DEL", "p1", "", Some("10.9.3.63/16")).unwrap();
        later.run("ADD", "p1", "IP=10.9.3.63", None).unwrap();
        etcd.restore(&backup);
        assert_eq!(has(&later, "10.9.3.63"), "a");
        let order = if is_earlier_first { [&earlier, &later] } else { [&later, &earlier] };
        go_on(&order);
        assert_eq!(has(&later, "10.9.3.63"), "b");
        refused(earlier.run("ADD", "p2", "IP=10.9.3.63", None), 101, "in the block of node b");
        assert_no_block_is_lost(&[earlier, later]);
    }
}

/// Releases the block of a pod of `earlier`, and gives it to a pod of `later`. Returns a backup from before the release,
/// and the address of the pod.
fn pass_on(etcd: &Etcd<'_>, earlier: &Node<'_>, later: &Node<'_>) -> (Backup, String) {
    let result = earlier.run("ADD", "p1", "IP=10.9.100.7", None).unwrap();
    let backup = etcd.backup();
    release_and_wait(etcd, earlier);
    later.run("ADD", "p1", "IP=10.9.100.8", None).unwrap();
    (backup, address(&result))
}

/// The file of the released node still has the block, and etcd was restored to a time before the release.
#[test]
fn of_two_nodes_with_a_block_in_their_files_the_later_owner_keeps_it() {
    for is_earlier_first in [true, false] {
        let host = Host::new();
        let (mut etcd, [earlier, later, _]) = short_cluster(&host, 3);
        let (backup, ip) = pass_on(&etcd, &earlier, &later);
        etcd.restore(&backup);
        let order = if is_earlier_first { [&earlier, &later] } else { [&later, &earlier] };
        for node in order {
            let _ = node.operate("confirm");
        }
        go_on(&[&later]);
        assert_eq!(has(&later, "10.9.100.0"), "b");
        // The earlier owner learns of it, and claims another block when its pod is gone.
        refused(earlier.operate("confirm"), 50, "has a lease");
        later.added("p2");
        earlier.run("DEL", "p1", "", Some(&ip)).unwrap();
        earlier.added("p2");
        assert_no_block_is_lost(&[earlier, later]);
    }
}

#[test]
fn the_wait_goes_on_while_the_earlier_owner_of_a_block_asks_again() {
    let host = Host::new();
    let (mut etcd, [earlier, later, aware]) = short_cluster(&host, 8);
    let (backup, _) = pass_on(&etcd, &earlier, &later);
    aware.operate("confirm").unwrap();
    etcd.restore(&backup);
    for node in [&aware, &earlier, &later] {
        refused(node.operate("confirm"), 50, "nodes claim again");
    }
    let fence = || etcd.get("/cnimble/ipam/net/fence");
    let before = fence();
    refused(earlier.operate("confirm"), 50, "has a lease");
    assert_eq!(fence(), before);
}

/// Same, where the later owner asks etcd only after it was restored again.
#[test]
fn the_later_owner_keeps_its_block_if_a_backup_is_restored_again() {
    let host = Host::new();
    let (mut etcd, [earlier, later, aware]) = short_cluster(&host, 8);
    let (backup, _) = pass_on(&etcd, &earlier, &later);
    aware.operate("confirm").unwrap();
    etcd.restore(&backup);
    refused(aware.operate("confirm"), 50, "nodes claim again");
    refused(earlier.operate("confirm"), 50, "nodes claim again");
    etcd.restore(&backup);
    refused(earlier.operate("confirm"), 50, "nodes claim again");
    refused(later.operate("confirm"), 50, "nodes claim again");
    assert_eq!(has(&later, "10.9.100.0"), "b");
}

#[test]
fn a_node_that_is_away_until_others_claim_loses_its_forgotten_block() {
    let host = Host::new();
    let (mut etcd, [away, other, _]) = short_cluster(&host, 3);
    other.added("p1");
    let backup = etcd.backup();
    let ip = away.added("p1");
    let lost = owned(&away);
    if NEEDS_AGENTS {
        other.operate("confirm").unwrap();
    }
    // The restored etcd doesn't reach the revision of the lost one during the test.
    let mut share = away.share();
    share["revision"] = 1_000_000.into();
    std::fs::write(away.store().join(".cnimble-share"), share.to_string()).unwrap();
    etcd.restore(&backup);
    go_on(&[&other]);
    let wanted = wanted(&ip);
    other.run("ADD", "p2", &wanted, None).unwrap();
    refused(away.add("p2"), 50, "has a lease");
    away.run("DEL", "p1", "", Some(&ip)).unwrap();
    away.added("p2");
    assert!(owned(&away).is_disjoint(&lost));
    assert_no_block_is_lost(&[away, other]);
}

/// A share that is no longer valid gives no address before all nodes have claimed again.
#[test]
fn after_a_long_outage_nothing_is_given_until_all_have_claimed_again() {
    let host = Host::new();
    let (mut etcd, [a, b, _]) = short_cluster(&host, 2);
    a.added("p1");
    let backup = etcd.backup();
    b.added("p1");
    etcd.kill(0);
    let is_over = |node: &Node<'_>| node.add("late").is_err_and(|err| err["code"] == 11);
    assert!(wait_until(PATIENCE, || {
        b.run("DEL", "late", "", None).unwrap();
        is_over(&b)
    }));
    etcd.restore(&backup);
    let confirmed = b.share()["confirmed"].clone();
    refused(b.operate("confirm"), 50, "nodes claim again");
    assert_eq!(b.share()["confirmed"], confirmed);
    assert!(claimed(&a).is_superset(&owned(&b)));
    go_on(&[&a, &b]);
    b.added("p2");
    assert_no_block_is_lost(&[a, b]);
}

/// The configuration of each other node has a shorter time.
#[test]
fn all_wait_for_the_longest_time_that_a_node_had_even_if_it_is_forgotten() {
    let host = Host::new();
    let (mut etcd, [other, long, _]) = short_cluster(&host, 1);
    other.added("p1");
    let backup = etcd.backup();
    let ip = long.offline(3600).added("p1");
    // The other node hears of the time.
    other.operate("confirm").unwrap();
    etcd.restore(&backup);
    refused(other.operate("confirm"), 50, "for 3960 s");
    let wanted = wanted(&ip);
    refused(other.run("ADD", "p2", &wanted, None), 50, "restored from a backup");
}

/// The operator sets the network up again in an etcd that has lost everything.
#[test]
fn nodes_go_on_with_their_blocks_in_a_store_that_was_emptied() {
    let host = Host::new();
    let (etcd, [a, b, c]) = short_cluster(&host, 8);
    a.added("p1");
    b.added("p1");
    let blocks = [owned(&a), owned(&b)];
    etcd.empty();
    refused(a.operate("confirm"), 50, "run `cnimble ipam init --recover`");
    refused(c.add("new"), 50, "`cnimble ipam init --recover` if nodes have had addresses of it");
    refused(c.operate("init"), 7, "or --recover if nodes have had addresses of it");
    refused(a.operate("init new"), 7, "is not new, because this node has its share");
    c.operate("init recover").unwrap();
    refused(c.add("new"), 50, "nodes claim again what they own");
    for node in [&a, &b] {
        refused(node.operate("confirm"), 50, "nodes claim again what they own");
        node.added("during");
    }
    go_on(&[&a, &b, &c]);
    assert_eq!([owned(&a), owned(&b)], blocks);
    c.added("new");
    assert!(owned(&c).is_disjoint(&blocks[0]) && owned(&c).is_disjoint(&blocks[1]));
    assert_no_block_is_lost(&[a, b, c]);
}

/// The operator has taken the cluster for a new one, on a node that has nothing of it.
#[test]
fn a_node_tells_that_a_network_is_not_new() {
    let host = Host::new();
    let (etcd, [a, b, c]) = short_cluster(&host, 8);
    a.added("p1");
    b.added("p1");
    etcd.empty();
    c.operate("init new").unwrap();
    c.added("new");
    refused(a.operate("confirm"), 50, "restored from a backup or replaced");
    refused(c.run("ADD", "fixed", "IP=10.9.77.7", None), 50, "restored from a backup or replaced");
    a.added("during");
    go_on(&[&a, &b, &c]);
    assert_no_block_is_lost(&[a, b, c]);
}
