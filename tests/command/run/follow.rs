//! Tests that pods follow their manifests.

use std::fs;

use serde_json::json;

use cnimble_tests::{PATIENCE, need, wait_until};

use super::{Cluster, bridge, manifest};

#[test]
fn fifty_manifests_are_followed() {
    need!("ip", "nft", "ping", "nsenter");
    let cluster = Cluster::new(&bridge("10.7.0.0/24"));
    cluster.put_all((0..50).map(|number| format!("web-{number}")));
    let run = cluster.start("");
    let before = run.wait_for(50);
    assert_eq!(cluster.unanswered(&before), "");
    cluster.assert_whole(&before);

    // One manifest is edited, one is added, one is removed.
    let mut edited = manifest("web-3");
    edited["spec"]["containers"][0]["ports"] = json!([{"containerPort": 80, "hostPort": 8080}]);
    cluster.put("web-3", &edited);
    cluster.put("extra", &manifest("extra"));
    fs::remove_file(cluster.path("manifests/web-7.json")).unwrap();
    let followed = || {
        let now = run.ready();
        now.len() == 50
            && now.contains_key("extra")
            && !now.contains_key("web-7")
            && now.get("web-3").is_some_and(|pod| *pod != before["web-3"])
    };
    assert!(wait_until(PATIENCE, followed), "{:#}", run.status());
    let after = run.wait_for(50);
    cluster.assert_whole(&after);
    assert_eq!(cluster.unanswered(&after), "");
    // Other pods are unaffected.
    for (name, pod) in &after {
        if !["web-3", "extra"].contains(&name.as_str()) {
            assert_eq!(pod, &before[name], "{name}");
        }
    }
    assert!(cluster.node.sh("nft list map inet cnimble portmap4").contains("8080"));

    // The networks stay after a stop, and a start finds them.
    run.stop();
    cluster.assert_whole(&after);
    assert_eq!(cluster.unanswered(&after), "");
    let run = cluster.start("");
    assert_eq!(run.wait_for(50), after, "the same pods");
    run.stop();
}

#[test]
fn once_brings_pods_up_and_ends() {
    need!("ip", "nft");
    let cluster = Cluster::new(&bridge("10.7.0.0/24"));
    cluster.put_all((0..3).map(|number| format!("web-{number}")));
    let once = cluster.line(&format!("--manifests {} --once --json", cluster.path("manifests").display()));
    let outcome = cluster.node.run(&once).success();
    let status: serde_json::Value = serde_json::from_slice(&outcome.stdout).unwrap();
    assert_eq!(status["overall"]["settled"], true);
    assert_eq!(status["pods"].as_array().unwrap().len(), 3, "{status:#}");
    assert_eq!(cluster.leases().len(), 3);
    // Unwanted pods are removed. Faults are reported by the exit status.
    fs::remove_file(cluster.path("manifests/web-0.json")).unwrap();
    cluster.place("manifests/bad.json", "{");
    let outcome = cluster.node.run(&once);
    assert_eq!(outcome.status, 1, "{}", outcome.describe());
    assert_eq!(cluster.leases().len(), 2);
    // An empty directory removes all pods.
    fs::remove_dir_all(cluster.path("manifests")).unwrap();
    fs::create_dir(cluster.path("manifests")).unwrap();
    cluster.node.run(&once).success();
    assert_eq!((cluster.leases().len(), cluster.namespaces().len(), cluster.ports()), (0, 0, 0));
}

#[test]
fn pods_go_at_the_end_if_that_is_wanted() {
    need!("ip", "nft");
    let cluster = Cluster::new(&bridge("10.7.0.0/24"));
    cluster.put_all((0..5).map(|number| format!("web-{number}")));
    let run = cluster.start("--teardown-on-exit");
    run.wait_for(5);
    run.stop();
    assert_eq!(
        (cluster.leases().len(), cluster.namespaces().len(), cluster.ports()),
        (0, 0, 0),
        "{}",
        cluster.log()
    );
}

#[test]
fn what_breaks_is_repaired() {
    need!("ip", "nft", "ping", "nsenter");
    let cluster = Cluster::new(&bridge("10.7.0.0/24"));
    cluster.put_all((0..3).map(|number| format!("web-{number}")));
    let run = cluster.start("--check-interval 1");
    let before = run.wait_for(3);
    let repaired = |name: &str| {
        let new = || run.ready().get(name).is_some_and(|pod| pod.sandbox != before[name].sandbox);
        assert!(wait_until(PATIENCE, new), "{name}: {:#}\n{}", run.status(), cluster.log());
    };
    // Damages the host's link, the namespace, and a part that only CHECK finds.
    let netns = |name: &str| cluster.path("run/netns").join(&before[name].sandbox).display().to_string();
    let ports = cluster.node.sh("ip -o link show master br0");
    let veth = ports.lines().find(|line| line.contains(&before["web-0"].sandbox[..20])).unwrap();
    let veth = veth.split(": ").nth(1).unwrap().split('@').next().unwrap();
    cluster.node.sh(&format!("ip link del {veth}"));
    repaired("web-0");
    cluster.node.sh(&format!("umount {0} && rm {0}", netns("web-1")));
    repaired("web-1");
    cluster.node.sh(&format!("nsenter --net={} ip addr flush dev eth0", netns("web-2")));
    repaired("web-2");
    let after = run.wait_for(3);
    assert_eq!(cluster.unanswered(&after), "");
    cluster.assert_whole(&after);
    run.stop();
}

/// Nothing else is lost with the packet rules, so the pods keep sandboxes and addresses.
#[test]
fn a_flush_of_the_packet_rules_costs_no_pod_its_address() {
    need!("ip", "nft", "ping", "nsenter");
    let cluster = Cluster::new(&bridge("10.7.0.0/24"));
    cluster.put_all((0..3).map(|number| format!("web-{number}")));
    let run = cluster.start("--check-interval 1");
    let before = run.wait_for(3);
    assert_eq!(cluster.masqueraded(), 3);
    cluster.node.sh("nft flush ruleset");
    let whole = || cluster.masqueraded() == 3;
    assert!(wait_until(PATIENCE, whole), "{:#}\n{}", run.status(), cluster.log());
    assert_eq!(run.wait_for(3), before, "{}", cluster.log());
    cluster.assert_whole(&before);
    run.stop();
}

/// Each namespace has a process, as with other runtimes.
#[test]
fn a_pod_whose_process_dies_is_repaired() {
    need!("ip", "nft");
    let cluster = Cluster::new(&bridge("10.7.0.0/24"));
    cluster.put_all((0..2).map(|number| format!("web-{number}")));
    let run = cluster.start("--pause --teardown-on-exit");
    let before = run.wait_for(2);
    let process = |sandbox: &str| {
        let netns = cluster.path("run/netns").join(sandbox);
        let script = format!(
            "want=$(stat -L -c %i {}); for pid in $(ls /proc | grep '^[0-9]*$'); do \
             [ \"$(stat -L -c %i /proc/$pid/ns/net 2>/dev/null)\" != \"$want\" ] || echo $pid; done",
            netns.display()
        );
        cluster.node.sh(&script)
    };
    cluster.node.sh(&format!("kill -9 {}", process(&before["web-0"].sandbox)));
    let repaired = || run.ready().get("web-0").is_some_and(|pod| pod.sandbox != before["web-0"].sandbox);
    assert!(wait_until(PATIENCE, repaired), "{:#}\n{}", run.status(), cluster.log());
    let after = run.wait_for(2);
    assert_eq!(after["web-1"], before["web-1"]);
    assert_ne!(process(&after["web-0"].sandbox), "");
    cluster.assert_whole(&after);
    run.stop();
    assert!(cluster.namespaces().is_empty());
}
