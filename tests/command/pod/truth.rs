//! Tests that reports about pods show the state of the kernel rather than the records.

use serde_json::Value;

use cnimble_tests::{Node as Whole, PATIENCE, command, need, wait_until};

use super::Node;

/// Returns state and number of addresses of a pod, as `ls` shows them.
fn seen(node: &Node, name: &str) -> (String, usize) {
    let pods = node.pods();
    let pod = pods.iter().find(|pod| pod["name"] == name).unwrap();
    (pod["state"].as_str().unwrap().to_owned(), pod["ips"].as_array().unwrap().len())
}

#[test]
fn ls_and_status_look_at_the_kernel() {
    need!("ip", "nft");
    let node = Node::new();
    node.network("10.21.0.0/24");
    let files: Vec<String> = ["a", "b", "c", "d"].iter().map(|name| node.pod(name, "")).collect();
    let up: Vec<&str> = std::iter::once("up").chain(files.iter().map(String::as_str)).collect();
    node.ok(&up);
    for name in ["a", "b", "c", "d"] {
        assert_eq!(seen(&node, name), ("Ready".to_owned(), 1));
    }
    let status = |name: &str| {
        let outcome = node.run(&["status", name, "--json"]);
        let value: Value = serde_json::from_slice(&outcome.stdout).unwrap();
        (value["state"].as_str().unwrap().to_owned(), value["ips"].as_array().unwrap().len(), outcome.status)
    };
    assert_eq!(status("d"), ("Ready".to_owned(), 1, 0));
    // One interface is deleted, one address is deleted, and one foreign address is added.
    node.ok(&["exec", "a", "--", "ip", "link", "del", "eth0"]);
    node.ok(&["exec", "b", "--", "ip", "addr", "flush", "dev", "eth0"]);
    node.ok(&["exec", "c", "--", "ip", "addr", "add", "10.99.0.1/24", "dev", "eth0"]);
    assert_eq!(seen(&node, "a"), ("Broken".to_owned(), 0));
    assert_eq!(seen(&node, "b"), ("NoAddress".to_owned(), 0));
    assert_eq!(seen(&node, "c"), ("Ready".to_owned(), 2));
    assert_eq!(seen(&node, "d"), ("Ready".to_owned(), 1));
    assert_eq!(status("a").1, 0);
    assert_ne!(status("a").2, 0);
    let (state, count, exit) = status("b");
    assert_eq!((state.as_str(), count, exit), ("NoAddress", 0, 6));
    // The bridge is deleted on the host.
    node.host.ip("link del cni0");
    assert_eq!(seen(&node, "d").0, "NoLink");
    assert_eq!(status("d").0, "NoLink");
    node.ok(&["down", "--all"]);
}

#[test]
fn pods_go_down_by_the_manifests_that_they_came_from() {
    need!("ip", "nft");
    let node = Node::new();
    node.network("10.22.0.0/24");
    let (web, db) = (node.pod("web", ""), node.pod("db", ""));
    node.ok(&["up", &web, &db]);
    let told = node.ok(&["down", &web, &db]);
    assert!(told.contains("ok default/web is down") && told.contains("ok default/db is down"), "{told}");
    assert_eq!(node.pods().len(), 0);
    // Names and files together, a missing file, and a file that is no manifest.
    node.ok(&["up", &web, &db]);
    node.ok(&["down", &web, "db"]);
    assert_eq!(node.pods().len(), 0);
    node.ok(&["up", &web]);
    std::fs::write(node.path("pods/bad.yaml"), "kind: Pod\n").unwrap();
    let bad = node.path("pods/bad.yaml").display().to_string();
    let outcome = node.run(&["down", &bad, &web]);
    assert_eq!(outcome.status, 3, "{}", outcome.describe());
    assert!(outcome.text().contains("ok default/web is down"), "{}", outcome.describe());
    for (name, status, words) in
        [("/nonexistent/x.yaml", 3, "can't read the manifest"), ("a/b/c", 2, "is no name of a pod")]
    {
        let outcome = node.run(&["down", name]);
        assert_eq!(outcome.status, status, "{}", outcome.describe());
        assert!(outcome.stderr.contains(words), "{}", outcome.describe());
    }
}

/// Uses the default directories. No other test has this subnet, because the doctor looks at all namespaces of the
/// machine.
#[test]
fn the_doctor_knows_the_pods_cache_and_what_a_flush_took() {
    need!("ip", "nft");
    let node = Whole::new();
    let network = serde_json::json!({"cniVersion": "1.0.0", "name": "pods", "plugins": [
        {"type": "bridge", "bridge": "cni0", "isGateway": true, "ipMasq": true,
         "ipam": {"type": "host-local", "ranges": [[{"subnet": "10.213.13.0/24"}]]}},
        {"type": "portmap", "capabilities": {"portMappings": true}}]});
    let conf = node.file("net.d/10-pods.conflist", &network.to_string());
    let pod = |name: &str, port: u16| {
        let text = format!(
            "apiVersion: v1\nkind: Pod\nmetadata: {{name: {name}}}\nspec:\n  containers:\n  - name: main\n    ports: [{{containerPort: 80, hostPort: {port}}}]\n"
        );
        node.file(&format!("{name}.yaml"), &text).display().to_string()
    };
    let base = format!("{{}} --conf-dir {} --cni-path /opt/cni/bin", conf.parent().unwrap().display());
    let cnimble = |args: &str| node.run(&format!("{} {}", command().display(), base.replace("{}", args)));
    cnimble(&format!("pod up {} {}", pod("web", 8080), pod("db", 8081))).success();
    let rules = || {
        let text = node.sh("nft -s list ruleset");
        let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
        lines.sort();
        lines
    };
    let before = rules();
    let healthy = cnimble("doctor --grace 0");
    assert_eq!(healthy.status, 0, "{}", healthy.describe());
    node.sh("nft flush ruleset");
    let outcome = cnimble("doctor --grace 0 --json");
    assert_eq!(outcome.status, 6, "{}", outcome.describe());
    let report: Value = serde_json::from_slice(&outcome.stdout).unwrap();
    let found = report["findings"].as_array().unwrap();
    // Masquerading and the port of each pod.
    assert!(found.len() == 4 && found.iter().all(|of| of["kind"] == "missing-rules"), "{report:#}");
    let outcome = cnimble("doctor --grace 0 --repair");
    assert_eq!(outcome.status, 0, "{}", outcome.describe());
    assert_eq!(rules(), before);
    cnimble("pod status web").success();
    // An entry for a missing namespace is handled in its own cache.
    node.sh("umount /run/cnimble/netns/*; rm /run/cnimble/netns/*");
    // The kernel removes the pairs a moment later. Until then they are evidence for their pods.
    let gone = || !node.links().iter().any(|link| link.starts_with("veth"));
    assert!(wait_until(PATIENCE, gone), "{:?}", node.links());
    let outcome = cnimble("doctor --grace 0 --repair");
    assert_eq!(outcome.status, 0, "{}", outcome.describe());
    assert_eq!(node.sh("ls /var/lib/cnimble/cni/results | grep -c eth0 || true"), "0");
    assert_eq!(node.sh("ls /var/lib/cni/networks/pods | grep -c '^10' || true"), "0");
    // With `--cache-dir` only that cache is used.
    cnimble(&format!("pod up {}", pod("web", 8080))).success();
    node.sh("nft flush ruleset");
    let outcome = cnimble("doctor --grace 0 --cache-dir /var/lib/cni --json");
    let report: Value = serde_json::from_slice(&outcome.stdout).unwrap();
    let found = report["findings"].as_array().unwrap();
    assert!(found.iter().all(|of| of["kind"] != "missing-rules"), "{report:#}");
}
