//! `hostShim`: the host reaches its own pods.

use cnimble_tests::with_kind;

use super::*;

/// With the master's own addresses.
fn place(uplink: &str) -> (Host, Lan) {
    let host = Host::hasty();
    let lan = Lan::behind(&host, uplink);
    host.ip(&format!("address add 10.7.0.2/24 dev {uplink}"));
    host.ip(&format!("address add fd00:7::2/64 dev {uplink} nodad"));
    (host, lan)
}

fn shims(host: &Host) -> Vec<String> {
    host.links().into_iter().filter(|name| name.starts_with("shim")).collect()
}

#[test]
fn the_host_reaches_its_pods_and_other_hosts_see_one_hardware_address() {
    with_kind!("macvlan");
    let (host, lan) = place("uplink");
    // As strict as some distributions are.
    host.set_sysctl("ipv4/conf/all/rp_filter", "1");
    let before = Snapshot::of(&host).without("leases");
    let without = Network::new(&host, config(&host));
    let network = without.with("/hostShim", json!(true));
    let pods = [Pod::new(), Pod::new()];
    let [one, two] = [Attachment::new("c1", &pods[0]), Attachment::new("c2", &pods[1])];
    without.added(&one);
    assert!(!host.pings_once("10.7.0.10"), "the kernel passes nothing between a master and a macvlan");
    without.deleted(&one, None);

    let first = network.added(&one);
    let of_one = shims(&host).remove(0);
    let results = [first, network.added(&two)];
    assert_eq!(shims(&host).len(), 2);
    for result in &results {
        for ip in result["ips"].as_array().unwrap() {
            let (address, _) = ip["address"].as_str().unwrap().split_once('/').unwrap();
            assert!(host.pings(address), "{address}");
        }
    }
    assert!(pods[0].pings("10.7.0.2"), "and a pod reaches the host by IPv4");
    for ip in ["10.7.0.2", "fd00:7::2", "10.7.0.11"] {
        assert!(lan.pings(ip), "{ip}");
    }
    let uplink = host.link("uplink")["address"].as_str().unwrap().to_owned();
    for ip in ["10.7.0.2", "fd00:7::2"] {
        let known = lan.ip(&format!("neigh show {ip} dev lan0"));
        assert!(known.contains(&uplink), "{known}");
    }

    network.check(&one, &results[0]).success();
    host.ip("route del 10.7.0.11/32");
    refused(&network.check(&one, &results[0]), 103, "route 10.7.0.11/32 is missing on the host (hostShim)");
    network.check(&two, &results[1]).success();

    // Without the key, and without a namespace.
    without.deleted(&one.clone().netns(""), Some(&results[0]));
    assert!(!shims(&host).contains(&of_one));
    without.deleted(&one, Some(&results[0]));
    network.deleted(&two, Some(&results[1]));
    before.assert_same(&Snapshot::of(&host).without("leases"), "after DEL");
}

#[test]
fn gc_removes_the_shims_of_attachments_that_are_not_valid() {
    with_kind!("macvlan");
    let (host, _lan) = place("uplink");
    let network = Network::new(&host, config(&host)).with("/hostShim", json!(true));
    let pods = [Pod::new(), Pod::new()];
    let [kept, gone] = [Attachment::new("c1", &pods[0]), Attachment::new("c2", &pods[1])];
    let result = network.added(&kept);
    network.added(&gone);
    network.gc(Some(json!([kept.listed()]))).success();
    assert_eq!(shims(&host).len(), 1);
    network.check(&kept, &result).success();
    assert!(host.pings("10.7.0.10"));
}

#[test]
fn a_shim_that_cannot_lead_to_the_pod_fails_add_and_leaves_nothing() {
    with_kind!("macvlan");
    let (host, pod) = (Host::hasty(), Pod::new());
    let _lan = Lan::behind(&host, "uplink");
    let network = Network::new(&host, config(&host)).with("/hostShim", json!(true));
    let attachment = Attachment::new("c1", &pod);
    let before = Snapshot::of(&host).without("leases");
    let why = "hostShim: uplink has no address in the network of 10.7.0.10/24";
    refused(&network.add(&attachment), 100, why);
    before.assert_same(&Snapshot::of(&host).without("leases"), "without an address of the master");
    assert_eq!((leases(&host), pod.links()), (Vec::new(), vec!["lo".to_owned()]));

    host.ip("address add 10.7.0.2/24 dev uplink");
    host.ip("address add fd00:7::2/64 dev uplink nodad");
    host.ip("route add 10.7.0.10/32 dev uplink");
    let before = Snapshot::of(&host).without("leases");
    refused(&network.add(&attachment), 102, "hostShim: the host has a route to the pod already");
    before.assert_same(&Snapshot::of(&host).without("leases"), "with another route to the pod");

    for (key, value) in [("/mode", json!("private")), ("/linkInContainer", json!(true))] {
        refused(&network.with(key, value).add(&attachment), 7, "hostShim: impossible here");
    }
    refused(&network.with("/hostShim", json!("yes")).add(&attachment), 7, "hostShim: invalid type");
    assert_eq!((leases(&host), pod.links()), (Vec::new(), vec!["lo".to_owned()]));
}

/// A pod with the capability `ips`: its author chooses.
fn chosen<'h>(host: &'h Host, ips: &[&str]) -> Network<'h> {
    let config = json!({
        "cniVersion": "1.1.0", "name": "outside", "type": "macvlan", "master": "uplink", "hostShim": true,
        "ipam": {"type": "static"}, "runtimeConfig": {"ips": ips},
    });
    Network::new(host, config)
}

#[test]
fn no_pod_takes_an_address_that_the_host_reaches_elsewhere() {
    with_kind!("macvlan");
    let (host, pod) = (Host::hasty(), Pod::new());
    let lan = Lan::behind(&host, "uplink");
    let other = Pod::new();
    // As in clouds, the master has a /32.
    host.ip("address add 10.7.0.2/32 dev uplink");
    host.ip("route add 10.7.0.0/24 dev uplink");
    host.ip("address add fd00:7::2/64 dev uplink nodad");
    host.ip("route add default via 10.7.0.1 dev uplink");
    host.ip(
        "route add 10.50.0.0/16 table 50 nexthop via 10.7.0.3 dev uplink nexthop via 10.7.0.4 dev uplink",
    );
    host.ip("nexthop add id 5 via 10.7.0.5 dev uplink");
    host.ip("-6 route add 2001:db8::/32 via fd00:7::3 dev uplink");
    host.cable("second", &other, "eth0");
    host.ip("address add 10.7.1.1/24 dev second");
    host.ip("link add standby type veth peer name unused");
    host.ip("address add 10.7.0.6/32 dev standby");
    lan.ip("address add 10.7.0.53/24 dev lan0");
    assert!(host.pings("10.7.0.53"));
    let before = Snapshot::settled(&host);
    for (ip, why) in [
        ("198.51.100.10/0", "198.51.100.10 is reached by way of 10.7.0.1, not on the link of uplink"),
        ("10.7.1.9/8", "10.7.1.9 is reached by second, not on the link of uplink"),
        ("10.7.0.2/24", "10.7.0.2 is an address of the host"),
        ("10.7.0.6/24", "10.7.0.6 is an address of the host"),
        ("10.7.0.1/24", "10.7.0.1 is a next hop of the host's routes"),
        ("10.7.0.4/24", "10.7.0.4 is a next hop of the host's routes"),
        ("10.7.0.5/24", "10.7.0.5 is a next hop of the host's routes"),
        ("10.7.0.255/24", "10.7.0.255 is no address of a single host"),
        ("10.7.0.53/24", "another host on the link of uplink has 10.7.0.53"),
        ("fd00:7::2/64", "fd00:7::2 is an address of the host"),
        ("fd00:7::3/64", "fd00:7::3 is a next hop of the host's routes"),
        ("2001:db8::9/64", "2001:db8::9 is reached by way of fd00:7::3"),
        ("fd99::9/64", "fd99::9 is not known to be on the link of uplink: the host has no route to it"),
    ] {
        if ip == "10.7.0.255/24" {
            host.ip("address add 10.7.0.2/24 dev uplink");
        }
        let outcome = chosen(&host, &[ip]).add(&Attachment::new("c1", &pod));
        if ip == "10.7.0.255/24" {
            host.ip("address del 10.7.0.2/24 dev uplink");
        }
        refused(&outcome, 102, &format!("hostShim: {why}"));
        assert_eq!(pod.links(), ["lo"], "{ip}");
        before.assert_same(&Snapshot::settled(&host), ip);
    }
    let network = chosen(&host, &["10.7.0.9/24", "fd00:7::9/64"]);
    let attachment = Attachment::new("c1", &pod);
    let result = network.added(&attachment);
    assert!(host.pings("10.7.0.9") && host.pings("fd00:7::9"));
    network.check(&attachment, &result).success();
    network.deleted(&attachment, Some(&result));
    before.assert_same(&Snapshot::settled(&host), "after DEL");
}

/// The pod was on another node, or had another hardware address.
#[test]
fn a_pod_that_moved_here_gets_its_address_once_nobody_answers_for_it() {
    with_kind!("macvlan");
    let (host, pod) = (Host::hasty(), Pod::new());
    let lan = Lan::behind(&host, "uplink");
    host.ip("address add 10.7.0.2/24 dev uplink");
    let network = chosen(&host, &["10.7.0.9/24"]);
    let attachment = Attachment::new("c1", &pod);
    lan.ip("address add 10.7.0.9/24 dev lan0");
    let mac = lan.link("lan0")["address"].as_str().unwrap().to_owned();
    for state in ["permanent", "reachable", "stale"] {
        host.ip(&format!("neigh replace 10.7.0.9 lladdr {mac} dev uplink nud {state}"));
        let why = "hostShim: another host on the link of uplink has 10.7.0.9";
        refused(&network.add(&attachment), 102, why);
        assert_eq!(pod.links(), ["lo"], "{state}");
    }
    lan.ip("address del 10.7.0.9/24 dev lan0");
    for state in ["stale", "delay", "probe", "failed"] {
        host.ip("neigh flush dev uplink");
        host.ip(&format!("neigh replace 10.7.0.9 lladdr {mac} dev uplink nud {state}"));
        let result = network.added(&attachment);
        assert!(host.pings("10.7.0.9"), "{state}");
        network.deleted(&attachment, Some(&result));
    }
}
