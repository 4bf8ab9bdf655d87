use serde_json::json;

use cnimble_tests::{Attachment, Host, Network, Pod, configs, need};

use super::veth;

#[test]
fn mtu() {
    need!("ip");
    let host = Host::new();
    let pod = Pod::new();
    let net = Network::new(&host, configs::v4(&host)).with("/mtu", json!(1400));
    let att = Attachment::new("one", &pod);
    let result = net.added(&att);
    assert_eq!(host.link("br0")["mtu"], 1400);
    assert_eq!(host.link(&veth(&result))["mtu"], 1400);
    assert_eq!(pod.link("eth0")["mtu"], 1400);
    // Since 1.1.0; not in the Go plugins' results.
    assert!(!result.to_string().contains("mtu"), "{result:#}");
    net.check(&att, &result).success();
    if configs::newest() >= "1.1.0" {
        let mut told = result.clone();
        told["interfaces"][2]["mtu"] = json!(1400);
        net.check(&att, &told).success();
        pod.ip("link set eth0 mtu 1500");
        let error = net.check(&att, &told).error();
        assert!(error.all().to_lowercase().contains("mtu"), "{error:?}");
        // As the Go plugin tuning, which doesn't change the result.
        pod.ip("link set eth0 mtu 1300");
        net.check(&att, &told).success();
    }
}

#[test]
fn a_negative_mtu_counts_as_none() {
    need!("ip");
    for kind in ["bridge", "ptp"] {
        let (host, pod) = (Host::new(), Pod::new());
        let net = Network::new(&host, configs::v4(&host)).with("/type", json!(kind)).with("/mtu", json!(-1));
        let outcome = net.add(&Attachment::new("one", &pod)).success();
        assert_eq!(pod.link("eth0")["mtu"], 1500, "{kind}");
        assert!(outcome.stderr.contains("mtu: -1 is negative"), "{}", outcome.describe());
    }
}

#[test]
fn check_lets_others_have_their_way() {
    need!("ip");
    let host = Host::new();
    let pod = Pod::new();
    // Another plugin may have set it.
    let net =
        Network::new(&host, configs::v4(&host)).with("/cniVersion", json!("1.0.0")).with("/mtu", json!(1400));
    let att = Attachment::new("one", &pod);
    let result = net.added(&att);
    pod.ip("link set eth0 mtu 1300");
    net.check(&att, &result).success();
    // It matters to pods with the bridge as gateway.
    host.ip("link set br0 address 02:00:00:00:12:34");
    let error = net.check(&att, &result).error();
    assert!(error.all().contains("02:00:00:00:12:34"), "{error:?}");
    net.with("/isGateway", json!(false)).check(&att, &result).success();
}

#[test]
fn disable_container_interface() {
    need!("ip");
    let host = Host::new();
    let pod = Pod::new();
    let net = Network::new(&host, configs::layer2()).with("/disableContainerInterface", json!(true));
    let att = Attachment::new("one", &pod);
    let result = net.added(&att);
    let flags = pod.link("eth0")["flags"].clone();
    assert!(!flags.as_array().unwrap().contains(&json!("UP")), "{flags}");
    net.check(&att, &result).success();
    pod.ip("link set eth0 up");
    net.check(&att, &result).success();
    net.deleted(&att, Some(&result));
    let with_ipam = Network::new(&host, configs::v4(&host)).with("/disableContainerInterface", json!(true));
    with_ipam.add(&att).error();
    assert_eq!(pod.links(), ["lo"]);
}

#[test]
fn dns_of_the_network_replaces_that_of_ipam() {
    need!("ip");
    let host = Host::new();
    let pod = Pod::new();
    let file = host.dir().join("resolv.conf");
    std::fs::write(&file, "nameserver 192.0.2.53\nsearch one.example two.example\noptions ndots:5\n")
        .unwrap();
    let net = Network::new(&host, configs::v4(&host)).with("/ipam/resolvConf", json!(file));
    let att = Attachment::new("one", &pod);
    let result = net.added(&att);
    assert_eq!(
        result["dns"],
        json!({"nameservers": ["192.0.2.53"], "search": ["one.example", "two.example"], "options": ["ndots:5"]})
    );
    net.deleted(&att, Some(&result));
    let own = json!({"nameservers": ["198.51.100.53"], "domain": "own.example"});
    let result = net.with("/dns", own.clone()).added(&att);
    assert_eq!(result["dns"], own);
    net.deleted(&att, Some(&result));
    // An empty object is ignored.
    let result = net.with("/dns", json!({})).added(&att);
    assert_eq!(result["dns"]["nameservers"], json!(["192.0.2.53"]));
}

#[test]
fn layer_2_only() {
    need!("ip", "ping");
    for ipam in [None, Some(json!(null)), Some(json!({})), Some(json!({"type": ""}))] {
        let host = Host::new();
        let (one, two) = (Pod::new(), Pod::new());
        let mut net = Network::new(&host, configs::layer2());
        if let Some(ipam) = &ipam {
            net = net.with("/ipam", ipam.clone());
        }
        let att = Attachment::new("one", &one);
        let result = net.added(&att);
        net.added(&Attachment::new("two", &two));
        assert!(result["ips"].as_array().is_none_or(Vec::is_empty), "{ipam:?}: {result:#}");
        assert_eq!(result["interfaces"].as_array().unwrap().len(), 3);
        one.ip("addr add 172.20.0.1/24 dev eth0");
        two.ip("addr add 172.20.0.2/24 dev eth0");
        assert!(one.pings("172.20.0.2"), "{ipam:?}");
        net.check(&att, &result).success();
        net.deleted(&att, Some(&result));
        assert_eq!(one.links(), ["lo"]);
        assert_eq!(host.links().len(), 3);
    }
}

#[test]
fn mac_sources() {
    need!("ip");
    let host = Host::new();
    let net = Network::new(&host, configs::v4(&host));
    let from_args = "IgnoreUnknown=1;MAC=02:00:00:00:00:0C";
    let cni_args = json!({"cni": {"mac": "02:00:00:00:00:0b"}});
    let runtime = json!({"mac": "02:00:00:00:00:0a"});
    let mac = |net: &Network<'_>, args: &str| {
        let pod = Pod::new();
        let att = Attachment::new("one", &pod).args(args);
        let result = net.added(&att);
        let mac = pod.link("eth0")["address"].as_str().unwrap().to_owned();
        assert_eq!(result["interfaces"][2]["mac"], mac.as_str(), "lower case in the result");
        net.check(&att, &result).success();
        net.deleted(&att, Some(&result));
        mac
    };
    assert_eq!(mac(&net, from_args), "02:00:00:00:00:0c");
    let net = net.with("/args", cni_args);
    assert_eq!(mac(&net, from_args), "02:00:00:00:00:0b");
    let net = net.with("/runtimeConfig", runtime);
    assert_eq!(mac(&net, from_args), "02:00:00:00:00:0a");
    // All forms that Go parses.
    for text in ["0200.5E10.0001", "02005e100001", "02-00-5e-10-00-01"] {
        let net = net.with("/runtimeConfig", json!({"mac": text}));
        assert_eq!(mac(&net, ""), "02:00:5e:10:00:01", "{text}");
    }
}

#[test]
fn routes_with_everything() {
    need!("ip");
    let host = Host::new();
    let pod = Pod::new();
    let net = Network::new(&host, configs::dual(&host)).with(
        "/ipam/routes",
        json!([
            {"dst": "10.20.0.0/16", "mtu": 1400, "advmss": 1360},
            {"dst": "10.21.0.0/16", "priority": 77},
            {"dst": "10.22.0.0/16", "table": 1022},
            {"dst": "10.23.0.0/16", "gw": "10.1.2.9", "priority": 5, "mtu": 1280},
            {"dst": "fd00:20::/48", "mtu": 1400, "advmss": 1340},
        ]),
    );
    let net = if configs::newest() < "1.1.0" {
        net.with("/ipam/routes", json!([{"dst": "10.20.0.0/16"}]))
    } else {
        net
    };
    let att = Attachment::new("one", &pod);
    let result = net.added(&att);
    let routes = pod.ip("route show table all");
    assert!(routes.contains("10.20.0.0/16 via 10.1.2.1 dev eth0"), "{routes}");
    net.check(&att, &result).success();
    if configs::newest() < "1.1.0" {
        return;
    }
    for expected in [
        "10.20.0.0/16 via 10.1.2.1 dev eth0 mtu 1400 advmss 1360",
        "10.21.0.0/16 via 10.1.2.1 dev eth0 metric 77",
        "10.22.0.0/16 via 10.1.2.1 dev eth0 table 1022",
        "10.23.0.0/16 via 10.1.2.9 dev eth0 metric 5 mtu 1280",
    ] {
        assert!(routes.contains(expected), "{expected} is not in\n{routes}");
    }
    let six = pod.ip("-6 route show");
    assert!(six.contains("fd00:20::/48 via fd00:1:2::1 dev eth0"), "{six}");
    assert!(six.contains("mtu 1400 advmss 1340"), "{six}");
    assert_eq!(result["routes"][0]["mtu"], 1400, "{result:#}");
    assert_eq!(result["routes"][0]["advmss"], 1360, "{result:#}");
}

#[test]
fn a_pod_in_two_networks_has_two_default_routes() {
    need!("ip", "ping");
    let host = Host::new();
    let pod = Pod::new();
    let first = Network::new(&host, configs::dual(&host)).with("/isDefaultGateway", json!(true));
    let second = first
        .with("/name", json!("second"))
        .with("/bridge", json!("br1"))
        .with("/ipam/ranges", json!([[{"subnet": "10.9.9.0/24"}], [{"subnet": "fd00:9::/64"}]]));
    let (eth0, eth1) = (Attachment::new("one", &pod), Attachment::new("one", &pod).ifname("eth1"));
    let (one, two) = (first.added(&eth0), second.added(&eth1));
    // As with the Go plugin, the last network's route comes first.
    let routes = pod.ip("route");
    assert!(routes.starts_with("default via 10.9.9.1 dev eth1"), "{routes}");
    assert!(routes.contains("default via 10.1.2.1 dev eth0"), "{routes}");
    assert!(pod.pings("10.1.2.1") && pod.pings("10.9.9.1") && pod.pings("fd00:9::1"));
    first.check(&eth0, &one).success();
    second.check(&eth1, &two).success();
    second.deleted(&eth1, Some(&two));
    first.check(&eth0, &one).success();
    assert!(pod.ip("-6 route").contains("default via fd00:1:2::1 dev eth0"));
}

#[test]
fn routes_that_are_there_already() {
    need!("ip");
    let host = Host::new();
    let pod = Pod::new();
    // A duplicate, one of isDefaultGateway, the own network, and two gateways.
    let net = Network::new(&host, configs::v4(&host)).with("/isDefaultGateway", json!(true)).with(
        "/ipam/routes",
        json!([{"dst": "0.0.0.0/0"}, {"dst": "10.1.2.0/24"}, {"dst": "10.7.0.0/16", "gw": "10.1.2.8"},
               {"dst": "10.7.0.0/16", "gw": "10.1.2.9"}]),
    );
    let att = Attachment::new("one", &pod);
    let result = net.added(&att);
    let routes = pod.ip("route");
    assert_eq!(routes.matches("default").count(), 1, "{routes}");
    for expected in ["10.1.2.0/24 via 10.1.2.1", "10.7.0.0/16 via 10.1.2.8", "10.7.0.0/16 via 10.1.2.9"] {
        assert!(routes.contains(expected), "{expected}\n{routes}");
    }
    net.check(&att, &result).success();
    net.deleted(&att, Some(&result));
}

#[test]
fn a_pod_with_addresses_from_ipam_takes_none_from_routers() {
    need!("ip");
    let host = Host::new();
    let net = Network::new(&host, configs::dual(&host));
    let layer2 = net.with("/isGateway", json!(false)).with("/isDefaultGateway", json!(false));
    let alone = json!([[{"subnet": "fd00:1:2::/64"}]]);
    for (id, net, accept_ra, autoconf) in [
        ("routed", &net, "0", None),
        // Without addresses only a router can give routes, so its advertisements are accepted.
        ("unrouted", &layer2.with("/ipam/ranges", alone).with("/ipam/routes", json!(null)), "1", Some("0")),
        (
            "v4",
            &Network::new(&host, configs::v4(&host)).with("/bridge", json!("br4")).with("/name", json!("v4")),
            "1",
            Some("1"),
        ),
    ] {
        let pod = Pod::new();
        pod.set_sysctl("ipv6/conf/default/accept_ra", "1");
        let result = net.with("/name", json!(id)).added(&Attachment::new(id, &pod));
        assert_eq!(pod.sysctl("ipv6/conf/eth0/accept_ra"), accept_ra, "{id}: {result}");
        if let Some(autoconf) = autoconf {
            assert_eq!(pod.sysctl("ipv6/conf/eth0/autoconf"), autoconf, "{id}");
        }
    }
}

#[test]
fn an_mtu_without_room_for_ipv6_is_refused_with_the_reason() {
    need!("ip");
    for kind in ["bridge", "ptp"] {
        let (host, pod) = (Host::new(), Pod::new());
        let attachment = Attachment::new("one", &pod);
        let net =
            Network::new(&host, configs::dual(&host)).with("/type", json!(kind)).with("/mtu", json!(1279));
        let error = net.add(&attachment).error();
        assert_eq!((error.code, &*error.msg), (7, "mtu: 1279 is too small for IPv6, which needs 1280 bytes"));
        assert_eq!(pod.links(), ["lo"]);
        let only_ipv4 = net.with("/ipam/ranges", json!([[{"subnet": "10.1.2.0/24"}]]));
        only_ipv4.with("/ipam/routes", json!([])).added(&attachment);
        only_ipv4.deleted(&attachment, None);
        net.with("/mtu", json!(1280)).with("/bridge", json!("br1")).added(&attachment);
    }
    // A port of the administrator's has made the bridge small.
    let (host, pod) = (Host::new(), Pod::new());
    let net = Network::new(&host, configs::dual(&host));
    host.ip("link add br0 type bridge");
    host.ip("link set br0 mtu 1000 up");
    let error = net.add(&Attachment::new("one", &pod)).error();
    assert!(error.code == 100 && error.all().contains("its MTU of 1000 is too small"), "{error:?}");
}

#[test]
fn a_name_with_a_percent_sign_makes_no_link() {
    need!("ip");
    let (host, pod) = (Host::new(), Pod::new());
    let before = host.links();
    for (key, name) in [("/bridge", "br%d"), ("/uplink", "eth%d"), ("/bridge", "100%")] {
        let net = Network::new(&host, configs::v4(&host)).with(key, json!(name));
        let error = net.add(&Attachment::new("one", &pod)).error();
        assert!(error.code == 7 && error.all().contains("contains %"), "{name}: {error:?}");
        assert_eq!(host.links(), before);
        net.deleted(&Attachment::new("one", &pod), None);
    }
}
