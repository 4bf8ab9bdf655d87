use serde_json::json;

use cnimble_tests::{Attachment, Host, Lan, Network, PATIENCE, Pod, Snapshot, configs, need, wait_until};

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

/// A bridge of ours doesn't lead to other hosts, and its pods wait for no probe.
#[test]
fn an_address_of_another_host_on_an_existing_bridge_fails_add_and_leaves_nothing() {
    need!("ip");
    let (host, pod) = (Host::hasty(), Pod::new());
    host.ip("link add br0 type bridge");
    host.ip("link set br0 up");
    let lan = Lan::behind(&host, "uplink");
    host.ip("link set uplink master br0");
    let ranges = json!([
        [{"subnet": "10.7.0.0/24", "rangeStart": "10.7.0.10"}],
        [{"subnet": "fd00:7::/64", "rangeStart": "fd00:7::10"}],
    ]);
    let net = Network::new(&host, configs::dual(&host)).with("/isGateway", json!(false));
    let net = net.with("/isDefaultGateway", json!(false)).with("/ipam/ranges", ranges);
    let net = net.with("/ipam/routes", json!([]));
    let forwards = || host.ip("-d link show uplink").contains("state forwarding");
    assert!(wait_until(PATIENCE, forwards));
    // Both networks begin with the same address.
    for net in [net.with("/arpProbe", json!(true)).with("/name", json!("probed")), net] {
        lan.assert_asked("lan0", &net, &Attachment::new("one", &pod), &pod);
    }
    assert_eq!(host.links(), ["br0", "lo", "uplink"]);
}

#[test]
fn an_existing_bridge_whose_mac_follows_its_ports_keeps_it_too() {
    need!("ip");
    let host = Host::new();
    // The bridge uses its ports' lowest MAC. This one is nearly the highest.
    host.ip("link add br0 type bridge");
    host.ip("link add uplink address fe:ff:ff:ff:ff:f0 master br0 type veth peer name elsewhere");
    let mac = host.link("br0")["address"].clone();
    assert_eq!(mac, "fe:ff:ff:ff:ff:f0");
    // Every pod's port has a lower one.
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
