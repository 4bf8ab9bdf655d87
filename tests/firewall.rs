//! The plugin firewall: packets that pass and packets that don't, with both backends, beside
//! the Go plugin, and what stays afterwards.
// Tests stop at the first surprise; clippy doesn't see that this whole crate is one.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use cnimble_tests::{
    Attachment, Host, Network, Ns, Pod, Snapshot, configs, go_plugins, need, skip, wait_until,
};
use serde_json::{Value, json};

/// A pod on a bridge of its network.
struct Member {
    pod: Pod,
    att: Attachment,
    prev: Value,
}

/// The network `net<number>` on the bridge `br<number>`.
fn bridge(host: &Host, number: u8) -> Network<'_> {
    Network::new(host, configs::dual(host))
        .with("/name", json!(format!("net{number}")))
        .with("/bridge", json!(format!("br{number}")))
        .with(
            "/ipam/ranges",
            json!([[{"subnet": format!("10.1.{number}.0/24")}], [{"subnet": format!("fd00:{number}::/64")}]]),
        )
}

fn join(host: &Host, number: u8, id: &str) -> Member {
    let pod = Pod::new();
    let att = Attachment::new(id, &pod);
    let prev = bridge(host, number).added(&att);
    Member { pod, att, prev }
}

impl Member {
    fn ip(&self, index: usize) -> &str {
        self.prev["ips"][index]["address"].as_str().unwrap().split('/').next().unwrap()
    }

    fn add(&self, net: &Network<'_>) -> Value {
        net.call("ADD", &self.att, Some(&self.prev)).run().result()
    }

    /// Whether both families get there.
    #[track_caller]
    fn reaches(&self, other: &Member) -> bool {
        let (four, six) = (ping(&self.pod, other.ip(0)), ping(&self.pod, other.ip(1)));
        assert_eq!(four, six, "IPv4 and IPv6 differ");
        four
    }

    fn reaches_all(&self, other: &Member) -> bool {
        ping(&self.pod, other.ip(0)) && ping(&self.pod, other.ip(1))
    }
}

/// Lets all get to know each other: a link-local address is of no use in its first second.
fn meet(host: &Host, members: &[&Member]) {
    host.set_sysctl("ipv6/conf/all/forwarding", "1");
    for from in members {
        for to in members {
            assert!(wait_until(10.0, || from.reaches_all(to)), "without a firewall");
        }
    }
}

fn ping(from: &Ns, to: &str) -> bool {
    from.run(&format!("ping -n -c 1 -W 1 {to}")).status == 0
}

fn firewall<'h>(host: &'h Host, number: u8, keys: &Value) -> Network<'h> {
    let mut config =
        json!({ "cniVersion": configs::newest(), "name": format!("net{number}"), "type": "firewall" });
    config.as_object_mut().unwrap().extend(keys.as_object().unwrap().clone());
    Network::new(host, config)
}

/// Both iptables tables `filter`, without what iptables itself makes.
fn rules(ns: &Ns) -> String {
    ns.shell("iptables-nft-save -t filter; ip6tables-nft-save -t filter")
        .lines()
        .filter(|line| line.contains("CNI-"))
        .map(|line| format!("{line}\n"))
        .collect()
}

#[test]
fn what_nf_tables_gets() {
    need!("ip", "nft");
    let host = Host::new();
    let before = Snapshot::of(&host);
    let (one, two) = (join(&host, 1, "one"), join(&host, 1, "two"));
    let bridges = Snapshot::of(&host);
    let net = firewall(&host, 1, &json!({}));
    assert_eq!(one.add(&net), one.prev);
    two.add(&net);
    let table = host.nft("list table inet cnimble");
    for line in [
        "type filter hook forward priority filter; policy accept;",
        "jump admin",
        "jump forward-policy",
        "ip daddr @forward4 ct state established,related accept",
        "ip saddr @forward4 accept",
        "ip6 daddr @forward6 ct state established,related accept",
        "ip6 saddr @forward6 accept",
        "iifname @forward-bridges oifname @forward-bridges iifname . oifname != @forward-inside drop",
    ] {
        assert!(table.contains(line), "{line}: {table}");
    }
    assert!(
        table.contains(&format!("{} comment \"", one.ip(0)))
            && table.contains("net: net1, if: eth0, id: one")
    );
    // What nft prints it can load.
    host.shell("nft list ruleset | nft -c -f -");
    net.check(&one.att, &one.prev).success();

    // Again: nothing is there twice.
    one.add(&net);
    assert_eq!(host.nft("list table inet cnimble"), table);

    // What somebody takes away is noticed, and comes back with the next pod.
    for (harm, word) in [
        ("flush chain inet cnimble forward", "no jump"),
        ("flush set inet cnimble forward4", "lacks"),
        ("delete table inet cnimble", "forward4"),
        ("flush ruleset", "forward4"),
    ] {
        host.nft(harm);
        let error = net.check(&one.att, &one.prev).error();
        assert!(error.code == 103 && error.all().contains(word), "{harm}: {error:?}");
        one.add(&net);
        net.check(&one.att, &one.prev).success();
    }
    two.add(&net);
    assert_eq!(host.nft("list table inet cnimble"), table);

    // DEL without anything to go by, and again.
    net.deleted(&one.att.clone().netns(""), None);
    assert!(net.check(&one.att, &one.prev).error().code == 103);
    net.check(&two.att, &two.prev).success();
    net.deleted(&one.att, Some(&one.prev));
    // A stale prevResult leaves the new holder of its address alone.
    let stale = two.prev.clone();
    net.deleted(&Attachment::new("stale", &one.pod), Some(&stale));
    net.check(&two.att, &two.prev).success();
    let other = firewall(&host, 1, &json!({ "ingressPolicy": "open", "backend": "firewalld" }));
    other.deleted(&two.att, Some(&two.prev));
    assert_eq!(Snapshot::of(&host).mentions("two"), bridges.mentions("two"));
    assert!(!host.nft("list ruleset").contains("id: "));
    for member in [&one, &two] {
        bridge(&host, 1).deleted(&member.att, None);
    }
    assert_eq!(before.mentions("10.1.1.2"), Snapshot::of(&host).mentions("10.1.1.2"));
}

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
    assert!(!a1.reaches(&b) && !b.reaches(&a1), "other bridges are shut out");
    assert!(a1.reaches(&a2) && a2.reaches(&a1), "the same bridge isn't");
    assert!(open.reaches(&b) && b.reaches(&open), "nor are those with another policy");
    assert!(ping(&host, a1.ip(0)) && ping(&a1.pod, "10.1.1.1"), "nor the host");
    // The host's addresses on the other bridge are the host.
    assert!(ping(&a1.pod, "10.1.2.1"));
    for (net, member) in [(same(1), &a1), (same(2), &b)] {
        net.check(&member.att, &member.prev).success();
        bridge(&host, if member.att.id == "b" { 2 } else { 1 }).check(&member.att, &member.prev).success();
    }

    // Isolated: not even the same bridge.
    for member in [&a1, &a2] {
        member.add(&isolated);
        isolated.check(&member.att, &member.prev).success();
        bridge(&host, 1).check(&member.att, &member.prev).success();
    }
    assert!(!a1.reaches(&a2) && !a2.reaches(&a1) && !a1.reaches(&b));
    assert!(a1.reaches(&open) && ping(&host, a1.ip(0)) && ping(&a1.pod, "10.1.1.1"));
    assert_eq!(same(1).check(&a1.att, &a1.prev).error().code, 103);
    let port = a1.prev["interfaces"][1]["name"].as_str().unwrap();
    host.ip(&format!("link set {port} type bridge_slave isolated off"));
    assert_eq!(isolated.check(&a1.att, &a1.prev).error().code, 103);
    // The latest decides.
    host.ip(&format!(
        "link set {} type bridge_slave isolated off",
        a2.prev["interfaces"][1]["name"].as_str().unwrap()
    ));
    a1.add(&same(1));
    assert!(a1.reaches(&a2) && !a1.reaches(&b));

    for (net, member) in [(&isolated, &a1), (&isolated, &a2), (&same(2), &b), (&same(3), &open)] {
        net.deleted(&member.att, Some(&member.prev));
    }
    let left = host.nft("list ruleset");
    for member in [&a1, &a2, &b, &open] {
        assert!(!left.contains(member.ip(0)) && !left.contains(&format!("id: {}", member.att.id)), "{left}");
    }
    // What isolates bridges stays until they are gone.
    assert!(!a1.reaches(&b));
}

#[test]
fn the_administrators_chain() {
    need!("ip", "nft", "ping");
    let host = Host::new();
    let (a, b) = (join(&host, 1, "a"), join(&host, 2, "b"));
    meet(&host, &[&a, &b]);
    let net = firewall(&host, 1, &json!({ "backend": "nftables" })).with("/cniVersion", json!("1.1.0"));
    a.add(&net);
    assert!(b.reaches(&a));
    host.shell("nft add rule inet cnimble admin iifname br2 drop");
    assert!(!b.reaches(&a) && !a.reaches(&b));
    a.add(&net);
    net.gc(Some(json!([a.att.listed()]))).success();
    net.deleted(&a.att, Some(&a.prev));
    net.gc(Some(json!([]))).success();
    assert!(host.nft("list chain inet cnimble admin").contains("drop"));
    // Answers are accepted behind it, and so the policy may be drop.
    host.nft("flush chain inet cnimble admin");
    a.add(&net);
    host.shell("nft 'chain inet cnimble forward { policy drop; }'");
    assert!(a.reaches(&b) && !b.reaches(&a));
}

#[test]
fn where_forward_drops_by_policy() {
    need!("ip", "nft", "ping", "iptables-nft-save");
    let host = Host::new();
    let (a, b) = (join(&host, 1, "a"), join(&host, 2, "b"));
    meet(&host, &[&a, &b]);
    host.shell("iptables-nft -P FORWARD DROP; ip6tables-nft -P FORWARD DROP");
    assert!(!a.reaches(&b));
    // nf_tables could not help.
    let net = firewall(&host, 1, &json!({}));
    a.add(&firewall(&host, 1, &json!({ "backend": "nftables" })));
    assert!(!a.reaches(&b));
    let error = firewall(&host, 1, &json!({ "backend": "iptables" })).check(&a.att, &a.prev).error();
    assert_eq!(error.code, 103);
    a.add(&net);
    assert!(a.reaches(&b) && !b.reaches(&a));
    net.check(&a.att, &a.prev).success();
    let saved = rules(&host);
    a.add(&net);
    assert_eq!(rules(&host), saved, "nothing is there twice");
    net.deleted(&a.att, Some(&a.prev));
    assert!(!a.reaches(&b));
    let left = rules(&host);
    assert!(!left.contains(a.ip(0)) && !left.contains(a.ip(1)), "{left}");
    assert!(!host.nft("list ruleset").contains("id: a"));
}

#[test]
fn the_go_plugin_and_ours_take_over_from_each_other() {
    need!("ip", "nft", "iptables-nft-save");
    let Some(go) = go_plugins().filter(|dir| dir.join("firewall").exists()) else {
        skip!("the Go plugin is not installed")
    };
    let host = Host::new();
    let (a, b) = (join(&host, 1, "a"), join(&host, 1, "b"));
    for keys in [
        json!({ "backend": "iptables" }),
        json!({ "backend": "iptables", "ingressPolicy": "same-bridge" }),
        json!({ "backend": "iptables", "iptablesAdminChainName": "MY-ADMIN" }),
    ] {
        let ours = firewall(&host, 1, &keys).with("/cniVersion", json!("1.0.0"));
        let theirs = ours.served_by(go);
        let prev = |member: &Member| {
            let mut prev = member.prev.clone();
            prev["cniVersion"] = json!("1.0.0");
            prev
        };
        let (prev_a, prev_b) = (prev(&a), prev(&b));
        let add = |net: &Network<'_>, att: &Attachment, prev: &Value| {
            net.call("ADD", att, Some(prev)).run().result();
            rules(&host)
        };
        host.nft("flush ruleset");
        let by_them = add(&theirs, &a.att, &prev_a);
        ours.check(&a.att, &prev_a).success();
        // Nothing is missing.
        assert_eq!(add(&ours, &a.att, &prev_a), by_them);
        ours.deleted(&a.att, Some(&prev_a));
        let left = rules(&host);
        assert!(!left.contains(a.ip(0)) && !left.contains(a.ip(1)), "{left}");

        host.nft("flush ruleset");
        assert_eq!(add(&ours, &a.att, &prev_a), by_them);
        theirs.check(&a.att, &prev_a).success();
        assert_eq!(add(&theirs, &a.att, &prev_a), by_them);
        // Beside each other.
        add(&theirs, &b.att, &prev_b);
        theirs.deleted(&a.att, Some(&prev_a));
        ours.check(&b.att, &prev_b).success();
        ours.deleted(&b.att, Some(&prev_b));
        assert_eq!(rules(&host), left);
    }
    // With nf_tables the Go plugin's rules go, too.
    host.nft("flush ruleset");
    let ours = firewall(&host, 1, &json!({ "backend": "nftables" })).with("/cniVersion", json!("1.0.0"));
    let mut prev = a.prev.clone();
    prev["cniVersion"] = json!("1.0.0");
    ours.with("/backend", json!("iptables")).served_by(go).call("ADD", &a.att, Some(&prev)).run().result();
    ours.check(&a.att, &prev).success();
    ours.deleted(&a.att, Some(&prev));
    assert!(!rules(&host).contains(a.ip(0)));
}

#[test]
fn a_failure_takes_everything_back() {
    need!("ip", "nft", "iptables-nft-save");
    let host = Host::new();
    let (a, b) = (join(&host, 1, "a"), join(&host, 1, "b"));
    for backend in ["nftables", "iptables"] {
        for policy in ["open", "same-bridge", "isolated"] {
            let net = firewall(&host, 1, &json!({ "backend": backend, "ingressPolicy": policy }));
            for alone in [true, false] {
                if !alone {
                    b.add(&net);
                }
                let before = Snapshot::of(&host);
                let call = net.call("ADD", &a.att, Some(&a.prev));
                let outcome = call.under(&["sh", "-c", "exec \"$0\" >/dev/full"]).run();
                assert_eq!(outcome.status, 1, "{}", outcome.describe());
                before.assert_same(&Snapshot::of(&host), &format!("{backend} {policy}, alone: {alone}"));
            }
            net.deleted(&b.att, Some(&b.prev));
            host.nft("flush ruleset");
            let port = b.prev["interfaces"][1]["name"].as_str().unwrap();
            host.ip(&format!("link set {port} type bridge_slave isolated off"));
        }
    }
    // IPv4 goes well; for IPv6 there is a table that iptables can't use.
    host.nft("add table ip6 filter");
    host.shell("nft 'add chain ip6 filter FORWARD { type filter hook input priority 7; }'");
    let before = Snapshot::of(&host);
    let net = firewall(&host, 1, &json!({ "backend": "iptables" }));
    let error = net.call("ADD", &a.att, Some(&a.prev)).run().error();
    assert!(error.code == 100 && error.all().contains("ip6tables"), "{error:?}");
    before.assert_same(&Snapshot::of(&host), "half-way");
}

#[test]
fn gc_and_status() {
    need!("ip", "nft");
    let host = Host::new();
    let before = Snapshot::of(&host);
    let members = [join(&host, 1, "keep"), join(&host, 1, "stale"), join(&host, 2, "stale")];
    let net = |number| {
        firewall(&host, number, &json!({ "backend": "nftables", "ingressPolicy": "same-bridge" }))
            .with("/cniVersion", json!("1.1.0"))
    };
    net(1).status().success();
    assert!(!host.nft("list ruleset").contains("forward"), "STATUS only looks");
    for (member, number) in members.iter().zip([1, 1, 2]) {
        member.add(&net(number));
    }
    net(1).gc(None).success();
    net(1).gc(Some(json!([members[0].att.listed()]))).success();
    net(1).check(&members[0].att, &members[0].prev).success();
    assert_eq!(net(1).check(&members[1].att, &members[1].prev).error().code, 103);
    net(2).check(&members[2].att, &members[2].prev).success();
    // The bridges are in use.
    net(1).gc(Some(json!([]))).success();
    net(2).gc(Some(json!([]))).success();
    assert!(host.nft("list set inet cnimble forward-bridges").contains("br1"));
    for (member, number) in members.iter().zip([1, 1, 2]) {
        bridge(&host, number).deleted(&member.att, None);
    }
    host.ip("link del br2");
    net(1).gc(Some(json!([]))).success();
    assert_eq!(host.nft("list ruleset"), "", "nothing at all is left");
    assert_eq!(before.lines_with("forward-"), Snapshot::of(&host).lines_with("forward-"));
}

#[test]
fn bad_configurations() {
    need!("ip", "nft");
    let host = Host::new();
    let a = join(&host, 1, "a");
    let before = Snapshot::of(&host);
    for (keys, word) in [
        (json!({ "backend": "pf" }), "unknown backend \"pf\""),
        (json!({ "firewalldZone": 1 }), "firewalldZone"),
        (json!({ "backend": 1 }), "backend"),
        (json!({ "ingressPolicy": "closed" }), "unknown ingress policy"),
        (json!({ "ingressPolicy": [] }), "ingressPolicy"),
        (json!({ "iptablesAdminChainName": "a b" }), "iptablesAdminChainName"),
        (json!({ "iptablesAdminChainName": "-j" }), "iptablesAdminChainName"),
        (json!({ "iptablesAdminChainName": "x\nCOMMIT" }), "iptablesAdminChainName"),
        (json!({ "iptablesAdminChainName": "x".repeat(29) }), "iptablesAdminChainName"),
    ] {
        let net = firewall(&host, 1, &keys);
        let error = net.call("ADD", &a.att, Some(&a.prev)).run().error();
        assert!(error.code == 7 && error.all().contains(word), "{word}: {error:?}");
        assert_eq!(net.check(&a.att, &a.prev).error().code, 7);
        assert_eq!(net.status().error().code, 7);
    }
    let net = firewall(&host, 1, &json!({}));
    assert_eq!(net.add(&a.att).error().code, 7, "no prevResult");
    for version in ["0.3.1", "0.1.0"] {
        let old = net.with("/cniVersion", json!(version));
        assert_eq!(old.call("ADD", &a.att, None).run().error().code, 1, "{version}");
    }
    // A policy without a bridge.
    let policed = firewall(&host, 1, &json!({ "ingressPolicy": "same-bridge" }));
    let mut prev = a.prev.clone();
    prev["interfaces"] = json!([]);
    prev["ips"]
        .as_array_mut()
        .unwrap()
        .iter_mut()
        .for_each(|ip| _ = ip.as_object_mut().unwrap().remove("interface"));
    assert_eq!(policed.call("ADD", &a.att, Some(&prev)).run().error().code, 7);
    before.assert_same(&Snapshot::of(&host), "nothing was touched");
    // Without a policy it needs none, and without addresses there is nothing to do.
    net.call("ADD", &a.att, Some(&prev)).run().result();
    net.deleted(&a.att, None);
    prev["ips"] = json!([]);
    net.call("ADD", &a.att, Some(&prev)).run().result();
    assert!(!host.nft("list ruleset").contains("id: a"));
}

#[test]
fn podmans_chain() {
    need!("ip", "nft");
    let host = Host::new();
    let before = Snapshot::of(&host);
    let pod = Pod::new();
    let att = Attachment::new("one", &pod);
    let mut main = configs::v4(&host);
    for (key, value) in [("cniVersion", "0.4.0"), ("name", "podman"), ("bridge", "cni-podman0")] {
        main[key] = json!(value);
    }
    main["ipMasq"] = json!(true);
    main["hairpinMode"] = json!(true);
    let plugin = |keys: Value| {
        let mut config = json!({ "cniVersion": "0.4.0", "name": "podman" });
        config.as_object_mut().unwrap().extend(keys.as_object().unwrap().clone());
        Network::new(&host, config)
    };
    let ports = json!([{ "hostPort": 8080, "containerPort": 80, "protocol": "tcp", "hostIP": "" }]);
    let chain = [
        Network::new(&host, main),
        plugin(json!({ "type": "portmap", "runtimeConfig": { "portMappings": ports } })),
        plugin(json!({ "type": "firewall" })),
        plugin(json!({ "type": "tuning", "dataDir": host.dir(), "sysctl": { "net.core.somaxconn": "600" } })),
    ];
    let mut prev = None;
    for net in &chain {
        prev = Some(net.call("ADD", &att, prev.as_ref()).run().result());
    }
    let result = prev.unwrap();
    assert_eq!(result["ips"][0]["address"], "10.1.2.2/24");
    for net in &chain {
        net.check(&att, &result).success();
    }
    assert!(host.nft("list ruleset").contains("id: one"));
    for net in chain.iter().rev() {
        net.deleted(&att, Some(&result));
    }
    let left = Snapshot::of(&host);
    assert!(left.lines_with("id: one").is_empty());
    assert!(!host.nft("list ruleset").contains("10.1.2.2"));
    assert_eq!(before.lines_with("forward-"), left.lines_with("forward-"));
}
