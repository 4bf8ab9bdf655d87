//! The pods that can reach each other.

use serde_json::json;

use cnimble_tests::{Host, need};

use super::{bridge, firewall, join, meet};

#[test]
fn policies_with_nf_tables() {
    policies("nftables");
}

#[test]
fn policies_with_iptables() {
    need!("iptables-nft-save");
    policies("iptables");
}

fn policies(backend: &str) {
    need!("ip", "nft", "ping");
    let host = Host::new();
    let (a1, a2) = (join(&host, 1, "a1"), join(&host, 1, "a2"));
    let (b, open) = (join(&host, 2, "b"), join(&host, 3, "open"));
    meet(&host, &[&a1, &a2, &b, &open]);
    let same =
        |number| firewall(&host, number, &json!({ "backend": backend, "ingressPolicy": "same-bridge" }));
    let isolated = firewall(&host, 1, &json!({ "backend": backend, "ingressPolicy": "isolated" }));
    for member in [&a1, &a2] {
        assert_eq!(member.add(&same(1)), member.prev);
    }
    assert!(a1.reaches(&b), "the other bridge has no policy yet");
    b.add(&same(2));
    open.add(&firewall(&host, 3, &json!({ "backend": backend })));
    assert!(a1.misses(&b) && b.misses(&a1), "other bridges are shut out");
    assert!(a1.reaches(&a2) && a2.reaches(&a1), "the same bridge isn't");
    assert!(open.reaches(&b) && b.reaches(&open), "nor are those with another policy");
    assert!(host.pings(a1.ip(0)) && a1.pod.pings("10.1.1.1"), "nor the host");
    // They belong to the host.
    assert!(a1.pod.pings("10.1.2.1"));
    for (net, member) in [(same(1), &a1), (same(2), &b)] {
        net.check(&member.att, &member.prev).success();
        bridge(&host, if member.att.id == "b" { 2 } else { 1 }).check(&member.att, &member.prev).success();
    }

    // Not even on the same bridge.
    for member in [&a1, &a2] {
        member.add(&isolated);
        isolated.check(&member.att, &member.prev).success();
        bridge(&host, 1).check(&member.att, &member.prev).success();
    }
    assert!(a1.misses(&a2) && a2.misses(&a1) && a1.misses(&b));
    assert!(a1.reaches(&open) && host.pings(a1.ip(0)) && a1.pod.pings("10.1.1.1"));
    assert_eq!(same(1).check(&a1.att, &a1.prev).error().code, 103);
    let port = a1.prev["interfaces"][1]["name"].as_str().unwrap();
    host.ip(&format!("link set {port} type bridge_slave isolated off"));
    assert_eq!(isolated.check(&a1.att, &a1.prev).error().code, 103);
    // The latest ADD decides.
    host.ip(&format!(
        "link set {} type bridge_slave isolated off",
        a2.prev["interfaces"][1]["name"].as_str().unwrap()
    ));
    a1.add(&same(1));
    assert!(a1.reaches(&a2) && a1.misses(&b));

    for (net, member, number) in
        [(&isolated, &a1, 1), (&isolated, &a2, 1), (&same(2), &b, 2), (&same(3), &open, 3)]
    {
        net.deleted(&member.att, Some(&member.prev));
        bridge(&host, number).deleted(&member.att, Some(&member.prev));
    }
    let left = host.nft("list ruleset");
    for member in [&a1, &a2, &b, &open] {
        assert!(!left.contains(member.ip(0)) && !left.contains(&format!("id: {}", member.att.id)), "{left}");
    }
    // The last DEL on a bridge removes its policy.
    assert!(!left.contains("ingressPolicy") && !left.contains("CNI-ISOLATION"), "{left}");
}
