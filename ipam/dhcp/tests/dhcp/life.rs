use cnimble_tests::{Lan, Ns, Snapshot, need, with_kind};
use real::Dnsmasq;

use super::*;

/// Its shortest lease is two minutes.
fn dnsmasq(ns: &Ns, dir: &Path, interface: &str, net: &str) -> Dnsmasq {
    let routes =
        format!("--dhcp-option=option:classless-static-route,10.99.0.0/16,{net}.7,0.0.0.0/0,{net}.1");
    let options = ["--dhcp-option=option:dns-server,192.0.2.53", "--domain=example.org", &routes];
    Dnsmasq::start(ns, dir, interface, net, "2m", &options)
}

#[test]
fn on_a_bridge_dnsmasq_gives_and_releases_addresses() {
    need!("dnsmasq");
    let (host, pod) = (host(), Pod::new());
    let server = dnsmasq(&host, host.dir(), "br0", "10.8.0");
    let network = network(&host);
    network.status().success();
    let attachment = Attachment::new("c1", &pod);
    // The bridge has had a port before.
    network.added(&attachment);
    network.deleted(&attachment, None);
    let before = Snapshot::of(&host);
    let result = network.added(&attachment);
    assert!(address(&result).starts_with("10.8.0.") && address(&result).ends_with("/24"), "{result:#}");
    assert_eq!(ipv4(&pod), [address(&result)]);
    assert!(pod.ip("route show 10.99.0.0/16").contains("via 10.8.0.7 dev eth0"));
    assert!(pod.ip("route show default").contains("via 10.8.0.1 dev eth0"));
    assert_eq!(result["dns"]["nameservers"], json!(["192.0.2.53"]));
    assert_eq!(result["dns"]["domain"], "example.org");
    assert!(pod.pings("10.8.0.1"));
    network.check(&attachment, &result).success();
    network.deleted(&attachment, Some(&result));
    assert!(wait_until(PATIENCE, || server.log().contains("DHCPRELEASE")), "{}", server.log());
    assert_ended(&host);
    before.without("leases").assert_same(&Snapshot::of(&host).without("leases"), "after DEL");
}

#[test]
fn on_a_macvlan_dnsmasq_gives_and_releases_addresses() {
    need!("dnsmasq");
    with_kind!("macvlan");
    let (host, pod) = (Host::hasty(), Pod::new());
    let lan = Lan::behind(&host, "uplink");
    let server = dnsmasq(&lan, host.dir(), "lan0", "10.7.0");
    let ipam = json!({"type": "dhcp", "daemonSocketPath": socket(&host)});
    let config = json!({"cniVersion": "1.0.0", "name": "outside", "type": "macvlan", "master": "uplink", "ipam": ipam});
    let network = Network::new(&host, config);
    let attachment = Attachment::new("c1", &pod);
    let result = network.added(&attachment);
    assert_eq!(ipv4(&pod), [address(&result)]);
    assert!(pod.pings("10.7.0.1"));
    network.check(&attachment, &result).success();
    network.deleted(&attachment, None);
    assert_eq!(pod.links(), ["lo"]);
    assert!(wait_until(PATIENCE, || server.log().contains("DHCPRELEASE")), "{}", server.log());
    assert_ended(&host);
}

#[test]
fn twenty_pods_share_a_daemon_and_have_different_addresses() {
    let host = host();
    let _server = server(&host);
    let network = network(&host);
    let pods: Vec<Pod> = (0..20).map(|_| Pod::new()).collect();
    let attachments: Vec<Attachment> =
        pods.iter().enumerate().map(|(n, pod)| Attachment::new(&format!("c{n}"), pod)).collect();
    let mut addresses: Vec<String> = std::thread::scope(|scope| {
        let network = &network;
        let add = |one| scope.spawn(move || address(&network.added(one)).to_owned());
        let all: Vec<_> = attachments.iter().map(add).collect();
        all.into_iter().map(|one| one.join().unwrap()).collect()
    });
    addresses.sort();
    addresses.dedup();
    assert_eq!((addresses.len(), leases(&host).len(), daemons(&socket(&host)).len()), (20, 20, 1));
    // A GC that lists half of them.
    let valid: Vec<Value> = attachments[..10].iter().map(Attachment::listed).collect();
    network.gc(Some(json!(valid))).success();
    assert_eq!(leases(&host).len(), 10);
    std::thread::scope(|scope| {
        let network = &network;
        for one in &attachments {
            scope.spawn(move || network.deleted(one, None));
        }
    });
    assert_ended(&host);
}
