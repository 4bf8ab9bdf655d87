//! The rules of the real firewalld, which rejects what it does not know.

use cnimble_tests::{Firewalld, MessageBus, Pod, need, skip};
use serde_json::json;

use super::healthy::assert_answered;
use super::setups::bridge;
use super::{FAR, FAR6, Site, stations};

/// Adds a pod of the network `net`, whose addresses the plugin firewall makes sources of the zone `trusted`.
fn add(site: &Site, bus: &MessageBus, id: &str) -> Pod {
    let pod = Pod::new();
    let args = ["add", "net", pod.path(), "--container-id", id];
    let add = site.node.cnimble(site.plugins, &args).env("DBUS_SYSTEM_BUS_ADDRESS", &bus.address());
    add.run().success();
    pod
}

#[test]
fn rules_of_firewalld_are_named_and_a_pod_that_it_trusts_is_healthy() {
    need!("ip", "nft", "ping", "dbus-daemon");
    let site = Site::new();
    let bus = MessageBus::start(&site.node.host);
    let firewalld = match Firewalld::start(&site.node.host, &bus) {
        Ok(firewalld) => firewalld,
        Err(why) => skip!("{why}"),
    };
    site.chain("net", json!([bridge(json!({})), {"type": "firewall"}]));
    let (web, _db) = (add(&site, &bus, "web"), add(&site, &bus, "db"));
    assert!(firewalld.command(&["--zone=trusted", "--list-sources"]).contains("10.214.1.2/32"));
    for to in [FAR, FAR6, "gateway", "db", "192.0.2.1:9", "[2001:db8::1]:9/udp"] {
        assert_answered(&site.trace(&["web", to]));
    }
    for (source, zone, to) in [("10.214.1.2/32", "block", FAR), ("fd00:214:1::2/128", "drop", FAR6)] {
        assert!(web.pings(to), "{zone}: before it");
        let (zone, source) = (format!("--zone={zone}"), format!("--change-source={source}"));
        firewalld.command(&[&zone, &source]);
        assert!(web.misses(to), "{zone}: {to} is reached in spite of it");
        assert_named(&site, to);
        firewalld.command(&["--zone=trusted", &source]);
    }
}

/// Asserts that the trace names the rule of firewalld that stops the packet.
fn assert_named(site: &Site, to: &str) {
    let traced = site.trace(&["web", to]);
    assert_eq!(traced.status, 6, "{}", traced.describe());
    let stops = stations(&traced, "stops");
    let of_firewalld = "(made by firewalld, judging by the table's name)";
    let is_it = stops.len() == 1
        && stops[0].starts_with("out host forward: inet firewalld ")
        && stops[0].ends_with(of_firewalld);
    assert!(is_it, "{stops:?}\n{}", traced.describe());
}

/// A policy between two zones also drops what both zones would let pass.
#[test]
fn a_policy_of_firewalld_is_named() {
    need!("ip", "nft", "ping", "dbus-daemon");
    let site = Site::new();
    let bus = MessageBus::start(&site.node.host);
    let firewalld = match Firewalld::start(&site.node.host, &bus) {
        Ok(firewalld) => firewalld,
        Err(why) => skip!("{why}"),
    };
    for line in [
        "--zone=public --add-interface=up0",
        "--new-policy=shut",
        "--policy=shut --add-ingress-zone=trusted",
        "--policy=shut --add-egress-zone=public",
        "--policy=shut --set-target=DROP",
    ] {
        let args: Vec<&str> = std::iter::once("--permanent").chain(line.split(' ')).collect();
        firewalld.command(&args);
    }
    site.chain("net", json!([bridge(json!({})), {"type": "firewall"}]));
    let web = add(&site, &bus, "web");
    assert_answered(&site.trace(&["web", FAR]));
    // It loads the policy, and forgets the pod's addresses.
    firewalld.command(&["--reload"]);
    for source in ["10.214.1.2/32", "fd00:214:1::2/128"] {
        firewalld.command(&["--zone=trusted", "--add-source", source]);
    }
    for to in [FAR, FAR6, "192.0.2.1:8080"] {
        assert!(to.contains(":8080") || web.misses(to), "{to} is reached in spite of it");
        assert_named(&site, to);
    }
}
