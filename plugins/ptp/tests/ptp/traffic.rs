use serde_json::json;

use cnimble_tests::{Attachment, Host, Network, Pod, configs, need};

use super::{config, host, routes, state, veth};

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
        // No retry: the network works when ADD returns.
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
                    {"name": veth(result), "mac": host_end["address"]},
                    {"name": "eth0", "mac": pod_end["address"], "sandbox": pod.path()},
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

#[test]
fn packets_that_leave_the_subnet_are_masqueraded() {
    need!("ip", "nft", "ping", "iptables");
    for backend in ["", "nftables", "iptables"] {
        let host = host();
        let outside = outside(&host);
        let net = Network::new(&host, config(&host)).with("/ipMasqBackend", json!(backend));
        let pod = Pod::new();
        let att = Attachment::new("a", &pod);
        net.added(&att);
        // The outside has no route to a pod.
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
        // Tables and empty sets stay, without this pod.
        for trace in ["10.1.2.3", "fd00:1:2::3", veth(&result), "\"a\""] {
            let left = state(&host).mentions(trace);
            assert!(left.is_empty(), "{backend}: {left:#?}");
        }
        drop(outside);
    }
}

/// The Go plugin doesn't handle them.
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

/// For IPv4 the link decides where a packet comes in, for IPv6 the host.
#[test]
fn pods_reach_each_other_by_a_host_whose_new_links_do_not_forward() {
    need!("ip", "ping");
    for kind in ["ptp", "bridge"] {
        let host = host();
        for family in ["ipv4", "ipv6"] {
            host.set_sysctl(&format!("{family}/conf/default/forwarding"), "0");
        }
        let pods = [(1, Pod::new()), (2, Pod::new())];
        for (number, pod) in &pods {
            let ranges = json!([[{"subnet": format!("10.1.{number}.0/24")}], [{"subnet": format!("fd00:{number}::/64")}]]);
            let net = Network::new(&host, configs::dual(&host))
                .with("/name", json!(format!("net{number}")))
                .with("/type", json!(kind))
                .with("/bridge", json!(format!("br{number}")))
                .with("/ipam/ranges", ranges);
            net.added(&Attachment::new("one", pod));
        }
        let [(_, one), _] = &pods;
        assert!(one.pings("10.1.2.2") && one.pings("fd00:2::2"), "{kind}");
    }
}

/// The host has a link to each pod. In a subnet of two they are always usable.
#[test]
fn a_pod_at_either_end_of_its_subnet_is_reached() {
    need!("ip", "ping");
    for (kind, subnet, start, end, gateway) in [
        ("ptp", "10.1.2.0/24", "10.1.2.0", "10.1.2.0", "10.1.2.1"),
        ("ptp", "10.1.2.0/24", "10.1.2.255", "10.1.2.255", "10.1.2.1"),
        ("ptp", "fd00:1:2::/64", "fd00:1:2::", "fd00:1:2::", "fd00:1:2::1"),
        ("ptp", "10.1.2.0/31", "10.1.2.0", "10.1.2.1", "10.1.2.1"),
        ("ptp", "fd00:1:2::/127", "fd00:1:2::", "fd00:1:2::1", "fd00:1:2::1"),
        ("bridge", "10.1.2.0/31", "10.1.2.0", "10.1.2.1", "10.1.2.1"),
        ("bridge", "10.1.2.0/23", "10.1.2.255", "10.1.2.255", "10.1.2.1"),
    ] {
        let (host, pod) = (Host::new(), Pod::new());
        let range = json!([[{"subnet": subnet, "rangeStart": start, "rangeEnd": end}]]);
        let net = Network::new(&host, configs::v4(&host))
            .with("/type", json!(kind))
            .with("/ipam/ranges", range)
            .with("/ipam/routes", json!([]));
        let attachment = Attachment::new("one", &pod);
        let result = net.added(&attachment);
        let (_, length) = subnet.split_once('/').unwrap();
        assert_eq!(result["ips"][0]["address"], format!("{start}/{length}"), "{kind}");
        assert!(pod.pings(gateway) && host.pings(start), "{kind} {start} of {subnet}");
        net.check(&attachment, &result).success();
        net.deleted(&attachment, Some(&result));
    }
}
