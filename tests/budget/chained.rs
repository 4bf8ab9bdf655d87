//! The same for ptp, and for the plugins that a chain has behind the one that makes the
//! interface: what the second pod takes.

use serde_json::{Value, json};

use cnimble_tests::{Attachment, Host, Network, Pod, announce, configs, need, skip};

use super::{Budget, Trace, VERBS, budget, traced, untraceable};

/// A plugin, with the budgets of ADD, CHECK and DEL.
pub(super) struct Row {
    pub(super) name: &'static str,
    pub(super) add: Budget,
    pub(super) check: Budget,
    pub(super) del: Budget,
}

/// docs/PERFORMANCE.md has the same table; a test compares the two.
pub(super) const TABLE: [Row; 5] = [
    Row { name: "ptp", add: budget(101, 14), check: budget(64, 8), del: budget(69, 8) },
    Row { name: "portmap", add: budget(48, 12), check: budget(42, 6), del: budget(65, 18) },
    Row { name: "firewall", add: budget(48, 12), check: budget(31, 5), del: budget(35, 9) },
    Row { name: "tuning", add: budget(44, 2), check: budget(28, 1), del: budget(39, 2) },
    Row { name: "bandwidth", add: budget(48, 8), check: budget(44, 6), del: budget(33, 8) },
];

/// The configuration of a plugin for the pod with this number.
fn config(host: &Host, plugin: &str, number: usize) -> Value {
    let mut config = match plugin {
        "ptp" => {
            let ipam = configs::v4(host)["ipam"].clone();
            json!({"ipam": ipam})
        }
        "portmap" => json!({"runtimeConfig": {"portMappings": [
            {"hostPort": 8000 + number, "containerPort": 80, "protocol": "tcp"},
        ]}}),
        "tuning" => json!({
            "sysctl": {"net.core.somaxconn": "500"}, "mtu": 1400, "dataDir": host.dir().join("tuning"),
        }),
        "bandwidth" => json!({
            "ingressRate": 8_000_000, "ingressBurst": 800_000, "egressRate": 8_000_000, "egressBurst": 800_000,
        }),
        _ => json!({}),
    };
    for (key, value) in [("type", plugin), ("name", "net4"), ("cniVersion", configs::newest())] {
        config[key] = value.into();
    }
    config
}

/// ADD, CHECK and DEL of a second pod.
fn verbs(plugin: &str) -> [Trace; 3] {
    let host = Host::new();
    let bridge = Network::new(&host, configs::v4(&host));
    let pods = [Pod::new(), Pod::new()];
    let prepared = |number: usize| {
        let att = Attachment::new(&format!("pod{number}"), &pods[number]);
        let prev = (plugin != "ptp").then(|| bridge.added(&att));
        (Network::new(&host, config(&host, plugin, number)), att, prev)
    };
    let (net, att, prev) = prepared(0);
    net.call("ADD", &att, prev.as_ref()).run().success();
    let (net, att, prev) = prepared(1);
    let (result, add) = traced(&net, "ADD", &att, prev.as_ref());
    let (_, check) = traced(&net, "CHECK", &att, Some(&result));
    let (_, del) = traced(&net, "DEL", &att, Some(&result));
    [add, check, del]
}

#[test]
fn every_plugin_stays_within_its_budget() {
    need!("strace", "ip");
    if let Some(why) = untraceable() {
        skip!("{why}");
    }
    let mut over = Vec::new();
    for row in &TABLE {
        for ((verb, budget), trace) in VERBS.iter().zip([row.add, row.check, row.del]).zip(verbs(row.name)) {
            announce(
                "NOTE",
                &format!("{} {verb}: {} calls, {} messages", row.name, trace.total(), trace.messages),
            );
            over.extend(trace.over(row.name, verb, budget));
        }
    }
    assert!(over.is_empty(), "{}", over.join("\n\n"));
}
