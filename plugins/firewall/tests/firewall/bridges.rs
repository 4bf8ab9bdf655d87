//! Policies of bridges. The latest ADD decides, and the last DEL removes them. Bridges of the Go plugin and of this one
//! block each other, with every combination of backends.

use std::time::Duration;

use serde_json::{Value, json};

use cnimble_tests::{Host, Network, go_plugins, need, skip};

use super::{Member, bridge, firewall, join, meet};

fn policed<'h>(host: &'h Host, number: u8, backend: &str, policy: &str) -> Network<'h> {
    firewall(host, number, &json!({ "backend": backend, "ingressPolicy": policy }))
}

/// Whether any policy remains.
fn has_policies(host: &Host) -> bool {
    let ruleset = host.nft("list ruleset");
    ruleset.contains("ingressPolicy:") || ruleset.contains("CNI-ISOLATION")
}

/// The order of rules doesn't matter.
fn lines(host: &Host) -> Vec<String> {
    let mut lines: Vec<String> = host.nft("-s list ruleset").lines().map(str::to_owned).collect();
    lines.sort();
    lines
}

#[test]
fn open_opens_a_bridge_that_had_a_policy() {
    need!("ip", "nft", "ping", "iptables-nft-save");
    std::thread::scope(|scope| {
        for (backend, policy) in [
            ("nftables", "same-bridge"),
            ("nftables", "isolated"),
            ("iptables", "same-bridge"),
            ("iptables", "isolated"),
        ] {
            scope.spawn(move || open_after(backend, policy));
        }
    });
}

fn open_after(backend: &str, policy: &str) {
    let host = Host::new();
    let (a, b, c) = (join(&host, 1, "a"), join(&host, 2, "b"), join(&host, 1, "c"));
    meet(&host, &[&a, &b, &c]);
    a.add(&policed(&host, 1, backend, policy));
    b.add(&policed(&host, 2, backend, policy));
    assert!(a.misses(&b), "{backend} {policy}");
    let before = lines(&host);
    let open = policed(&host, 1, backend, "open");
    let failed = open.call("ADD", &c.att, Some(&c.prev));
    assert_eq!(failed.under(&["sh", "-c", "exec \"$0\" >/dev/full"]).run().status, 1);
    assert_eq!(lines(&host), before, "a failed ADD puts the policy back");
    c.add(&open);
    assert!(c.reaches(&b) && b.reaches(&a), "{backend} {policy}");
    open.check(&c.att, &c.prev).success();
    // The configuration sets the policy again.
    a.add(&policed(&host, 1, backend, policy));
    assert!(c.misses(&b), "{backend} {policy}");
}

#[test]
fn the_last_del_on_a_bridge_removes_its_policy() {
    need!("ip", "nft", "iptables-nft-save");
    for backend in ["nftables", "iptables"] {
        for policy in ["same-bridge", "isolated"] {
            let host = Host::new();
            let (a, b, c) = (join(&host, 1, "a"), join(&host, 1, "b"), join(&host, 2, "c"));
            let delete = |member: &Member, number: u8, configured: &str| {
                policed(&host, number, backend, configured).deleted(&member.att, Some(&member.prev));
                bridge(&host, number).deleted(&member.att, Some(&member.prev));
            };
            for (member, number) in [(&a, 1), (&b, 1), (&c, 2)] {
                member.add(&policed(&host, number, backend, policy));
            }
            delete(&a, 1, policy);
            policed(&host, 1, backend, policy).check(&b.att, &b.prev).success();
            // Also with another configuration.
            delete(&b, 1, "open");
            let left = host.nft("list ruleset");
            assert!(!left.contains("br1") && left.contains("br2"), "{backend} {policy}: {left}");
            policed(&host, 2, backend, policy).check(&c.att, &c.prev).success();
            delete(&c, 2, policy);
            assert!(!has_policies(&host), "{backend} {policy}: {}", host.nft("list ruleset"));
            if backend == "nftables" {
                assert_eq!(host.nft("list ruleset"), "");
            }
        }
    }
}

/// Both DELs remove their rules while both ports exist.
#[test]
fn of_two_last_pods_one_removes_the_policy() {
    need!("ip", "nft", "iptables-nft-save");
    for backend in ["nftables", "iptables"] {
        let host = Host::new();
        let (a, b) = (join(&host, 1, "a"), join(&host, 1, "b"));
        let net = policed(&host, 1, backend, "same-bridge");
        a.add(&net);
        b.add(&net);
        net.deleted(&a.att, Some(&a.prev));
        assert!(has_policies(&host), "b is still there");
        net.deleted(&b.att, Some(&b.prev));
        assert!(!has_policies(&host), "{backend}: {}", host.nft("list ruleset"));
    }
}

/// strace delays each request of the last DEL in turn.
#[test]
fn an_add_beside_the_last_del_keeps_the_policy() {
    need!("ip", "nft", "iptables-nft-save", "strace");
    const HELD_UP: Duration = Duration::from_millis(800);
    std::thread::scope(|scope| {
        for (backend, turn) in ["nftables", "iptables"].into_iter().flat_map(|b| (0..18).map(move |n| (b, n)))
        {
            scope.spawn(move || {
                let host = Host::new();
                let net = policed(&host, 1, backend, "same-bridge");
                let last = join(&host, 1, "last");
                last.add(&net);
                let del = net.call("DEL", &last.att, Some(&last.prev)).under(&[
                    "strace",
                    "-qq",
                    "-o/dev/null",
                    "-etrace=sendto",
                    &format!("-einject=sendto:delay_enter={}", HELD_UP.as_micros()),
                ]);
                std::thread::scope(|scope| {
                    let going = scope.spawn(|| del.run().success());
                    std::thread::sleep(HELD_UP * turn);
                    let next = join(&host, 1, "next");
                    next.add(&net);
                    going.join().unwrap();
                    net.check(&next.att, &next.prev).success();
                });
            });
        }
    });
}

#[test]
fn bridges_of_the_go_plugin_and_ours_shut_each_other_out() {
    need!("ip", "nft", "ping", "iptables-nft-save");
    let Some(go) = go_plugins().filter(|dir| dir.join("firewall").exists()) else {
        skip!("the Go plugin is not installed")
    };
    for (ours_first, keys) in [
        (false, json!({ "ingressPolicy": "same-bridge" })),
        (false, json!({ "ingressPolicy": "same-bridge", "backend": "nftables" })),
        (false, json!({ "ingressPolicy": "isolated", "backend": "nftables" })),
        (true, json!({ "ingressPolicy": "same-bridge" })),
    ] {
        let host = Host::new();
        let (ours, theirs) = (join(&host, 1, "ours"), join(&host, 2, "theirs"));
        let another = join(&host, 1, "another");
        meet(&host, &[&ours, &theirs, &another]);
        let go_net = firewall(&host, 2, &json!({ "ingressPolicy": "same-bridge", "backend": "iptables" }))
            .with("/cniVersion", json!("1.0.0"))
            .served_by(go);
        let by_go = |member: &Member| {
            let mut prev: Value = member.prev.clone();
            prev["cniVersion"] = json!("1.0.0");
            go_net.call("ADD", &member.att, Some(&prev)).run().result();
        };
        let net = firewall(&host, 1, &keys);
        if ours_first {
            ours.add(&net);
            by_go(&theirs);
            // The Go plugin knows no nf_tables. Our next ADD adds its rules there.
            another.add(&net);
        } else {
            by_go(&theirs);
            ours.add(&net);
        }
        assert!(ours.misses(&theirs) && theirs.misses(&ours), "{keys}, ours first: {ours_first}");
        net.check(&ours.att, &ours.prev).success();
    }
}

#[test]
fn bridges_in_nf_tables_and_in_iptables_shut_each_other_out() {
    need!("ip", "nft", "ping", "iptables-nft-save");
    for backends in [["nftables", "iptables"], ["iptables", "nftables"]] {
        let host = Host::new();
        let (a, b) = (join(&host, 1, "a"), join(&host, 2, "b"));
        meet(&host, &[&a, &b]);
        a.add(&policed(&host, 1, backends[0], "same-bridge"));
        b.add(&policed(&host, 2, backends[1], "same-bridge"));
        assert!(a.misses(&b) && b.misses(&a), "{backends:?}");
        for (member, number, backend) in [(&a, 1, backends[0]), (&b, 2, backends[1])] {
            policed(&host, number, backend, "same-bridge").deleted(&member.att, Some(&member.prev));
            bridge(&host, number).deleted(&member.att, Some(&member.prev));
        }
        assert!(!has_policies(&host), "{backends:?}: {}", host.nft("list ruleset"));
    }
}
