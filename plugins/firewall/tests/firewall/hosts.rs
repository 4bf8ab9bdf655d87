//! Hosts with foreign rules in FORWARD: backend, and CHECK, STATUS and DEL with later rules.

use serde_json::json;

use cnimble_tests::{Call, Host, need};

use super::{firewall, join, meet, rules};

/// FORWARD drops everything that no rule accepts.
const SHUT: [(&str, &str); 4] = [
    ("policy", "-P FORWARD DROP"),
    ("reject at the end", "-A FORWARD -j REJECT"),
    ("a chain that drops", "-N STOP; IPT -A STOP -m comment --comment all -j DROP; IPT -A FORWARD -j STOP"),
    (
        "behind other rules",
        "-A FORWARD -i eth7 -o eth8 -j ACCEPT; IPT -A FORWARD -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT; \
         IPT -A FORWARD -j REJECT",
    ),
];

fn iptables(host: &Host, script: &str) {
    for command in ["iptables-nft", "ip6tables-nft"] {
        host.shell(&format!("{command} {}", script.replace("IPT", command)));
    }
}

#[test]
fn pods_pass_where_forward_drops_what_nothing_accepts() {
    need!("ip", "nft", "ping", "iptables-nft-save");
    std::thread::scope(|scope| {
        for (name, script) in SHUT {
            scope.spawn(move || {
                let host = Host::new();
                let (a, b) = (join(&host, 1, "a"), join(&host, 2, "b"));
                meet(&host, &[&a, &b]);
                iptables(&host, script);
                assert!(a.misses(&b), "{name}");
                let net = firewall(&host, 1, &json!({}));
                net.with("/cniVersion", json!("1.1.0")).status().success();
                a.add(&net);
                assert!(a.reaches(&b) && b.misses(&a), "{name}");
                net.check(&a.att, &a.prev).success();
                net.deleted(&a.att, Some(&a.prev));
                assert!(a.misses(&b), "{name}");
            });
        }
    });
}

#[test]
fn the_administrators_rules_in_iptables_hold() {
    need!("ip", "nft", "ping", "iptables-nft-save");
    for (keys, chain) in [(json!({}), "CNI-ADMIN"), (json!({ "iptablesAdminChainName": "MINE" }), "MINE")] {
        let host = Host::new();
        let (a, b) = (join(&host, 1, "a"), join(&host, 2, "b"));
        meet(&host, &[&a, &b]);
        iptables(&host, &format!("-N {chain}; IPT -A {chain} -i br1 -j DROP"));
        a.add(&firewall(&host, 1, &keys));
        assert!(a.misses(&b), "{chain}");
        firewall(&host, 1, &keys).check(&a.att, &a.prev).success();
    }
    // Configured, but without rules yet.
    let host = Host::new();
    let a = join(&host, 1, "a");
    a.add(&firewall(&host, 1, &json!({ "iptablesAdminChainName": "MINE" })));
    assert!(rules(&host).contains("-j MINE"));
}

#[test]
fn check_tells_when_forward_has_been_shut_since() {
    need!("ip", "nft", "ping", "iptables-nft-save");
    std::thread::scope(|scope| {
        for (name, script) in SHUT {
            scope.spawn(move || {
                let host = Host::new();
                let (a, b) = (join(&host, 1, "a"), join(&host, 2, "b"));
                meet(&host, &[&a, &b]);
                let net = firewall(&host, 1, &json!({}));
                a.add(&net);
                assert!(host.nft("list ruleset").contains("id: a"));
                // They don't stop everything.
                iptables(
                    &host,
                    "-A FORWARD -s 192.0.2.0/24 -j DROP 2>/dev/null || IPT -A FORWARD -i eth9 -j DROP",
                );
                net.check(&a.att, &a.prev).success();
                iptables(&host, script);
                let error = net.check(&a.att, &a.prev).error();
                assert!(
                    error.code == 103 && error.all().contains("cnimble doctor --repair"),
                    "{name}: {error:?}"
                );
                assert!(a.misses(&b), "{name}");
                // A new pod's packets would pass.
                net.with("/cniVersion", json!("1.1.0")).status().success();
                a.add(&net);
                net.check(&a.att, &a.prev).success();
                assert!(a.reaches(&b), "{name}");
                // DEL removes both, with any backend.
                net.deleted(&a.att, Some(&a.prev));
                let left = host.nft("list ruleset");
                assert!(
                    !left.contains("id: a") && !left.contains(a.ip(0)) && !left.contains(a.ip(1)),
                    "{left}"
                );
            });
        }
    });
}

#[test]
fn a_drop_in_front_of_the_rules_of_pods_is_noticed() {
    need!("ip", "nft", "iptables-nft-save");
    let host = Host::new();
    let a = join(&host, 1, "a");
    let net = firewall(&host, 1, &json!({ "backend": "iptables" })).with("/cniVersion", json!("1.1.0"));
    a.add(&net);
    net.status().success();
    iptables(&host, "-I FORWARD -j DROP");
    let error = net.check(&a.att, &a.prev).error();
    assert!(error.code == 103 && error.all().contains("CNI-FORWARD"), "{error:?}");
    assert_eq!(net.status().error().code, 51);
    // With nf_tables the administrator of FORWARD has to accept the packets.
    let net = net.with("/backend", json!("nftables"));
    a.add(&net);
    assert_eq!(net.check(&a.att, &a.prev).error().code, 103);
    assert_eq!(net.status().error().code, 51);
    iptables(&host, "-I FORWARD -i br1 -j ACCEPT");
    net.check(&a.att, &a.prev).success();
    net.status().success();
}

/// The iptables commands can't be executed.
fn without_iptables(call: &Call<'_>) -> cnimble_tests::Outcome {
    let script = "mount --bind /dev/null /usr/sbin/xtables-nft-multi && \
                  mount --bind /dev/null /usr/sbin/xtables-legacy-multi && exec \"$0\"";
    call.clone().under(&["unshare", "-m", "sh", "-c", script]).run()
}

#[test]
fn without_the_command_it_is_an_error_only_if_pods_surely_cannot_pass() {
    need!("ip", "nft", "iptables-nft-save", "unshare", "mount");
    let host = Host::new();
    let a = join(&host, 1, "a");
    let net = firewall(&host, 1, &json!({})).with("/cniVersion", json!("1.1.0"));
    let add = net.call("ADD", &a.att, Some(&a.prev));
    without_iptables(&add).result();
    // They may accept the pods' packets: nf_tables with a warning.
    iptables(&host, "-P FORWARD DROP; IPT -A FORWARD -i br1 -j ACCEPT");
    let outcome = without_iptables(&add);
    outcome.result();
    assert!(outcome.stderr.contains("iptables-restore is missing"), "{}", outcome.describe());
    without_iptables(&net.status_call()).success();
    iptables(&host, "-F FORWARD");
    let before = host.nft("-s list ruleset");
    let error = without_iptables(&add).error();
    assert!(error.all().contains("FORWARD drops what pods send"), "{error:?}");
    assert_eq!(without_iptables(&net.status_call()).error().code, 50);
    assert_eq!(host.nft("-s list ruleset"), before);
    without_iptables(&net.call("DEL", &a.att, Some(&a.prev))).success();
    assert!(!host.nft("list ruleset").contains("id: a"));
    iptables(&host, "-P FORWARD ACCEPT");
    let named = firewall(&host, 1, &json!({ "iptablesAdminChainName": "MINE" }));
    let error = without_iptables(&named.call("ADD", &a.att, Some(&a.prev))).error();
    assert!(error.all().contains("iptablesAdminChainName"), "{error:?}");
}

/// The command iptables is the nf_tables variant.
#[test]
fn pods_pass_where_the_legacy_variant_drops() {
    need!("ip", "nft", "ping", "iptables-nft-save", "iptables-legacy", "ip6tables-legacy");
    let host = Host::new();
    if host.run("iptables-legacy -S").status != 0 {
        cnimble_tests::skip!("this kernel has no legacy iptables");
    }
    let legacy = |script: &str| {
        for command in ["iptables-legacy", "ip6tables-legacy"] {
            host.shell(&format!("{command} {}", script.replace("IPT", command)));
        }
    };
    let (a, b) = (join(&host, 1, "a"), join(&host, 2, "b"));
    meet(&host, &[&a, &b]);
    let net = firewall(&host, 1, &json!({})).with("/cniVersion", json!("1.1.0"));
    // A pod with rules in nf_tables, and then both variants drop.
    a.add(&net);
    legacy("-P FORWARD DROP");
    let error = net.check(&a.att, &a.prev).error();
    assert_eq!(error.code, 103);
    net.deleted(&a.att, Some(&a.prev));
    for also_nft in [false, true] {
        if also_nft {
            iptables(&host, "-P FORWARD DROP");
        }
        net.status().success();
        a.add(&net);
        assert!(a.reaches(&b) && b.misses(&a), "{also_nft}");
        net.check(&a.att, &a.prev).success();
        // A rule of the other variant alone is noticed.
        legacy("-F CNI-FORWARD");
        let error = net.check(&a.att, &a.prev).error();
        assert!(error.code == 103 && error.all().contains("tables-legacy-restore"), "{error:?}");
        net.deleted(&a.att, Some(&a.prev));
        assert!(a.misses(&b), "{also_nft}");
    }
    a.add(&net);
    legacy("-I FORWARD -j DROP");
    let error = net.check(&a.att, &a.prev).error();
    assert!(error.all().contains("iptables-legacy -S FORWARD"), "{error:?}");
    let status = net.status().error();
    assert!(status.code == 51 && status.all().contains("iptables-legacy -S FORWARD"), "{status:?}");
}
