//! Tests podman from Debian's package.

use serde_json::{Value, json};

use cnimble_tests::traffic::{Server, tcp_is_shut, udp, udp_is_shut};
use cnimble_tests::{Node, Ns, PATIENCE, Podman, wait_until};

use crate::{assert_clean, assert_no_rules_of, network, outside};

/// Returns the name that the HTTP server at this address gives. Waits for it, because podman doesn't wait until a
/// container serves.
pub(crate) fn curl(from: &Ns, to: &str) -> Option<String> {
    let mut outcome = None;
    wait_until(PATIENCE, || {
        let line = format!("curl --silent --globoff --max-time {PATIENCE} http://{to}/name");
        outcome = Some(from.run(&line)).filter(|outcome| outcome.status == 0);
        outcome.is_some()
    });
    outcome.map(|outcome| outcome.text())
}

/// Returns whether any server answers at this address within a few seconds.
fn answers(from: &Ns, to: &str) -> bool {
    from.run(&format!("curl --silent --globoff --max-time 3 http://{to}/name")).status == 0
}

/// Returns podman with the network `pods` that the driver of podman 5 makes by podman's description.
fn podman_with_described(node: &Node) -> Podman<'_> {
    // podman's own default network has a subnet that contains this one. Here it has another.
    let default = json!({
        "name": "podman", "id": "f".repeat(64), "driver": "bridge", "subnets": [{"subnet": "10.99.0.0/16"}],
    });
    node.sh(&format!(
        "mkdir -p /etc/containers/networks; mount -t tmpfs none /etc/containers/networks\n\
         echo '{default}' >/etc/containers/networks/podman.json"
    ));
    let podman = Podman::with_driver(node);
    let subnets = "--ipv6 --subnet 10.88.7.0/24 --subnet fd00:88:7::/64";
    podman.call(&format!("network create --driver cni {subnets} pods"));
    podman.set_default_network("pods");
    podman
}

/// Returns podman with the network `pods` of a file.
fn podman_with_file<'n>(node: &'n Node, network: &Value) -> Podman<'n> {
    node.file("net.d/10-pods.conflist", &network.to_string());
    Podman::new(node, &node.dir().join("net.d").display().to_string(), "pods")
}

#[test]
fn podman_with_three_containers() {
    need_runtime!("podman", "crun");
    let node = crate::node();
    let podman = podman_with_file(&node, &network(&node, "0.4.0"));
    use_three_containers(&node, &podman, true);
}

#[test]
fn podman_5_with_three_containers_on_a_described_network() {
    need_runtime!("podman", "crun");
    let node = crate::node();
    need_driver!(node);
    use_three_containers(&node, &podman_with_described(&node), false);
}

/// Makes three containers, and takes them down. With `has_leases` host-local gives the addresses.
fn use_three_containers(node: &Node, podman: &Podman<'_>, has_leases: bool) {
    let outside = outside(node);
    let one = podman.run("one", "--network pods");
    podman.run("two", "--network pods");
    podman.run("three", "--network pods --ip 10.88.7.77 --mac-address 0a:58:00:00:00:77");
    // Each container reaches the next over both families, the gateway, and the outside.
    podman.call("exec one ping -c 1 -W 60 10.88.7.3");
    podman.call("exec one ping -c 1 -W 60 fd00:88:7::3");
    podman.call("exec two ping -c 1 -W 60 10.88.7.2");
    podman.call("exec two ping -c 1 -W 60 fd00:88:7::1");
    podman.call("exec two ping -c 1 -W 60 192.0.2.2");
    podman.call("exec one ping -c 1 -W 60 2001:db8:2::2");
    podman.call("exec one ping -c 1 -W 60 10.88.7.77");
    assert!(outside.misses("10.88.7.2"), "the outside must not know a way in");
    let link = podman.call("exec three ip link show eth0");
    assert!(link.contains("0a:58:00:00:00:77"), "{link}");
    // The lease has the form of the reference plugin.
    let lease = std::fs::read_to_string(node.data_dir().join("pods/10.88.7.2")).ok();
    assert_eq!(lease, has_leases.then(|| format!("{one}\r\neth0")));
    // A stopped container releases its address and gets one at the next start.
    podman.call("stop --time 5 one");
    assert!(!node.data_dir().join("pods/10.88.7.2").exists());
    podman.call("start one");
    podman.call("exec one ping -c 1 -W 60 10.88.7.3");
    podman.call("rm --force --time 5 one two three");
    assert_clean(node);
}

#[test]
fn podman_publishes_ports_every_way() {
    need_runtime!("podman", "crun", "curl");
    let node = crate::node();
    // The chain that `podman network create` makes, with both families.
    let mut network = network(&node, "0.4.0");
    for next in [
        json!({"type": "portmap", "capabilities": {"portMappings": true}}),
        json!({"type": "firewall"}),
        json!({"type": "tuning"}),
    ] {
        network["plugins"].as_array_mut().unwrap().push(next);
    }
    publish_every_way(&node, &podman_with_file(&node, &network));
}

#[test]
fn podman_5_publishes_ports_of_a_described_network_every_way() {
    need_runtime!("podman", "crun", "curl");
    let node = crate::node();
    need_driver!(node);
    publish_every_way(&node, &podman_with_described(&node));
}

/// Publishes ports for all addresses, for some and for the host alone, and asks them from everywhere.
fn publish_every_way(node: &Node, podman: &Podman<'_>) {
    let outside = outside(node);
    let ports = ["8080", "127.0.0.1:8081", "192.0.2.1:8082", "[2001:db8:2::1]:8083", "[::1]:8084"]
        .map(|host| format!("--publish {host}:80 --publish {host}:80/udp"))
        .join(" ");
    let one_id = podman.run("one", &ports);
    podman.run("two", "");
    let (one, two) = (podman.netns("one"), podman.netns("two"));
    let _udp = [Server::udp(&one, 80, "one"), Server::udp(&two, 80, "two")];

    let here: &Ns = node;
    for (what, from, to) in [
        ("from outside", &outside, "192.0.2.1:8080"),
        ("from outside", &outside, "[2001:db8:2::1]:8080"),
        ("from outside", &outside, "192.0.2.1:8082"),
        ("from outside", &outside, "[2001:db8:2::1]:8083"),
        ("on the node", here, "127.0.0.1:8080"),
        ("on the node", here, "127.0.0.1:8081"),
        ("on the node", here, "192.0.2.1:8080"),
        ("on the node", here, "192.0.2.1:8082"),
        ("on the node", here, "10.88.7.1:8080"),
        ("on the node", here, "[2001:db8:2::1]:8080"),
        ("on the node", here, "[2001:db8:2::1]:8083"),
        ("on the node", here, "[fd00:88:7::1]:8080"),
        ("hairpin", &one, "192.0.2.1:8080"),
        ("hairpin", &one, "192.0.2.1:8082"),
        ("hairpin", &one, "10.88.7.1:8080"),
        ("hairpin", &one, "[2001:db8:2::1]:8080"),
        ("hairpin", &one, "[2001:db8:2::1]:8083"),
        ("another pod", &two, "192.0.2.1:8080"),
        ("another pod", &two, "10.88.7.1:8080"),
        ("another pod", &two, "[2001:db8:2::1]:8080"),
        ("another pod", &two, "[fd00:88:7::1]:8080"),
        ("directly", &two, "10.88.7.2:80"),
        ("directly", &two, "[fd00:88:7::2]:80"),
    ] {
        assert_eq!(curl(from, to).as_deref(), Some("one"), "{what}: curl {to}");
        let answer = udp(from, to).unwrap_or_else(|| panic!("{what}: nobody answers a datagram to {to}"));
        assert!(answer.starts_with("one "), "{what}: {answer} from {to}");
    }
    // The request uses the container's own tools.
    for name in ["one", "two"] {
        let answer = podman.call(&format!(
            "exec {name} sh -c \"printf 'GET /name HTTP/1.0\\r\\n\\r\\n' | nc -w 60 192.0.2.1 8080\""
        ));
        assert!(answer.ends_with("one"), "{name}: {answer}");
    }
    // A port for one address or for this host is closed elsewhere. But podman listens on published ports, so a
    // connection may be accepted without an answer.
    for (what, from, to) in [
        ("localhost's from outside", &outside, "192.0.2.1:8081"),
        ("localhost's from outside", &outside, "[2001:db8:2::1]:8081"),
        ("localhost's from a pod", &two, "10.88.7.1:8081"),
        ("IPv4's by IPv6", &outside, "[2001:db8:2::1]:8082"),
        ("another address of the node", &two, "10.88.7.1:8082"),
        ("localhost of IPv6 from outside", &outside, "[2001:db8:2::1]:8084"),
        // The kernel accepts answers for ::1 only from lo.
        ("localhost of IPv6", here, "[::1]:8084"),
        ("the container's own port", here, "192.0.2.1:80"),
    ] {
        assert!(!answers(from, to), "{what}: curl {to}");
        assert!(udp_is_shut(from, to), "{what}: a datagram to {to}");
    }
    // route_localnet is on for this, but pods can't reach 127.0.0.1 of the node.
    assert_ne!(here.sysctl("ipv4/conf/br-pods/route_localnet"), "0");
    two.ip("route add 127.0.0.1/32 via 10.88.7.1 table 7");
    two.ip("rule add to 127.0.0.1 priority 0 lookup 7");
    two.set_sysctl("ipv4/conf/eth0/route_localnet", "1");
    assert!(tcp_is_shut(&two, "127.0.0.1:8081"), "a pod reaches the node's localhost");

    // A restart with another address moves the ports there, also for the same client.
    podman.call("stop --time 5 one");
    assert!(!answers(&outside, "192.0.2.1:8080"));
    podman.run("three", "");
    podman.call("start one");
    let _udp_again = Server::udp(&podman.netns("one"), 80, "one");
    for to in ["192.0.2.1:8080", "[2001:db8:2::1]:8083"] {
        assert_eq!(curl(&outside, to).as_deref(), Some("one"), "after a restart: curl {to}");
        assert!(udp(&outside, to).is_some_and(|answer| answer.starts_with("one ")), "after a restart: {to}");
    }
    podman.call("rm --force --time 5 one two three");
    assert_clean(node);
    assert_no_rules_of(node, &one_id);
    assert_eq!(here.sysctl("ipv4/conf/br-pods/route_localnet"), "0");
}

/// The default network of podman in Debian's package, and upstream's since 2.0.
const PODMAN: &str = include_str!("conflists/87-podman-bridge.conflist");

#[test]
fn podmans_default_network() {
    need_runtime!("podman", "crun", "curl");
    let node = crate::node();
    need_cni_backend!(node);
    let outside = outside(&node);
    let file = node.file("87-podman-bridge.conflist", PODMAN);
    node.sh(&format!("cp {} /etc/cni/net.d/", file.display()));
    let podman = Podman::new(&node, "/etc/cni/net.d", "podman");
    let one = podman.run("one", "--publish 8080:80 --publish 8080:80/udp");
    podman.run("two", "--publish 127.0.0.1:8081:80");
    let _udp = Server::udp(&podman.netns("one"), 80, "one");
    for (from, to, name) in [
        (&outside, "192.0.2.1:8080", "one"),
        (&node, "127.0.0.1:8080", "one"),
        (&node, "127.0.0.1:8081", "two"),
        (&podman.netns("one"), "192.0.2.1:8080", "one"),
        (&podman.netns("two"), "192.0.2.1:8080", "one"),
    ] {
        assert_eq!(curl(from, to).as_deref(), Some(name), "curl {to}");
    }
    assert!(udp(&outside, "192.0.2.1:8080").is_some_and(|answer| answer.starts_with("one ")));
    podman.call("exec two ping -c 1 -W 60 192.0.2.2");
    let printed = podman.call("inspect --format {{.NetworkSettings.IPAddress}} one");
    assert_eq!(printed, "10.88.0.2");
    podman.call("rm --force --time 5 one two");
    assert_eq!(node.links(), ["cni-podman0", "lo", "uplink"]);
    assert_no_rules_of(&node, &one);
    let ruleset = node.nft("list ruleset");
    assert!(!ruleset.contains("10.88.0."), "{ruleset}");
}
