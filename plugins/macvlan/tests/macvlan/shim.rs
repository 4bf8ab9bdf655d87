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
