//! Tests that bad input causes one clear error, for that pod alone.

use std::fs;

use cnimble_tests::need;

use super::{Node, leases, with_scripts};

const CONDITION: &str = "container runtime network not ready: NetworkReady=false \
    reason:NetworkPluginNotReady message:Network plugin returns error: cni plugin not initialized";

#[test]
fn without_a_network_the_condition_says_why() {
    need!("ip", "nft");
    let node = Node::new();
    let web = node.pod("web", "");
    let outcome = node.run(&["up", &web]);
    assert_eq!(outcome.status, 3, "{}", outcome.describe());
    assert!(outcome.stderr.contains(CONDITION), "{}", outcome.stderr);
    assert!(outcome.stderr.contains("Has your network provider started?"), "{}", outcome.stderr);

    node.conflist("10-bad.conflist", "{\n  \"name\": \"x\",\n  \"plugins\" [] }");
    let outcome = node.run(&["up", &web]);
    assert!(outcome.stderr.contains(CONDITION), "{}", outcome.stderr);
    assert!(outcome.stderr.contains("10-bad.conflist:3:13: expected `:`"), "{}", outcome.stderr);
    node.is_clean();
}

#[test]
fn the_first_file_that_can_be_used_is_the_default_network() {
    need!("ip", "nft");
    let node = Node::new();
    node.conflist("05-broken.conflist", "{");
    node.conflist(
        "06-missing.conf",
        r#"{"cniVersion": "1.0.0", "name": "missing", "type": "no-such-plugin"}"#,
    );
    node.conflist("07-readme.txt", "not for us");
    // The file comes first by its name. By its ending a .conflist would come first.
    node.conflist(
        "08-lone.conf",
        &serde_json::json!({
            "cniVersion": "1.0.0", "name": "lone", "type": "bridge", "bridge": "cni0",
            "ipam": {"type": "host-local", "dataDir": node.host.data_dir(), "ranges": [[{"subnet": "10.40.1.0/24"}]]},
        })
        .to_string(),
    );
    node.network("10.40.2.0/24");
    let web = node.pod("web", "");
    let outcome = node.run(&["up", &web]).success();
    assert!(outcome.text().contains("is up on lone: 10.40.1."), "{}", outcome.describe());
    // Each bad file is reported with the fault and its place.
    assert!(outcome.stderr.contains("05-broken.conflist:1:1: EOF"), "{}", outcome.stderr);
    assert!(outcome.stderr.contains("06-missing.conf: "), "{}", outcome.stderr);
    assert!(outcome.stderr.contains("no-such-plugin"), "{}", outcome.stderr);
    node.ok(&["down", "web"]);
    node.is_clean();
}

#[test]
fn a_conflist_that_turns_bad_while_pods_run() {
    need!("ip", "nft", "ping");
    let node = Node::new();
    node.network("10.41.0.0/24");
    let (web, db) = (node.pod("web", ""), node.pod("db", ""));
    node.ok(&["up", &web]);
    node.conflist("10-pods.conflist", "{\"name\": \"pods\",");
    // New pods fail with a reason. Running pods are unaffected.
    let outcome = node.run(&["up", &web, &db]);
    assert_eq!(outcome.status, 3, "{}", outcome.describe());
    assert!(outcome.text().contains("default/web is up"), "{}", outcome.describe());
    assert!(outcome.stderr.contains("can't bring up pod default/db"), "{}", outcome.stderr);
    node.has_exactly(1);
    node.ok(&["status", "web"]);
    assert!(node.pings("web", "10.41.0.1"));
    node.ok(&["down", "web"]);
    node.is_clean();
}

#[test]
fn tear_down_goes_by_what_was_set_up() {
    need!("ip", "nft");
    let node = Node::new();
    node.network("10.42.0.0/24");
    let web = node.pod("web", "    ports:\n    - {containerPort: 80, hostPort: 8080}\n");
    node.ok(&["up", &web]);
    // A network with another name and another lease directory.
    let mut other = node.bridge("other", "10.43.0.0/24");
    other["plugins"][0]["ipam"]["dataDir"] = node.path("elsewhere").to_str().unwrap().into();
    other["plugins"].as_array_mut().unwrap().pop();
    node.conflist("10-pods.conflist", &other.to_string());
    node.ok(&["down", "web"]);
    node.is_clean();
    assert!(leases(&node.path("elsewhere/other")).is_empty());
}

#[test]
fn a_plugin_that_hangs_is_stopped_and_hurts_no_other_pod() {
    need!("ip", "nft", "ping");
    let mut node = Node::new();
    // The plugin hangs only at ADD of one pod.
    let hanging = r#"config=$(cat)
case "$CNI_COMMAND $CNI_ARGS" in "ADD "*K8S_POD_NAME=bad*) exec sleep 1000 ;; esac
exec "$(dirname "$0")/tuning" <<END
$config
END"#;
    with_scripts(&mut node, &[("hanging", hanging)]);
    let mut config = node.bridge("pods", "10.44.0.0/24");
    config["plugins"].as_array_mut().unwrap().push(serde_json::json!({"type": "hanging"}));
    node.conflist("10-pods.conflist", &config.to_string());
    let (bad, good) = (node.pod("bad", ""), node.pod("good", ""));
    let outcome = node.run(&["up", &bad, &good, "--timeout", "20"]);
    assert_eq!(outcome.status, 4, "{}", outcome.describe());
    assert!(outcome.text().contains("default/good is up"), "{}", outcome.describe());
    assert!(outcome.stderr.contains("can't bring up pod default/bad"), "{}", outcome.stderr);
    assert!(outcome.stderr.contains("no answer within 20s"), "{}", outcome.stderr);
    node.has_exactly(1);
    assert!(node.pings("good", "10.44.0.1"));
    node.ok(&["down", "good"]);
    node.is_clean();
}

#[test]
fn a_plugin_that_prints_garbage_is_that_pods_error() {
    need!("ip", "nft");
    let mut node = Node::new();
    let garbage = r#"config=$(cat)
case "$CNI_COMMAND $CNI_ARGS" in "ADD "*K8S_POD_NAME=bad*) echo 'Segfault, or so'; exit 0 ;; esac
exec "$(dirname "$0")/tuning" <<END
$config
END"#;
    with_scripts(&mut node, &[("garbage", garbage)]);
    let mut config = node.bridge("pods", "10.45.0.0/24");
    config["plugins"].as_array_mut().unwrap().push(serde_json::json!({"type": "garbage"}));
    node.conflist("10-pods.conflist", &config.to_string());
    let (bad, good) = (node.pod("bad", ""), node.pod("good", ""));
    let outcome = node.run(&["up", &bad, &good]);
    assert_eq!(outcome.status, 4, "{}", outcome.describe());
    assert!(outcome.stderr.contains("Segfault, or so"), "{}", outcome.stderr);
    node.has_exactly(1);
    node.ok(&["down", "good"]);
    node.is_clean();
}

#[test]
fn a_full_range_is_the_last_pods_error() {
    need!("ip", "nft");
    let node = Node::new();
    // The addresses 2 to 6 allow five pods.
    node.network("10.46.0.0/29");
    let files: Vec<String> = (0..7).map(|number| node.pod(&format!("p{number}"), "")).collect();
    let mut up = vec!["up"];
    up.extend(files.iter().map(String::as_str));
    let outcome = node.run(&up);
    assert_eq!(outcome.status, 1, "{}", outcome.describe());
    assert_eq!(outcome.stderr.matches("no IP addresses available").count(), 2, "{}", outcome.stderr);
    assert!(outcome.stderr.contains("2 of 7 pods are not up"), "{}", outcome.stderr);
    node.has_exactly(5);
    node.ok(&["down", "--all"]);
    node.is_clean();
}

#[test]
fn a_bad_manifest_keeps_no_other_pod_out() {
    need!("ip", "nft");
    let node = Node::new();
    node.network("10.47.0.0/24");
    let good = node.pod("good", "");
    let bad = node.pod("bad", "");
    fs::write(&bad, fs::read_to_string(&bad).unwrap().replace("name: bad", "name: Bad_Name")).unwrap();
    let outcome = node.run(&["up", &bad, &good]);
    assert_eq!(outcome.status, 3, "{}", outcome.describe());
    assert!(outcome.stderr.contains("metadata.name"), "{}", outcome.stderr);
    node.has_exactly(1);

    // Of two pods with one name the first counts.
    let twin = node.path("pods/twin.yaml");
    fs::copy(&good, &twin).unwrap();
    let outcome = node.run(&["up", &good, twin.to_str().unwrap()]);
    assert_eq!(outcome.status, 3, "{}", outcome.describe());
    assert!(outcome.stderr.contains("an earlier manifest has pod default/good, too"), "{}", outcome.stderr);
    node.has_exactly(1);

    let outcome = node.run(&["exec", "nobody", "--", "true"]);
    assert_eq!(outcome.status, 2, "{}", outcome.describe());
    assert!(outcome.stderr.contains("there is no pod default/nobody"), "{}", outcome.stderr);
    let outcome = node.run(&["down", "a/b/c"]);
    assert_eq!(outcome.status, 2, "{}", outcome.describe());
    node.ok(&["down", "--all"]);
    node.is_clean();
}

#[test]
fn what_cannot_be_taken_down_is_tried_again() {
    need!("ip", "nft");
    let mut node = Node::new();
    let stubborn = r#"config=$(cat)
[ "$CNI_COMMAND" != DEL ] || [ ! -e "$0.locked" ] || {
    echo '{"cniVersion":"1.0.0","code":11,"msg":"the switch is busy"}'; exit 1
}
exec "$(dirname "$0")/tuning" <<END
$config
END"#;
    with_scripts(&mut node, &[("stubborn", stubborn)]);
    let mut config = node.bridge("pods", "10.48.0.0/24");
    config["plugins"].as_array_mut().unwrap().push(serde_json::json!({"type": "stubborn"}));
    node.conflist("10-pods.conflist", &config.to_string());
    let web = node.pod("web", "");
    node.ok(&["up", &web]);
    let lock = node.path("bin/stubborn.locked");
    fs::write(&lock, "").unwrap();
    let outcome = node.run(&["down", "web"]);
    assert_eq!(outcome.status, 1, "{}", outcome.describe());
    assert!(outcome.stderr.contains("the switch is busy"), "{}", outcome.stderr);
    // The pod is still on record and has its network.
    assert_eq!(node.pods().len(), 1);
    fs::remove_file(&lock).unwrap();
    node.ok(&["down", "web"]);
    node.is_clean();
}
