//! Conditions in the language of `nft`, with real packets.

use serde_json::{Value, json};

use cnimble_netlink::nft::Nft;
use cnimble_rules::portmap::{self, Backend};
use cnimble_tests::traffic::{Server, tcp, udp};
use cnimble_tests::{Network, Ns, Snapshot, need};

use super::{Site, forward, owner};

/// From an issue of the Go plugins.
fn not_there() -> Value {
    json!(["ip", "daddr", "!=", "{ 127.0.0.0/8, 192.0.2.7 }"])
}

fn site() -> Site {
    let site = Site::new();
    site.host.ip("addr add 192.0.2.7/24 dev uplink");
    site
}

fn ports() -> Value {
    json!([
        {"hostPort": 8080, "containerPort": 80},
        {"hostPort": 8080, "containerPort": 80, "protocol": "udp"},
        {"hostPort": 8081, "containerPort": 80, "hostIP": "192.0.2.7"},
        {"hostPort": 8081, "containerPort": 80},
    ])
}

#[test]
fn conditions_of_nft_are_matched() {
    need!("nft", "ip");
    for more in [json!({}), json!({"backend": "nftables"})] {
        let site = site();
        let before = Snapshot::of_ns(&site.host);
        let _inside = Server::start(&site.pods[0], 80, "pod0");
        let mut net = site.network(ports()).with("/conditionsV4", not_there());
        net.config.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        site.add(&net, 0);
        let (world, host) = (&site.world, &site.host);
        for (from, to, open) in [
            (world, "192.0.2.1:8080", true),
            (world, "192.0.2.7:8080", false),
            (world, "192.0.2.7:8081", false),
            (world, "192.0.2.1:8081", true),
            (world, "[2001:db8::1]:8080", true),
            (&**host, "127.0.0.1:8080", false),
            (&**host, "10.1.2.1:8080", true),
            (&site.pods[0], "192.0.2.1:8080", true),
            (&site.pods[1], "192.0.2.7:8080", false),
        ] {
            let answer = tcp(from, to);
            assert_eq!(answer.is_ok(), open, "{to}: {answer:?}");
            if open {
                assert!(answer.unwrap().starts_with("pod0 "), "{to}");
            }
        }
        assert!(udp(world, "192.0.2.1:8080").unwrap().starts_with("pod0 "));
        net.check(&site.attachment(0), &site.results[0]).success();
        net.deleted(&site.attachment(0).netns(""), Some(&site.results[0]));
        before.assert_same(&Snapshot::of_ns(&site.host), "DEL");
    }
}

#[test]
fn conditions_may_be_of_any_kind() {
    need!("nft", "ip");
    for (conditions, from_world, from_host) in [
        (json!(["ip", "saddr", "192.0.2.9"]), true, false),
        (json!(["ip saddr 192.0.2.8"]), false, false),
        (json!(["iifname", "\"uplink\""]), true, false),
        (json!(["iifname != \"uplink\""]), false, true),
        (json!(["tcp", "sport", "1024-65535", "ip", "ttl", ">", "1"]), true, true),
        (json!(["meta mark 0", "tcp dport { 8080, 9090 }"]), true, true),
        (json!(["meta mark 1"]), false, false),
        (json!(["counter", "tcp", "flags", "syn"]), true, true),
    ] {
        let site = site();
        let _inside = Server::start(&site.pods[0], 80, "pod0");
        let net = site
            .network(json!([{"hostPort": 8080, "containerPort": 80}]))
            .with("/conditionsV4", conditions.clone());
        site.add(&net, 0);
        assert_eq!(tcp(&site.world, "192.0.2.1:8080").is_ok(), from_world, "{conditions}");
        assert_eq!(tcp(&site.host, "192.0.2.1:8080").is_ok(), from_host, "{conditions}");
    }
}

#[test]
fn conditions_of_each_family_are_its_own() {
    need!("nft", "ip");
    let site = site();
    let before = Snapshot::of_ns(&site.host);
    let _servers = [Server::start(&site.pods[0], 80, "pod0"), Server::start(&site.pods[1], 80, "pod1")];
    let net = |port: u16| {
        site.network(json!([{"hostPort": port, "containerPort": 80}, {"hostPort": port + 1, "containerPort": 80, "hostIP": "2001:db8::1"}]))
    };
    let six = net(8080).with("/conditionsV6", json!(["ip6", "saddr", "2001:db8::/64"]));
    let both = net(9090)
        .with("/conditionsV6", json!(["ip6 saddr != 2001:db8::/64"]))
        .with("/conditionsV4", not_there());
    site.add(&six, 0);
    site.add(&both, 1);
    assert!(tcp(&site.world, "192.0.2.1:8080").unwrap().starts_with("pod0"));
    assert!(tcp(&site.world, "[2001:db8::1]:8080").unwrap().starts_with("pod0"));
    assert!(tcp(&site.world, "[2001:db8::1]:8081").unwrap().starts_with("pod0"));
    assert!(tcp(&site.pods[1], "[2001:db8::1]:8080").is_err());
    assert!(tcp(&site.world, "192.0.2.1:9090").unwrap().starts_with("pod1"));
    assert!(tcp(&site.world, "192.0.2.7:9090").is_err());
    assert!(tcp(&site.world, "[2001:db8::1]:9090").is_err());
    assert!(tcp(&site.pods[0], "[2001:db8::1]:9091").unwrap().starts_with("pod1"));
    six.check(&site.attachment(0), &site.results[0]).success();
    both.check(&site.attachment(1), &site.results[1]).success();
    // Each mapping keeps its rules without the other.
    both.gc(Some(json!([site.attachment(0).listed()]))).success();
    assert_eq!(both.check(&site.attachment(1), &site.results[1]).error().code, 103);
    six.check(&site.attachment(0), &site.results[0]).success();
    assert!(tcp(&site.world, "[2001:db8::1]:8080").unwrap().starts_with("pod0"));
    assert_eq!(site.ruleset().matches("map portmap-when-").count(), 2, "{}", site.ruleset());
    six.deleted(&site.attachment(0), None);
    before.assert_same(&Snapshot::of_ns(&site.host), "after both");
}

fn programs(site: &Site, net: &Network<'_>, pod: usize) -> usize {
    let log = site.host.dir().join("strace");
    let wrapper = ["strace", "-f", "-qq", "-e", "trace=execve", "-o", log.to_str().unwrap()];
    net.call("ADD", &site.attachment(pod), Some(&site.results[pod])).under(&wrapper).run().success();
    std::fs::read_to_string(log).unwrap().lines().filter(|line| line.ends_with("= 0")).count()
}

#[test]
fn the_command_is_run_for_the_first_pod_alone() {
    need!("nft", "ip", "strace");
    let site = site();
    let net = |port: u16| site.network(json!([{"hostPort": port, "containerPort": 80}]));
    assert_eq!(programs(&site, &net(7000), 0), 1, "no conditions, no command");
    let when = |port: u16| net(port).with("/conditionsV4", not_there());
    site.host.nft("delete table inet cnimble");
    assert_eq!(programs(&site, &when(8080), 0), 2);
    assert_eq!(programs(&site, &when(8081), 1), 1);
    assert_eq!(programs(&site, &when(8082), 1), 1, "replaced");
}

#[test]
fn a_conditional_port_is_taken_too() {
    need!("nft", "ip");
    let site = site();
    let _inside = Server::start(&site.pods[0], 80, "pod0");
    let one = site.network(json!([{"hostPort": 8080, "containerPort": 80}]));
    let when = one.with("/conditionsV4", not_there());
    for (first, second) in [
        (&one, &when),
        (&when, &one),
        (&when, &when),
        (&when, &one.with("/conditionsV4", json!(["ip saddr 192.0.2.9"]))),
        (&when, &one.with("/backend", json!("iptables"))),
    ] {
        site.add(first, 0);
        let before = site.ruleset();
        let err = second.call("ADD", &site.attachment(1), Some(&site.results[1])).run().error();
        assert!(err.code == 102 && err.all().contains("id: pod0"), "{}", err.all());
        assert_eq!(site.ruleset(), before);
        assert!(tcp(&site.world, "192.0.2.1:8080").unwrap().starts_with("pod0 "));
        first.deleted(&site.attachment(0), None);
    }
    // For the same port on one address.
    site.add(&when, 0);
    let part = site.network(json!([{"hostPort": 8080, "containerPort": 80, "hostIP": "192.0.2.1"}]));
    for part in [part.with("/conditionsV4", not_there()), part] {
        let err = part.call("ADD", &site.attachment(1), Some(&site.results[1])).run().error();
        assert_eq!(err.code, 102, "{}", err.all());
    }
}

#[test]
fn wrong_conditions_are_one_error_and_change_nothing() {
    need!("nft", "ip", "unshare", "mount");
    let site = site();
    let net = site.network(ports());
    let refused = |net: &Network<'_>, code: u64, part: &str| {
        let before = Snapshot::of_ns(&site.host);
        let err = net.call("ADD", &site.attachment(0), Some(&site.results[0])).run().error();
        assert_eq!(err.code, code, "{}", err.all());
        assert!(err.all().contains(part), "{}", err.all());
        before.assert_same(&Snapshot::of_ns(&site.host), part);
    };
    let other =
        site.network(json!([{"hostPort": 7000, "containerPort": 80}])).with("/conditionsV4", not_there());
    for round in 0..2 {
        for conditions in [
            json!(["ip", "daddr", "nowhere at all"]),
            json!(["accept"]),
            json!(["jump portmap"]),
            json!(["ip", "daddr", "192.0.2.1", "}"]),
            json!(["ip", "daddr", "192.0.2.1", "dnat", "to", "192.0.2.9"]),
        ] {
            refused(&net.with("/conditionsV4", conditions), 100, "nft failed");
        }
        for conditions in [json!(["ip", "daddr", "192.0.2.1;", "flush", "ruleset"]), json!(["tcp", "#"])] {
            refused(&net.with("/conditionsV4", conditions), 7, "more than a condition");
        }
        refused(
            &net.with("/conditionsV4", not_there()).with("/backend", json!("iptables")),
            7,
            "conditionsV4",
        );
        if round == 0 {
            site.add(&other, 1);
        }
    }
    let hidden = "for nft in /usr/sbin/nft /sbin/nft /usr/local/sbin/nft; do [ ! -e $nft ] || mount --bind /dev/null $nft; done; exec \"$0\"";
    let hidden = ["unshare", "--mount", "sh", "-c", hidden];
    let mine = net.with("/conditionsV4", json!(["ip saddr 192.0.2.9"]));
    let before = Snapshot::of_ns(&site.host);
    let err = mine.call("ADD", &site.attachment(0), Some(&site.results[0])).under(&hidden).run().error();
    assert!(err.code == 100 && err.msg.ends_with("the command nft is not installed"), "{}", err.all());
    before.assert_same(&Snapshot::of_ns(&site.host), "without nft");
    let err = mine.status_call().under(&hidden).run().error();
    assert!(err.code == 50 && err.msg == "the command nft is not installed", "{}", err.all());
    mine.status().success();
    // Existing conditions need no command.
    let same =
        site.network(json!([{"hostPort": 7001, "containerPort": 80}])).with("/conditionsV4", not_there());
    same.call("ADD", &site.attachment(0), Some(&site.results[0])).under(&hidden).run().success();
    same.call("DEL", &site.attachment(0), None).under(&hidden).run().success();
}

#[test]
fn conditional_mappings_are_undone_checked_and_repaired() {
    need!("nft", "ip");
    let site = site();
    let _inside = Server::start(&site.pods[0], 80, "pod0");
    let net = site.network(ports()).with("/conditionsV4", not_there());
    let (att, prev) = (site.attachment(0), &site.results[0]);
    for others in [false, true] {
        if others {
            site.add(
                &site
                    .network(json!([{"hostPort": 7000, "containerPort": 80}]))
                    .with("/conditionsV4", not_there()),
                1,
            );
        }
        let before = Snapshot::of_ns(&site.host);
        let unread = net.call("ADD", &att, Some(prev)).under(&["sh", "-c", "exec \"$0\" >/dev/full"]).run();
        assert_eq!(unread.status, 1, "{}", unread.describe());
        before.assert_same(&Snapshot::of_ns(&site.host), "undone");
        site.add(&net, 0);
        net.deleted(&att, None);
        before.assert_same(&Snapshot::of_ns(&site.host), "DEL");
    }
    site.add(&net, 0);
    let all = site.ruleset();
    site.add(&net, 0);
    assert_eq!(site.ruleset(), all, "again");
    // The configuration differs from the pod's.
    let err = net.with("/conditionsV4", json!(["ip saddr 192.0.2.9"])).check(&att, prev).error();
    assert!(err.code == 103 && err.all().contains("portmap-when-"), "{}", err.all());
    for damage in ["flush chain inet cnimble portmap", "flush ruleset"] {
        site.host.nft(damage);
        assert_eq!(net.check(&att, prev).error().code, 103, "{damage}");
        site.add(&net, 0);
        net.check(&att, prev).success();
        assert!(tcp(&site.world, "192.0.2.1:8080").unwrap().starts_with("pod0 "), "{damage}");
        assert!(tcp(&site.world, "192.0.2.7:8081").is_err(), "{damage}");
        assert!(tcp(&site.world, "[2001:db8::1]:8080").unwrap().starts_with("pod0 "), "{damage}");
    }
}

/// The DEL of a map's last user removes it while ADDs need it.
#[test]
fn conditional_mappings_come_and_go_at_the_same_time() {
    need!("nft");
    let host = Ns::new();
    std::thread::scope(|scope| {
        for n in 0..4_u16 {
            let host = &host;
            scope.spawn(move || {
                let mut wanted = forward(&[8000 + n], &[&format!("10.1.2.{}/24", n + 2)]);
                wanted.snat = n % 2 == 0;
                wanted.conditions_v4 = vec!["ip daddr != 192.0.2.7".to_owned()];
                let owner = owner(&n.to_string());
                for round in 0..6 {
                    host.within(|| {
                        let mut nft = Nft::new();
                        let made = portmap::add(Backend::Nftables, &mut nft, &owner, &wanted, &|_| false);
                        let undo = made.unwrap_or_else(|err| panic!("{n}, {round}: {err}"));
                        portmap::check(&mut nft, &owner, &wanted)
                            .unwrap_or_else(|err| panic!("{n}, {round}: {err}"));
                        match round % 2 {
                            0 => undo.run().unwrap(),
                            _ => portmap::remove(&mut nft, &owner, None).unwrap(),
                        }
                    });
                }
            });
        }
    });
    let ruleset = host.nft("-s list ruleset");
    assert!(!ruleset.contains("portmap-when"), "{ruleset}");
}
