//! Tests terminating pods of an API server, and the status that the server gets.

use serde_json::{Value, json};

use cnimble_tests::http::ApiServer;
use cnimble_tests::{PATIENCE, need, wait_until};

use super::{Cluster, bridge, manifest};

const LONG_AGO: &str = "2020-01-01T00:00:00Z";
const MUCH_LATER: &str = "2099-01-01T00:00:00Z";

/// Returns a pod that is bound to this node.
fn pod(name: &str) -> Value {
    let mut pod = manifest(name);
    pod["spec"]["nodeName"] = json!("this");
    pod
}

/// Returns a terminating pod with this deadline.
fn going(name: &str, by: &str) -> Value {
    let mut pod = pod(name);
    pod["metadata"]["deletionTimestamp"] = json!(by);
    pod["metadata"]["deletionGracePeriodSeconds"] = json!(100_000);
    pod
}

fn in_phase(name: &str, phase: &str) -> Value {
    let mut pod = pod(name);
    pod["status"] = json!({"phase": phase});
    pod
}

fn managed(mut pod: Value) -> Value {
    pod["metadata"]["annotations"] = json!({"cnimble/managed": "true"});
    pod
}

fn line(cluster: &Cluster, server: &ApiServer, more: &str) -> String {
    let kubeconfig = server.kubeconfig(cluster.node.dir(), None);
    format!("--kubeconfig {} --node-name this {more}", kubeconfig.display())
}

#[test]
fn pods_that_end_or_are_deleted_lose_their_network_and_do_not_come_back() {
    need!("ip", "nft");
    let cluster = Cluster::new(&bridge("10.7.0.0/24"));
    let server = cluster.node.within(ApiServer::start);
    server.put_all(["fails", "late", "over", "stays", "succeeds"].map(|name| in_phase(name, "Running")));
    server.put(in_phase("ended", "Succeeded"));
    let line = line(&cluster, &server, "");
    let run = cluster.start_with("", &line);
    let before = run.wait_for(5);
    server.put(in_phase("succeeds", "Succeeded"));
    server.put(in_phase("fails", "Failed"));
    // The grace period of one pod is over, that of another isn't. A third pod is terminating from the start.
    server.put(going("over", LONG_AGO));
    server.put(going("late", MUCH_LATER));
    server.put(going("never-was", MUCH_LATER));
    server.put(pod("new"));
    run.wait_for_names(&["late", "new", "stays"]);
    let now = run.ready();
    assert_eq!((&now["late"], &now["stays"]), (&before["late"], &before["stays"]));
    cluster.assert_whole(&now);

    run.signal("KILL");
    run.wait_until_gone();
    let run = cluster.start_with("", &line);
    run.wait_for_names(&["late", "new", "stays"]);
    assert_eq!(run.ready(), now, "what had a network keeps it, and nothing else comes");
    cluster.assert_whole(&now);
    server.put(going("late", LONG_AGO));
    run.wait_for_names(&["new", "stays"]);
    server.delete("default/new");
    run.wait_for_names(&["stays"]);
    let left = run.ready();
    cluster.assert_whole(&left);
    run.stop();
}

#[test]
fn once_ends_with_a_server_that_refuses() {
    need!("ip", "timeout");
    let cluster = Cluster::new(&bridge("10.7.0.0/24"));
    cluster.put_all(["web".to_owned()].into_iter());
    let server = cluster.node.within(ApiServer::start);
    for status in [401, 403] {
        server.fail(Some(status));
        let manifests = format!("--once --manifests {}", cluster.path("manifests").display());
        let outcome = cluster
            .node
            .run(&format!("timeout 100 env {}", cluster.line(&line(&cluster, &server, &manifests))));
        assert_eq!(outcome.status, 1, "{}", outcome.describe());
        assert!(outcome.stderr.contains(&format!("status {status}: it says")), "{}", outcome.describe());
        // Pods of the other source are set up nevertheless.
        assert!(outcome.stderr.contains("pod default/web is ready"), "{}", outcome.describe());
    }
    server.fail(None);
    let outcome =
        cluster.node.run(&format!("timeout 100 env {}", cluster.line(&line(&cluster, &server, "--once"))));
    assert_eq!(outcome.status, 0, "{}", outcome.describe());
}

#[test]
fn once_ends_with_a_directory_that_isnt_there_or_a_url_that_nobody_serves() {
    need!("ip", "timeout");
    let cluster = Cluster::new(&bridge("10.7.0.0/24"));
    cluster.put_all(["web".to_owned()].into_iter());
    // A new node has no listener on this port.
    let url = "--url http://127.0.0.1:9/";
    let missing = format!("--manifests {}", cluster.path("none").display());
    let there = format!("--manifests {}", cluster.path("manifests").display());
    for (sources, problem, ready) in [
        (missing.clone(), "none: ", false),
        (url.to_owned(), "onnection refused", false),
        (format!("{missing} {url}"), "none: ", false),
        (format!("{there} {url}"), "onnection refused", true),
    ] {
        let line = cluster.line(&format!("--once {sources}"));
        let outcome = cluster.node.run(&format!("timeout 100 env {line}"));
        assert_eq!(outcome.status, 1, "{}", outcome.describe());
        assert!(outcome.stderr.contains(problem), "{}", outcome.describe());
        assert_eq!(outcome.stderr.contains("pod default/web is ready"), ready, "{}", outcome.describe());
    }
    // The directory can be created while the command runs.
    let run = cluster.start_with("", &missing);
    let told = || run.status()["problems"].to_string().contains("/none: ");
    assert!(wait_until(PATIENCE, told), "{:#}", run.status());
    std::fs::rename(cluster.path("manifests"), cluster.path("none")).unwrap();
    run.wait_for_names(&["web"]);
    assert!(wait_until(PATIENCE, || run.status()["problems"] == json!([])), "{:#}", run.status());
    run.stop();
}

#[test]
fn a_server_that_refuses_or_is_down_is_no_good_health() {
    need!("ip");
    let cluster = Cluster::new(&bridge("10.7.0.0/24"));
    let server = cluster.node.within(ApiServer::start);
    let mut host = pod("host");
    host["spec"]["hostNetwork"] = json!(true);
    server.put(host);
    let run = cluster.start_with("", &line(&cluster, &server, ""));
    run.wait_for_names(&["host"]);
    let health = || run.page("/healthz").unwrap_or_default();
    let ready = || run.status()["overall"]["sourcesReady"].clone();
    assert!(wait_until(PATIENCE, || health().0 == "HTTP/1.1 200 OK" && ready() == true), "{:?}", health());
    server.fail(Some(403));
    let refused = || {
        let (status, why) = health();
        status.starts_with("HTTP/1.1 503") && why.contains("/api/v1/pods: status 403: it says")
    };
    assert!(wait_until(PATIENCE, refused), "{:?}", health());
    assert_eq!(ready(), false);
    assert_eq!(run.ready().len(), 1, "its pods stay");
    server.fail(None);
    run.signal("HUP");
    assert!(wait_until(PATIENCE, || health().0 == "HTTP/1.1 200 OK" && ready() == true), "{:?}", health());
    run.stop();
    let log = cluster.log();
    assert!(log.contains("pod default/host is ready: no addresses of its own ("), "{log}");
}

#[test]
fn a_signal_ends_it_without_pods_while_the_server_keeps_the_watch_open() {
    need!("ip");
    let cluster = Cluster::new(&bridge("10.7.0.0/24"));
    let server = cluster.node.within(ApiServer::start);
    let run = cluster.start_with("", &line(&cluster, &server, ""));
    let watches = || server.requests().iter().any(|request| request.target.contains("watch="));
    assert!(wait_until(PATIENCE, || watches() && run.status()["overall"]["sourcesReady"] == true));
    // The server sends nothing and holds the watch open for longer than the wait here.
    run.stop();
}

#[test]
fn the_status_of_pods_that_are_ours_is_written_and_their_deletion_confirmed() {
    need!("ip", "nft");
    let cluster = Cluster::new(&bridge("10.7.0.0/24"));
    let server = cluster.node.within(ApiServer::start);
    server.put(managed(pod("ours")));
    server.put(pod("theirs"));
    let run = cluster.start_with("", &line(&cluster, &server, "--write-status"));
    let ready = run.wait_for(2);
    let status = |name: &str| server.pod(&format!("default/{name}")).unwrap()["status"].clone();
    assert!(wait_until(PATIENCE, || status("ours")["phase"] == "Running"), "{}", cluster.log());
    let ours = status("ours");
    assert_eq!(
        (&ours["podIP"], &ours["podIPs"]),
        (&json!(ready["ours"].ip), &json!([{"ip": ready["ours"].ip}]))
    );
    let is_ready = |one: &Value| one["type"] == "Ready" && one["status"] == "True";
    assert!(ours["conditions"].as_array().unwrap().iter().any(is_ready), "{ours}");

    // `kubectl delete` of both: cnimble acts as the kubelet of one pod, another process as that of the other.
    server.put(managed(going("ours", MUCH_LATER)));
    server.put(going("theirs", LONG_AGO));
    assert!(wait_until(PATIENCE, || server.pod("default/ours").is_none()), "{}", cluster.log());
    run.wait_for_names(&[]);
    assert_eq!(cluster.leases(), [""; 0]);
    // A pod that was never up is confirmed as well.
    server.put(managed(going("never-was", MUCH_LATER)));
    assert!(wait_until(PATIENCE, || server.pod("default/never-was").is_none()), "{}", cluster.log());
    // A pod with the same name and another UID is another pod.
    let mut again = managed(pod("ours"));
    again["metadata"]["uid"] = json!("again");
    server.put(again);
    run.wait_for_names(&["ours"]);
    assert!(wait_until(PATIENCE, || status("ours")["phase"] == "Running"), "{}", cluster.log());
    run.stop();
    let written: Vec<_> = server.requests().into_iter().filter(|request| request.method != "GET").collect();
    assert!(written.iter().all(|request| !request.target.contains("theirs")), "{written:?}");
    assert!(server.pod("default/theirs").is_some());

    // Without the option nothing is written.
    server.delete("default/theirs");
    let run = cluster.start_with("", &line(&cluster, &server, ""));
    run.wait_for_names(&["ours"]);
    let mut going = managed(going("ours", LONG_AGO));
    going["metadata"]["uid"] = json!("again");
    server.put(going);
    run.wait_for_names(&[]);
    run.stop();
    assert_eq!(server.requests().iter().filter(|request| request.method != "GET").count(), written.len());
}
