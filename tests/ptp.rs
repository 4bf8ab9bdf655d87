//! The plugin ptp: pods that only the host stands between.
// Tests stop at the first surprise; clippy doesn't see that this whole crate is one.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use std::path::Path;

use cnimble_tests::{
    Attachment, Host, Network, PATIENCE, Pod, Snapshot, configs, go_plugins, need, plugin_dir, skip,
    wait_until,
};
use serde_json::{Value, json};

/// Skips where there are no Go plugins to meet; else `let go = …`.
macro_rules! need_go {
    ($go:ident) => {
        need!("ip", "nft", "ping", "iptables");
        let Some($go) = go_plugins() else {
            skip!("containernetworking-plugins is not installed");
        };
        if plugin_dir() == $go {
            skip!("the plugins under test are the Go plugins");
        }
    };
}

fn config(host: &Host) -> Value {
    let mut config = configs::dual(host);
    let keys = config.as_object_mut().unwrap();
    keys.remove("bridge");
    keys.remove("isGateway");
    keys.insert("type".into(), json!("ptp"));
    config
}

/// A host that forwards already, so that it can be the same before and after.
fn host() -> Host {
    let host = Host::new();
    host.set_sysctl("ipv4/ip_forward", "1");
    host.set_sysctl("ipv6/conf/all/forwarding", "1");
    host
}

fn state(host: &Host) -> Snapshot {
    Snapshot::of(host).without_lines("last_reserved_ip").without_lines("net64/lock").without_lines("net64/ ")
}

/// The host's end, by the result.
fn veth(result: &Value) -> &str {
    result["interfaces"][0]["name"].as_str().unwrap()
}

fn outside(host: &Host) -> Pod {
    let outside = Pod::new();
    host.cable("uplink", &outside, "eth0");
    host.ip("addr add 192.0.2.1/24 dev uplink");
    host.ip("addr add 2001:db8::1/64 dev uplink nodad");
    outside.ip("addr add 192.0.2.2/24 dev eth0");
    outside.ip("addr add 2001:db8::2/64 dev eth0 nodad");
    outside
}

#[test]
fn pods_reach_each_other_and_the_host_at_once() {
    need!("ip", "nft", "ping");
    let host = Host::new();
    let (a, b) = (Pod::new(), Pod::new());
    let net =
        Network::new(&host, config(&host)).with("/mtu", json!(1400)).with("/dns", json!({"domain": "x"}));
    let (att_a, att_b) = (Attachment::new("a", &a), Attachment::new("b", &b));
    let result_a = net.added(&att_a);
    let result_b = net.added(&att_b);
    for (pod, neighbour) in [(&a, 3), (&b, 2)] {
        // No second chance: ADD returns when it works.
        for to in [
            "10.1.2.1".to_owned(),
            "fd00:1:2::1".into(),
            format!("10.1.2.{neighbour}"),
            format!("fd00:1:2::{neighbour}"),
        ] {
            assert!(pod.pings_once(&to), "{to}");
        }
    }
    for to in ["10.1.2.2", "fd00:1:2::2", "10.1.2.3", "fd00:1:2::3"] {
        assert!(host.pings_once(to), "{to}");
    }
    for (pod, result, number) in [(&a, &result_a, 2), (&b, &result_b, 3)] {
        let (host_end, pod_end) = (host.link(veth(result)), pod.link("eth0"));
        assert_eq!(
            *result,
            json!({
                "cniVersion": "1.1.0",
                "interfaces": [
                    {"name": veth(result), "mac": host_end["address"], "mtu": 1400},
                    {"name": "eth0", "mac": pod_end["address"], "mtu": 1400, "sandbox": pod.path()},
                ],
                "ips": [
                    {"interface": 1, "address": format!("10.1.2.{number}/24"), "gateway": "10.1.2.1"},
                    {"interface": 1, "address": format!("fd00:1:2::{number}/64"), "gateway": "fd00:1:2::1"},
                ],
                "routes": [{"dst": "0.0.0.0/0"}, {"dst": "::/0"}],
                "dns": {"domain": "x"},
            })
        );
        assert_eq!((&host_end["mtu"], &pod_end["mtu"]), (&json!(1400), &json!(1400)));
        assert_eq!(host.addrs(veth(result)), ["10.1.2.1/32", "fd00:1:2::1/128"]);
        assert!(host_end["ifalias"].as_str().unwrap().contains("net: net64, if: eth0"));
        assert_eq!(host.sysctl(&format!("ipv6/conf/{}/accept_ra", veth(result))), "0");
    }
    net.check(&att_a, &result_a).success();
    net.check(&att_b, &result_b).success();
    net.deleted(&att_a, Some(&result_a));
    assert!(b.pings_once("10.1.2.1") && b.pings_once("fd00:1:2::1"), "the other pod is not affected");
    net.deleted(&att_b, None);
    assert_eq!(host.links(), ["lo"]);
}

/// Routes as text, without the names and what differs by chance.
fn routes(ns: &cnimble_tests::Ns, device: &str) -> Vec<String> {
    let mut lines = Vec::new();
    for family in ["-4", "-6"] {
        let text = ns.ip(&format!("{family} route show table all dev {device}"));
        lines.extend(
            text.lines()
                .filter(|line| !line.contains("fe80") && !line.contains("ff00::/8"))
                .map(str::to_owned),
        );
    }
    lines.sort();
    lines
}

#[test]
fn result_and_routes_are_those_of_the_reference() {
    need_go!(go);
    for version in configs::VERSIONS.iter().filter(|version| **version < "1.1.0") {
        for extra in [
            json!([]),
            json!([{"dst": "0.0.0.0/0"}, {"dst": "::/0"}, {"dst": "10.7.0.0/16", "gw": "10.1.2.9"}, {"dst": "fd07::/64", "gw": "fd00:1:2::9"}]),
        ] {
            let seen = |plugins: &Path| {
                let host = Host::new();
                let pod = Pod::new();
                let net = Network::by(plugins, &host, config(&host))
                    .with("/cniVersion", json!(version))
                    .with("/ipam/routes", extra.clone());
                let outcome = net.add(&Attachment::new("a", &pod)).success();
                let name = host.links().into_iter().find(|name| name.starts_with("veth")).unwrap();
                let mut result = outcome.result();
                // Newer releases leave an empty one out from 1.0.0 on.
                if result["dns"] == json!({}) {
                    result.as_object_mut().unwrap().remove("dns");
                }
                let mut text = result.to_string();
                for (random, fixed) in [
                    (name.as_str(), "VETH"),
                    (host.link(&name)["address"].as_str().unwrap(), "HOST-MAC"),
                    (pod.link("eth0")["address"].as_str().unwrap(), "POD-MAC"),
                    (pod.path(), "SANDBOX"),
                ] {
                    text = text.replace(random, fixed);
                }
                Snapshot::of(&host); // waits for what the reference left tentative
                (text, routes(&pod, "eth0"), routes(&host, &name), host.addrs(&name), pod.addrs("eth0"))
            };
            assert_eq!(seen(plugin_dir()), seen(go), "version {version}, {extra}");
        }
    }
}

#[test]
fn what_leaves_the_subnet_is_masqueraded() {
    need!("ip", "nft", "ping", "iptables");
    for backend in ["", "nftables", "iptables"] {
        let host = host();
        let outside = outside(&host);
        let net = Network::new(&host, config(&host)).with("/ipMasqBackend", json!(backend));
        let pod = Pod::new();
        let att = Attachment::new("a", &pod);
        net.added(&att);
        // The outside knows no way back to a pod, only to the host.
        assert!(pod.misses("192.0.2.2"), "the test must be able to see");
        net.deleted(&att, None);
        let before = state(&host);
        let net = net.with("/ipMasq", json!(true));
        let result = net.added(&att);
        assert!(pod.pings("192.0.2.2") && pod.pings("2001:db8::2"), "{backend}");
        net.check(&att, &result).success();
        let text = before.diff(&state(&host));
        assert!(text.contains("10.1.2.3"), "{text}");
        net.deleted(&att, Some(&result));
        // Tables and empty sets stay for the next pod, nothing that names this one.
        for trace in ["10.1.2.3", "fd00:1:2::3", veth(&result), "\"a\""] {
            let left = state(&host).mentions(trace);
            assert!(left.is_empty(), "{backend}: {left:#?}");
        }
        drop(outside);
    }
}

#[test]
fn pods_made_by_the_go_plugins_are_checked_and_torn_down() {
    need_go!(go);
    for masquerade in [false, true] {
        let host = host();
        let net = Network::new(&host, config(&host))
            .with("/cniVersion", json!("1.0.0"))
            .with("/ipMasq", json!(masquerade));
        let theirs = net.served_by(go);
        let neighbour = Pod::new();
        let neighbour_att = Attachment::new("neighbour", &neighbour);
        let neighbour_result = theirs.added(&neighbour_att);
        let before = state(&host);
        for netns in ["given", "empty", "gone", "empty but there"] {
            for prev in [true, false] {
                let what = format!("ipMasq {masquerade}, netns {netns}, prevResult {prev}");
                if netns == "empty but there" && !prev {
                    continue; // nothing on the host says whose it is
                }
                let pod = Pod::new();
                let mut att = Attachment::new("upgraded", &pod);
                let result = theirs.added(&att);
                Snapshot::of(&host); // waits for duplicate address detection
                net.check(&att, &result).success();
                let pod = if netns == "given" || netns == "empty but there" {
                    Some(pod)
                } else {
                    drop(pod);
                    None
                };
                assert!(pod.is_some() || wait_until(PATIENCE, || host.link(veth(&result)).is_null()));
                if netns.starts_with("empty") {
                    att.netns = String::new();
                }
                net.deleted(&att, prev.then_some(&result));
                before.assert_same(&state(&host), &what);
            }
        }
        assert!(neighbour.pings("10.1.2.1"), "ipMasq {masquerade}");
        net.deleted(&neighbour_att, Some(&neighbour_result));
        assert!(state(&host).mentions("neighbour").is_empty());
    }
}

#[test]
fn our_pods_are_checked_and_torn_down_by_the_go_plugins() {
    need_go!(go);
    for masquerade in [false, true] {
        let host = host();
        // The reference of this age knows no other backend.
        let net = Network::new(&host, config(&host))
            .with("/cniVersion", json!("1.0.0"))
            .with("/ipMasqBackend", json!("iptables"))
            .with("/ipMasq", json!(masquerade));
        let neighbour = Pod::new();
        net.added(&Attachment::new("neighbour", &neighbour));
        let before = state(&host);
        for prev in [true, false] {
            let pod = Pod::new();
            let att = Attachment::new("downgraded", &pod);
            let result = net.added(&att);
            let theirs = net.served_by(go);
            theirs.check(&att, &result).success();
            theirs.deleted(&att, prev.then_some(&result));
            before.assert_same(&state(&host), &format!("ipMasq {masquerade}, prevResult {prev}"));
        }
        assert!(neighbour.pings_once("10.1.2.1"));
    }
}

#[test]
fn a_failed_add_leaves_nothing() {
    need!("ip", "nft");
    let host = Host::new();
    let net = Network::new(&host, config(&host)).with("/ipMasq", json!(true));
    let pod = Pod::new();
    let att = Attachment::new("a", &pod);
    let fails = |net: &Network<'_>, att: &Attachment, code: u64, part: &str| {
        let (before, inside) = (state(&host), Snapshot::of_ns(&pod));
        let err = net.add(att).error();
        assert_eq!(err.code, code, "{err:?}");
        assert!(err.all().contains(part) && !err.all().contains("left behind"), "{err:?}");
        before.assert_same(&state(&host), part);
        inside.assert_same(&Snapshot::of_ns(&pod), part);
    };
    host.ip("link add elsewhere type bridge");
    host.ip("link set elsewhere up");

    host.ip("route add 10.1.2.2/32 dev elsewhere scope host");
    fails(&net, &att, 102, "the host has a route to an address of the pod already");
    host.ip("route del 10.1.2.2/32 dev elsewhere");
    host.ip("-6 route add fd00:1:2::2/128 dev elsewhere");
    fails(&net, &att, 102, "the host has a route to an address of the pod already");
    host.ip("-6 route del fd00:1:2::2/128 dev elsewhere");

    pod.ip("link add eth0 type bridge");
    fails(&net, &att, 102, "container interface name \"eth0\" is already taken");
    pod.ip("link del eth0");

    let full = net.with(
        "/ipam/ranges",
        json!([[{"subnet": "10.1.2.0/24", "rangeStart": "10.1.2.9", "rangeEnd": "10.1.2.9"}]]),
    );
    let other = Pod::new();
    let other_att = Attachment::new("other", &other);
    full.added(&other_att);
    fails(&full, &att, 101, "no IP addresses available in range set: 10.1.2.9-10.1.2.9");
    fails(&full, &other_att, 102, "container other already has eth0 in this network");
    net.deleted(&other_att, None);

    let fixed = |addresses: Value| net.with("/ipam", json!({"type": "static", "addresses": addresses}));
    fails(&fixed(json!([])), &att, 104, "IPAM plugin returned missing IP config");
    fails(
        &fixed(json!([{"address": "10.5.0.2/16"}])),
        &att,
        104,
        "IPAM plugin returned no gateway for 10.5.0.2/16",
    );
    fails(
        &fixed(json!([{"address": "10.5.0.2/16", "gateway": "10.5.0.2"}])),
        &att,
        102,
        "IPAM gave the pod its own gateway's address, 10.5.0.2",
    );
    let lost = net.with("/ipam/routes", json!([{"dst": "10.9.0.0/16", "gw": "192.168.7.7"}]));
    fails(&lost, &att, 100, "add route 10.9.0.0/16 via 192.168.7.7 dev eth0");
    net.added(&att);
}

/// Forms of addresses that the reference stumbles over.
#[test]
fn several_addresses_and_lone_ones() {
    need!("ip", "ping");
    let host = Host::new();
    let pod = Pod::new();
    let net = Network::new(&host, config(&host)).with(
        "/ipam",
        json!({
            "type": "static",
            "addresses": [
                {"address": "10.5.0.2/16", "gateway": "10.5.0.1"},
                {"address": "10.5.0.3/16", "gateway": "10.5.0.1"},
                {"address": "10.6.6.6/32", "gateway": "169.254.1.1"},
                {"address": "fd05::2/128", "gateway": "fe80::1"},
            ],
            "routes": [{"dst": "0.0.0.0/0", "gw": "169.254.1.1"}, {"dst": "::/0"}, {"dst": "10.5.0.0/16", "gw": "10.5.0.1"}],
        }),
    );
    let att = Attachment::new("a", &pod);
    let result = net.added(&att);
    for to in ["10.5.0.2", "10.5.0.3", "10.6.6.6", "fd05::2"] {
        assert!(host.pings_once(to), "{to}");
    }
    assert!(pod.pings_once("10.5.0.1") && pod.pings_once("169.254.1.1"));
    net.check(&att, &result).success();
    net.deleted(&att, Some(&result));
    assert_eq!(host.links(), ["lo"]);
}

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
    // A configuration that has changed, and one that no longer makes sense.
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
    assert_eq!(full.status().error().code, 50);
}

#[test]
fn bad_input_is_one_clear_error() {
    need!();
    let host = Host::new();
    let pod = Pod::new();
    let net = Network::new(&host, config(&host));
    for (pointer, value, code, msg) in [
        ("/ipam", json!(null), 7, "ipam.type is missing"),
        ("/ipam/type", json!(""), 7, "ipam.type is missing"),
        ("/ipam/type", json!("../host-local"), 7, "invalid plugin name \"../host-local\""),
        ("/ipam/type", json!("nowhere"), 104, "no plugin \"nowhere\" in CNI_PATH"),
        ("/mtu", json!(67), 7, "mtu: 67 is outside 68 to 65535 bytes"),
        ("/mtu", json!("1500"), 7, "mtu: invalid type: string \"1500\", expected u32"),
        ("/ipMasq", json!("yes"), 7, "ipMasq: invalid type: string \"yes\", expected a boolean"),
        (
            "/ipMasqBackend",
            json!("pf"),
            7,
            "ipMasqBackend: unknown backend \"pf\", expected iptables or nftables",
        ),
        ("/dns", json!([]), 7, "dns: invalid type: list, expected an object"),
        ("/cniVersion", json!("7"), 1, "incompatible CNI versions"),
    ] {
        let err = net.with(pointer, value).add(&Attachment::new("a", &pod)).error();
        assert_eq!((err.code, err.msg.as_str()), (code, msg));
    }
    let err = net.add(&Attachment::new("a", &pod).netns("/run/netns/was-here")).error();
    assert_eq!(err.code, 8, "{err:?}");
    assert_eq!(host.links(), ["lo"]);
    assert_eq!(pod.links(), ["lo"]);
}

/// Whichever message to the kernel fails, ADD leaves nothing; after whichever it is killed,
/// DEL doesn't.
#[test]
fn an_add_that_fails_or_dies_anywhere() {
    need!("ip", "nft", "strace");
    let host = Host::new();
    let net = Network::new(&host, config(&host))
        .with("/ipMasq", json!(true))
        .with("/ipMasqBackend", json!("nftables"));
    let pod = Pod::new();
    let att = Attachment::new("a", &pod);
    let call = net.call("ADD", &att, None);
    if call.clone().under(&["strace", "-f", "-o", "/dev/null", "true"]).run().status != 0 {
        skip!("strace may not trace here");
    }
    // What lasts by design is there already: tables for the next pod.
    net.added(&att);
    net.deleted(&att, None);
    for fault in ["error=ENOBUFS", "signal=KILL"] {
        // A failed ADD switches forwarding off again; DEL never does.
        let forwarding = if fault == "signal=KILL" { "1" } else { "0" };
        host.set_sysctl("ipv4/ip_forward", forwarding);
        host.set_sysctl("ipv6/conf/all/forwarding", forwarding);
        let before = state(&host);
        let mut faults = 0;
        for nth in 1..100 {
            let inject = format!("inject=sendto:{fault}:when={nth}");
            let trace = host.dir().join("trace");
            let wrapper =
                ["strace", "-f", "-o", trace.to_str().unwrap(), "-e", "trace=sendto", "-e", &inject];
            let outcome = call.clone().under(&wrapper).run();
            let hit = match fault {
                "signal=KILL" => outcome.status != 0,
                _ => std::fs::read_to_string(&trace).unwrap().contains("(INJECTED)"),
            };
            if outcome.status == 0 {
                // Past the last message, or the message was sent again.
                net.deleted(&att, None);
                host.set_sysctl("ipv4/ip_forward", forwarding);
                host.set_sysctl("ipv6/conf/all/forwarding", forwarding);
            } else if fault == "signal=KILL" {
                faults += 1;
                net.deleted(&att, None);
            } else {
                faults += 1;
                let err = outcome.error();
                assert!(!err.all().contains("left behind"), "message {nth}: {err:?}");
            }
            if !hit {
                break;
            }
            before.assert_same(&state(&host), &format!("{fault} at message {nth}"));
            assert_eq!(pod.links(), ["lo"], "{fault} at message {nth}");
        }
        assert!((8..100).contains(&faults), "{fault}: {faults}");
    }
}

#[test]
fn one_pod_in_several_networks() {
    need!("ip", "nft", "ping");
    let host = Host::new();
    let pod = Pod::new();
    let net = Network::new(&host, config(&host));
    let bridged = Network::new(&host, configs::dual(&host))
        .with("/name", json!("bridged"))
        .with("/ipam/ranges", json!([[{"subnet": "10.8.0.0/16"}], [{"subnet": "fd08::/64"}]]));
    let att = |name: &str| Attachment::new("a", &pod).ifname(name);
    let first = bridged.added(&att("eth0"));
    let second = net.added(&att("eth1"));
    let third = net.added(&att("eth2"));
    for to in ["10.8.0.1", "fd08::1", "10.1.2.1", "fd00:1:2::1"] {
        assert!(pod.pings(to), "{to}");
    }
    for to in ["10.8.0.2", "fd08::2", "10.1.2.2", "10.1.2.3", "fd00:1:2::2", "fd00:1:2::3"] {
        assert!(host.pings(to), "{to}");
    }
    bridged.check(&att("eth0"), &first).success();
    net.check(&att("eth1"), &second).success();
    net.check(&att("eth2"), &third).success();
    net.deleted(&att("eth1"), None);
    assert!(host.pings("10.1.2.3") && host.pings("10.8.0.2"));
    net.check(&att("eth2"), &third).success();
    bridged.check(&att("eth0"), &first).success();
}

/// A route of the result to the pod's own subnet isn't mistaken for the kernel's.
#[test]
fn the_kernels_own_routes_are_gone_and_no_others() {
    need!("ip");
    let host = Host::new();
    let pod = Pod::new();
    let net = Network::new(&host, config(&host)).with(
        "/ipam/routes",
        json!([{"dst": "10.1.2.0/24", "gw": "10.1.2.9"}, {"dst": "fd00:1:2::/64", "gw": "fd00:1:2::9", "priority": 7}]),
    );
    let att = Attachment::new("a", &pod);
    let result = net.added(&att);
    let found = routes(&pod, "eth0");
    for wanted in [
        "10.1.2.0/24 via 10.1.2.1 ",
        "10.1.2.0/24 via 10.1.2.9 ",
        "fd00:1:2::/64 via fd00:1:2::1 ",
        "fd00:1:2::/64 via fd00:1:2::9 ",
    ] {
        assert!(found.iter().any(|line| line.starts_with(wanted)), "{wanted}: {found:#?}");
    }
    assert!(
        !found.iter().any(|line| line.contains("proto kernel") && !line.contains("table local")),
        "{found:#?}"
    );
    net.check(&att, &result).success();
}
