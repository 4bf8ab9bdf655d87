use cnimble_tests::{skip, with_kind};

use super::*;

#[test]
fn pods_hear_each_other_in_mode_bridge_and_not_in_mode_private() {
    with_kind!("macvlan");
    for (mode, heard) in [("bridge", true), ("private", false), ("vepa", false)] {
        let (host, pods) = (Host::hasty(), [Pod::new(), Pod::new()]);
        let lan = Lan::behind(&host, "uplink");
        let network = Network::new(&host, config(&host)).with("/mode", json!(mode));
        for (id, pod) in ["c1", "c2"].iter().zip(&pods) {
            let attachment = Attachment::new(id, pod);
            let result = network.added(&attachment);
            network.check(&attachment, &result).success();
            assert_eq!(settings(pod, "eth0")["mode"], mode);
        }
        assert!(lan.pings_once("10.7.0.10") && lan.pings_once("10.7.0.11"), "{mode}");
        if heard {
            assert!(pods[0].pings_once("10.7.0.11"), "{mode}");
        } else {
            // No reflecting network outside.
            assert!(pods[0].misses("10.7.0.11"), "{mode}");
        }
    }
}

#[test]
fn in_mode_passthru_the_pod_has_the_masters_mac_and_a_second_pod_is_refused() {
    with_kind!("macvlan");
    let (host, pods) = (Host::hasty(), [Pod::new(), Pod::new()]);
    let lan = Lan::behind(&host, "uplink");
    let network = Network::new(&host, config(&host)).with("/mode", json!("passthru"));
    let attachment = Attachment::new("c1", &pods[0]);
    let result = network.added(&attachment);
    assert_eq!(result["interfaces"][0]["mac"], host.link("uplink")["address"]);
    assert_eq!(settings(&pods[0], "eth0")["mode"], "passthru");
    assert!(lan.pings_once("10.7.0.10"));
    network.check(&attachment, &result).success();
    refused(
        &network.add(&Attachment::new("c2", &pods[1])),
        100,
        "macvlan mode passthru; its master uplink is up",
    );
    assert_eq!((pods[1].links(), leases(&host).len()), (vec!["lo".to_owned()], 2));
    network.deleted(&attachment, Some(&result));
    network.added(&Attachment::new("c2", &pods[1]));
}

#[test]
fn the_broadcast_queue_and_the_mtu_are_as_long_as_asked_for() {
    with_kind!("macvlan");
    let (host, pod) = (Host::hasty(), Pod::new());
    let _lan = Lan::behind(&host, "uplink");
    let network =
        Network::new(&host, config(&host)).with("/bcqueuelen", json!(500)).with("/mtu", json!(1300));
    network.added(&Attachment::new("c1", &pod));
    assert_eq!(pod.link("eth0")["mtu"], 1300);
    // The attribute needs Linux 5.11.
    match &settings(&pod, "eth0")["bcqueuelen"] {
        Value::Null => skip!("this kernel or this `ip` doesn't tell the length of the queue"),
        length => assert_eq!(length, 500),
    }
}

#[test]
fn the_mtu_may_not_be_above_the_masters() {
    with_kind!("macvlan");
    let (host, pod) = (Host::hasty(), Pod::new());
    let _lan = Lan::behind(&host, "uplink");
    host.ip("link set uplink mtu 1400");
    let network = Network::new(&host, config(&host));
    network.added(&Attachment::new("c1", &pod));
    assert_eq!(pod.link("eth0")["mtu"], 1400);
    let network = network.with("/mtu", json!(1401));
    let other = Pod::new();
    refused(
        &network.add(&Attachment::new("c2", &other)),
        7,
        "invalid MTU 1401, must be [0, master MTU(1400)]",
    );
    refused(&network.status(), 50, "invalid MTU 1401");
    assert_eq!((other.links(), leases(&host).len()), (vec!["lo".to_owned()], 2));
}

#[test]
fn the_mac_is_that_of_the_runtime_then_of_cni_args_then_of_the_configuration() {
    with_kind!("macvlan");
    let host = Host::hasty();
    let _lan = Lan::behind(&host, "uplink");
    let macs = ["02:00:00:00:00:01", "02:00:00:00:00:02", "02:00:00:00:00:03"];
    let configured = Network::new(&host, config(&host)).with("/mac", json!(macs[2]));
    let runtime = configured.with("/runtimeConfig", json!({"mac": macs[0]}));
    let args = format!("IgnoreUnknown=1;MAC={}", macs[1]);
    for (network, args, mac) in
        [(&runtime, args.as_str(), macs[0]), (&configured, &args, macs[1]), (&configured, "", macs[2])]
    {
        let pod = Pod::new();
        let attachment = Attachment::new("c1", &pod).args(args);
        let result = network.added(&attachment);
        assert_eq!(
            (&result["interfaces"][0]["mac"], &pod.link("eth0")["address"]),
            (&json!(mac), &json!(mac))
        );
        network.check(&attachment, &result).success();
        network.deleted(&attachment, Some(&result));
    }
    let pod = Pod::new();
    refused(
        &network_with_mac(&configured, "01:00:00:00:00:01").add(&Attachment::new("c1", &pod)),
        7,
        "a multicast address",
    );
    refused(
        &configured.add(&Attachment::new("c1", &pod).args("MAC=x")),
        4,
        "CNI_ARGS: MAC: invalid hardware address",
    );
    assert_eq!((pod.links(), leases(&host)), (vec!["lo".to_owned()], Vec::new()));
}

fn network_with_mac<'h>(network: &Network<'h>, mac: &str) -> Network<'h> {
    network.with("/mac", json!(mac))
}

#[test]
fn without_the_key_the_master_is_the_link_of_the_default_route() {
    with_kind!("macvlan");
    let (host, pod) = (Host::hasty(), Pod::new());
    let _lan = Lan::behind(&host, "uplink");
    let network = Network::new(&host, config(&host)).with("/master", json!(null));
    let attachment = Attachment::new("c1", &pod);
    refused(&network.add(&attachment), 100, "no default route interface on the host");
    refused(&network.status(), 51, "no default route interface on the host");
    host.ip("link add other type veth peer name end");
    host.ip("link set other up");
    host.ip("address add 10.7.0.2/24 dev uplink");
    host.ip("route add default dev other metric 500");
    host.ip("route add default via 10.7.0.1 dev uplink metric 100");
    network.status().success();
    let result = network.added(&attachment);
    assert_eq!(pod.link("eth0")["link_index"], host.link("uplink")["ifindex"]);
    network.check(&attachment, &result).success();
    // The IPv6 route, if there is no other.
    for route in ["default dev other", "default dev uplink"] {
        host.ip(&format!("route del {route}"));
    }
    host.ip("-6 route add default dev other");
    let pod = Pod::new();
    network.added(&Attachment::new("c2", &pod));
    assert_eq!(pod.link("eth0")["link_index"], host.link("other")["ifindex"]);
    // Not the pod's fault.
    network.check(&attachment, &result).success();
}

#[test]
fn with_link_in_container_the_master_is_in_the_pod() {
    with_kind!("macvlan");
    let (host, pod) = (Host::hasty(), Pod::new());
    // The host's interface of that name must not be used.
    host.ip("link add uplink type veth peer name end");
    let _lan = {
        let lan = Pod::new();
        pod.cable("uplink", &lan, "lan0");
        lan.ip("address add 10.7.0.1/24 dev lan0");
        lan
    };
    let before = Snapshot::of_ns(&pod);
    let network = Network::new(&host, config(&host)).with("/linkInContainer", json!(true));
    network.status().success();
    let attachment = Attachment::new("c1", &pod).ifname("net1");
    let result = network.added(&attachment);
    let link = pod.link("net1");
    assert_eq!((&link["link"], &link["link_netnsid"]), (&json!("uplink"), &Value::Null));
    assert!(pod.pings_once("10.7.0.1"));
    network.check(&attachment, &result).success();
    // The pod has no such interface.
    let outside = network.with("/linkInContainer", json!(false));
    refused(&outside.check(&attachment, &result), 103, "isn't made on uplink on the host");
    refused(&network.add(&Attachment::new("c2", &pod).ifname("net1")), 102, "\"net1\" is already taken");
    let missing = network.with("/master", json!("end"));
    refused(
        &missing.add(&Attachment::new("c2", &pod).ifname("net2")),
        100,
        "master \"end\" is missing in the pod",
    );
    network.deleted(&attachment, Some(&result));
    before.assert_same(&Snapshot::of_ns(&pod), "after DEL");
    assert_eq!(leases(&host), [""; 0]);
}

#[test]
fn dns_of_the_configuration_wins_over_that_of_ipam() {
    with_kind!("macvlan");
    let host = Host::hasty();
    let _lan = Lan::behind(&host, "uplink");
    let resolv = host.dir().join("resolv.conf");
    std::fs::write(&resolv, "nameserver 10.7.0.53\n").unwrap();
    let network = Network::new(&host, config(&host)).with("/ipam/resolvConf", json!(resolv));
    let (one, two) = (Pod::new(), Pod::new());
    assert_eq!(network.added(&Attachment::new("c1", &one))["dns"], json!({"nameservers": ["10.7.0.53"]}));
    let network = network.with("/dns", json!({"nameservers": ["10.7.0.54"]}));
    assert_eq!(network.added(&Attachment::new("c2", &two))["dns"], json!({"nameservers": ["10.7.0.54"]}));
}

#[test]
fn a_single_address_reaches_its_gateway_on_the_link() {
    with_kind!("macvlan");
    let (host, pod) = (Host::hasty(), Pod::new());
    let lan = Lan::behind(&host, "uplink");
    let ipam = json!({
        "type": "static",
        "addresses": [
            {"address": "10.9.0.5/32", "gateway": "10.8.0.1"},
            {"address": "fd09::5/128", "gateway": "fd08::1"},
        ],
        "routes": [{"dst": "0.0.0.0/0"}, {"dst": "::/0"}],
    });
    let network = Network::new(&host, config(&host)).with("/ipam", ipam);
    let attachment = Attachment::new("c1", &pod);
    let result = network.added(&attachment);
    for line in [
        "addr add 10.8.0.1/32",
        "route add 10.9.0.5/32",
        "-6 addr add fd08::1/128",
        "-6 route add fd09::5/128",
    ] {
        lan.ip(&format!("{line} dev lan0{}", if line.contains("fd08") { " nodad" } else { "" }));
    }
    assert!(pod.pings_once("10.8.0.1") && pod.pings_once("fd08::1"));
    network.check(&attachment, &result).success();
    network.deleted(&attachment, Some(&result));
    let wider = network.with("/ipam/addresses", json!([{"address": "10.9.0.5/24", "gateway": "10.8.0.1"}]));
    refused(&wider.add(&attachment), 100, "the next hop 10.8.0.1 is in no network of the pod (10.9.0.5/24)");
}

#[test]
fn a_small_mtu_and_an_ipv6_address_are_refused_with_the_reason() {
    with_kind!("macvlan");
    let (host, pod) = (Host::hasty(), Pod::new());
    let _lan = Lan::behind(&host, "uplink");
    let network = Network::new(&host, config(&host)).with("/mtu", json!(1000));
    let attachment = Attachment::new("c1", &pod);
    refused(&network.add(&attachment), 100, "its MTU of 1000 is too small for IPv6, which needs 1280 bytes");
    assert_eq!((pod.links(), leases(&host)), (vec!["lo".to_owned()], Vec::new()));
}
