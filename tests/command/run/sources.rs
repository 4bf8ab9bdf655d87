//! Tests that pods from a URL and from an API server behave like those from a directory.

use serde_json::{Value, json};

use cnimble_tests::http::{ApiServer, TextServer};
use cnimble_tests::tls::{Authority, door};
use cnimble_tests::{PATIENCE, keep_silent, need, wait_until};

use super::{Cluster, bridge, manifest};

/// Returns a server's list of these pods.
fn list(names: &[&str]) -> String {
    let items: Vec<Value> = names.iter().map(|name| manifest(name)).collect();
    json!({"apiVersion": "v1", "kind": "PodList", "items": items}).to_string()
}

#[test]
fn pods_from_a_url_are_followed() {
    need!("ip", "nft", "ping", "nsenter");
    let cluster = Cluster::new(&bridge("10.7.0.0/24"));
    let web = cluster.node.within(|| TextServer::start(&list(&["a", "b", "c"])));
    let run = cluster.start_with("", &format!("--url {} --poll 1", web.url()));
    let before = run.wait_for(3);
    assert_eq!(cluster.unanswered(&before), "");
    // An unreadable answer removes no pod's network.
    for (status, body) in [(500, ""), (200, "{")] {
        web.say(status, "", body.as_bytes());
        let told = || run.status()["problems"].as_array().is_some_and(|problems| !problems.is_empty());
        assert!(wait_until(PATIENCE, told), "{:#}", run.status());
        assert_eq!(run.ready(), before);
    }
    web.say(200, "", list(&["a", "c", "d"]).as_bytes());
    let followed = || run.ready().contains_key("d") && !run.pods().contains_key("b");
    assert!(wait_until(PATIENCE, followed), "{:#}", run.status());
    let after = run.wait_for(3);
    assert_eq!((&after["a"], &after["c"]), (&before["a"], &before["c"]));
    cluster.assert_whole(&after);
    run.stop();
}

/// SSL_CERT_FILE replaces the system's certificate authorities.
#[test]
fn a_url_with_tls_needs_an_authority_that_is_trusted() {
    need!("ip", "nft", "openssl");
    let cluster = Cluster::new(&bridge("10.7.0.0/24"));
    let (ours, other) = (Authority::new(), Authority::new());
    let (web, address) = cluster.node.within(|| {
        let web = TextServer::start(&list(&["a", "b"]));
        let address = door(web.address(), &ours.issue("IP:127.0.0.1"), None);
        (web, address)
    });
    let start = |authority: &Authority| {
        let env = format!("SSL_CERT_FILE={}", authority.certificate().display());
        cluster.start_with(&env, &format!("--url https://{address}/pods --poll 1"))
    };
    let run = start(&other);
    let problems = || run.status()["problems"].to_string();
    assert!(wait_until(PATIENCE, || problems().contains("UnknownIssuer")), "{}", problems());
    assert!(problems().contains(&format!("https://{address}/pods")), "{}", problems());
    run.stop();
    assert_eq!(web.requests().len(), 0);
    let run = start(&ours);
    cluster.assert_whole(&run.wait_for(2));
    run.stop();
}

/// Until the last source has been read the wanted pods are unknown.
#[test]
fn a_source_that_is_down_costs_no_pod_its_network() {
    need!("ip", "nft");
    let cluster = Cluster::new(&bridge("10.7.0.0/24"));
    let web = cluster.node.within(|| TextServer::start(&list(&["a", "b"])));
    let url = format!("--url {} --poll 1", web.url());
    let run = cluster.start_with("", &url);
    let before = run.wait_for(2);
    run.signal("KILL");
    run.wait_until_gone();
    web.say(503, "", b"");
    cluster.put_all(["c".to_owned()].into_iter());
    let run = cluster.start_with("", &format!("{url} --manifests {}", cluster.path("manifests").display()));
    // One source works and is followed. Several housekeeping rounds pass.
    assert!(wait_until(PATIENCE, || run.ready().contains_key("c")), "{:#}", run.status());
    keep_silent(std::time::Duration::from_secs(5));
    assert_eq!(run.status()["overall"]["sourcesReady"], false);
    assert_eq!(cluster.namespaces().len(), 3, "the pods of the other one are left alone");
    web.say(200, "", list(&["a"]).as_bytes());
    let after = run.wait_for(2);
    assert_eq!(after["a"], before["a"]);
    let gone = || cluster.namespaces().len() == 2;
    assert!(wait_until(PATIENCE, gone), "b is nobody's any more: {:?}", cluster.namespaces());
    cluster.assert_whole(&run.wait_for(2));
    run.stop();
}

#[test]
fn pods_of_an_api_server_are_followed() {
    need!("ip", "nft", "ping", "nsenter");
    let cluster = Cluster::new(&bridge("10.7.0.0/24"));
    let server = cluster.node.within(ApiServer::start);
    let pod = |name: &str| {
        let mut pod = manifest(name);
        pod["spec"]["nodeName"] = json!("this");
        pod
    };
    for name in ["a", "b", "c", "d", "e"] {
        server.put(pod(name));
    }
    let mut elsewhere = pod("elsewhere");
    elsewhere["spec"]["nodeName"] = json!("that");
    server.put(elsewhere);
    let kubeconfig = server.kubeconfig(cluster.node.dir(), None);
    let line = format!("--kubeconfig {} --node-name this", kubeconfig.display());
    let run = cluster.start_with("", &line);
    let before = run.wait_for(5);
    assert_eq!(cluster.unanswered(&before), "");
    cluster.assert_whole(&before);
    server.delete("default/b");
    let mut edited = pod("c");
    edited["spec"]["containers"][0]["ports"] = json!([{"containerPort": 80, "hostPort": 8080}]);
    server.put(edited);
    server.put(pod("f"));
    let followed = || {
        let now = run.ready();
        now.contains_key("f") && !now.contains_key("b") && now.get("c").is_some_and(|pod| *pod != before["c"])
    };
    assert!(wait_until(PATIENCE, followed), "{:#}\n{}", run.status(), cluster.log());
    let after = run.wait_for(5);
    cluster.assert_whole(&after);
    // The server is unreachable at the next start. No pod loses its network.
    server.fail(Some(503));
    run.signal("KILL");
    run.wait_until_gone();
    let run = cluster.start_with("", &line);
    assert!(wait_until(PATIENCE, || !run.status()["problems"].as_array().is_none_or(Vec::is_empty)));
    cluster.assert_whole(&after);
    server.fail(None);
    assert_eq!(run.wait_for(5), after);
    run.stop();
}

/// A pod in a cluster gets two variables, and a directory with a token and an authority.
#[test]
fn in_a_cluster_the_service_account_is_used() {
    need!("ip", "openssl");
    let cluster = Cluster::new(&bridge("10.7.0.0/24"));
    let authority = Authority::new();
    let (server, address) = cluster.node.within(|| {
        let server = ApiServer::start();
        let address = door(server.address(), &authority.issue("IP:127.0.0.1"), None);
        (server, address)
    });
    server.require("of the account");
    let mut pod = manifest("host");
    (pod["spec"]["nodeName"], pod["spec"]["hostNetwork"]) = (json!("this"), json!(true));
    server.put(pod.clone());
    let outside = cluster.node.run(&format!("{} || true", cluster.line("--in-cluster --node-name this")));
    assert!(outside.stderr.contains("KUBERNETES_SERVICE_HOST is not set"), "{}", outside.describe());
    let account = "/var/run/secrets/kubernetes.io/serviceaccount";
    cluster.node.sh(&format!(
        "mkdir -p {account}; cp {} {account}/ca.crt; echo of the account >{account}/token",
        authority.certificate().display()
    ));
    let env = format!("KUBERNETES_SERVICE_HOST=127.0.0.1 KUBERNETES_SERVICE_PORT={}", address.port());
    let run = cluster.start_with(&env, "--in-cluster --node-name this");
    let ready = || run.pods().get("host").is_some_and(|pod| pod["phase"] == "Ready");
    assert!(wait_until(PATIENCE, ready), "{:#}\n{}", run.status(), cluster.log());
    // The token is replaced periodically.
    cluster.node.sh(&format!("echo another >{account}/token"));
    server.require("another");
    server.disconnect();
    pod["metadata"]["name"] = json!("second");
    server.put(pod);
    let ready = || run.pods().get("second").is_some_and(|pod| pod["phase"] == "Ready");
    assert!(wait_until(PATIENCE, ready), "{:#}\n{}", run.status(), cluster.log());
    run.stop();
}
