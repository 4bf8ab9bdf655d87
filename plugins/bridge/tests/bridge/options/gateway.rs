//! The bridge's addresses: `isGateway`, `isDefaultGateway`, `forceAddress`.

use serde_json::json;

use cnimble_tests::{Attachment, Host, Network, Pod, Snapshot, configs, need};

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
    // A gateway outside the range.
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
    // An IPv4 network doesn't switch IPv6 forwarding on.
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
    // The existing default route stays the only one.
    let net = net.with("/ipam/routes", json!([{"dst": "0.0.0.0/0", "gw": "10.1.2.77"}]));
    let result = net.added(&att);
    assert_eq!(result["routes"].as_array().unwrap().len(), 2, "{result:#}");
    assert!(pod.ip("route").contains("default via 10.1.2.77"));
    assert!(!pod.ip("route").contains("10.1.2.1 "));
}

#[test]
fn packets_from_a_bridge_of_ours_are_forwarded_and_the_administrators_bridge_stays_as_it_is() {
    need!("ip");
    let host = Host::new();
    host.set_sysctl("ipv4/ip_forward", "1");
    host.set_sysctl("ipv4/conf/default/forwarding", "0");
    host.ip("link add br1 type bridge");
    let (ours, theirs) = (Network::new(&host, configs::v4(&host)), Network::new(&host, configs::v4(&host)));
    let theirs = theirs.with("/bridge", json!("br1")).with("/name", json!("theirs"));
    let pods = [Pod::new(), Pod::new(), Pod::new()];
    for (pod, id) in pods.iter().zip(["one", "two"]) {
        ours.added(&Attachment::new(id, pod));
        assert_eq!(host.sysctl("ipv4/conf/br0/forwarding"), "1", "{id}");
        // As after an ADD that was killed.
        host.set_sysctl("ipv4/conf/br0/forwarding", "0");
    }
    theirs
        .with("/ipam/ranges", json!([[{"subnet": "10.1.3.0/24"}]]))
        .added(&Attachment::new("three", &pods[2]));
    assert_eq!(host.sysctl("ipv4/conf/br1/forwarding"), "0");
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
    // host-local's directory and last_reserved_ip may stay.
    before.assert_same(&Snapshot::of(&host).without_lines("other/"), "after the refusal");
    assert!(!host.data_dir().join("other/10.9.9.2").exists());
    other.with("/forceAddress", json!(true)).added(&att);
    assert_eq!(host.addrs("br0"), ["10.9.9.1/24"]);
}

#[test]
fn a_link_local_gateway_stands_beside_the_bridges_other_addresses() {
    need!("ip", "ping");
    let host = Host::new();
    // The kernel adds a link-local address to every link that comes up.
    host.ip("link add br0 type bridge");
    host.ip("link set br0 up");
    host.ip("addr add fe80::99/64 dev br0 nodad");
    host.ip("link set lo up");
    host.ip("addr add 2001:db8:7::1/128 dev lo nodad");
    let ranges = json!([[{"subnet": "10.1.2.0/24"}], [{"subnet": "fd00:1:2::/112", "gateway": "fe80::1"}]]);
    let net = Network::new(&host, configs::dual(&host))
        .with("/ipam/ranges", ranges)
        .with("/isDefaultGateway", json!(true));
    for force in [false, true] {
        let net = net.with("/forceAddress", json!(force));
        let pod = Pod::new();
        let att = Attachment::new(&format!("force-{force}"), &pod);
        let result = net.added(&att);
        assert!(pod.ip("-6 route").contains("default via fe80::1 dev eth0"), "{}", pod.ip("-6 route"));
        assert!(pod.pings("2001:db8:7::1"), "by way of fe80::1");
        let addrs = host.ip("-6 addr show dev br0");
        assert!(addrs.contains("fe80::1/64") && addrs.contains("fe80::99/64"), "{addrs}");
        net.check(&att, &result).success();
    }
}

#[test]
fn an_uplink_goes_on_to_hear_its_router_when_forwarding_is_switched_on() {
    need!("ip");
    let host = Host::new();
    for link in ["uplink", "silent", "off"] {
        host.ip(&format!("link add {link} type veth peer name far-{link}"));
        host.ip(&format!("link set {link} up"));
        host.ip(&format!("link set far-{link} up"));
    }
    host.set_sysctl("ipv6/conf/off/accept_ra", "0");
    host.ip("-6 route add default via fe80::42 dev uplink proto ra");
    host.ip("-6 route add 2001:db8:9::/64 via fe80::42 dev off proto ra");
    let heard = |link: &str| host.sysctl(&format!("ipv6/conf/{link}/accept_ra"));
    let state = || ["uplink", "silent", "off"].map(heard);
    let net = Network::new(&host, configs::dual(&host));
    // A failed ADD undoes the setting.
    let pod = Pod::new();
    let att = Attachment::new("one", &pod);
    let late = net.call("ADD", &att, None).under(&["sh", "-c", "exec \"$0\" >/dev/full"]);
    assert_eq!(late.run().status, 1);
    assert_eq!(state(), ["1", "1", "0"]);
    let v4 = json!([[{"subnet": "10.1.2.0/24"}]]);
    let only_v4 = net.with("/ipam/ranges", v4).with("/ipam/routes", json!(null));
    let result = only_v4.added(&att);
    assert_eq!(state(), ["1", "1", "0"], "IPv6 isn't forwarded");
    only_v4.deleted(&att, Some(&result));
    net.added(&att);
    assert_eq!(host.sysctl("ipv6/conf/all/forwarding"), "1");
    assert_eq!(state(), ["2", "1", "0"], "only the one that has a route of a router, and listens");
    // Later ADDs keep the administrator's setting.
    host.set_sysctl("ipv6/conf/uplink/accept_ra", "1");
    net.added(&Attachment::new("two", &Pod::new()));
    assert_eq!(state(), ["1", "1", "0"]);
}

/// The author of a pod asks for an address with its prefix (capability `ips`).
#[test]
fn no_pod_gives_the_bridge_a_network_that_the_host_needs() {
    need!("ip");
    let (host, world) = (Host::new(), Pod::new());
    host.cable("up0", &world, "eth0");
    host.ip("addr add 192.0.2.2/24 dev up0");
    host.ip("route add default via 192.0.2.1 metric 100");
    host.ip("addr add 172.20.0.9/32 dev up0");
    host.ip("route add 10.66.0.0/16 via 172.30.0.1 dev up0 onlink");
    let pod = Pod::new();
    let att = Attachment::new("one", &pod);
    let net = Network::new(&host, configs::v4(&host)).with("/ipam", json!({"type": "static"}));
    let with = |ip: &str| net.with("/runtimeConfig", json!({"ips": [ip]}));
    let before = Snapshot::settled(&host);
    let api = host.ip("route get 198.51.100.10");
    for (ip, why) in [
        ("198.51.100.10/0", "\"br0\" can't be the gateway of 0.0.0.0/0: every address is in it"),
        (
            "198.51.100.10/1",
            "\"br0\" can't be the gateway of 128.0.0.0/1: the host has 192.0.2.2 on another link",
        ),
        ("172.20.1.1/16", "the host has 172.20.0.9 on another link"),
        ("172.30.0.5/24", "172.30.0.1 is a next hop of the host's routes"),
    ] {
        let err = with(ip).add(&att).error();
        assert!(err.code == 102 && err.msg.contains(why), "{err:?}");
        before.assert_same(&Snapshot::settled(&host), ip);
        assert_eq!(host.ip("route get 198.51.100.10"), api);
    }
    let plain = with("10.1.2.9/24");
    plain.added(&att);
    assert_eq!(host.addrs("br0"), ["10.1.2.1/24"]);
    plain.deleted(&att, None);
    // An administrator may choose as before.
    let own = json!({"type": "static", "addresses": [{"address": "172.20.1.5/16", "gateway": "172.20.1.1"}]});
    net.with("/ipam", own).with("/forceAddress", json!(true)).added(&att);
    assert_eq!(host.addrs("br0"), ["172.20.1.1/16"]);
}

#[test]
fn a_host_whose_links_are_born_without_ipv6_gets_its_gateway() {
    need!("ip", "ping");
    let (host, pods) = (Host::new(), [Pod::new(), Pod::new()]);
    host.set_sysctl("ipv6/conf/default/disable_ipv6", "1");
    let net = Network::new(&host, configs::dual(&host));
    let attachments = [0, 1].map(|n| Attachment::new(&format!("pod{n}"), &pods[n]));
    let result = net.added(&attachments[0]);
    net.added(&attachments[1]);
    assert_eq!(host.sysctl("ipv6/conf/br0/disable_ipv6"), "0");
    assert!(pods[0].pings_once("fd00:1:2::1") && pods[0].pings_once("fd00:1:2::3"));
    net.check(&attachments[0], &result).success();
    // A bridge of the administrator's stays as it is.
    let (host, pod) = (Host::new(), Pod::new());
    host.set_sysctl("ipv6/conf/default/disable_ipv6", "1");
    host.ip("link add br0 type bridge");
    let error = Network::new(&host, configs::dual(&host)).add(&Attachment::new("one", &pod)).error();
    assert!(error.all().contains("IPv6 is disabled on this device"), "{error:?}");
    assert_eq!(host.sysctl("ipv6/conf/br0/disable_ipv6"), "1");
}

/// A provider gives single addresses, with a gateway beside them.
#[test]
fn a_single_address_reaches_its_gateway_on_the_link() {
    need!("ip", "ping");
    let (host, pod) = (Host::new(), Pod::new());
    let addresses = json!([
        {"address": "10.9.0.5/32", "gateway": "10.8.0.1"},
        {"address": "fd09::5/128", "gateway": "fd08::1"},
    ]);
    let ipam = json!({
        "type": "static", "addresses": addresses, "routes": [{"dst": "0.0.0.0/0"}, {"dst": "::/0"}],
    });
    let net = Network::new(&host, configs::layer2()).with("/ipam", ipam);
    let attachment = Attachment::new("one", &pod);
    let result = net.added(&attachment);
    host.ip("addr add 10.8.0.1/32 dev br0");
    host.ip("-6 addr add fd08::1/128 dev br0 nodad");
    host.ip("route add 10.9.0.5/32 dev br0");
    host.ip("-6 route add fd09::5/128 dev br0");
    assert!(pod.pings_once("10.8.0.1") && pod.pings_once("fd08::1"));
    net.check(&attachment, &result).success();
    net.deleted(&attachment, Some(&result));

    // With the bridge as gateway the host would have no route back.
    let error = net.with("/isGateway", json!(true)).add(&attachment).error();
    assert!(
        error.code == 102 && error.all().contains("hint: change its prefix length, or use ptp"),
        "{error:?}"
    );
    // A network that lacks its gateway is more likely a mistake.
    let wider = net.with("/ipam/addresses", json!([{"address": "10.9.0.5/24", "gateway": "10.8.0.1"}]));
    let error = wider.add(&attachment).error();
    let why = "the next hop 10.8.0.1 is in no network of the pod (10.9.0.5/24)";
    assert!(error.code == 100 && error.all().contains(why), "{error:?}");
}
