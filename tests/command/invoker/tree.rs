//! Tests that `cnimble tree` shows the state of the kernel.

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, chown};

use serde_json::{Value, json};

use cnimble_tests::{Pod, need, need_go, plugin_dir};

use super::{Node, RESULT, scripts};

/// Creates a bridge network with all plugins that leave rules.
fn network(node: &Node, name: &str, bridge: &str, subnet: &str) {
    let config = json!({
        "cniVersion": "1.0.0",
        "name": name,
        "plugins": [
            {"type": "bridge", "bridge": bridge, "isDefaultGateway": true, "ipMasq": true, "macspoofchk": true,
             "ipam": {"type": "host-local", "dataDir": node.host.data_dir(), "ranges": [[{"subnet": subnet}]]}},
            {"type": "portmap", "capabilities": {"portMappings": true}},
            {"type": "firewall", "backend": "nftables", "ingressPolicy": "same-bridge"},
        ],
    });
    node.network(name, &config);
}

fn tree(node: &Node, args: &[&str]) -> String {
    let args: Vec<&str> = [&["tree"], args].concat();
    node.cnimble(plugin_dir(), &args).env("LC_ALL", "C.UTF-8").run().success().text()
}

fn json(node: &Node) -> Value {
    serde_json::from_str(&tree(node, &["--json"])).unwrap()
}

#[test]
fn a_node_without_pods_is_drawn() {
    need!();
    let node = Node::new();
    let drawn = node.cnimble(plugin_dir(), &["tree"]).run().success();
    assert_eq!(drawn.text(), "no usable networks\n");
    let hint = format!("`cnimble networks --cache-dir {}` lists the faults of files", node.cache().display());
    assert!(drawn.stderr.contains(&hint), "{}", drawn.describe());
    network(&node, "net", "br0", "10.1.2.0/24");
    assert_eq!(tree(&node, &[]), "net  CNI 1.0.0, bridge portmap firewall, 0 pods\n");
    assert!(tree(&node, &["--svg", "-"]).ends_with("</svg>\n"));
}

#[test]
fn pods_are_drawn_with_addresses_routes_and_rules() {
    need!("ip", "nft");
    let node = Node::new();
    network(&node, "net", "br0", "10.1.2.0/24");
    let pods = [Pod::new(), Pod::new()];
    for (pod, name) in pods.iter().zip(["web", "db"]) {
        let args = format!("IgnoreUnknown=1;K8S_POD_NAMESPACE=shop;K8S_POD_NAME={name}");
        let ports = r#"{"portMappings":[{"hostPort":8080,"containerPort":80,"protocol":"tcp"}]}"#;
        let mut line = vec!["add", "net", pod.path(), "--container-id", name, "--args", &args];
        if name == "web" {
            line.extend(["--cap-args", ports]);
        }
        node.cnimble(plugin_dir(), &line).run().success();
    }
    node.host.ip("link add up0 type veth peer name far0");
    node.host.ip("link set up0 master br0");

    let drawn = tree(&node, &[]);
    assert_eq!(drawn, tree(&node, &[]), "the same state gives the same picture");
    let mac = |pod: &Pod| pod.link("eth0")["address"].as_str().unwrap().to_owned();
    let port = |name: &str| {
        let links = node.host.ip_json("link show master br0");
        let owned = |link: &&Value| link["ifalias"].as_str().is_some_and(|alias| alias.ends_with(name));
        links.as_array().unwrap().iter().find(owned).unwrap()["ifname"].as_str().unwrap().to_owned()
    };
    let expected = format!(
        "net  CNI 1.0.0, bridge portmap firewall, 2 pods\n\
         └─ br0  bridge  10.1.2.1/24  ingress same-bridge\n   \
            ├─ {db} ── eth0  shop/db\n   \
            │     address  10.1.2.3/24\n   \
            │     route    default via 10.1.2.1\n   \
            │     rule     masquerade 10.1.2.3 outside 10.1.2.0/24\n   \
            │              forward 10.1.2.3 and answers\n   \
            │              source MAC {db_mac} only\n   \
            ├─ {web} ── eth0  shop/web\n   \
            │     address  10.1.2.2/24\n   \
            │     route    default via 10.1.2.1\n   \
            │     rule     masquerade 10.1.2.2 outside 10.1.2.0/24\n   \
            │              port 8080/tcp to 10.1.2.2:80\n   \
            │              forward 10.1.2.2 and answers\n   \
            │              source MAC {web_mac} only\n   \
            └─ up0 down        no pod on a record that was read\n",
        db = port("id: db"),
        web = port("id: web"),
        db_mac = mac(&pods[1]),
        web_mac = mac(&pods[0]),
    );
    assert_eq!(drawn, expected);
    assert!(tree(&node, &["--ascii"]).is_ascii());

    let value = json(&node);
    let place = &value["networks"][0]["places"][0];
    assert_eq!(
        place["pods"][1]["rules"][1],
        json!({
            "kind": "port-mapping", "protocol": "tcp", "hostAddress": null, "hostPort": 8080,
            "address": "10.1.2.2", "port": 80,
        })
    );
    assert_eq!(place["others"][0]["name"], "up0");
    let file = node.host.dir().join("tree.svg");
    assert_eq!(tree(&node, &["--svg", file.to_str().unwrap()]), "");
    let svg = fs::read_to_string(file).unwrap();
    assert!(svg.contains(">shop/web</text>") && svg.contains(">10.1.2.2/24</text>"), "{svg}");
}

#[test]
fn what_is_gone_is_said() {
    need!("ip", "nft");
    let node = Node::new();
    network(&node, "net", "br0", "10.1.2.0/24");
    let ns = node.host.dir().join("ns");
    let pod = Pod::new();
    std::os::unix::fs::symlink(pod.path(), &ns).unwrap();
    node.cnimble(plugin_dir(), &["add", "net", ns.to_str().unwrap(), "--container-id", "c"]).run().success();
    // The interface is removed first, then the namespace.
    pod.ip("link del eth0");
    // The pod is no longer shown at the bridge.
    let unplaced = || json(&node)["networks"][0]["places"][1]["pods"][0].clone();
    let lost = unplaced();
    assert_eq!(lost["problem"], "it has no interface eth0");
    assert_eq!(lost["addresses"], json!(["10.1.2.2/24"]), "as it was given");
    drop(pod);
    assert_eq!(unplaced()["problem"], "its namespace is not there");
    // Without the cache the remaining rules have no pod.
    fs::remove_dir_all(node.cache()).unwrap();
    let drawn = tree(&node, &[]);
    assert!(drawn.contains("\nrules of no pod on a record that was read\n"), "{drawn}");
    assert!(drawn.contains("net: net, if: eth0, id: c)"), "{drawn}");
}

#[test]
fn pods_of_other_runtimes_and_plugins_are_found() {
    need_go!(go, "ip", "nft");
    let node = Node::new();
    node.bridge("net", "1.0.0");
    let (ours, theirs) = (Pod::new(), Pod::new());
    node.cnimble(go, &["add", "net", theirs.path(), "--container-id", "theirs"]).run().success();
    let pods = json(&node)["networks"][0]["places"][0]["pods"].clone();
    assert_eq!(pods[0]["containerId"], "theirs");
    assert_eq!(pods[0]["addresses"], json!(["10.1.2.2/24"]));
    assert_eq!(pods[0]["link"]["kind"], "veth");
    assert_eq!(pods[0]["rules"][0]["kind"], "iptables", "{pods}");
    assert_eq!(pods[0]["rules"][0]["purpose"], "masquerade", "{pods}");
    // A runtime without a cache called the plugin, so the veth's alias names the pod.
    node.cnimble(plugin_dir(), &["add", "net", ours.path(), "--container-id", "ours"]).run().success();
    for entry in node.entries() {
        if entry.contains("ours") {
            fs::remove_file(node.cache().join("results").join(entry)).unwrap();
        }
    }
    let pods = json(&node)["networks"][0]["places"][0]["pods"].clone();
    assert_eq!(pods[0]["containerId"], "ours");
    assert_eq!(pods[0]["rules"][0]["kind"], "masquerade", "{pods}");
    assert!(pods[0]["problem"].as_str().unwrap().contains("no record that was read is of it"), "{pods}");
}

/// A checked picture without a fault is no statement about what was not compared.
#[test]
fn a_checked_tree_says_what_was_not_checked() {
    need!("ip");
    let node = Node::new();
    let bin = scripts(node.host.dir(), &[("it", &format!("cat >/dev/null; echo '{RESULT}'"))]);
    node.network("old", &json!({"cniVersion": "0.3.1", "name": "old", "plugins": [{"type": "it"}]}));
    let pod = Pod::new();
    pod.ip("link add eth0 type veth peer name far0");
    pod.ip("addr add 10.0.0.2/24 dev eth0");
    node.cnimble(&bin, &["add", "old", pod.path(), "--container-id", "c"]).run().success();
    let told = "network old: nothing is checked: ";
    let drawn = node.cnimble(&bin, &["tree", "--check"]).run();
    assert!(drawn.text().contains("\nnot checked\n") && drawn.text().contains(told), "{}", drawn.describe());
    let svg = node.cnimble(&bin, &["tree", "--check", "--svg", "-"]).run();
    assert!(svg.text().contains(&format!("not checked: {told}")), "{}", svg.describe());
    let drawn: Value =
        serde_json::from_slice(&node.cnimble(&bin, &["tree", "--check", "--json"]).run().stdout).unwrap();
    assert!(drawn["notChecked"][0].as_str().unwrap().starts_with(told), "{drawn}");
    // Without a check nothing is said to be unchecked.
    assert!(!tree(&node, &[]).contains("not checked"));
}

/// A namespace behind a directory that may not be searched is not missing.
#[test]
fn a_namespace_that_may_not_be_opened_is_not_said_to_be_missing() {
    need!("setpriv");
    let node = Node::new();
    let bin = scripts(node.host.dir(), &[("it", &format!("cat >/dev/null; echo '{RESULT}'"))]);
    node.network("net", &json!({"cniVersion": "1.0.0", "name": "net", "plugins": [{"type": "it"}]}));
    let (pod, dir) = (Pod::new(), node.host.dir().join("locked"));
    fs::create_dir(&dir).unwrap();
    let path = dir.join("ns");
    std::os::unix::fs::symlink(pod.path(), &path).unwrap();
    node.cnimble(&bin, &["add", "net", path.to_str().unwrap(), "--container-id", "c"]).run().success();
    fs::set_permissions(&dir, fs::Permissions::from_mode(0o700)).unwrap();
    chown(&dir, Some(1000), None).unwrap();
    let mut wrapper = node.host.command("setpriv");
    wrapper.args(["--bounding-set", "-dac_override,-dac_read_search"]);
    let outcome = node.cnimble(&bin, &["trace", "c", "192.0.2.1"]).under(wrapper).run();
    assert!(outcome.status == 5 && outcome.stderr.contains("Permission denied"), "{}", outcome.describe());
    assert!(!outcome.stderr.contains("is not there"), "{}", outcome.describe());
    fs::remove_file(&path).unwrap();
    let outcome = node.cnimble(&bin, &["trace", "c", "192.0.2.1"]).run();
    let told = format!("the namespace {} of c is not there", path.display());
    assert!(outcome.status == 2 && outcome.stderr.contains(&told), "{}", outcome.describe());
}
