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
