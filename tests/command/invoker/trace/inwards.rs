//! Packets from outside to a published port (`--from`).

use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use cnimble_tests::traffic::{self, Server};
use cnimble_tests::{Outcome, PATIENCE, Pod, need, need_go, need_recent_go, plugin_dir, wait_until};
use serde_json::json;

use super::healthy::assert_answered;
use super::{FAR, FAR6, RESTORE_RULES, SAVE_RULES, Site, stations};

/// TCP and UDP port 8080 of the host are port 80 of the pod, and UDP port 8081 is port 81.
const PORTS: &str = r#"{"portMappings": [
    {"hostPort": 8080, "containerPort": 80, "protocol": "tcp"},
    {"hostPort": 8080, "containerPort": 80, "protocol": "udp"},
    {"hostPort": 8081, "containerPort": 81, "protocol": "udp"}
]}"#;

impl Site {
    /// A pod of the network `net` with published ports.
    pub(super) fn publish(&self, backend: &str) -> Pod {
        let dir = self.node.host.data_dir();
        let ipam = json!({"type": "host-local", "dataDir": dir, "ranges": [
            [{"subnet": "10.214.1.0/24"}], [{"subnet": "fd00:214:1::/64"}],
        ]});
        let plugins = json!([
            {"type": "bridge", "bridge": "br0", "isDefaultGateway": true, "ipMasq": true, "ipam": ipam},
            {"type": "portmap", "capabilities": {"portMappings": true}, "backend": backend},
        ]);
        self.node.network("net", &json!({"cniVersion": "1.0.0", "name": "net", "plugins": plugins}));
        let pod = Pod::new();
        let line = ["add", "net", pod.path(), "--container-id", "web", "--cap-args", PORTS];
        self.node.cnimble(self.plugins, &line).run().success();
        pod
    }
}

#[test]
fn a_published_port_answers_and_the_sender_gets_no_packet() {
    need!("ip", "nft", "conntrack", "ss");
    let site = Site::new();
    let pod = site.publish("nftables");
    let _server = Server::start(&pod, 80, "pod");
    // The router is the sender, and knows nothing of the probes.
    site.router.nft(
        "table inet count { chain in { type filter hook input priority 0; \
                     meta l4proto { tcp, udp } counter comment \"answers\"; \
                     icmp type destination-unreachable counter comment \"answers\"; \
                     icmpv6 type destination-unreachable counter comment \"answers\"; }; }",
    );
    let host = &site.node.host;
    let (rules, links) = (host.nft("list ruleset"), host.links());
    for (from, to, text) in [
        (FAR, "10.7.0.2:8080", "the port is open"),
        ("10.7.0.1", "10.7.0.2:8080", "the port is open"),
        (FAR, "10.7.0.2:8080/udp", "a datagram"),
        (FAR, "10.7.0.2:8081/udp", "port unreachable"),
        (FAR6, "[fd00:7::2]:8080", "the port is open"),
        (FAR6, "[fd00:7::2]:8081/udp", "port unreachable"),
        (FAR, "10.7.0.2:9", "nothing listens there"),
    ] {
        let traced = site.trace(&["--from", from, to]);
        assert_answered(&traced);
        assert!(traced.text().contains(text), "{text}: {}", traced.describe());
        assert_eq!(host.nft("list ruleset"), rules, "{to}");
        assert_eq!(host.links(), links, "{to}");
        for ns in [&**host, &pod] {
            for family in ["ipv4", "ipv6"] {
                let listed = ns.run(&format!("conntrack -L -f {family}")).success().text();
                assert!(!listed.contains("dport=8080") && !listed.contains("dport=80 "), "{to}: {listed}");
            }
        }
        assert_eq!(pod.shell("ss -Htan state syn-recv"), "", "{to}");
    }
    let counted = site.router.nft("list ruleset");
    let is_counter = |line: &&str| line.contains("answers") && !line.contains("packets 0 ");
    assert_eq!(counted.lines().filter(is_counter).count(), 0, "{counted}");
}

#[test]
fn pods_of_the_go_plugins_are_found_behind_their_ports() {
    need_go!(go, "ip", "nft", "iptables-nft");
    for backend in ["nftables", "iptables"] {
        let site = Site::with_plugins(go);
        let pod = site.publish(backend);
        let _server = Server::start(&pod, 80, "pod");
        let traced = site.trace(&["--from", FAR, "10.7.0.2:8080"]);
        assert_answered(&traced);
        assert!(traced.text().contains("port 8080/tcp leads to 10.214.1.2 port 80"), "{}", traced.describe());
    }
}

/// Asserts that the trace names each fault on the way to a published port of a pod of these plugins.
fn assert_each_named(plugins: &'static Path, backend: &str) {
    let site = Site::with_plugins(plugins);
    let pod = site.publish(backend);
    let _server = Server::start(&pod, 80, "pod");
    let host = &site.node.host;
    let saved = host.dir().join("ruleset").display().to_string();
    for (name, is_pod, make, undo, station, says) in [
        (
            "a rule drops in prerouting",
            false,
            "nft 'table ip own { chain pre { type filter hook prerouting priority -300; tcp dport 8080 drop; }; }'",
            "nft delete table ip own",
            "out host prerouting:",
            "tcp dport 8080 drop",
        ),
        (
            "a rule drops what is forwarded",
            false,
            "nft 'table inet own { chain forward { type filter hook forward priority 0; oifname br0 drop; }; }'",
            "nft delete table inet own",
            "out host forward:",
            "oifname \"br0\" drop",
        ),
        (
            "the rules were flushed",
            false,
            &format!("{SAVE_RULES}; nft flush ruleset").replace("SAVED", &saved),
            &RESTORE_RULES.replace("SAVED", &saved),
            "out host published:",
            "its rule is missing",
        ),
        (
            "the pod has no default route",
            true,
            "ip route del default",
            "ip route add default via 10.214.1.1",
            "back web route:",
            "the pod has no route to 192.0.2.1",
        ),
        (
            "the pod's link is down",
            true,
            "ip link set eth0 down",
            "ip link set eth0 up; ip route add default via 10.214.1.1",
            "out host link:",
            "has no carrier",
        ),
        (
            "the uplink does not forward",
            false,
            "echo 0 >/proc/sys/net/ipv4/conf/up0/forwarding",
            "echo 1 >/proc/sys/net/ipv4/conf/up0/forwarding",
            "out host forwarding:",
            "net.ipv4.conf.up0.forwarding is 0",
        ),
        (
            "a rule drops the answer",
            false,
            "nft 'table ip own { chain post { type filter hook postrouting priority 300; tcp sport 8080 drop; }; }'",
            "nft delete table ip own",
            "back host postrouting:",
            "tcp sport 8080 drop",
        ),
    ] {
        let place = if is_pod { &pod } else { &**host };
        // The host may still take the pod's neighbour entry for failed after the fault before.
        assert!(traffic::tcp(&site.router, "10.7.0.2:8080").is_ok(), "{name}: before it");
        assert_answered(&site.trace(&["--from", FAR, "10.7.0.2:8080"]));
        place.shell(make);
        let is_shut = traffic::tcp_is_shut(&site.router, "10.7.0.2:8080");
        let traced = site.trace(&["--from", FAR, "10.7.0.2:8080"]);
        place.shell(undo);
        assert!(is_shut, "{backend}, {name}: the port answers in spite of it");
        assert_eq!(traced.status, 6, "{backend}, {name}: {}", traced.describe());
        let stops = stations(&traced, "stops");
        let is_it = stops.len() == 1 && stops[0].starts_with(station) && stops[0].contains(says);
        assert!(is_it, "{backend}, {name}: {stops:?}\n{}", traced.describe());
    }
}

#[test]
fn each_fault_inwards_is_named_at_its_station() {
    need!("ip", "nft", "iptables-nft-save", "iptables-nft-restore");
    assert_each_named(plugin_dir(), "nftables");
}

#[test]
fn each_fault_inwards_is_named_with_the_go_plugins() {
    need_recent_go!(go, "ip", "nft", "iptables-nft-save", "iptables-nft-restore");
    assert_each_named(go, "nftables");
    assert_each_named(go, "iptables");
}

impl Site {
    /// Traces what comes from the router, which sends by `send` until the trace ends. No probe can be sent: the number
    /// of the process is 1 in its PID namespace, so the name of the pair's end is taken.
    fn trace_real(&self, to: &str, send: impl Fn()) -> Outcome {
        let host = &self.node.host;
        let args = ["trace", "--json", "--from", "10.7.0.1", to];
        let traced = self.node.cnimble(self.plugins, &args).command;
        let mut command = host.command("unshare");
        command.args(["--pid", "--fork"]).arg(traced.get_program()).args(traced.get_args());
        command.envs(traced.get_envs().filter_map(|(name, value)| Some((name, value?))));
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        while child.try_wait().unwrap().is_none() {
            send();
            std::thread::sleep(Duration::from_millis(100));
        }
        Outcome::from("cnimble trace", child.wait_with_output().unwrap())
    }
}

#[test]
fn a_real_packet_is_followed_where_no_probe_can_be_sent() {
    need!("ip", "nft", "unshare");
    let site = Site::new();
    let pod = site.publish("nftables");
    let _server = Server::start(&pod, 80, "pod");
    let host = &site.node.host;
    host.ip("link add cnitrace1 type bridge");
    let by_tcp = || {
        let limit = Duration::from_millis(500);
        drop(traffic::tcp_within(limit, &site.router, "10.7.0.2:8080"));
    };
    let traced = site.trace_real("10.7.0.2:8080", by_tcp);
    assert_answered(&traced);
    assert!(traced.text().contains("the port is open"), "{}", traced.describe());
    let told = "waiting 30 s for one of 10.7.0.1 to 10.7.0.2 port 8080/tcp";
    assert!(traced.stderr.contains(told), "{}", traced.describe());
    let traced = site.trace_real("10.7.0.2:8080/udp", || drop(traffic::udp(&site.router, "10.7.0.2:8080")));
    assert_answered(&traced);
    let rule = "table inet own { chain forward { type filter hook forward priority 0; oifname br0 drop; }; }";
    host.nft(rule);
    let traced = site.trace_real("10.7.0.2:8080", by_tcp);
    assert_eq!(traced.status, 8, "{}", traced.describe());
    let last = stations(&traced, "unknown").pop().unwrap();
    assert!(last.contains("rules were not traced"), "{}", traced.describe());
    // Packets of another host are not followed.
    let traced = site.trace_real("10.7.0.2:9", || ());
    assert_eq!(traced.status, 8, "{}", traced.describe());
    let last = stations(&traced, "unknown").pop().unwrap();
    let says = "within 30 s none of 10.7.0.1 to 10.7.0.2 port 9/tcp came: have it send one meanwhile";
    assert!(last.ends_with(says), "{}", traced.describe());
}

/// The pair of links goes with the namespace of its other end, which the kernel removes a moment after the process.
#[test]
fn a_kill_leaves_no_link() {
    need!("ip", "nft");
    let site = Site::new();
    let pod = site.publish("nftables");
    pod.nft("table ip own { chain in { type filter hook input priority 0; drop; }; }");
    let host = &site.node.host;
    let (rules, links) = (host.nft("list ruleset"), host.links());
    let args = ["trace", "--from", FAR, "10.7.0.2:8080", "--wait", "60"];
    let mut trace = site.node.cnimble(plugin_dir(), &args).command.stdout(Stdio::null()).spawn().unwrap();
    let is_there = || host.links().iter().any(|link| link.starts_with("cnitrace"));
    assert!(wait_until(PATIENCE, is_there), "the trace makes no link");
    trace.kill().unwrap();
    trace.wait().unwrap();
    assert!(wait_until(PATIENCE, || host.links() == links), "{:?}", host.links());
    assert_eq!(host.nft("list ruleset"), rules);
}

#[test]
fn senders_and_receivers_that_make_no_sense_are_refused() {
    need!("ip", "nft");
    let site = Site::new();
    let _pod = site.publish("nftables");
    for args in [
        &["--from", FAR][..],
        &["--from", FAR, "10.7.0.2"],
        &["--from", FAR, "web:80"],
        &["--from", FAR6, "10.7.0.2:8080"],
        &["--from", FAR, "web", "10.7.0.2:8080"],
        &["web"],
    ] {
        let traced = site.trace(args);
        assert_eq!(traced.status, 2, "{args:?}: {}", traced.describe());
    }
    for (from, says) in
        [("10.7.0.2", "is an address of this node"), ("10.214.1.1", "is an address of this node")]
    {
        let traced = site.trace(&["--from", from, "10.7.0.2:8080"]);
        assert_eq!(traced.status, 6, "{from}: {}", traced.describe());
        assert!(stations(&traced, "stops")[0].contains(says), "{}", traced.describe());
    }
}
