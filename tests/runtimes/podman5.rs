//! Tests podman 5 with netavark and the driver `cni`. Debian 12 has podman 4, so most machines skip this.

use serde_json::json;

use cnimble_tests::Podman;

use crate::outside;
use crate::podman::curl;

#[test]
fn podman_5_uses_the_driver() {
    need_runtime!("podman", "crun", "curl");
    let node = crate::node();
    need_driver!(node);
    let outside = outside(&node);
    let named = json!({"cniVersion": "1.0.0", "name": "named", "plugins": [
        {"type": "ptp", "ipMasq": true, "ipam": {
            "type": "host-local", "subnet": "10.77.2.0/24", "routes": [{"dst": "0.0.0.0/0"}],
        }},
        {"type": "portmap", "capabilities": {"portMappings": true}},
        {"type": "bandwidth", "capabilities": {"bandwidth": true}},
    ]});
    node.sh(&format!("echo '{named}' >/etc/cni/net.d/named.conflist"));
    let podman = Podman::with_driver(&node);
    podman.call("network create --driver cni --ipv6 --subnet 10.89.7.0/24 described");
    podman.call("network create --driver cni --opt network=named named");
    for (network, ip) in [("described", "10.89.7.2"), ("named", "10.77.2.2")] {
        podman.run("one", &format!("--network {network} --publish 8080:80"));
        for (from, to) in [(&outside, "192.0.2.1:8080"), (&node, "127.0.0.1:8080")] {
            assert_eq!(curl(from, to).as_deref(), Some("one"), "{network}: {to}");
        }
        let format = "{{(index .NetworkSettings.Networks \\\"NET\\\").IPAddress}}".replace("NET", network);
        assert_eq!(podman.call(&format!("inspect --format \"{format}\" one")), ip, "{network}");
        // The rules are put back, and the address stays.
        node.nft("flush ruleset");
        podman.call("network reload one");
        assert_eq!(curl(&outside, "192.0.2.1:8080").as_deref(), Some("one"), "{network}: after a reload");
        assert_eq!(
            podman.call(&format!("inspect --format \"{format}\" one")),
            ip,
            "{network}: after a reload"
        );
        podman.call("restart --time 1 one");
        assert_eq!(curl(&outside, "192.0.2.1:8080").as_deref(), Some("one"), "{network}: after a restart");
        podman.call("rm --force --time 1 one");
        let ruleset = node.nft("list ruleset");
        assert!(!ruleset.contains("10.89.7.") && !ruleset.contains("10.77.2."), "{network}: {ruleset}");
        assert_eq!(node.sh("ls /var/lib/cni/results"), "", "{network}");
    }
    let refused = podman.command().args(["run", "--network", "described", "--ip", "10.99.0.1"]).output();
    assert!(!refused.unwrap().status.success(), "an address outside the subnet");
}

#[test]
fn podman_5_connects_and_disconnects() {
    need_runtime!("podman", "crun", "curl");
    let node = crate::node();
    need_driver!(node);
    let podman = Podman::with_driver(&node);
    podman.call("network create --driver cni --subnet 10.89.7.0/24 first");
    podman.call("network create --driver cni --subnet 10.89.8.0/24 second");
    podman.run("one", "--network first --publish 8080:80");
    podman.call("network connect second one");
    let routes = podman.call("exec one ip route");
    assert!(routes.contains("10.89.8.0/24 dev eth1"), "{routes}");
    assert_eq!(routes.matches("default").count(), 1, "{routes}");
    assert_eq!(curl(&node, "127.0.0.1:8080").as_deref(), Some("one"));
    podman.call("network disconnect first one");
    let routes = podman.call("exec one ip route");
    assert!(!routes.contains("eth0"), "{routes}");
    podman.call("rm --force --time 1 one");
    assert_eq!(node.sh("ls /var/lib/cni/results"), "");
}
