//! Tests podman and containerd from Debian's packages. Each runs on its own node with only cnimble's plugins.
#![cfg(test)]

/// Skips a test without the tools that all runtimes need, and those of this runtime.
macro_rules! need_runtime {
    ($($tool:literal),*) => {
        cnimble_tests::need!("busybox", "ip", "nft", "unshare", "nsenter", "tar", $($tool),*);
        if crate::no_cgroups() {
            cnimble_tests::skip!("no cgroups are mounted");
        }
    };
}

/// Skips a test that needs podman 5, which has no CNI backend.
macro_rules! need_driver {
    ($node:expr) => {
        if !cnimble_tests::Podman::uses_driver(&$node) {
            cnimble_tests::skip!("this podman has a CNI backend of its own; this needs podman 5");
        }
    };
}

/// Skips a test of the default network of podman 4. podman 5 makes its own, which no driver can replace.
macro_rules! need_cni_backend {
    ($node:expr) => {
        if cnimble_tests::Podman::uses_driver(&$node) {
            cnimble_tests::skip!("this podman has no CNI backend; this needs podman 4");
        }
    };
}

mod containerd;
mod cri;
mod departures;
mod killed;
mod pages;
mod podman;
mod podman5;
mod rollback;
mod sandboxes;
mod whole_set;

use std::path::Path;

use serde_json::{Value, json};

use cnimble_tests::{Node, Ns, PATIENCE, Snapshot, leases, wait_until};

/// Returns a node without Go plugins: those of podman's package are hidden.
fn node() -> Node {
    let node = Node::new();
    node.sh("for dir in /usr/lib/cni /usr/libexec/cni; do [ ! -d $dir ] || mount -t tmpfs none $dir; done");
    node
}

/// Returns a dual-stack network with gateway and masquerading.
fn network(node: &Node, version: &str) -> Value {
    json!({
        "cniVersion": version,
        "name": "pods",
        "plugins": [{
            "type": "bridge",
            "bridge": "br-pods",
            "isGateway": true,
            "ipMasq": true,
            "hairpinMode": true,
            "capabilities": {"ips": true, "mac": true},
            "ipam": {
                "type": "host-local",
                "dataDir": node.data_dir(),
                "routes": [{"dst": "0.0.0.0/0"}, {"dst": "::/0"}],
                "ranges": [
                    [{"subnet": "10.88.7.0/24", "gateway": "10.88.7.1"}],
                    [{"subnet": "fd00:88:7::/64", "gateway": "fd00:88:7::1"}],
                ],
            },
        }],
    })
}

/// Returns a machine beside the node without a route to the pods.
fn outside(node: &Node) -> Ns {
    let outside = Ns::new();
    node.cable("uplink", &outside, "eth0");
    node.ip("addr add 192.0.2.1/24 dev uplink");
    node.ip("addr add 2001:db8:2::1/64 dev uplink nodad");
    outside.ip("addr add 192.0.2.2/24 dev eth0");
    outside.ip("addr add 2001:db8:2::2/64 dev eth0 nodad");
    outside
}

/// Asserts that nothing of any container remains on the node.
fn assert_clean(node: &Node) {
    let gone = wait_until(PATIENCE, || node.links() == ["br-pods", "lo", "uplink"]);
    assert!(gone, "interfaces left: {:?}", node.links());
    let left: Vec<String> = leases(&node.data_dir())
        .into_iter()
        .filter(|line| line.starts_with("pods/") && !line.starts_with("pods/ "))
        .filter(|line| !line.contains("last_reserved_ip") && !line.contains("/lock"))
        .collect();
    assert!(left.is_empty(), "leases left: {left:#?}");
    let state = Snapshot::of(node).without("leases").without("sysctl");
    // Shared objects of a network's pods may stay, such as the bridge.
    for host in (2..20).chain([77]) {
        for address in [format!("10.88.7.{host}"), format!("fd00:88:7::{host:x}")] {
            let rules = state.mentions(&address);
            assert!(rules.is_empty(), "rules left: {rules:#?}");
        }
    }
    let ids = state.lines_with("id: ");
    assert!(ids.is_empty(), "rules left: {ids:#?}");
}

/// Returns whether cgroups are missing. podman needs v1 or the v2 hierarchy that some machines mount beside it.
fn no_cgroups() -> bool {
    !Path::new("/sys/fs/cgroup/cgroup.controllers").exists() && !Path::new("/sys/fs/cgroup/pids").exists()
}

/// Asserts that no rule, set or chain names the container.
fn assert_no_rules_of(node: &Node, id: &str) {
    let ruleset = node.nft("list ruleset");
    assert!(!ruleset.contains(id.trim()), "rules of {id} are left: {ruleset}");
}
