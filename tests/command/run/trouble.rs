//! Tests that a fault of one pod becomes that pod's condition and affects no other pod.

use std::fs;

use serde_json::json;

use cnimble_tests::{PATIENCE, need, script, wait_until};

use super::{Cluster, bridge, manifest};

/// A plugin that misbehaves for pods with certain names.
const PICKY: &str = r#"#!/bin/sh
config=$(cat)
case $CNI_COMMAND in
VERSION) echo '{"cniVersion":"1.1.0","supportedVersions":["1.0.0","1.1.0"]}'; exit ;;
ADD) ;;
*) exit 0 ;;
esac
case $CNI_ARGS in
*K8S_POD_NAME=hangs*) exec sleep 1000 ;;
*K8S_POD_NAME=garbage*) echo 'no JSON at all'; exit 0 ;;
*K8S_POD_NAME=refused*) echo '{"cniVersion":"1.0.0","code":123,"msg":"not you"}'; exit 1 ;;
esac
# The result of the plugin before is passed on.
echo "$config" | jq .prevResult
"#;

fn picky(cluster: &Cluster) {
    let bin = cluster.path("bin");
    fs::create_dir_all(&bin).unwrap();
    script(&bin.join("picky"), PICKY);
}

#[test]
fn a_plugin_that_hangs_or_talks_nonsense_is_one_pods_trouble() {
    need!("ip", "nft", "jq", "ping", "nsenter");
    let mut network = bridge("10.7.0.0/24");
    network["plugins"].as_array_mut().unwrap().push(json!({"type": "picky"}));
    let cluster = Cluster::new(&network);
    picky(&cluster);
    let names = ["hangs", "garbage", "refused"].map(str::to_owned);
    cluster.put_all(names.into_iter().chain((0..10).map(|number| format!("web-{number}"))));
    let run = cluster.start("--timeout 15");
    assert!(wait_until(PATIENCE, || run.ready().len() == 10), "{:#}\n{}", run.status(), cluster.log());
    for (pod, why) in [("hangs", "no answer within 15s"), ("garbage", "not JSON"), ("refused", "not you")] {
        let message = run.wait_for_reason(pod, "FailedCreatePodSandBox");
        assert!(message.contains(why) && message.contains("picky"), "{pod}: {message}");
    }
    // Unfinished work is undone.
    let ready = run.ready();
    let whole = || cluster.leases().len() == 10 && cluster.ports() == 10;
    assert!(wait_until(PATIENCE, whole), "{:?}", cluster.leases());
    assert_eq!(cluster.unanswered(&ready), "");
    // Failed work is retried, and a corrected pod is set up.
    assert!(wait_until(PATIENCE, || run.failures("refused") >= 2));
    script(&cluster.path("bin/picky"), &PICKY.replace("refused", "nobody"));
    assert!(wait_until(PATIENCE, || run.ready().contains_key("refused")), "{:#}", run.status());
    run.stop();
}

#[test]
fn a_full_range_is_the_trouble_of_those_who_come_late() {
    need!("ip", "nft");
    // The subnet has addresses for five pods.
    let cluster = Cluster::new(&bridge("10.7.0.0/29"));
    cluster.put_all((0..5).map(|number| format!("web-{number}")));
    let run = cluster.start("");
    let early = run.wait_for(5);
    cluster.put("late", &manifest("late"));
    let message = run.wait_for_reason("late", "FailedCreatePodSandBox");
    assert!(message.contains("no IP addresses available"), "{message}");
    assert_eq!(run.ready(), early);
    let (_, metrics) = run.page("/metrics").unwrap();
    assert!(
        metrics.contains("cnimble_leases_free{network=\"pods\",range=\"10.7.0.1-10.7.0.6\"} 0"),
        "{metrics}"
    );
    // A removed pod makes room for the next.
    fs::remove_file(cluster.path("manifests/web-0.json")).unwrap();
    let after = run.wait_for_names(&["late", "web-1", "web-2", "web-3", "web-4"]);
    cluster.assert_whole(&after);
    run.stop();
}

#[test]
fn a_bad_manifest_is_its_own_trouble() {
    need!("ip", "nft");
    let cluster = Cluster::new(&bridge("10.7.0.0/24"));
    cluster.put_all((0..3).map(|number| format!("web-{number}")));
    cluster.place("manifests/broken.json", "{\"kind\": \"Pod\", ");
    let mut badly_named = manifest("x");
    badly_named["metadata"]["name"] = json!("Not_A_Name");
    cluster.put("named", &badly_named);
    // Files are read in the order of their names, so the other web-1 comes first.
    cluster.put("z-twin", &manifest("web-1"));
    let run = cluster.start("");
    let ready = run.wait_for(3);
    let problems = || run.status()["problems"].as_array().cloned().unwrap_or_default();
    let told = |what: &str| {
        let has = || problems().iter().any(|problem| problem.as_str().unwrap().contains(what));
        assert!(wait_until(PATIENCE, has), "{what}: {:?}", problems());
    };
    told("broken.json");
    told("Not_A_Name");
    told("web-1");
    // A faulty edit of a manifest keeps the pod as it was.
    cluster.place("manifests/web-2.json", "{");
    told("web-2.json");
    assert_eq!(run.ready(), ready);
    for bad in ["broken", "named", "z-twin"] {
        fs::remove_file(cluster.path(&format!("manifests/{bad}.json"))).unwrap();
    }
    cluster.put("web-2", &manifest("web-2"));
    assert!(wait_until(PATIENCE, || problems().is_empty()), "{:?}", problems());
    assert_eq!(run.wait_for(3), ready, "the manifests say what they said before");
    run.stop();
}

#[test]
fn a_network_that_turns_bad_is_the_trouble_of_new_pods() {
    need!("ip", "nft", "ping", "nsenter");
    let good = bridge("10.7.0.0/24");
    let cluster = Cluster::new(&good);
    cluster.put_all((0..3).map(|number| format!("web-{number}")));
    let run = cluster.start("--check-interval 1");
    let ready = run.wait_for(3);
    assert_eq!(run.page("/healthz").unwrap(), ("HTTP/1.1 200 OK".to_owned(), "ok\n".to_owned()));
    // During a faulty edit the previous configuration stays in use.
    cluster.place("net.d/10-pods.conflist", "{\"cniVersion\": ");
    let problems = || run.status()["problems"].to_string();
    assert!(wait_until(PATIENCE, || problems().contains("10-pods.conflist")), "{}", problems());
    assert_eq!(run.page("/healthz").unwrap().1, "ok\n");
    // Without any valid configuration there is no network.
    fs::remove_file(cluster.path("net.d/10-pods.conflist")).unwrap();
    let unhealthy = || run.page("/healthz").is_some_and(|(status, _)| status.contains("503"));
    assert!(wait_until(PATIENCE, unhealthy), "{:?}", run.page("/healthz"));
    cluster.place("net.d/10-pods.conflist", "{\"cniVersion\": ");
    assert!(wait_until(PATIENCE, || problems().contains("10-pods.conflist")), "{}", problems());
    cluster.put("late", &manifest("late"));
    let message = run.wait_for_reason("late", "NetworkNotReady");
    assert!(message.contains("cni plugin not initialized"), "{message}");
    assert!(message.contains("10-pods.conflist"), "{message}");
    assert_eq!(run.ready(), ready);
    assert_eq!(cluster.unanswered(&ready), "");
    // A pod removed now is torn down with the configuration of its setup.
    fs::remove_file(cluster.path("manifests/web-0.json")).unwrap();
    assert!(wait_until(PATIENCE, || run.pods().len() == 3), "{:#}", run.status());
    assert_eq!(cluster.leases().len(), 2);
    // A corrected configuration is used at once.
    cluster.network(&good);
    let after = run.wait_for(3);
    assert!(after.contains_key("late"));
    cluster.assert_whole(&after);
    run.stop();
}
