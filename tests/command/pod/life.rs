//! Tests a pod from up to down, alone and with many others.

use std::fs;

use serde_json::Value;

use cnimble_tests::{PATIENCE, need, wait_until};

use super::Node;

#[test]
fn a_pod_goes_up_is_seen_and_goes_down() {
    need!("ip", "nft", "ping");
    let node = Node::new();
    node.network("10.20.0.0/24");
    let web = node.pod("web", "    ports:\n    - {containerPort: 80, hostPort: 8080}\n");
    assert!(node.ok(&["up", &web]).starts_with("ok default/web is up on pods: 10.20.0."));
    node.has_exactly(1);
    let first = node.pods().remove(0);
    assert!(node.pings("web", "10.20.0.1"));

    // The pod has loopback and the network; the node has neither.
    let addresses = node.ok(&["exec", "web", "--", "ip", "-o", "address"]);
    assert!(addresses.contains("lo ") && addresses.contains("127.0.0.1/8"), "{addresses}");
    assert!(addresses.contains(&node.ip("web")), "{addresses}");
    assert!(node.host.nft("list ruleset").contains("8080"));

    // A second `up` changes nothing.
    node.ok(&["up", &web]);
    assert_eq!(node.pods(), std::slice::from_ref(&first));
    let status: Value = serde_json::from_str(&node.ok(&["status", "web", "--json"])).unwrap();
    assert_eq!(status["state"], "Ready");
    assert_eq!(status["ips"], first["ips"]);
    assert!(node.ok(&["status", "default/web"]).contains("8080 → 80 tcp"));

    // The arguments that the plugins got.
    let results = node.path("state/cni/results");
    let entry = format!("pods-{}-eth0", first["id"].as_str().unwrap());
    let entry: Value = serde_json::from_slice(&fs::read(results.join(entry)).unwrap()).unwrap();
    let args = entry["cniArgs"].to_string();
    for pair in [
        r#"["IgnoreUnknown","1"]"#,
        r#"["K8S_POD_NAMESPACE","default"]"#,
        r#"["K8S_POD_NAME","web"]"#,
        "K8S_POD_INFRA_CONTAINER_ID",
        "K8S_POD_UID",
    ] {
        assert!(args.contains(pair), "{pair}: {args}");
    }

    // An edited manifest is a new pod: down, and up again.
    node.pod("web", "    ports:\n    - {containerPort: 80, hostPort: 8081}\n");
    node.ok(&["up", &web]);
    node.has_exactly(1);
    let second = node.pods().remove(0);
    assert_ne!(second["id"], first["id"]);
    assert_eq!(second["attempt"], 1);
    let rules = node.host.nft("list ruleset");
    assert!(rules.contains("8081") && !rules.contains("8080"), "{rules}");

    assert_eq!(node.ok(&["down", "web"]), "ok default/web is down\n");
    assert_eq!(node.ok(&["down", "web"]), "ok default/web was not up\n");
    node.is_clean();
}

#[test]
fn fifty_pods_at_once() {
    need!("ip", "nft", "ping");
    let node = Node::new();
    node.network("10.21.0.0/24");
    let files: Vec<String> = (0..50).map(|number| node.pod(&format!("p{number}"), "")).collect();
    let mut up = vec!["up"];
    up.extend(files.iter().map(String::as_str));
    assert_eq!(node.ok(&up).lines().count(), 50);
    node.has_exactly(50);
    let pods = node.pods();
    let addresses: std::collections::BTreeSet<String> =
        pods.iter().map(|pod| pod["ips"][0].to_string()).collect();
    assert_eq!(addresses.len(), 50);
    for (from, to) in [("p0", "p49"), ("p49", "p7"), ("p13", "p31")] {
        assert!(node.pings(from, &node.ip(to)), "{from} to {to}");
    }
    assert_eq!(node.ok(&["down", "--all"]).lines().count(), 50);
    node.is_clean();
}

#[test]
fn two_commands_on_one_pod_make_one_network() {
    need!("ip", "nft");
    let node = Node::new();
    node.network("10.22.0.0/24");
    let web = node.pod("web", "");
    let outcomes: Vec<i32> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..6).map(|_| scope.spawn(|| node.run(&["up", &web]).status)).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    assert_eq!(outcomes, [0; 6]);
    node.has_exactly(1);
    node.ok(&["down", "web"]);
    node.is_clean();
}

#[test]
fn host_network_pods_have_no_network_of_their_own() {
    need!("ip", "nft");
    let node = Node::new();
    // The pod has no namespace.
    let web = node.pod("web", "  hostNetwork: true\n");
    assert_eq!(node.ok(&["up", &web]), "ok default/web is up on the node's network: -\n");
    assert_eq!(fs::read_dir(node.path("run/netns")).unwrap().count(), 0);
    let links = node.ok(&["exec", "web", "--", "ip", "-o", "link"]);
    assert_eq!(links, node.host.ip("-o link"));
    node.ok(&["status", "web"]);
    node.ok(&["down", "web"]);
    node.is_clean();
}

#[test]
fn name_resolution_is_the_pods_own() {
    need!("ip", "nft");
    let node = Node::new();
    node.network("10.23.0.0/24");
    let web = node.pod(
        "web",
        "  dnsPolicy: None\n  dnsConfig:\n    nameservers: [192.0.2.53]\n    searches: [example.org]\n    \
         options: [{name: ndots, value: \"2\"}]\n",
    );
    let db = node.pod("db", "");
    let cluster = ["--cluster-dns", "10.96.0.10"];
    node.ok(&[&["up", &web, &db], &cluster[..]].concat());
    assert_eq!(
        node.ok(&["exec", "web", "--", "cat", "/etc/resolv.conf"]),
        "search example.org\nnameserver 192.0.2.53\noptions ndots:2\n"
    );
    let text = node.ok(&["exec", "db", "--", "cat", "/etc/resolv.conf"]);
    assert!(text.starts_with("search default.svc.cluster.local svc.cluster.local cluster.local"), "{text}");
    assert!(text.contains("nameserver 10.96.0.10\n"), "{text}");
    node.ok(&["down", "--all"]);
    node.is_clean();
}

#[test]
fn a_pause_process_holds_the_namespace_and_is_ended() {
    need!("ip", "nft");
    let node = Node::new();
    node.network("10.24.0.0/24");
    let web = node.pod("web", "");
    node.ok(&["up", "--pause", &web]);
    let pod = node.pods().remove(0);
    let pid = pod["pid"].as_u64().unwrap();
    let identity = |path: String| fs::metadata(path).map(|meta| std::os::unix::fs::MetadataExt::ino(&meta));
    let pinned = identity(pod["netns"].as_str().unwrap().to_owned()).unwrap();
    assert_eq!(identity(format!("/proc/{pid}/ns/net")).unwrap(), pinned);

    // A pod without its process is broken, and `up` recreates it.
    nix::sys::signal::kill(
        nix::unistd::Pid::from_raw(i32::try_from(pid).unwrap()),
        nix::sys::signal::Signal::SIGKILL,
    )
    .unwrap();
    assert!(wait_until(PATIENCE, || node.pods()[0]["state"] == "NoProcess"));
    assert!(node.run(&["status", "web"]).stderr.contains("its pause process has died"));
    node.ok(&["up", "--pause", &web]);
    let again = node.pods().remove(0)["pid"].as_u64().unwrap();
    assert_ne!(again, pid);
    node.ok(&["down", "web"]);
    assert!(wait_until(PATIENCE, || identity(format!("/proc/{again}/ns/net")).is_err()));
    node.is_clean();
}

#[test]
fn limits_and_ranges_reach_the_plugins() {
    need!("ip", "nft", "tc");
    let node = Node::new();
    let mut config = node.bridge("pods", "10.25.0.0/24");
    let plugins = config["plugins"].as_array_mut().unwrap();
    plugins.push(serde_json::json!({"type": "bandwidth", "capabilities": {"bandwidth": true}}));
    plugins[0]["capabilities"] = serde_json::json!({"ipRanges": true});
    plugins[0]["ipam"].as_object_mut().unwrap().remove("ranges");
    node.conflist("10-pods.conflist", &config.to_string());
    let path = node.pod("web", "");
    let text = fs::read_to_string(&path).unwrap();
    let limit = |limit: &str| {
        let with = format!("  annotations: {{kubernetes.io/ingress-bandwidth: \"{limit}\"}}\nspec:");
        fs::write(&path, text.replace("spec:", &with)).unwrap();
        node.run(&["up", &path, "--pod-cidr", "10.25.7.0/24"])
    };
    limit("10M").success();
    assert!(node.ip("web").starts_with("10.25.7."), "{}", node.ip("web"));
    let veth = node.host.links().into_iter().find(|name| name.starts_with("veth")).unwrap();
    let qdisc = node.host.sh(&format!("tc qdisc show dev {veth}"));
    assert!(qdisc.contains("tbf") && qdisc.contains("rate 10Mbit"), "{qdisc}");
    node.ok(&["down", "web"]);

    for (value, why) in [("10", "is unreasonably small (< 1kbit)"), ("2P", "is unreasonably large (> 1Pbit)")]
    {
        let outcome = limit(value);
        assert_eq!(outcome.status, 3, "{}", outcome.describe());
        assert!(outcome.stderr.contains(why), "{}", outcome.stderr);
        assert!(outcome.stderr.contains("kubernetes.io/ingress-bandwidth"), "{}", outcome.stderr);
    }
    node.is_clean();
}

#[test]
fn an_interface_that_vanishes_is_seen() {
    need!("ip", "nft");
    let node = Node::new();
    node.network("10.26.0.0/24");
    let web = node.pod("web", "");
    node.ok(&["up", &web]);
    node.ok(&["exec", "web", "--", "ip", "route", "del", "default"]);
    let outcome = node.run(&["status", "web"]);
    assert_eq!(outcome.status, 1, "CHECK sees it: {}", outcome.describe());
    node.ok(&["exec", "web", "--", "ip", "link", "del", "eth0"]);
    let outcome = node.run(&["status", "web"]);
    assert_ne!(outcome.status, 0);
    assert!(outcome.text().contains("Broken"), "{}", outcome.describe());
    node.ok(&["down", "web"]);
    node.is_clean();
}

/// `gc --gone` uses another cache than the pods. Living pods stay nevertheless.
#[test]
fn gc_gone_leaves_pods_alone() {
    need!("ip", "nft", "ping");
    let node = Node::new();
    let mut config = node.bridge("pods", "10.39.0.0/24");
    config["cniVersion"] = "1.1.0".into();
    node.conflist("10-pods.conflist", &config.to_string());
    let (web, db) = (node.pod("web", ""), node.pod("db", ""));
    node.ok(&["up", &web, &db]);
    let mut gc = node.host.command(cnimble_tests::command());
    gc.args(["gc", "pods", "--gone", "--grace", "0", "--cache-dir"]).arg(node.path("another"));
    gc.env("CNI_PATH", &node.plugins).env("NETCONFPATH", node.path("net.d"));
    let output = cnimble_tests::run_limited(&mut gc, b"", cnimble_tests::LIMIT);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    node.has_exactly(2);
    assert!(node.pings("web", &node.ip("db")));
    assert!(node.host.nft("list ruleset").contains(&format!("{} comment", node.ip("web"))));
    node.ok(&["down", "--all"]);
    node.is_clean();
}
