//! Every option of bridge, as far as this kind of kernel has what it needs.
// Tests stop at the first surprise; clippy doesn't see that this whole crate is one.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use cnimble_tests::{
    Attachment, Host, LIMIT, Network, Ns, PATIENCE, Pod, Snapshot, configs, need, wait_until,
};
use serde_json::{Value, json};

/// The name of the host's end in a result of 0.3.0 or later.
fn veth(result: &Value) -> String {
    result["interfaces"][1]["name"].as_str().expect("a veth").to_owned()
}

/// The flags of the bridge port.
fn port(host: &Host, result: &Value) -> Value {
    host.link(&veth(result))["linkinfo"]["info_slave_data"].clone()
}

#[test]
fn is_gateway() {
    need!("ip");
    let host = Host::new();
    let pod = Pod::new();
    let net = Network::new(&host, configs::dual(&host)).with("/isGateway", json!(false));
    let att = Attachment::new("one", &pod);
    net.added(&att);
    assert_eq!(host.addrs("br0"), Vec::<String>::new());
    assert_eq!(host.sysctl("ipv4/ip_forward"), "0");
    net.deleted(&att, None);
    // With a gateway of one's own, outside the range.
    let net = net.with("/isGateway", json!(true)).with(
        "/ipam/ranges",
        json!([[{"subnet": "10.1.2.0/24", "gateway": "10.1.2.254", "rangeStart": "10.1.2.10"}]]),
    );
    let net =
        net.with("/ipam/routes", json!([{"dst": "0.0.0.0/0"}, {"dst": "10.7.0.0/16", "gw": "10.1.2.9"}]));
    net.added(&att);
    assert_eq!(host.addrs("br0"), ["10.1.2.254/24"]);
    assert_eq!(host.sysctl("ipv4/ip_forward"), "1");
    assert_eq!(pod.addrs("eth0"), ["10.1.2.10/24"]);
    let routes = pod.ip("route");
    assert!(routes.contains("default via 10.1.2.254 dev eth0"), "{routes}");
    assert!(routes.contains("10.7.0.0/16 via 10.1.2.9 dev eth0"), "{routes}");
    // v6 forwarding is nobody's wish in a v4 network.
    assert_eq!(host.sysctl("ipv6/conf/all/forwarding"), "0");
}

#[test]
fn is_default_gateway() {
    need!("ip");
    let host = Host::new();
    let pod = Pod::new();
    let net = Network::new(&host, configs::dual(&host))
        .with("/isGateway", json!(false))
        .with("/isDefaultGateway", json!(true))
        .with("/ipam/routes", json!(null));
    let att = Attachment::new("one", &pod);
    let result = net.added(&att);
    assert_eq!(host.addrs("br0"), ["10.1.2.1/24", "fd00:1:2::1/64"], "implies isGateway");
    let dsts: Vec<&str> =
        result["routes"].as_array().unwrap().iter().map(|route| route["dst"].as_str().unwrap()).collect();
    assert_eq!(dsts, ["0.0.0.0/0", "::/0"]);
    assert!(pod.ip("route").contains("default via 10.1.2.1"));
    assert!(pod.ip("-6 route").contains("default via fd00:1:2::1"));
    net.check(&att, &result).success();
    net.deleted(&att, Some(&result));
    // A default route with a gateway is there already: it stays the only one.
    let net = net.with("/ipam/routes", json!([{"dst": "0.0.0.0/0", "gw": "10.1.2.77"}]));
    let result = net.added(&att);
    assert_eq!(result["routes"].as_array().unwrap().len(), 2, "{result:#}");
    assert!(pod.ip("route").contains("default via 10.1.2.77"));
    assert!(!pod.ip("route").contains("10.1.2.1 "));
}

#[test]
fn force_address() {
    need!("ip", "nft");
    let host = Host::new();
    let (one, two) = (Pod::new(), Pod::new());
    let net = Network::new(&host, configs::v4(&host));
    net.added(&Attachment::new("one", &one));
    let other = net.with("/ipam/ranges", json!([[{"subnet": "10.9.9.0/24"}]])).with("/name", json!("other"));
    let att = Attachment::new("two", &two);
    let before = Snapshot::of(&host).without_lines("other/");
    let error = other.add(&att).error();
    assert!(
        error.all().contains("\"br0\" already has an IP address different from 10.9.9.1/24"),
        "{error:?}"
    );
    // host-local's own directory and last_reserved_ip may stay, leases may not.
    before.assert_same(&Snapshot::of(&host).without_lines("other/"), "after the refusal");
    assert!(!host.data_dir().join("other/10.9.9.2").exists());
    other.with("/forceAddress", json!(true)).added(&att);
    assert_eq!(host.addrs("br0"), ["10.9.9.1/24"]);
}

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
    if configs::newest() >= "1.1.0" {
        for interface in result["interfaces"].as_array().unwrap() {
            assert_eq!(interface["mtu"], 1400, "{result:#}");
        }
    }
    net.check(&att, &result).success();
    if configs::newest() >= "1.1.0" {
        pod.ip("link set eth0 mtu 1500");
        let error = net.check(&att, &result).error();
        assert!(error.all().to_lowercase().contains("mtu"), "{error:?}");
        // The Go plugin tuning sets one behind us, and leaves the result as it is.
        pod.ip("link set eth0 mtu 1300");
        net.check(&att, &result).success();
    }
}

#[test]
fn check_lets_others_have_their_way() {
    need!("ip");
    let host = Host::new();
    let pod = Pod::new();
    // An older result doesn't tell the MTU, and a plugin behind us may have set another.
    let net =
        Network::new(&host, configs::v4(&host)).with("/cniVersion", json!("1.0.0")).with("/mtu", json!(1400));
    let att = Attachment::new("one", &pod);
    let result = net.added(&att);
    pod.ip("link set eth0 mtu 1300");
    net.check(&att, &result).success();
    // The MAC of a bridge matters to pods that have it for a gateway.
    host.ip("link set br0 address 02:00:00:00:12:34");
    let error = net.check(&att, &result).error();
    assert!(error.all().contains("02:00:00:00:12:34"), "{error:?}");
    net.with("/isGateway", json!(false)).check(&att, &result).success();
}

#[test]
fn hairpin_mode() {
    need!("ip", "nft", "ping");
    let host = Host::new();
    let pod = Pod::new();
    let net = Network::new(&host, configs::v4(&host)).with("/hairpinMode", json!(true));
    let att = Attachment::new("one", &pod);
    let result = net.added(&att);
    assert_eq!(port(&host, &result)["hairpin"], true);
    net.check(&att, &result).success();
    // What it is for: a frame that goes out of the port it came in. A MAC that the bridge
    // doesn't know is flooded, with hairpin also to the sender.
    pod.ip("neigh add 10.1.2.99 lladdr 02:00:00:00:00:99 dev eth0");
    let received = || pod.ip_json("-s link show dev eth0")[0]["stats64"]["rx"]["packets"].as_u64();
    let before = received();
    pod.run("ping -n -c 1 -W 1 10.1.2.99");
    assert!(wait_until(PATIENCE, || received() > before), "{before:?} {:?}", received());
}

#[test]
fn promisc_mode() {
    need!("ip");
    let host = Host::new();
    let pod = Pod::new();
    let net = Network::new(&host, configs::v4(&host)).with("/promiscMode", json!(true));
    net.added(&Attachment::new("one", &pod));
    let flags = host.link("br0")["flags"].clone();
    assert!(flags.as_array().unwrap().contains(&json!("PROMISC")), "{flags}");
    let both = net.with("/hairpinMode", json!(true));
    let other = Pod::new();
    let error = both.add(&Attachment::new("two", &other)).error();
    assert_eq!(other.links(), ["lo"], "{error:?}");
}

#[test]
fn port_isolation() {
    need!("ip", "ping");
    let host = Host::new();
    let (one, two, free) = (Pod::new(), Pod::new(), Pod::new());
    let net = Network::new(&host, configs::v4(&host)).with("/portIsolation", json!(true));
    let result = net.added(&Attachment::new("one", &one));
    net.added(&Attachment::new("two", &two));
    net.with("/portIsolation", json!(false)).added(&Attachment::new("free", &free));
    assert_eq!(port(&host, &result)["isolated"], true);
    assert!(one.pings("10.1.2.1"), "the gateway");
    assert!(one.pings("10.1.2.4"), "a port that is not isolated");
    assert!(one.misses("10.1.2.3"), "another isolated port");
    net.check(&Attachment::new("one", &one), &result).success();
}

#[test]
fn macspoofchk() {
    need!("ip", "nft", "ping");
    let host = Host::new();
    let (one, two) = (Pod::new(), Pod::new());
    let net = Network::new(&host, configs::dual(&host));
    let checked = net.with("/macspoofchk", json!(true));
    // Tables that pods share may stay when the last one goes.
    checked.added(&Attachment::new("other", &two));
    let before = Snapshot::of(&host).without_lines("last_reserved_ip");
    let att = Attachment::new("one", &one);
    let result = checked.added(&att);
    let own = result["interfaces"][2]["mac"].as_str().unwrap();
    assert!(one.pings("10.1.2.1") && one.pings("10.1.2.2") && one.pings("fd00:1:2::1"));
    checked.check(&att, &result).success();
    // Routes and v6 addresses survive the change of MAC, the neighbours forget.
    one.ip("link set eth0 address 02:00:00:00:66:66");
    host.ip("neigh flush dev br0");
    assert!(one.misses("10.1.2.1"), "a spoofed MAC must not pass (to the host)");
    assert!(one.misses("10.1.2.2"), "a spoofed MAC must not pass (to a pod)");
    assert!(one.misses("fd00:1:2::1"), "a spoofed MAC must not pass (v6)");
    assert!(two.pings("10.1.2.1"), "the other pod is not affected");
    one.ip(&format!("link set eth0 address {own}"));
    assert!(one.pings("10.1.2.1"), "its own MAC passes again");
    checked.deleted(&att, Some(&result));
    let after = Snapshot::of(&host).without_lines("last_reserved_ip");
    before.assert_same(&after, "after DEL");
}

#[test]
fn check_notices_lost_rules() {
    need!("ip", "nft");
    for key in ["/macspoofchk", "/ipMasq"] {
        let host = Host::new();
        let pod = Pod::new();
        let net = Network::new(&host, configs::dual(&host)).with(key, json!(true));
        let att = Attachment::new("one", &pod);
        let result = net.added(&att);
        net.check(&att, &result).success();
        host.nft("flush ruleset");
        let outcome = net.check(&att, &result);
        assert!(outcome.status == 1, "CHECK misses the rules of {key}");
        net.deleted(&att, Some(&result));
    }
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
    // Who asked for that may switch it on later.
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
    // An empty object is no wish.
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
    // As with the reference: the last network's first.
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
    // Twice the same, once by isDefaultGateway; the pod's own network; two gateways.
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
fn a_bridge_that_is_no_bridge() {
    need!("ip", "nft");
    let host = Host::new();
    let pod = Pod::new();
    host.ip("link add br0 type veth peer name other");
    let before = Snapshot::of(&host);
    let net = Network::new(&host, configs::v4(&host));
    let error = net.add(&Attachment::new("one", &pod)).error();
    assert!(error.all().contains("\"br0\" already exists but is not a bridge"), "{error:?}");
    let after = Snapshot::of(&host).without_lines("net4/");
    before.assert_same(&after, "after the refusal");
}

#[test]
fn an_existing_bridge_keeps_what_it_has() {
    need!("ip", "ping");
    let host = Host::new();
    let pod = Pod::new();
    host.ip("link add br0 address 02:00:00:00:00:77 mtu 1450 type bridge stp_state 0 ageing_time 12300");
    host.ip("addr add 172.31.0.1/24 dev br0");
    host.ip("link set br0 up");
    let net = Network::new(&host, configs::layer2());
    net.added(&Attachment::new("one", &pod));
    let bridge = host.link("br0");
    assert_eq!(bridge["address"], "02:00:00:00:00:77");
    assert_eq!(bridge["linkinfo"]["info_data"]["ageing_time"], 12300);
    assert_eq!(host.addrs("br0"), ["172.31.0.1/24"]);
}

#[test]
fn an_existing_bridge_whose_mac_follows_its_ports_keeps_it_too() {
    need!("ip");
    let host = Host::new();
    // Made without a MAC, it takes the lowest of its ports'. This one is hard to beat...
    host.ip("link add br0 type bridge");
    host.ip("link add uplink address fe:ff:ff:ff:ff:f0 master br0 type veth peer name elsewhere");
    let mac = host.link("br0")["address"].clone();
    assert_eq!(mac, "fe:ff:ff:ff:ff:f0");
    // ... from below: every pod's port has a lower one.
    let net = Network::new(&host, configs::layer2());
    let pods: Vec<Pod> = (0..3).map(|_| Pod::new()).collect();
    for (number, pod) in pods.iter().enumerate() {
        let attachment = Attachment::new(&format!("pod{number}"), pod);
        let result = net.added(&attachment);
        assert_eq!(host.link("br0")["address"], mac, "pod {number}");
        assert_eq!(result["interfaces"][0]["mac"], mac, "pod {number}");
        net.check(&attachment, &result).success();
    }
}

/// Without a route back, an answer can only come through masquerade.
fn outside(host: &Host) -> Ns {
    let outside = Ns::new();
    host.cable("uplink", &outside, "eth0");
    host.ip("addr add 192.0.2.1/24 dev uplink");
    host.ip("addr add 2001:db8:2::1/64 dev uplink nodad");
    outside.ip("addr add 192.0.2.2/24 dev eth0");
    outside.ip("addr add 2001:db8:2::2/64 dev eth0 nodad");
    outside
}

#[test]
fn ip_masq() {
    need!("ip", "nft", "ping", "iptables");
    for backend in [None, Some("nftables"), Some("iptables")] {
        if backend.is_some() && configs::newest() < "1.1.0" {
            continue; // the reference plugins of this machine are older
        }
        let host = Host::new();
        let _outside = outside(&host);
        let (one, two) = (Pod::new(), Pod::new());
        let plain = Network::new(&host, configs::dual(&host));
        let mut net = plain.with("/ipMasq", json!(true));
        if let Some(backend) = backend {
            net = net.with("/ipMasqBackend", json!(backend));
        }
        let (att, att2) = (Attachment::new("one", &one), Attachment::new("two", &two));
        let result = net.added(&att);
        let before = Snapshot::of(&host).without_lines("last_reserved_ip");
        let result2 = plain.added(&att2);
        assert!(one.pings("192.0.2.2"), "{backend:?}: v4");
        assert!(one.pings("2001:db8:2::2"), "{backend:?}: v6");
        assert!(two.misses("192.0.2.2"), "the pod without ipMasq has no way");
        assert!(one.pings("10.1.2.3"));
        net.check(&att, &result).success();
        plain.deleted(&att2, Some(&result2));
        let after = Snapshot::of(&host).without_lines("last_reserved_ip");
        before.assert_same(&after, &format!("{backend:?}: another pod came and went"));

        // A second masqueraded pod, and its DEL, leave the first one working.
        let result2 = net.added(&att2);
        assert!(two.pings("192.0.2.2") && two.pings("2001:db8:2::2"));
        net.deleted(&att2, Some(&result2));
        let after = Snapshot::of(&host).without_lines("last_reserved_ip");
        before.assert_same(&after, &format!("{backend:?}: a masqueraded pod came and went"));
        assert!(one.pings("192.0.2.2"));
        net.deleted(&att, Some(&result));
        let left = Snapshot::of(&host).mentions("10.1.2.2");
        assert!(left.is_empty(), "{backend:?}: {left:#?}");
    }
}

#[test]
fn masquerade_leaves_the_own_network_and_multicast_alone() {
    need!("ip", "nft", "ping", "tcpdump");
    let host = Host::new();
    let outside = outside(&host);
    let (one, two) = (Pod::new(), Pod::new());
    let net = Network::new(&host, configs::dual(&host)).with("/ipMasq", json!(true));
    net.added(&Attachment::new("one", &one));
    net.added(&Attachment::new("two", &two));
    // With bridge-nf the traffic of one bridge goes through the rules too.
    host.set_sysctl("bridge/bridge-nf-call-iptables", "1");
    // The first request for an echo that arrives in `ns`.
    let seen = |ns: &Ns, to: &str| {
        let mut command = ns.command("tcpdump");
        command.args([
            "-n",
            "-l",
            "-c",
            "1",
            "--immediate-mode",
            "-i",
            "eth0",
            "icmp[icmptype] == icmp-echo",
        ]);
        command.stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::piped());
        let mut dump = cnimble_tests::Background::start(&mut command);
        // What is sent before it listens it doesn't see.
        wait_until(PATIENCE, || {
            one.run(&format!("ping -n -c 1 -W 1 {to}"));
            !dump.running()
        });
        let output = dump.finish(LIMIT);
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    let line = seen(&two, "10.1.2.3");
    assert!(line.contains("10.1.2.2 > 10.1.2.3"), "{line}");
    let line = seen(&outside, "192.0.2.2");
    assert!(line.contains("192.0.2.1 > 192.0.2.2"), "{line}");
}
