//! Tests behaviour shared with the kubelet: the manifest file, readiness, and the owner of a pod's network.

use std::fs;

use serde_json::{Value, json};

use cnimble_tests::http::ApiServer;
use cnimble_tests::{PATIENCE, need, script, wait_until};

use super::{Cluster, bridge, manifest};

/// Returns a pod that is bound to this node.
fn pod(name: &str) -> Value {
    let mut pod = manifest(name);
    pod["spec"]["nodeName"] = json!("this");
    pod
}

#[test]
fn manifests_may_be_a_single_file() {
    need!("ip", "nft");
    let cluster = Cluster::new(&bridge("10.7.0.0/24"));
    let text = |names: &[&str]| -> String {
        names.iter().map(|name| format!("---\n{}\n", manifest(name))).collect()
    };
    // The file doesn't exist yet. Other files in its directory are no manifests.
    cluster.place("pods.yaml.bak", &text(&["other"]));
    let line = format!("--manifests {}", cluster.path("pods.yaml").display());
    let run = cluster.start_with("", &line);
    let told = || run.status()["problems"].to_string().contains("/pods.yaml: ");
    assert!(wait_until(PATIENCE, told), "{:#}", run.status());
    cluster.place("pods.yaml", &text(&["a", "b"]));
    run.wait_for_names(&["a", "b"]);
    cluster.place("pods.yaml", &text(&["b", "c"]));
    run.wait_for_names(&["b", "c"]);
    fs::remove_file(cluster.path("pods.yaml")).unwrap();
    run.wait_for_names(&[]);
    run.stop();
}

#[test]
fn pods_of_an_api_server_that_is_down_come_back_after_a_reboot() {
    need!("ip", "nft");
    let cluster = Cluster::new(&bridge("10.7.0.0/24"));
    let server = cluster.node.within(ApiServer::start);
    server.put_all(["a", "b"].map(pod));
    let kubeconfig = server.kubeconfig(cluster.node.dir(), None);
    let line = format!("--kubeconfig {} --node-name this", kubeconfig.display());
    let run = cluster.start_with("", &line);
    let before = run.wait_for(2);
    run.signal("KILL");
    run.wait_until_gone();
    // Simulates a reboot: the records are from another boot, and everything else is removed.
    let records = cluster.path("state/sandboxes").display().to_string();
    cluster.node.sh(&format!(
        "boot=$(cat /proc/sys/kernel/random/boot_id); grep -rl $boot {records} | xargs sed -i s/$boot/00000000-0000-4000-8000-000000000000/g; \
         umount {0}/netns/* && rm -r {0}/netns; nft flush ruleset; ip link del br0",
        cluster.run_dir.display()
    ));
    server.fail(Some(503));
    server.delete("default/b");
    let run = cluster.start_with("", &line);
    run.wait_for_names(&["a", "b"]);
    let after = run.ready();
    assert_ne!((&after["a"].sandbox, &after["b"].sandbox), (&before["a"].sandbox, &before["b"].sandbox));
    cluster.assert_whole(&after);
    assert_eq!(run.status()["overall"]["sourcesReady"], false);
    // Pods that the server doesn't list are removed once it answers. The other pod stays.
    server.fail(None);
    run.signal("HUP");
    run.wait_for_names(&["a"]);
    assert_eq!(run.ready()["a"], after["a"]);
    cluster.assert_whole(&run.ready());
    run.stop();
}

/// A plugin that can serve unless the file `broken` is beside it.
const MOODY: &str = r#"#!/bin/sh
config=$(cat)
case $CNI_COMMAND in
VERSION) echo '{"cniVersion":"1.1.0","supportedVersions":["1.0.0","1.1.0"]}' ;;
STATUS) [ ! -e "$(dirname "$0")/broken" ] || { echo '{"cniVersion":"1.1.0","code":50,"msg":"the moon is wrong"}'; exit 1; } ;;
ADD) echo "$config" | jq .prevResult; echo "$config" | jq -c .runtimeConfig >>"$(dirname "$0")/told" ;;
esac
"#;

#[test]
fn plugins_that_cant_serve_make_the_node_not_ready() {
    need!("ip", "nft", "jq");
    let mut network = bridge("10.7.0.0/24");
    let moody = json!({"type": "moody", "capabilities": {"cgroupPath": true}});
    network["plugins"].as_array_mut().unwrap().push(moody);
    let cluster = Cluster::new(&network);
    fs::create_dir(cluster.path("bin")).unwrap();
    script(&cluster.path("bin/moody"), MOODY);
    fs::write(cluster.path("bin/broken"), "").unwrap();
    let mut web = manifest("web");
    web["metadata"]["uid"] = json!("3f1e");
    cluster.put("web", &web);
    let run = cluster.start("--cgroup-root /kubepods/");
    let why = run.wait_for_reason("web", "NetworkNotReady");
    assert!(why.contains("the moon is wrong"), "{why}");
    let health = || run.page("/healthz").unwrap_or_default();
    assert!(
        health().0.starts_with("HTTP/1.1 503") && health().1.contains("the moon is wrong"),
        "{:?}",
        health()
    );
    assert_eq!(run.status()["network"]["ready"], false);
    fs::remove_file(cluster.path("bin/broken")).unwrap();
    run.wait_for_names(&["web"]);
    assert!(wait_until(PATIENCE, || health().0 == "HTTP/1.1 200 OK"), "{:?}", health());
    // A running pod keeps its network. A new pod waits.
    fs::write(cluster.path("bin/broken"), "").unwrap();
    assert!(wait_until(PATIENCE, || health().0.starts_with("HTTP/1.1 503")), "{:?}", health());
    assert_eq!(run.ready().len(), 1);
    cluster.put("late", &manifest("late"));
    run.wait_for_reason("late", "NetworkNotReady");
    run.stop();
    let told = fs::read_to_string(cluster.path("bin/told")).unwrap();
    assert_eq!(told, "{\"cgroupPath\":\"/kubepods/pod3f1e\"}\n");
}

#[test]
fn a_list_in_a_file_for_one_plugin_is_skipped_and_told() {
    need!("ip", "nft");
    let cluster = Cluster::new(&bridge("10.7.0.0/24"));
    cluster.place("net.d/05-list.conf", &bridge("10.8.0.0/24").to_string());
    cluster.put("web", &manifest("web"));
    let run = cluster.start("");
    let ready = run.wait_for(1);
    assert!(ready["web"].ip.starts_with("10.7.0."), "{ready:?}");
    assert!(
        run.status()["problems"].to_string().contains("05-list.conf: it is a list"),
        "{:#}",
        run.status()
    );
    run.stop();
    assert!(cluster.log().contains("05-list.conf: it is a list"), "{}", cluster.log());
}

#[test]
fn beside_a_kubelet_only_pods_that_are_marked_are_ours() {
    need!("ip", "nft", "sleep");
    let cluster = Cluster::new(&bridge("10.7.0.0/24"));
    let server = cluster.node.within(ApiServer::start);
    let mut ours = pod("ours");
    ours["metadata"]["annotations"] = json!({"cnimble/managed": "true"});
    server.put(ours.clone());
    server.put(pod("theirs"));
    let kubeconfig = server.kubeconfig(cluster.node.dir(), None);
    let line = format!("--kubeconfig {} --node-name this", kubeconfig.display());
    // Takes all pods by default. With the option or beside a kubelet, it takes only managed ones.
    let run = cluster.start_with("", &line);
    run.wait_for_names(&["ours", "theirs"]);
    run.stop();
    let run = cluster.start_with("", &format!("{line} --only-managed"));
    run.wait_for_names(&["ours"]);
    run.stop();
    let program = cluster.path("kubelet").display().to_string();
    cluster.node.sh(&format!("cp $(command -v sleep) {program}"));
    let kubelet = cluster.node.sh(&format!("{program} 1000 >/dev/null 2>&1 & echo $!"));
    let run = cluster.start_with("", &line);
    run.wait_for_names(&["ours"]);
    server.put(pod("another"));
    let mut second = ours;
    second["metadata"]["name"] = json!("second");
    server.put(second);
    run.wait_for_names(&["ours", "second"]);
    run.stop();
    assert!(cluster.log().contains("a kubelet runs on this node"), "{}", cluster.log());
    cluster.node.sh(&format!("kill {kubelet}"));
}
