//! The owner of a port, and its removal.

use serde_json::{Value, json};

use cnimble_netlink::nft::Nft;
use cnimble_rules::portmap::{self, Backend};
use cnimble_tests::traffic::{Server, tcp};
use cnimble_tests::{Host, Network, Ns, Snapshot, configs, need};

use super::{Site, forward, owner};

#[test]
fn a_port_that_is_taken_names_its_owner() {
    need!("nft", "ip");
    let site = Site::new();
    let tcp8080 = json!({"hostPort": 8080, "containerPort": 80, "protocol": "tcp"});
    let first = site.network(
        json!([tcp8080, {"hostPort": 53, "containerPort": 53, "protocol": "udp", "hostIP": "192.0.2.1"}]),
    );
    site.add(&first, 0);
    let before = Snapshot::of_ns(&site.host);
    let refused = |mappings: Value| {
        let net = site.network(mappings.clone());
        let outcome = net.call("ADD", &site.attachment(1), Some(&site.results[1])).run();
        let err = outcome.error();
        assert_eq!(err.code, 102, "{mappings}: {}", err.all());
        assert!(err.all().contains("net: net64, if: eth0, id: pod0"), "{}", err.all());
        before.assert_same(&Snapshot::of_ns(&site.host), "after the refusal");
        err.all()
    };
    let text = refused(json!([{"hostPort": 7000, "containerPort": 80}, tcp8080]));
    assert!(text.contains("host port 8080/tcp is already taken"), "{text}");
    // Overlaps with a larger or smaller one.
    refused(json!([{"hostPort": 8080, "containerPort": 80, "hostIP": "192.0.2.1"}]));
    refused(json!([{"hostPort": 8080, "containerPort": 80, "hostIP": "::"}]));
    let text = refused(json!([{"hostPort": 53, "containerPort": 80, "protocol": "udp"}]));
    assert!(text.contains("host port 53/udp of 192.0.2.1 is already taken"), "{text}");
    refused(json!([{"hostPort": 53, "containerPort": 80, "protocol": "UDP", "hostIP": "192.0.2.1"}]));
    let others = site.network(json!([
        {"hostPort": 8080, "containerPort": 80, "protocol": "udp"},
        {"hostPort": 53, "containerPort": 53, "protocol": "udp", "hostIP": "10.1.2.1"},
        {"hostPort": 53, "containerPort": 53, "protocol": "tcp"},
    ]));
    site.add(&others, 1);

    // The owner replaces its mapping.
    let again = site.network(json!([
        {"hostPort": 8080, "containerPort": 81, "protocol": "tcp"},
        {"hostPort": 8080, "containerPort": 82, "protocol": "tcp", "hostIP": "192.0.2.1"},
    ]));
    site.add(&again, 0);
    let _one = Server::start(&site.pods[0], 81, "eightyone");
    let _two = Server::start(&site.pods[0], 82, "eightytwo");
    assert!(tcp(&site.world, "192.0.2.1:8080").unwrap().starts_with("eightytwo"));
    assert!(tcp(&site.host, "10.1.2.1:8080").unwrap().starts_with("eightyone"));
    again.check(&site.attachment(0), &site.results[0]).success();
    again.deleted(&site.attachment(0), None);
    site.add(&site.network(json!([tcp8080])), 1);
}

#[test]
fn every_del_removes_all_and_only_its_own() {
    need!("nft", "ip");
    for backend in ["nftables", "iptables"] {
        let site = Site::new();
        let net = |port: u16| {
            site.network(json!([
                {"hostPort": port, "containerPort": 80, "protocol": "tcp"},
                {"hostPort": port, "containerPort": 80, "protocol": "udp", "hostIP": "127.0.0.1"},
            ]))
            .with("/backend", json!(backend))
        };
        site.add(&net(7001), 1);
        let before = Snapshot::of_ns(&site.host);
        let prev = &site.results[0];
        let here = site.attachment(0);
        let gone = here.clone().netns("/proc/999999999/ns/net");
        let empty = here.clone().netns("");
        let bare = Network::new(
            &site.host,
            json!({"cniVersion": configs::newest(), "name": "net64", "type": "portmap"}),
        );
        let broken = net(7000).with("/backend", json!("other"));
        for (what, net_at_del, attachment, prev_at_del) in [
            ("all there", &net(7000), &here, Some(prev)),
            ("no prevResult", &net(7000), &here, None),
            ("no namespace", &net(7000), &empty, Some(prev)),
            ("nothing but the ID", &bare, &empty, None),
            ("a path that is gone", &net(7000), &gone, Some(prev)),
            ("another port", &net(7777), &here, Some(prev)),
            ("a broken configuration", &broken, &empty, None),
        ] {
            site.add(&net(7000), 0);
            assert!(!before.diff(&Snapshot::of_ns(&site.host)).is_empty(), "{what}: nothing was added");
            net_at_del.deleted(attachment, prev_at_del);
            before.assert_same(&Snapshot::of_ns(&site.host), what);
            net_at_del.deleted(attachment, prev_at_del);
        }
        // It never had a mapping.
        let fresh = Host::new();
        let untouched = Snapshot::of(&fresh);
        Network::new(&fresh, bare.config.clone()).deleted(&empty, None);
        untouched.assert_same(&Snapshot::of(&fresh), "DEL on an untouched host");
    }
}

#[test]
fn many_race_for_one_port() {
    need!("nft", "ip");
    for _ in 0..3 {
        let host = Ns::new();
        let won: usize = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..8)
                .map(|n| {
                    let host = &host;
                    scope.spawn(move || {
                        let mut forward = forward(&[80, 9000 + n], &[&format!("10.1.2.{}/24", n + 2)]);
                        forward.snat = n % 2 == 0;
                        let made = host.within(|| {
                            portmap::add(
                                Backend::Nftables,
                                &mut Nft::new(),
                                &owner(&n.to_string()),
                                &forward,
                                &|_| false,
                            )
                        });
                        if let Err(err) = &made {
                            assert_eq!(err.code.0, 102, "{err}");
                        }
                        usize::from(made.is_ok())
                    })
                })
                .collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).sum()
        });
        assert_eq!(won, 1);
        let ruleset = host.nft("-s list ruleset");
        assert_eq!(ruleset.matches("tcp . 90").count(), 1, "{ruleset}");
    }
}

#[test]
fn gc_keeps_the_valid_and_other_networks() {
    need!("nft", "ip");
    for backend in ["nftables", "iptables"] {
        let site = Site::new();
        let net = |name: &str, port: u16| {
            site.network(json!([{"hostPort": port, "containerPort": 80}]))
                .with("/backend", json!(backend))
                .with("/name", json!(name))
        };
        let attachments = [0, 1].map(|pod| site.attachment(pod));
        let (keep, stale, other) = (net("net64", 7000), net("net64", 7001), net("other", 7002));
        site.add(&keep, 0);
        site.add(&stale, 1);
        let mut elsewhere = site.results[1].clone();
        elsewhere["ips"] = json!([{"address": "10.1.2.99/24", "interface": 2}]);
        other.call("ADD", &attachments[1], Some(&elsewhere)).run().success();
        // GC without a list removes nothing.
        keep.gc(None).success();
        stale.check(&attachments[1], &site.results[1]).success();
        keep.gc(Some(json!([attachments[0].listed()]))).success();
        keep.check(&attachments[0], &site.results[0]).success();
        other.check(&attachments[1], &elsewhere).success();
        assert_eq!(stale.check(&attachments[1], &site.results[1]).error().code, 103);
        keep.gc(Some(Value::Null)).success();
        assert_eq!(keep.check(&attachments[0], &site.results[0]).error().code, 103);
        other.check(&attachments[1], &elsewhere).success();
        other.gc(Some(json!([]))).success();
        let left = Snapshot::of_ns(&site.host).without("link");
        assert!(left.mentions("pod1").is_empty(), "{:?}", left.mentions("pod1"));
    }
}

/// Each pod keeps its mappings until its own DEL, in either order.
#[test]
fn two_networks_may_have_the_same_address() {
    need!("nft", "ip");
    for (leaves, masq_all) in [(0, false), (1, false), (0, true), (1, true)] {
        let site = Site::new();
        let _inside = Server::start(&site.pods[0], 80, "pod0");
        let before = Snapshot::of_ns(&site.host);
        let (prev, ports) = (&site.results[0], [8080, 9090]);
        let mapping = |port: u16| json!([{"hostPort": port, "containerPort": 80}]);
        let nets = [("net64", 0), ("elsewhere", 1)].map(|(name, n)| {
            site.network(mapping(ports[n])).with("/name", json!(name)).with("/masqAll", json!(masq_all))
        });
        let atts = [0, 1].map(|n| site.attachment(n));
        let add = |n: usize| nets[n].call("ADD", &atts[n], Some(prev)).run().result();
        let works = |n: usize| {
            nets[n].check(&atts[n], prev).success();
            for (from, to) in [
                (&site.world, format!("192.0.2.1:{}", ports[n])),
                (&site.world, format!("[2001:db8::1]:{}", ports[n])),
                (&site.host, format!("127.0.0.1:{}", ports[n])),
                (&site.pods[0], format!("192.0.2.1:{}", ports[n])),
            ] {
                let answer = tcp(from, &to).unwrap_or_else(|err| panic!("{to} after {leaves} left: {err}"));
                assert!(answer.starts_with("pod0 "), "{to}: {answer}");
            }
        };
        let alone = (add(0), site.ruleset()).1;
        // The first pod's port.
        let err = nets[1].with("/runtimeConfig/portMappings", mapping(8080));
        let err = err.call("ADD", &atts[1], Some(prev)).run().error();
        assert_eq!(err.code, 102, "{}", err.all());
        assert!(err.all().contains("net: net64, if: eth0, id: pod0"), "{}", err.all());
        assert_eq!(site.ruleset(), alone);
        // A failed ADD removes only its own rules.
        let unread =
            nets[1].call("ADD", &atts[1], Some(prev)).under(&["sh", "-c", "exec \"$0\" >/dev/full"]).run();
        assert_eq!(unread.status, 1, "{}", unread.describe());
        assert_eq!(site.ruleset(), alone);

        add(1);
        let both = site.ruleset();
        works(0);
        works(1);
        add(1);
        add(0);
        assert_eq!(site.ruleset(), both, "again: nothing is there twice");
        nets[0].gc(Some(json!([atts[0].listed()]))).success();
        nets[1].gc(Some(json!([atts[1].listed()]))).success();
        assert_eq!(site.ruleset(), both);

        let stays = 1 - leaves;
        nets[leaves].deleted(&atts[leaves].clone().netns(""), (leaves == 0).then_some(prev));
        works(stays);
        assert_eq!(nets[leaves].check(&atts[leaves], prev).error().code, 103);
        let left = site.ruleset();
        add(stays);
        assert_eq!(site.ruleset(), left);
        if masq_all {
            nets[stays].gc(Some(json!([]))).success();
        } else {
            nets[stays].deleted(&atts[stays], Some(prev));
        }
        before.assert_same(&Snapshot::of_ns(&site.host), "after both");
    }
}
