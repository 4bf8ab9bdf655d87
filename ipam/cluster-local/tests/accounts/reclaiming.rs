//! The account that returns what nodes owned that are gone for good.

use std::process::Stdio;

use cnimble_tests::{Background, Host, PATIENCE, command, plugin_dir, skip, wait_until};
use serde_json::json;

use super::etcd::{ADMIN, RECLAIM};
use super::server;

#[test]
fn the_blocks_of_a_deleted_node_return_and_those_of_a_living_one_stay() {
    let host = Host::new();
    let (etcd, [a, b, c]) = match server(&host) {
        Ok(found) => found,
        Err(why) => skip!("{why}"),
    };
    let [a, b, c] = [a, b, c].map(|node| node.offline(3));
    for name in ["a", "b"] {
        let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}});
        let file = host.dir().join("node.json");
        std::fs::write(&file, node.to_string()).unwrap();
        etcd.kubectl(ADMIN, &format!("create --validate=false -f {}", file.display())).unwrap();
    }
    for node in [&a, &b, &c] {
        node.added("p1");
    }
    let dir = host.dir().join("net.d");
    std::fs::create_dir(&dir).unwrap();
    let plugin = etcd.operator(&a).offline(3).config;
    let list = json!({"cniVersion": "1.0.0", "name": "net", "plugins": [plugin]});
    std::fs::write(dir.join("net.conflist"), list.to_string()).unwrap();
    let mut process = host.command(command());
    process.arg("--cni-path").arg(plugin_dir()).arg("--conf-dir").arg(&dir);
    process.args(["ipam", "reclaim", "net", "--kubeconfig"]).arg(etcd.kubeconfig(RECLAIM));
    process.stdin(Stdio::null()).stderr(std::fs::File::create(host.dir().join("log")).unwrap());
    let _process = Background::start(&mut process);
    let log = || std::fs::read_to_string(host.dir().join("log")).unwrap();
    etcd.kubectl(ADMIN, "delete node b").unwrap();
    // The API server has no node c either, but it is alive.
    let has = |name: &str| etcd.objects("nodeclaims").iter().any(|claim| claim["spec"]["name"] == name);
    let is_over = || {
        c.operate("confirm").unwrap();
        !has("b")
    };
    assert!(wait_until(PATIENCE, is_over), "{}", log());
    assert!(has("a") && has("c"), "{}", log());
    assert!(log().contains("the API server has no node b"), "{}", log());
}
