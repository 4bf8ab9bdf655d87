//! Addresses that other hosts on the network use already.

use cnimble_tests::{PATIENCE, wait_until, with_kind};

use super::*;

#[test]
fn an_ipv6_address_of_another_host_fails_add_and_leaves_nothing() {
    with_kind!("macvlan");
    let (host, pod) = (Host::hasty(), Pod::new());
    let lan = Lan::behind(&host, "uplink");
    let network = Network::new(&host, config(&host));
    lan.assert_asked("lan0", &network, &Attachment::new("c1", &pod), &pod);
}

#[test]
fn an_ipv4_address_of_another_host_fails_add_if_it_is_probed_for() {
    with_kind!("macvlan");
    let (host, pod) = (Host::hasty(), Pod::new());
    let lan = Lan::behind(&host, "uplink");
    let network = Network::new(&host, config(&host)).with("/arpProbe", json!(true));
    lan.assert_asked("lan0", &network, &Attachment::new("c1", &pod), &pod);
}

#[test]
fn probed_addresses_are_announced_and_the_key_is_a_boolean() {
    with_kind!("macvlan");
    let (host, pod) = (Host::hasty(), Pod::new());
    let lan = Lan::behind(&host, "uplink");
    lan.ip("neigh replace 10.7.0.10 lladdr 02:00:00:00:00:77 dev lan0 nud stale");
    let network = Network::new(&host, config(&host));
    let attachment = Attachment::new("c1", &pod);
    refused(&network.with("/arpProbe", json!("yes")).add(&attachment), 7, "arpProbe: invalid type: \"yes\"");
    assert_eq!(pod.links(), ["lo"]);
    let result = network.with("/arpProbe", json!(true)).added(&attachment);
    let mac = result["interfaces"][0]["mac"].as_str().unwrap();
    let known = || lan.ip("neigh show dev lan0");
    assert!(wait_until(PATIENCE, || known().contains(mac)), "{}", known());
}

#[test]
fn two_pods_of_one_master_with_the_same_address_are_noticed() {
    with_kind!("macvlan");
    let (host, first, second) = (Host::hasty(), Pod::new(), Pod::new());
    let _lan = Lan::behind(&host, "uplink");
    let network = Network::new(&host, config(&host));
    network.added(&Attachment::new("c1", &first));
    let other = network.with("/name", json!("another"));
    refused(&other.add(&Attachment::new("c2", &second)), 102, "another host on the network has fd00:7::10");
    assert_eq!(second.links(), ["lo"]);
}

#[test]
fn without_a_carrier_add_does_not_wait_and_warns() {
    with_kind!("macvlan");
    let (host, pod) = (Host::hasty(), Pod::new());
    let lan = Lan::behind(&host, "uplink");
    lan.ip("link set lan0 down");
    let network = Network::new(&host, config(&host));
    let outcome = network.add(&Attachment::new("c1", &pod)).success();
    let warned = "whether another host has [fd00:7::10] is unknown: eth0 has no carrier";
    assert!(outcome.stderr.contains(warned), "{}", outcome.stderr);
    assert!(pod.addrs("eth0").contains(&"fd00:7::10/64".to_owned()));
}
