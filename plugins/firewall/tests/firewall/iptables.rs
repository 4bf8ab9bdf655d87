//! The Go plugin's chains, beside it and where FORWARD drops.

use std::path::Path;

use serde_json::{Value, json};

use cnimble_tests::{
    Attachment, Host, Network, Pod, Snapshot, configs, go_plugins, need, need_go, plugin_dir, skip,
};

use super::{Member, firewall, join, meet, rules};

#[test]
fn where_forward_drops_by_policy() {
    need!("ip", "nft", "ping", "iptables-nft-save");
    let host = Host::new();
    let (a, b) = (join(&host, 1, "a"), join(&host, 2, "b"));
    meet(&host, &[&a, &b]);
    host.shell("iptables-nft -P FORWARD DROP; ip6tables-nft -P FORWARD DROP");
    assert!(a.misses(&b));
    // nf_tables can't accept packets that iptables drops.
    let net = firewall(&host, 1, &json!({}));
    a.add(&firewall(&host, 1, &json!({ "backend": "nftables" })));
    assert!(a.misses(&b));
    let error = firewall(&host, 1, &json!({ "backend": "iptables" })).check(&a.att, &a.prev).error();
    assert_eq!(error.code, 103);
    a.add(&net);
    assert!(a.reaches(&b) && b.misses(&a));
    net.check(&a.att, &a.prev).success();
    let saved = rules(&host);
    a.add(&net);
    assert_eq!(rules(&host), saved, "nothing is there twice");
    net.deleted(&a.att, Some(&a.prev));
    assert!(a.misses(&b));
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
        // Our ADD has nothing to add.
        assert_eq!(add(&ours, &a.att, &prev_a), by_them);
        ours.deleted(&a.att, Some(&prev_a));
        let left = rules(&host);
        assert!(!left.contains(a.ip(0)) && !left.contains(a.ip(1)), "{left}");

        host.nft("flush ruleset");
        assert_eq!(newest(&add(&ours, &a.att, &prev_a)), newest(&by_them));
        theirs.check(&a.att, &prev_a).success();
        assert_eq!(newest(&add(&theirs, &a.att, &prev_a)), newest(&by_them));
        ours.check(&a.att, &prev_a).success();
        // Pods of both plugins.
        add(&theirs, &b.att, &prev_b);
        theirs.deleted(&a.att, Some(&prev_a));
        ours.check(&b.att, &prev_b).success();
        ours.deleted(&b.att, Some(&prev_b));
        assert_eq!(newest(&rules(&host)), newest(&left));
    }
    // The Go plugin's rules go, too.
    host.nft("flush ruleset");
    let ours = firewall(&host, 1, &json!({ "backend": "nftables" })).with("/cniVersion", json!("1.0.0"));
    let mut prev = a.prev.clone();
    prev["cniVersion"] = json!("1.0.0");
    ours.with("/backend", json!("iptables")).served_by(go).call("ADD", &a.att, Some(&prev)).run().result();
    ours.check(&a.att, &prev).success();
    ours.deleted(&a.att, Some(&prev));
    assert!(!rules(&host).contains(a.ip(0)));
}

/// A chain's DEL that has failed is called again. The main plugin may have released the address by then.
#[test]
fn a_repeated_del_leaves_the_rules_of_the_pod_that_has_the_address_by_now() {
    need!("ip", "nft", "iptables-nft-save", "unshare", "mount");
    assert_rules_of_the_next_owner_stay(plugin_dir());
}

#[test]
fn a_repeated_del_by_the_go_plugins_leaves_them_too() {
    need_go!(go, "ip", "nft", "iptables-nft-save", "unshare", "mount");
    assert_rules_of_the_next_owner_stay(go);
}

#[track_caller]
fn assert_rules_of_the_next_owner_stay(plugins: &Path) {
    let host = Host::new();
    let range = json!([[{"subnet": "10.1.1.0/24", "rangeStart": "10.1.1.7", "rangeEnd": "10.1.1.7"}]]);
    let main = super::bridge(&host, 1).with("/cniVersion", json!("1.0.0")).with("/ipam/ranges", range);
    let main = main.with("/ipam/routes", json!([])).served_by(plugins);
    let net = firewall(&host, 1, &json!({ "backend": "iptables" })).with("/cniVersion", json!("1.0.0"));
    let add = |id: &str, pod: &Pod| {
        let att = Attachment::new(id, pod);
        let result = main.added(&att);
        net.served_by(plugins).call("ADD", &att, Some(&result)).run().success();
        (att, result)
    };
    let (first, second) = (Pod::new(), Pod::new());
    let (gone, result_of_gone) = add("gone", &first);
    main.deleted(&gone, Some(&result_of_gone));
    let (lives, result) = add("lives", &second);
    let before = rules(&host);
    assert!(before.contains("-s 10.1.1.7/32 -j ACCEPT"), "{before}");

    let results = host.dir().join("results");
    std::fs::create_dir(&results).unwrap();
    let record = json!({"containerId": "lives", "ifName": "eth0", "networkName": "net1", "result": result});
    std::fs::write(results.join("net1-lives-eth0"), record.to_string()).unwrap();
    let script = format!(
        "mount -t tmpfs none /var/lib && mkdir /var/lib/cni && ln -s {} /var/lib/cni/ && exec \"$0\" \"$@\"",
        results.display()
    );
    let del = |att: &Attachment, prev: &Value| {
        let call = net.call("DEL", att, Some(prev));
        call.under(&["unshare", "--mount", "sh", "-c", &script]).run().success();
    };
    del(&gone, &result_of_gone);
    assert_eq!(rules(&host), before, "{}", plugins.display());
    del(&lives, &result);
    assert!(!rules(&host).contains("10.1.1.7"), "{}", rules(&host));
}

/// With the comments since 1.7.1, without duplicates. An older Go plugin doesn't recognize those, and adds its own.
fn newest(rules: &str) -> String {
    let shared =
        |line: &str| line.starts_with("-A FORWARD") || line.contains("RETURN") || line.contains("-j DROP");
    let mut lines: Vec<String> = Vec::new();
    for line in rules.lines() {
        let old = "(ingressPolicy: same-bridge)";
        let line = if shared(line) {
            line.replace(old, "(ingressPolicy: same-bridge|isolated)")
        } else {
            line.into()
        };
        if !lines.contains(&line) || line.starts_with(':') {
            lines.push(line);
        }
    }
    lines.join("\n")
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
