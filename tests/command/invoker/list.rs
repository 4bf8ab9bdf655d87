//! Tests `ls`, and which part `tree` draws.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use serde_json::{Value, json};

use cnimble_tests::{Outcome, Pod, need, plugin_dir, seclude_thread};

use super::Node;

const ARGS: &str = "IgnoreUnknown=1;K8S_POD_NAMESPACE=shop;K8S_POD_NAME=web";
const PORTS: &str = r#"{"portMappings":[{"hostPort":8080,"containerPort":80,"protocol":"tcp"}]}"#;

/// A node with three pods: `shop/web` on two networks, `blue` as `cnimble add` names it, and a container ID.
struct Site {
    node: Node,
    pods: [Pod; 3],
}

impl Site {
    fn new() -> Self {
        // Each site has a namespace of the same name.
        seclude_thread();
        let node = Node::new();
        for (name, bridge, subnet) in [("net", "br0", "10.1.2.0/24"), ("other", "br1", "10.1.3.0/24")] {
            node.network(
                name,
                &json!({"cniVersion": "1.0.0", "name": name, "plugins": [
                    {"type": "bridge", "bridge": bridge, "isGateway": true, "ipam": {
                        "type": "host-local", "dataDir": node.host.data_dir(), "ranges": [[{"subnet": subnet}]]}},
                    {"type": "portmap", "capabilities": {"portMappings": true}},
                ]}),
            );
        }
        let site = Site { node, pods: [Pod::new(), Pod::new(), Pod::new()] };
        let [web, blue, plain] = &site.pods;
        fs::create_dir_all("/run/netns").unwrap();
        symlink(blue.path(), "/run/netns/blue").unwrap();
        site.run(&["add", "net", web.path(), "--container-id", "c-web", "--args", ARGS, "--cap-args", PORTS]);
        site.run(&["add", "other", web.path(), "--container-id", "c-web", "--args", ARGS, "-i", "eth1"]);
        site.run(&["add", "net", "blue"]);
        site.run(&["add", "other", plain.path(), "--container-id", &"ab".repeat(32)]);
        site
    }

    fn try_run(&self, args: &[&str]) -> Outcome {
        self.node.cnimble(plugin_dir(), args).env("LC_ALL", "C.UTF-8").run()
    }

    fn run(&self, args: &[&str]) -> String {
        self.try_run(args).success().text()
    }

    fn json(&self, args: &[&str]) -> Value {
        serde_json::from_str(&self.run(&[args, &["--json"]].concat())).unwrap()
    }
}

fn columns(line: &str) -> Vec<&str> {
    line.split_whitespace().collect()
}

#[test]
fn attachments_are_listed_by_the_names_that_people_know() {
    need!("ip");
    let site = Site::new();
    let listed = site.run(&["ls"]);
    let lines: Vec<&str> = listed.lines().collect();
    assert_eq!(columns(lines[0]), ["POD", "NETWORK", "IF", "ADDRESSES", "MAC", "PORTS", "AGE", "STATE"]);
    let mac = |pod: &Pod, name: &str| pod.link(name)["address"].as_str().unwrap().to_owned();
    let [web, blue, plain] = &site.pods;
    for (line, wanted) in lines[1..].iter().zip([
        ["abababababab", "other", "eth0", "10.1.3.3/24", &mac(plain, "eth0"), "-", "", "up"],
        ["blue", "net", "eth0", "10.1.2.3/24", &mac(blue, "eth0"), "-", "", "up"],
        ["shop/web", "net", "eth0", "10.1.2.2/24", &mac(web, "eth0"), "8080->80/tcp", "", "up"],
        ["shop/web", "other", "eth1", "10.1.3.2/24", &mac(web, "eth1"), "-", "", "up"],
    ]) {
        let mut found = columns(line);
        assert!(found[6].ends_with(['s', 'm']), "{line}");
        found[6] = "";
        assert_eq!(found, wanted, "{listed}");
    }
    assert_eq!(lines.len(), 5, "{listed}");
    // An age changes with time. Two listings that are equal have the ages of one between them.
    loop {
        let (before, bare, after) = (site.run(&["ls"]), site.run(&["ls", "--no-headers"]), site.run(&["ls"]));
        if before == after {
            assert_eq!(bare, before.split_once('\n').unwrap().1);
            break;
        }
    }
    let names = format!("{}\nblue\nshop/web\n", "ab".repeat(32));
    assert_eq!(site.run(&["ls", "-o", "name"]), names, "sorted, and each once");
    assert_eq!(site.run(&["ls", "net", "-o", "name"]), "blue\nshop/web\n");
    let wide = site.run(&["ls", "net", "-o", "wide"]);
    assert!(
        wide.lines()
            .next()
            .unwrap()
            .ends_with("CONTAINER              NETNS            HOST          PROBLEM")
            || columns(wide.lines().next().unwrap()).ends_with(&["CONTAINER", "NETNS", "HOST", "PROBLEM"]),
        "{wide}"
    );
    assert!(wide.contains("cnitool-") && wide.contains("/run/netns/blue"), "{wide}");

    let listed = site.json(&["ls", "net"]);
    let listed = listed["attachments"].as_array().unwrap();
    assert_eq!(listed.len(), 2);
    assert_eq!(listed[1]["pod"], "shop/web");
    assert_eq!(listed[1]["containerID"], "c-web");
    assert_eq!(listed[1]["addresses"], json!(["10.1.2.2/24"]));
    assert_eq!(
        listed[1]["ports"],
        json!([{"hostIP": null, "hostPort": 8080, "containerPort": 80, "protocol": "tcp"}])
    );
    assert!(listed[1]["created"].is_u64() && listed[1]["problem"].is_null(), "{listed:?}");
    // An unknown network is an error, and one without a pod is not.
    let outcome = site.try_run(&["ls", "nett"]);
    assert!(
        outcome.status == 3 && outcome.stderr.contains("there is only net, other"),
        "{}",
        outcome.describe()
    );
    site.node.bridge("empty", "1.0.0");
    assert_eq!(site.run(&["ls", "empty"]).lines().count(), 1);
    assert_eq!(site.json(&["ls", "empty"])["attachments"], json!([]));
}

#[test]
fn the_state_is_the_kernels() {
    need!("ip");
    let site = Site::new();
    let state = |pod: &str| {
        let listed = site.json(&["ls", "net"]);
        let of =
            listed["attachments"].as_array().unwrap().iter().find(|of| of["pod"] == pod).unwrap().clone();
        of["state"].as_str().unwrap().to_owned()
    };
    site.pods[1].ip("link set eth0 down");
    assert_eq!((state("blue"), state("shop/web")), ("down".to_owned(), "up".to_owned()));
    let drawn = site.run(&["tree", "blue"]);
    assert!(drawn.contains("eth0 down  blue\n"), "{drawn}");
    site.pods[1].ip("link set eth0 up");
    let host = site.json(&["ls", "net"])["attachments"][0]["hostLink"].as_str().unwrap().to_owned();
    site.node.host.ip(&format!("link set {host} down"));
    assert_eq!(state("blue"), "down", "its end on the host is");
    site.pods[1].ip("link del eth0");
    assert_eq!(state("blue"), "no-interface");
    fs::remove_file("/run/netns/blue").unwrap();
    assert_eq!(state("blue"), "no-namespace");
}

#[test]
fn a_part_of_the_tree_is_named_as_everywhere() {
    need!("ip");
    let site = Site::new();
    let pods = |what: &str| {
        let tree = site.json(&["tree", what]);
        let mut found = Vec::new();
        for network in tree["networks"].as_array().unwrap() {
            for pod in
                network["places"].as_array().unwrap().iter().flat_map(|of| of["pods"].as_array().unwrap())
            {
                let name = network["name"].as_str().unwrap();
                found.push(format!("{name} {}", pod["ifname"].as_str().unwrap()));
            }
        }
        found
    };
    assert_eq!(pods("net"), ["net eth0", "net eth0"], "a network");
    for name in ["shop/web", "c-web", "c-w", "10.1.3.2"] {
        assert_eq!(pods(name), ["net eth0", "other eth1"], "{name}");
    }
    for name in ["blue", "/run/netns/blue"] {
        assert_eq!(pods(name), ["net eth0"], "{name}");
    }
    assert_eq!(pods("ababab"), ["other eth0"]);
    let drawn = site.run(&["tree", "blue"]);
    assert!(drawn.starts_with("net  ") && !drawn.contains("shop/web") && !drawn.contains("other"), "{drawn}");
    assert!(drawn.contains("eth0  blue\n"), "{drawn}");
    for verb in [&["tree", "nobody"][..], &["stats", "nobody", "--once"]] {
        let outcome = site.try_run(verb);
        assert!(outcome.status == 2 && outcome.stderr.contains("cnimble ls"), "{}", outcome.describe());
    }
    // A name that fits two pods is refused.
    let twice = Pod::new();
    site.run(&["add", "net", twice.path(), "--container-id", "c-weird"]);
    let outcome = site.try_run(&["tree", "c-w"]);
    assert!(outcome.stderr.contains("may be shop/web or c-weird"), "{}", outcome.describe());
    // `stats` takes the same names.
    for name in ["blue", "shop/web", "10.1.2.2", "c-web"] {
        assert!(site.run(&["stats", name, "--once"]).lines().count() > 1, "{name}");
    }
    // A pod whose namespace is gone is still drawn.
    fs::remove_file("/run/netns/blue").unwrap();
    assert!(site.run(&["tree", "blue"]).contains("its namespace is not there"));
}

#[test]
fn a_checked_tree_with_a_fault_ends_with_6() {
    need!("ip", "nft");
    let site = Site::new();
    assert_eq!(site.try_run(&["tree", "--check"]).status, 0);
    site.pods[1].ip("link del eth0");
    assert_eq!(site.try_run(&["tree"]).status, 0, "it only draws");
    let outcome = site.try_run(&["tree", "--check"]);
    assert!(outcome.status == 6 && outcome.text().contains("eth0"), "{}", outcome.describe());
    assert_eq!(site.try_run(&["tree", "shop/web", "--check"]).status, 0, "the fault is another pod's");
    assert_eq!(site.try_run(&["tree", "--check", "--json"]).status, 6);
}

#[test]
fn a_directory_that_the_user_names_is_there() {
    need!();
    let site = Site::new();
    for (verb, what) in [("tree", "can't draw the networks"), ("ls", "can't list the attachments")] {
        let outcome = site.try_run(&[verb, "--conf-dir", "/nonexistent"]);
        assert_eq!(outcome.status, 3, "{}", outcome.describe());
        assert!(outcome.stderr.starts_with(&format!("cnimble: {what}")), "{}", outcome.describe());
        assert!(outcome.stderr.contains("/nonexistent"), "{}", outcome.describe());
    }
    // Without the option and the variable the usual directory may be missing.
    assert!(!Path::new("/etc/cni/net.d").exists(), "the runner gives each test an empty /etc/cni");
    let mut command = site.node.host.command(cnimble_tests::command());
    command.arg("tree").arg("--cache-dir").arg(site.node.host.dir().join("none"));
    Outcome::of(command.env_remove("NETCONFPATH")).success();
}

#[test]
fn wrong_verbs_lead_to_the_right_ones() {
    need!();
    let node = Node::new();
    for (words, right) in [
        (&["list"][..], "cnimble ls"),
        (&["inspect", "blue"], "cnimble tree POD"),
        (&["remove", "demo"], "cnimble network rm"),
        (&["prune"], "cnimble doctor --repair"),
        (&["network", "list"], "cnimble network ls"),
    ] {
        let outcome = node.cnimble(plugin_dir(), words).run();
        assert!(outcome.status == 2 && outcome.stderr.contains(right), "{}", outcome.describe());
        let outcome = node.cnimble(plugin_dir(), words).json().run();
        let told: Value = serde_json::from_slice(&outcome.stdout).unwrap();
        assert!(told["hint"].as_str().unwrap().contains(right), "{told}");
    }
}

#[test]
fn the_version_is_told_in_words_and_as_json() {
    need!();
    let node = Node::new();
    let words = node.cnimble(plugin_dir(), &["version"]).run().success().text();
    let option = Outcome::of(node.host.command(cnimble_tests::command()).arg("--version")).success().text();
    assert_eq!(words, option);
    let told: Value = node.cnimble(plugin_dir(), &["version"]).json().run().result();
    assert!(
        words.contains(told["version"].as_str().unwrap()) && words.contains(told["commit"].as_str().unwrap())
    );
    assert_eq!(told["cniVersions"].as_array().unwrap().last().unwrap(), "1.1.0");
}
