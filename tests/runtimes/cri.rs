//! Tests containerd through CRI, like a kubelet. Only CRI maps ports.

use std::path::Path;

use cnimble_cri::{PortMapping, Protocol};
use cnimble_tests::traffic::{Server, tcp, udp};
use cnimble_tests::{Cri, Ns, PATIENCE, plugin_dir, wait_until};

use crate::{assert_no_rules_of, outside};

pub(crate) fn port(udp: bool, host_port: u16, host_ip: &str) -> PortMapping {
    let protocol = if udp { Protocol::Udp } else { Protocol::Tcp };
    PortMapping { protocol, host_port, container_port: 80, host_ip: host_ip.parse().ok() }
}

/// Returns whether a pod's HTTP server answers at this address before the time limit.
fn serves(from: &Ns, to: &str) -> bool {
    wait_until(PATIENCE, || {
        let outcome = from.run(&format!("curl --silent --globoff --max-time {PATIENCE} http://{to}/name"));
        outcome.status == 0 && outcome.text() == "pod"
    })
}

/// The configuration that containerd's script `install-cni` writes.
const CONTAINERD: &str = include_str!("conflists/10-containerd-net.conflist");

#[test]
fn containerds_default_network_with_ports() {
    need_runtime!("containerd", "ctr", "runc", "curl", "sha256sum");
    let node = crate::node();
    let outside = outside(&node);
    let cri = Cri::start(&node, "containerd-net", CONTAINERD, "/opt/cni/bin");
    let ports = [
        port(false, 8080, ""),
        port(true, 8080, ""),
        port(false, 8081, "127.0.0.1"),
        port(true, 8081, "127.0.0.1"),
        port(false, 8082, "192.0.2.1"),
        port(true, 8083, "2001:db8:2::1"),
    ];
    let (one_id, one) = cri.run("one", &ports, &[]);
    let (two_id, two) = cri.run("two", &[], &[]);
    let _udp = [Server::udp(&one, 80, "one"), Server::udp(&two, 80, "two")];
    let here: &Ns = &node;
    for (what, from, to) in [
        ("from outside", &outside, "192.0.2.1:8080"),
        ("from outside", &outside, "[2001:db8:2::1]:8080"),
        ("on the node", here, "127.0.0.1:8080"),
        ("on the node", here, "127.0.0.1:8081"),
        ("on the node", here, "192.0.2.1:8080"),
        ("on the node", here, "10.88.0.1:8080"),
        ("on the node", here, "[2001:db8:2::1]:8080"),
        ("another pod", &two, "192.0.2.1:8080"),
        ("another pod", &two, "10.88.0.1:8080"),
        ("another pod", &two, "[2001:db8:2::1]:8080"),
    ] {
        assert!(serves(from, to), "{what}: curl {to}");
        let answer = udp(from, to).unwrap_or_else(|| panic!("{what}: nobody answers a datagram to {to}"));
        assert!(answer.starts_with("one "), "{what}: {answer} from {to}");
    }
    // This file has no hairpinMode. So with any plugins a pod reaches itself through the node only if bridges don't
    // call iptables.
    for switch in ["bridge-nf-call-iptables", "bridge-nf-call-ip6tables"] {
        if Path::new("/proc/sys/net/bridge").exists() {
            here.set_sysctl(&format!("bridge/{switch}"), "0");
        }
    }
    for to in ["192.0.2.1:8080", "10.88.0.1:8080", "[2001:db8:2::1]:8080"] {
        assert!(serves(&one, to), "hairpin: curl {to}");
        assert!(udp(&one, to).is_some_and(|answer| answer.starts_with("one ")), "hairpin: {to}");
    }
    assert!(serves(&outside, "192.0.2.1:8082"));
    assert!(udp(&outside, "[2001:db8:2::1]:8083").is_some_and(|answer| answer.starts_with("one ")));
    for (what, from, to) in [
        ("localhost's from outside", &outside, "192.0.2.1:8081"),
        ("localhost's from a pod", &two, "10.88.0.1:8081"),
        ("another address", &two, "10.88.0.1:8082"),
        ("TCP of UDP's", &outside, "[2001:db8:2::1]:8083"),
        ("::1", here, "[::1]:8080"),
    ] {
        // The port has no listener, so the refusal comes at once.
        let refused = tcp(from, to).unwrap_err().kind();
        assert_eq!(refused, std::io::ErrorKind::ConnectionRefused, "{what}: {to}");
    }
    for id in [&one_id, &two_id] {
        cri.stop_and_remove(id);
    }
    assert_eq!(node.links(), ["cni0", "lo", "uplink"]);
    assert_no_rules_of(&node, &one_id);
    let ruleset = node.nft("list ruleset");
    assert!(!ruleset.contains("cnimble"), "{ruleset}");
    assert_eq!(
        node.sh("ls /var/lib/cni/networks/containerd-net | grep -v last_reserved_ip | grep -v lock || true"),
        ""
    );
}

/// The configuration of k3s. Its plugin flannel isn't part of cnimble. It delegates to bridge.
const K3S: &str = include_str!("conflists/10-flannel.conflist");

/// A substitute for flannel's plugin. It makes the configuration for bridge from its own and from the file of flannel's
/// daemon, and keeps it for DEL.
const FLANNEL: &str = r#"#!/bin/sh -e
kept=/var/lib/cni/flannel/$CNI_CONTAINERID
case $CNI_COMMAND in
ADD)
    . /run/flannel/subnet.env
    mkdir -p /var/lib/cni/flannel
    jq -c --arg subnet "$FLANNEL_SUBNET" --arg network "$FLANNEL_NETWORK" --argjson mtu "$FLANNEL_MTU" '
        .delegate + {name, cniVersion, type: "bridge", mtu: $mtu, ipMasq: false, isGateway: true,
            ipam: {type: "host-local", ranges: [[{subnet: $subnet}]], routes: [{dst: $network}]}}' >"$kept"
    exec "$CNI_PATH/bridge" <"$kept"
    ;;
DEL)
    [ -e "$kept" ] || exit 0
    "$CNI_PATH/bridge" <"$kept"
    rm "$kept"
    ;;
VERSION) echo '{"cniVersion":"1.0.0","supportedVersions":["0.3.0","0.3.1","0.4.0","1.0.0"]}' ;;
esac
"#;

#[test]
fn k3ss_default_network_with_ports_and_bandwidth() {
    need_runtime!("containerd", "ctr", "runc", "curl", "sha256sum", "jq", "tc");
    let node = crate::node();
    let outside = outside(&node);
    let bin = node.dir().join("bin");
    let script = node.file("flannel", FLANNEL);
    let env =
        "FLANNEL_NETWORK=10.42.0.0/16\nFLANNEL_SUBNET=10.42.0.0/24\nFLANNEL_MTU=1450\nFLANNEL_IPMASQ=true\n";
    let env = node.file("subnet.env", env);
    node.sh(&format!(
        "cp -a {plugins} {bin}; install -m 755 {script} {bin}/flannel; mkdir -p /run/flannel; cp {env} /run/flannel/subnet.env",
        plugins = plugin_dir().display(),
        bin = bin.display(),
        script = script.display(),
        env = env.display(),
    ));
    let cri = Cri::start(&node, "flannel", K3S, &bin.display().to_string());
    let limits = [("kubernetes.io/ingress-bandwidth", "50M"), ("kubernetes.io/egress-bandwidth", "20M")];
    let (id, one) = cri.run("one", &[port(false, 8080, ""), port(true, 8080, "")], &limits);
    let (other_id, other) = cri.run("two", &[], &[]);
    let _udp = Server::udp(&one, 80, "one");
    let here: &Ns = &node;
    for (from, to) in [
        (&outside, "192.0.2.1:8080"),
        (here, "127.0.0.1:8080"),
        (&one, "192.0.2.1:8080"),
        (&other, "10.42.0.1:8080"),
    ] {
        assert!(serves(from, to), "curl {to}");
        assert!(udp(from, to).is_some_and(|answer| answer.starts_with("one ")), "a datagram to {to}");
    }
    assert_eq!(one.link("eth0")["mtu"], 1450);
    let qdiscs = node.sh("tc qdisc show");
    for rate in ["rate 50Mbit", "rate 20Mbit"] {
        assert!(qdiscs.contains(rate), "{rate} in {qdiscs}");
    }
    for id in [&id, &other_id] {
        cri.stop_and_remove(id);
    }
    assert_eq!(node.links(), ["cni0", "lo", "uplink"]);
    assert_no_rules_of(&node, &id);
    assert!(!node.nft("list ruleset").contains("cnimble"));
}
