use serde_json::json;

use cnimble_tests::{Attachment, Host, Pod, Snapshot, need};

use super::{bridge, firewall, join, meet};

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
    // nft loads its own output.
    host.shell("nft list ruleset | nft -c -f -");
    net.check(&one.att, &one.prev).success();

    // A second ADD adds no duplicates.
    one.add(&net);
    assert_eq!(host.nft("list table inet cnimble"), table);

    // CHECK notices each removal, and ADD restores it.
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

    // Without a namespace and a prevResult, and again.
    net.deleted(&one.att.clone().netns(""), None);
    assert!(net.check(&one.att, &one.prev).error().code == 103);
    net.check(&two.att, &two.prev).success();
    net.deleted(&one.att, Some(&one.prev));
    // The address has a new owner.
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
fn the_administrators_chain() {
    need!("ip", "nft", "ping");
    let host = Host::new();
    let (a, b) = (join(&host, 1, "a"), join(&host, 2, "b"));
    meet(&host, &[&a, &b]);
    let net = firewall(&host, 1, &json!({ "backend": "nftables" })).with("/cniVersion", json!("1.1.0"));
    a.add(&net);
    assert!(b.reaches(&a));
    host.shell("nft add rule inet cnimble admin iifname br2 drop");
    assert!(b.misses(&a) && a.misses(&b));
    a.add(&net);
    net.gc(Some(json!([a.att.listed()]))).success();
    net.deleted(&a.att, Some(&a.prev));
    net.gc(Some(json!([]))).success();
    assert!(host.nft("list chain inet cnimble admin").contains("drop"));
    // The jump to the administrator's chain comes first, and replies are accepted after it: its policy may be drop.
    host.nft("flush chain inet cnimble admin");
    a.add(&net);
    host.shell("nft 'chain inet cnimble forward { policy drop; }'");
    assert!(a.reaches(&b) && b.misses(&a));
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
    // IPv4 succeeds. iptables can't use this IPv6 table.
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

/// Each pod's traffic passes until its own DEL, in either order.
#[test]
fn two_networks_may_have_the_same_address() {
    need!("ip", "nft", "ping");
    for leaves in [0, 1] {
        let host = Host::new();
        let (one, far) = (join(&host, 1, "one"), join(&host, 2, "far"));
        meet(&host, &[&one, &far]);
        let before = Snapshot::of(&host);
        let other = Pod::new();
        let atts = [&one.att, &Attachment::new("two", &other)];
        let nets = [1, 7].map(|number| firewall(&host, number, &json!({ "backend": "nftables" })));
        let add = |n: usize| nets[n].call("ADD", atts[n], Some(&one.prev)).run().result();
        let check = |n: usize| nets[n].call("CHECK", atts[n], Some(&one.prev)).run();
        let ruleset = || host.nft("-s list ruleset");
        add(0);
        host.nft("chain inet cnimble forward { policy drop; }");
        let alone = ruleset();
        assert!(one.reaches(&far));
        let unread = nets[1]
            .call("ADD", atts[1], Some(&one.prev))
            .under(&["sh", "-c", "exec \"$0\" >/dev/full"])
            .run();
        assert_eq!(unread.status, 1, "{}", unread.describe());
        assert_eq!(ruleset(), alone);
        add(1);
        let both = ruleset();
        add(0);
        add(1);
        assert_eq!(ruleset(), both, "again: nothing is there twice");
        for n in [0, 1] {
            check(n).success();
            nets[n].gc(Some(json!([atts[n].listed()]))).success();
        }
        assert_eq!(ruleset(), both);

        let stays = 1 - leaves;
        nets[leaves].deleted(atts[leaves], Some(&one.prev));
        check(stays).success();
        assert_eq!(check(leaves).error().code, 103);
        assert!(one.reaches(&far), "the other's DEL took it along");
        let left = ruleset();
        add(stays);
        assert_eq!(ruleset(), left);
        match stays {
            0 => nets[stays].deleted(atts[stays], Some(&one.prev)),
            _ => drop(nets[stays].gc(Some(json!([]))).success()),
        }
        before.assert_same(&Snapshot::of(&host), "after both");
    }
}
