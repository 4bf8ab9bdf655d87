//! Tests kills of the invoker during its work.

use std::collections::BTreeMap;

use cnimble_tests::{PATIENCE, need, wait_until};

use super::{Cluster, Pod, bridge};

/// Kills the invoker several times while some pods are up and others are being set up.
#[test]
fn killed_in_the_middle_it_ends_in_the_same_state() {
    need!("ip", "nft", "ping", "nsenter");
    let cluster = Cluster::new(&bridge("10.7.0.0/24"));
    cluster.put_all((0..50).map(|number| format!("web-{number}")));
    let mut survivors: BTreeMap<String, Pod> = BTreeMap::new();
    for some in [5, 20, 35] {
        let run = cluster.start("--parallel 4");
        let enough = || run.ready().len() >= some;
        assert!(wait_until(PATIENCE, enough), "{:#}\n{}", run.status(), cluster.log());
        survivors = run.ready();
        run.signal("KILL");
        run.wait_until_gone();
    }
    let run = cluster.start("");
    let pods = run.wait_for(50);
    // Plugins that were running at the kill undo their work.
    let settled =
        || cluster.ports() == 50 && cluster.leases().len() == 50 && cluster.namespaces().len() == 50;
    assert!(wait_until(PATIENCE, settled), "{} ports, {:?}", cluster.ports(), cluster.leases());
    cluster.assert_whole(&pods);
    assert_eq!(cluster.unanswered(&pods), "");
    for (name, pod) in &survivors {
        assert_eq!(pods[name], *pod, "{name} was up and is left alone");
    }
    run.stop();
}

/// The manifests change while the process is dead.
#[test]
fn what_changed_while_it_was_dead_is_followed() {
    need!("ip", "nft");
    let cluster = Cluster::new(&bridge("10.7.0.0/24"));
    cluster.put_all((0..6).map(|number| format!("web-{number}")));
    let run = cluster.start("");
    let before = run.wait_for(6);
    run.signal("KILL");
    run.wait_until_gone();
    for gone in ["web-0", "web-1"] {
        std::fs::remove_file(cluster.path(&format!("manifests/{gone}.json"))).unwrap();
    }
    cluster.put_all(["extra".to_owned()].into_iter());
    // A namespace is removed, too.
    let netns = cluster.path("run/netns").join(&before["web-2"].sandbox);
    cluster.node.sh(&format!("umount {0} && rm {0}", netns.display()));
    let run = cluster.start("");
    // Housekeeping finds unwanted pods.
    assert!(wait_until(PATIENCE, || cluster.namespaces().len() == 5), "{:?}", cluster.namespaces());
    let after = run.wait_for(5);
    cluster.assert_whole(&after);
    assert_eq!(after["web-3"], before["web-3"]);
    assert_ne!(after["web-2"].sandbox, before["web-2"].sandbox);
    run.stop();
}

#[test]
fn two_of_them_do_not_share_a_directory() {
    need!("ip");
    let cluster = Cluster::new(&bridge("10.7.0.0/24"));
    let run = cluster.start("");
    run.wait_for(0);
    assert!(wait_until(PATIENCE, || run.page("/pods").is_some()));
    let second = cluster
        .node
        .run(&cluster.line(&format!("--manifests {} --listen off", cluster.path("manifests").display())));
    assert_eq!(second.status, 5, "{}", second.describe());
    assert!(second.stderr.contains("another `cnimble run`"), "{}", second.stderr);
    run.stop();
}
