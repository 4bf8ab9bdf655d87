//! Tests `scripts/to-conflist`, which converts networks of podman's netavark and of Docker to CNI networks.

use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};

use cnimble_tests::{LIMIT, Outcome, Pod, need, plugin_dir, run_limited};

use super::Node;

fn convert(inspected: &Value, args: &[&str]) -> Outcome {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../scripts/to-conflist");
    let mut command = Command::new(script);
    command.args(args);
    Outcome::from("to-conflist", run_limited(&mut command, inspected.to_string().as_bytes(), LIMIT))
}

/// Returns the output of `podman network inspect` with netavark (podman 5).
fn of_podman() -> Value {
    json!([{
        "name": "shop",
        "id": "2f259bab93aaaaa2542ba43ef33eb990d0999ee1b9924b557b7be53c0b7a1bb9",
        "driver": "bridge",
        "network_interface": "podman7",
        "created": "2026-11-22T12:53:55.692874091Z",
        "subnets": [
            {"subnet": "10.89.7.0/24", "gateway": "10.89.7.1",
             "lease_range": {"start_ip": "10.89.7.100", "end_ip": "10.89.7.200"}},
            {"subnet": "fd00:89:7::/64", "gateway": "fd00:89:7::1"},
        ],
        "ipv6_enabled": true,
        "internal": false,
        "dns_enabled": false,
        "options": {"mtu": "1400", "isolate": "true"},
        "ipam_options": {"driver": "host-local"},
    }])
}

/// Returns the output of `docker network inspect` (Docker 28).
fn of_docker() -> Value {
    json!([{
        "Name": "shop",
        "Id": "0f3a5c7e9b1d2f4a6c8e0b1d3f5a7c9e1b2d4f6a8c0e1b3d5f7a9c1e2b4d6f8a",
        "Scope": "local",
        "Driver": "bridge",
        "EnableIPv6": false,
        "IPAM": {"Driver": "default", "Options": {}, "Config": [{"Subnet": "10.89.7.0/24", "Gateway": "10.89.7.1"}]},
        "Internal": false,
        "Containers": {},
        "Options": {"com.docker.network.bridge.name": "shop0", "com.docker.network.driver.mtu": "1400"},
    }])
}

#[test]
fn converted_networks_work() {
    need!("jq", "ip", "ping");
    for (inspected, bridge, first) in
        [(of_podman(), "podman7", "10.89.7.100"), (of_docker(), "shop0", "10.89.7.2")]
    {
        let node = Node::new();
        let mut config: Value = serde_json::from_slice(&convert(&inspected, &[]).success().stdout).unwrap();
        // Avoids the machine's own lease directory.
        config["plugins"][0]["ipam"]["dataDir"] = json!(node.host.data_dir());
        node.network("shop", &config);
        node.cnimble(plugin_dir(), &["validate", "--strict", "shop"]).run().success();
        let pod = Pod::new();
        let result = node.cnimble(plugin_dir(), &["add", "shop", pod.path()]).run().result();
        let address = result["ips"][0]["address"].as_str().unwrap();
        assert_eq!(address, format!("{first}/24"));
        assert_eq!(pod.link("eth0")["mtu"], 1400);
        assert!(node.host.links().contains(&bridge.to_owned()), "{:?}", node.host.links());
        assert!(pod.pings("10.89.7.1"));
        assert!(pod.ip("route show default").contains("via 10.89.7.1"));
        let isolated = config["plugins"][2]["ingressPolicy"].as_str();
        assert_eq!(isolated, (bridge == "podman7").then_some("same-bridge"));
    }
}

#[test]
fn networks_that_are_closed_or_on_a_parent_are_converted() {
    need!("jq");
    let convert = |network: &Value| -> Value {
        serde_json::from_slice(&convert(network, &[]).success().stdout).unwrap()
    };
    let mut internal = of_podman();
    internal[0]["internal"] = json!(true);
    let bridge = &convert(&internal)["plugins"][0];
    assert_eq!((&bridge["isGateway"], &bridge["ipMasq"]), (&json!(false), &json!(false)));
    assert_eq!(bridge["ipam"]["routes"], json!([]));
    let mut macvlan = of_podman();
    macvlan[0]["driver"] = json!("macvlan");
    macvlan[0]["network_interface"] = json!("eth1");
    macvlan[0]["options"] = json!({"mode": "vepa"});
    macvlan[0]["ipam_options"] = json!({"driver": "dhcp"});
    assert_eq!(
        convert(&macvlan)["plugins"],
        json!([{"type": "macvlan", "master": "eth1", "mode": "vepa", "ipam": {"type": "dhcp"}}])
    );
}

#[test]
fn what_cni_has_no_word_for_is_an_error() {
    need!("jq");
    for (key, value, why) in [
        ("dns_enabled", json!(true), "dns_enabled"),
        ("driver", json!("ipvlan"), "driver ipvlan"),
        ("options", json!({"isolate": "strict"}), "isolate is strict"),
        ("options", json!({"vrf": "blue"}), "option vrf"),
        ("subnets", json!([]), "no subnet"),
    ] {
        let mut network = of_podman();
        network[0][key] = value;
        let outcome = convert(&network, &[]);
        assert_eq!((outcome.status, outcome.text().as_str()), (3, ""), "{}", outcome.describe());
        assert!(outcome.stderr.contains(why), "{why}: {}", outcome.describe());
    }
    let mut named = of_podman();
    named[0]["dns_enabled"] = json!(true);
    convert(&named, &["--without-dns"]).success();
}
