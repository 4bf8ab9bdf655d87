//! Healthy set-ups, for which no station may say otherwise.

use std::process::Stdio;

use cnimble_tests::traffic::Server;
use cnimble_tests::{Outcome, PATIENCE, Pod, need, need_go, plugin_dir, wait_until};
use serde_json::json;

use super::{FAR, FAR6, Site, document, stations};

/// Asserts that the answer came back, and that no station has doubts.
#[track_caller]
pub(super) fn assert_answered(traced: &Outcome) {
    assert_eq!(traced.status, 0, "{}", traced.describe());
    assert_eq!(document(traced)["outcome"], "answered", "{}", traced.describe());
    let doubts = [stations(traced, "stops"), stations(traced, "unknown")].concat();
    assert!(doubts.is_empty(), "{doubts:?}\n{}", traced.describe());
    let wrong = stations(traced, "ok").iter().any(|text| text.contains("a fault of this program"));
    assert!(!wrong, "{}", traced.describe());
}

#[test]
fn a_healthy_bridge_has_no_false_word() {
    need!("ip", "nft");
    let site = Site::new();
    site.network("net", "br0", 1, &json!({}));
    site.network("other", "br1", 2, &json!({"macspoofchk": true, "portIsolation": true}));
    let _pods = [site.add("net", "web"), site.add("net", "db"), site.add("other", "third")];
    let _server = Server::start(&site.router, 8080, "far");
    let rules = site.node.host.nft("list ruleset");
    for to in [
        FAR,
        FAR6,
        "10.7.0.1",
        "10.7.0.2",
        "gateway",
        "internet",
        "db",
        "third",
        "10.214.1.1",
        "fd00:214:1::1",
        "192.0.2.1:8080",
        "[2001:db8::1]:8080/tcp",
        "192.0.2.1:9",
        "10.7.0.1:8080/udp",
        "192.0.2.1:9/udp",
        "db:80",
        "third:80/udp",
    ] {
        assert_answered(&site.trace(&["web", to]));
        assert_answered(&site.trace(&["third", if to.starts_with("third") { "web" } else { to }]));
    }
    assert_eq!(site.node.host.nft("list ruleset"), rules, "the table of the trace is gone");
}

#[test]
fn ptp_and_macvlan_have_no_false_word() {
    need!("ip", "nft");
    let site = Site::new();
    let ipam = |subnet: &str| {
        json!({"type": "host-local", "dataDir": site.node.host.data_dir(), "ranges": [[{"subnet": subnet}]],
               "routes": [{"dst": "0.0.0.0/0"}]})
    };
    let ptp = json!({"type": "ptp", "ipMasq": true, "ipam": ipam("10.214.3.0/24")});
    site.node.network("p", &json!({"cniVersion": "1.0.0", "name": "p", "plugins": [ptp]}));
    let mut range = ipam("10.7.0.0/24");
    range["ranges"][0][0]["rangeStart"] = "10.7.0.50".into();
    range["ranges"][0][0]["gateway"] = "10.7.0.1".into();
    let macvlan = json!({"type": "macvlan", "master": "up0", "ipam": range});
    site.node.network("m", &json!({"cniVersion": "1.0.0", "name": "m", "plugins": [macvlan]}));
    let _pods = [site.add("p", "one"), site.add("p", "two"), site.add("m", "three")];
    for to in [FAR, "gateway", "two", "10.7.0.2"] {
        assert_answered(&site.trace(&["one", to]));
    }
    for to in [FAR, "gateway"] {
        assert_answered(&site.trace(&["three", to]));
    }
    let own = site.trace(&["three", "10.7.0.2"]);
    assert_eq!(own.status, 6, "{}", own.describe());
    assert!(stations(&own, "stops")[0].starts_with("out host master:"), "{}", own.describe());
}

#[test]
fn pods_of_the_go_plugins_have_no_false_word() {
    need_go!(go, "ip", "nft");
    let site = Site::new();
    site.network("net", "br0", 1, &json!({}));
    let pods = [Pod::new(), Pod::new()];
    for (pod, id) in pods.iter().zip(["web", "db"]) {
        site.node.cnimble(go, &["add", "net", pod.path(), "--container-id", id]).run().success();
    }
    for to in [FAR, "gateway", "db", "192.0.2.1:9"] {
        assert_answered(&site.trace(&["web", to]));
    }
    site.node.host.nft("flush ruleset");
    let flushed = site.trace(&["web", FAR]);
    assert!(stations(&flushed, "stops")[0].starts_with("out host masquerade:"), "{}", flushed.describe());
}

/// Connection tracking of a node has few entries left when it is needed most.
#[test]
fn the_probe_leaves_no_tracked_connection() {
    need!("ip", "nft", "conntrack");
    let site = Site::new();
    site.network("net", "br0", 1, &json!({}));
    let (pod, other) = (site.add("net", "web"), site.add("net", "db"));
    let _server = Server::start(&site.router, 8080, "far");
    // Rules that look at connections make the kernel track them in the pods, too.
    for ns in [&pod, &other] {
        ns.nft("add table inet t");
        for hook in ["input", "output"] {
            ns.nft(&format!("add chain inet t {hook} {{ type filter hook {hook} priority 0; }}"));
            ns.nft(&format!("add rule inet t {hook} ct state invalid counter"));
        }
    }
    site.node.host.nft("add table ip drops");
    site.node.host.nft("add chain ip drops forward { type filter hook forward priority 0; }");
    site.node.host.nft("add rule ip drops forward tcp dport 99 drop");
    for to in [
        "gateway",
        FAR,
        FAR6,
        "db",
        "db:80",
        "db:80/udp",
        "192.0.2.1:8080",
        "192.0.2.1:9",
        "192.0.2.1:9/udp",
        "192.0.2.1:99",
        "[2001:db8::1]:9/udp",
        "10.7.0.99:9/udp",
    ] {
        site.trace(&["web", to, "--wait", "1"]);
        for (name, ns) in [("host", &*site.node.host), ("web", &pod), ("db", &other)] {
            for family in ["ipv4", "ipv6"] {
                let listed = ns.run(&format!("conntrack -L -f {family}")).success().text();
                // Reports of multicast listeners are none of the probe's.
                let is_multicast = |line: &&str| line.contains("dst=ff02:") || line.contains("dst=224.");
                let left: Vec<&str> = listed.lines().filter(|line| !is_multicast(line)).collect();
                assert!(left.is_empty(), "{to}, {name}: {left:#?}");
            }
        }
    }
}

/// Sockets and tables go with the process.
#[test]
fn a_kill_leaves_nothing() {
    need!("ip", "nft");
    let site = Site::new();
    site.network("net", "br0", 1, &json!({}));
    let _pod = site.add("net", "web");
    let host = &site.node.host;
    let (rules, links) = (host.nft("list ruleset"), host.links());
    // No host has the address, so the trace waits.
    let args = ["trace", "web", "10.7.0.99", "--wait", "60"];
    let mut trace = site.node.cnimble(plugin_dir(), &args).command.stdout(Stdio::null()).spawn().unwrap();
    let is_there = || host.nft("list tables").contains("cnimble-trace-");
    assert!(wait_until(PATIENCE, is_there), "the trace marks no packets");
    trace.kill().unwrap();
    trace.wait().unwrap();
    assert_eq!(host.nft("list ruleset"), rules);
    assert_eq!(host.links(), links);
}
