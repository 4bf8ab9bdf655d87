//! Servers of clouds: the router is on-link (RFC 3442), because the address may have 32 bits.

use cnimble_tests::{Lan, need, need_recent_go, with_kind};
use real::{Dnsmasq, Kea};

use super::*;

/// Option 121: the default route, and then the router on the link.
fn classless(router: [u8; 4]) -> Vec<u8> {
    let [a, b, c, d] = router;
    vec![0, a, b, c, d, 32, a, b, c, d, 0, 0, 0, 0]
}

/// As the Go plugin writes them.
fn routes(router: &str) -> Value {
    json!([
        {"dst": format!("{router}/32"), "gw": "0.0.0.0", "scope": 253},
        {"dst": "0.0.0.0/0", "gw": router},
    ])
}

/// Option 121 for real servers.
fn hex(bytes: &[u8], between: &str) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect::<Vec<_>>().join(between)
}

/// Pod and router reach each other.
#[track_caller]
fn assert_reached(pod: &Pod, router: &str) {
    let (link, default) = (pod.ip(&format!("route show {router}")), pod.ip("route show default"));
    assert!(link.contains("dev eth0 scope link") && !link.contains("via"), "{link}");
    assert!(default.contains(&format!("via {router} dev eth0")), "{default}");
    assert!(pod.pings(router));
}

#[test]
fn a_router_on_the_link_is_reached_with_any_mask_and_with_and_without_option_3() {
    let host = host();
    let server = server(&host);
    let network = network(&host);
    for (number, (prefix, router)) in
        [(32, true), (32, false), (24, true), (24, false)].into_iter().enumerate()
    {
        server.now(|manner| {
            manner.prefix = prefix;
            manner.more = vec![(121, classless(OWN.octets()))];
            manner.more.extend(router.then(|| (3, OWN.octets().to_vec())));
        });
        let pod = Pod::new();
        let attachment = Attachment::new(&format!("c{number}"), &pod);
        let result = network.added(&attachment);
        let what = format!("/{prefix}, option 3 {router}: {result:#}");
        assert!(address(&result).ends_with(&format!("/{prefix}")), "{what}");
        assert_eq!(
            result["ips"][0]["gateway"],
            if router { json!("10.8.0.1") } else { Value::Null },
            "{what}"
        );
        assert_eq!(result["routes"], routes("10.8.0.1"), "{what}");
        assert_reached(&pod, "10.8.0.1");
        network.check(&attachment, &result).success();
        network.deleted(&attachment, Some(&result));
    }
}

/// Without option 121, as other clients take it.
#[test]
fn a_router_outside_of_the_network_is_on_the_link() {
    let host = host();
    let server = server(&host);
    let network = network(&host);
    for (number, prefix) in [32, 28].into_iter().enumerate() {
        server.now(|manner| (manner.prefix, manner.more) = (prefix, vec![(3, OWN.octets().to_vec())]));
        let pod = Pod::new();
        let attachment = Attachment::new(&format!("c{number}"), &pod);
        let result = network.added(&attachment);
        assert_eq!(result["routes"], routes("10.8.0.1"), "/{prefix}: {result:#}");
        assert_reached(&pod, "10.8.0.1");
        network.check(&attachment, &result).success();
        network.deleted(&attachment, Some(&result));
    }
}

#[test]
fn on_a_macvlan_dnsmasq_gives_32_bits_and_the_router_is_on_the_link() {
    need!("dnsmasq");
    with_kind!("macvlan");
    let (host, pod) = (Host::hasty(), Pod::new());
    let lan = Lan::behind(&host, "uplink");
    let option = format!("--dhcp-option=121,{}", hex(&classless([10, 7, 0, 1]), ":"));
    let options = ["--dhcp-option=option:netmask,255.255.255.255", &option];
    let _server = Dnsmasq::start(&lan, host.dir(), "lan0", "10.7.0", "2m", &options);
    let ipam = json!({"type": "dhcp", "daemonSocketPath": socket(&host)});
    let config = json!({"cniVersion": "1.0.0", "name": "outside", "type": "macvlan", "master": "uplink", "ipam": ipam});
    let network = Network::new(&host, config);
    let attachment = Attachment::new("c1", &pod);
    let result = network.added(&attachment);
    assert!(address(&result).ends_with("/32"), "{result:#}");
    assert_eq!(result["ips"][0]["gateway"], "10.7.0.1", "dnsmasq tells itself as the router");
    assert_reached(&pod, "10.7.0.1");
    network.check(&attachment, &result).success();
    network.deleted(&attachment, None);
    assert_eq!(leases(&host), Vec::<PathBuf>::new());
}

#[test]
fn on_a_bridge_kea_gives_32_bits_and_the_router_is_on_the_link() {
    need!("kea-dhcp4");
    let (host, pod) = (host(), Pod::new());
    let subnet = real::cloud(&hex(&classless(OWN.octets()), ""));
    let _kea = Kea::start_with(&host, host.dir(), "br0", 50, &[], &subnet);
    let network = network(&host);
    let attachment = Attachment::new("c1", &pod);
    let result = network.added(&attachment);
    assert_eq!((address(&result), &result["routes"]), ("10.8.0.10/32", &routes("10.8.0.1")));
    assert_reached(&pod, "10.8.0.1");
    network.check(&attachment, &result).success();
    network.deleted(&attachment, None);
    assert_eq!(leases(&host), Vec::<PathBuf>::new());
}

#[test]
fn below_the_go_bridge_our_plugin_gives_what_the_go_plugin_gives() {
    need_recent_go!(go);
    let host = host();
    let server = server(&host);
    // The Go plugin can install this order.
    let option = [&[32, 10, 8, 0, 1, 0, 0, 0, 0][..], &[0, 10, 8, 0, 1]].concat();
    server.now(|manner| manner.more = vec![(3, OWN.octets().to_vec()), (121, option)]);
    let mixed = host.dir().join("mixed");
    std::fs::create_dir(&mixed).unwrap();
    std::os::unix::fs::symlink(go.join("bridge"), mixed.join("bridge")).unwrap();
    std::os::unix::fs::symlink(cnimble_tests::plugin_dir().join("dhcp"), mixed.join("dhcp")).unwrap();
    let daemon = reference::GoDaemon::start(&host, go);
    let ours = network(&host).served_by(&mixed);
    let theirs = network(&host).served_by(go).with("/ipam/daemonSocketPath", json!(daemon.socket));
    let theirs = theirs.with("/ipam/request", json!([{"option": "121"}]));
    for prefix in [24, 32] {
        server.now(|manner| manner.prefix = prefix);
        let results = [&ours, &theirs].map(|network| {
            let pod = Pod::new();
            let attachment = Attachment::new("c1", &pod);
            let result = network.added(&attachment);
            assert_reached(&pod, "10.8.0.1");
            // The Go bridge does not recognize its own on-link route.
            assert_eq!(network.check(&attachment, &result).error().code, 999);
            network.deleted(&attachment, Some(&result));
            (result["ips"].clone(), result["routes"].clone())
        });
        assert_eq!(results[0], results[1]);
        assert_eq!(results[0].1, routes("10.8.0.1"));
    }
}
