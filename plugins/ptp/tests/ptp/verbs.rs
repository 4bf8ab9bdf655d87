use serde_json::json;

use cnimble_tests::{Attachment, Host, Network, Pod, Snapshot, need};

use super::{config, host, state, veth};

#[test]
fn del_in_every_shape() {
    need!("ip", "nft");
    let host = host();
    let net = Network::new(&host, config(&host)).with("/ipMasq", json!(true));
    let neighbour = Pod::new();
    net.added(&Attachment::new("neighbour", &neighbour));
    let file = host.dir().join("no-namespace");
    std::fs::write(&file, "").unwrap();
    let before = state(&host);
    for stays in [true, false] {
        for netns in ["real", "", "/run/netns/was-here", file.to_str().unwrap()] {
            for prev in [true, false] {
                let pod = Pod::new();
                let mut att = Attachment::new("a", &pod);
                let result = net.added(&att);
                assert!(before.diff(&state(&host)).lines().count() > 4, "nothing to remove");
                let pod = stays.then_some(pod);
                if netns != "real" {
                    att.netns = netns.into();
                }
                let what = format!("namespace stays {stays}, netns {netns:?}, prevResult {prev}");
                for _ in 0..2 {
                    net.deleted(&att, prev.then_some(&result));
                    before.assert_same(&state(&host), &what);
                }
                if let Some(pod) = pod {
                    assert!(pod.link("eth0").is_null(), "{what}");
                }
            }
        }
    }
    // A changed configuration, and an invalid one.
    let pod = Pod::new();
    let att = Attachment::new("a", &pod);
    let result = net.added(&att);
    net.with("/ipMasq", json!(false))
        .with("/mtu", json!("big"))
        .with("/ipam/ranges", json!(7))
        .deleted(&att, Some(&result));
    before.assert_same(&state(&host), "a configuration that has changed");
    assert!(neighbour.pings_once("10.1.2.1"));
}

#[test]
fn check_notices_what_is_gone() {
    need!("ip", "nft");
    let host = Host::new();
    let net = Network::new(&host, config(&host)).with("/ipMasq", json!(true));
    for (inside, command, part) in [
        (true, "link set eth0 down", "eth0"),
        (true, "addr del 10.1.2.2/24 dev eth0", "lacks address 10.1.2.2/24"),
        (true, "route del 10.1.2.0/24", "route 10.1.2.0/24 via 10.1.2.1 is missing in the pod"),
        (true, "-6 route del fd00:1:2::1 dev eth0", "route fd00:1:2::1/128 is missing in the pod"),
        (true, "route del default", "route 0.0.0.0/0 via 10.1.2.1 is missing in the pod"),
        (true, "link set eth0 address 02:00:00:00:00:01", "has MAC 02:00:00:00:00:01"),
        (true, "link del eth0", "interface eth0 is missing"),
        (false, "link set VETH down", "on the host is down"),
        (false, "addr del 10.1.2.1/32 dev VETH", "lacks the gateway address 10.1.2.1/32"),
        (false, "route del 10.1.2.2 dev VETH", "route 10.1.2.2/32 is missing on the host"),
        (false, "-6 route del fd00:1:2::2 dev VETH", "route fd00:1:2::2/128 is missing on the host"),
    ] {
        let pod = Pod::new();
        let att = Attachment::new("a", &pod);
        let net = net.with("/ipam/dataDir", json!(host.dir().join(cnimble_tests::unique("leases"))));
        let result = net.added(&att);
        net.check(&att, &result).success();
        let command = command.replace("VETH", veth(&result));
        if inside {
            pod.ip(&command)
        } else {
            host.ip(&command)
        };
        let err = net.check(&att, &result).error();
        assert_eq!(err.code, 103, "{command}: {err:?}");
        assert!(err.all().contains(part), "{command}: {err:?}");
        net.deleted(&att, Some(&result));
    }
    let pod = Pod::new();
    let att = Attachment::new("a", &pod);
    let result = net.added(&att);
    host.nft("flush ruleset");
    let err = net.check(&att, &result).error();
    assert!(err.code == 103 && err.msg.contains("masquerade of 10.1.2.2 is missing"), "{err:?}");
    let err = net.call("CHECK", &att, None).run().error();
    assert_eq!((err.code, err.msg.as_str()), (7, "Required prevResult missing"));
}

#[test]
fn gc_removes_what_is_not_in_the_list() {
    need!("ip", "nft", "ping");
    let host = host();
    let net = Network::new(&host, config(&host)).with("/ipMasq", json!(true));
    let (kept, stale, foreign) = (Pod::new(), Pod::new(), Pod::new());
    let kept_att = Attachment::new("kept", &kept);
    let result = net.added(&kept_att);
    let other = net.with("/name", json!("other")).with("/ipam/ranges", json!([[{"subnet": "10.8.0.0/16"}]]));
    other.added(&Attachment::new("foreign", &foreign));
    host.ip("link add vethmine type veth peer name mine");
    let before = state(&host);
    net.added(&Attachment::new("stale", &stale));
    net.gc(None).success();
    assert!(!stale.link("eth0").is_null(), "without a list nothing goes");
    net.gc(Some(json!([kept_att.listed()]))).success();
    before.assert_same(&state(&host), "after GC");
    assert!(stale.link("eth0").is_null());
    net.check(&kept_att, &result).success();
    assert!(kept.pings_once("10.1.2.1") && foreign.pings_once("10.8.0.1"));
    net.gc(Some(json!([]))).success();
    assert!(kept.link("eth0").is_null() && foreign.pings_once("10.8.0.1"));
    assert!(state(&host).mentions("kept").is_empty());
}

#[test]
fn status_asks_ipam_too() {
    need!("ip");
    let host = Host::new();
    let net = Network::new(&host, config(&host)).with("/ipMasq", json!(true));
    let before = Snapshot::of(&host);
    net.status().success();
    before.assert_same(&Snapshot::of(&host), "after STATUS");
    let full = net.with(
        "/ipam/ranges",
        json!([[{"subnet": "10.1.2.0/24", "rangeStart": "10.1.2.9", "rangeEnd": "10.1.2.9"}]]),
    );
    let pod = Pod::new();
    full.added(&Attachment::new("a", &pod));
    full.status().success();
    assert_eq!(full.with("/ipam/notReadyWhenFull", json!(true)).status().error().code, 50);
}

#[test]
fn a_host_whose_links_are_born_without_ipv6_gets_its_end() {
    need!("ip", "ping");
    let (host, pod) = (host(), Pod::new());
    host.set_sysctl("ipv6/conf/default/disable_ipv6", "1");
    let net = Network::new(&host, config(&host));
    let attachment = Attachment::new("one", &pod);
    let result = net.added(&attachment);
    assert!(pod.pings_once("fd00:1:2::1"));
    net.check(&attachment, &result).success();
    net.deleted(&attachment, Some(&result));
}
