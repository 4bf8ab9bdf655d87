use cnimble_tests::{PATIENCE, Snapshot, wait_until};

use super::*;

#[test]
fn the_device_is_in_the_pod_until_del_restores_it() {
    let (host, pod) = (Host::hasty(), Pod::new());
    let lan = card(&host);
    let before = Snapshot::of(&host);
    let network = network(&host);
    network.status().success();
    let attachment = attachment("c1", &pod);
    let result = network.added(&attachment);

    let link = pod.link("net1");
    assert_eq!((&link["address"], &link["ifalias"]), (&json!("02:00:00:00:00:77"), &json!("card")));
    let interfaces = json!([{"name": "net1", "mac": link["address"], "sandbox": pod.path()}]);
    assert_eq!(result["interfaces"], interfaces);
    assert_eq!(
        (&result["ips"][0]["address"], &result["ips"][0]["interface"]),
        (&json!("10.7.0.10/24"), &json!(0))
    );
    assert_eq!(pod.addrs("net1")[..2], ["10.7.0.10/24", "fd00:7::10/64"], "{:?}", pod.addrs("net1"));
    assert!(pod.ip("route show 10.99.0.0/16").contains("via 10.7.0.1 dev net1"));
    assert!(pod.pings_once("10.7.0.1") && pod.pings_once("fd00:7::1"));
    assert!(lan.pings_once("10.7.0.10") && lan.pings_once("fd00:7::10"));
    assert_eq!((names(&host), recorded(&host)), (vec!["lo".to_owned()], 1));
    network.check(&attachment, &result).success();
    // No error of the network.
    network.status().success();

    for prev in [Some(&result), None] {
        network.deleted(&attachment, prev);
        assert_eq!((leases(&host), pod.links(), recorded(&host)), (Vec::new(), vec!["lo".to_owned()], 0));
    }
    before.without("leases").assert_same(&Snapshot::of(&host).without("leases"), "after DEL");
    assert!(host.pings_once("10.7.0.1") && host.pings_once("fd00:7::1"));
}

#[test]
fn without_ipam_the_device_is_up_and_has_no_addresses() {
    let (host, pod) = (Host::hasty(), Pod::new());
    let _lan = card(&host);
    let network = network(&host).with("/ipam", json!({}));
    network.status().success();
    let attachment = attachment("c1", &pod);
    let result = network.added(&attachment);
    assert_eq!((&result["ips"], &result["routes"]), (&Value::Null, &Value::Null), "{result:#}");
    assert!(pod.link("net1")["flags"].as_array().unwrap().contains(&json!("UP")));
    assert_eq!(pod.ip("-4 address show dev net1"), "");
    network.check(&attachment, &result).success();
    network.deleted(&attachment, Some(&result));
    assert_eq!(
        (names(&host), pod.links()),
        (vec!["card".to_owned(), "lo".to_owned()], vec!["lo".to_owned()])
    );
}

#[test]
fn a_device_that_was_down_and_had_no_alias_is_so_again() {
    let (host, pod) = (Host::hasty(), Pod::new());
    let lan = Pod::new();
    host.ip(&format!("link add card type veth peer name lan0 netns {}", lan.path()));
    lan.ip("link set lan0 up");
    lan.ip("address add 10.7.0.1/24 dev lan0");
    let before = Snapshot::of_ns(&host);
    let attachment = attachment("c1", &pod);
    let result = network(&host).added(&attachment);
    assert!(pod.pings_once("10.7.0.1"));
    network(&host).deleted(&attachment, Some(&result));
    before.assert_same(&Snapshot::of_ns(&host), "after DEL");
}

#[test]
fn the_device_is_found_by_its_mac_and_by_its_path_in_sysfs() {
    let (host, pod) = (Host::hasty(), Pod::new());
    let _lan = card(&host);
    let by_mac = network(&host).with("/device", json!("")).with("/hwaddr", json!("02-00-00-00-00-77"));
    by_mac.status().success();
    let one = attachment("c1", &pod);
    let result = by_mac.added(&one);
    assert_eq!(result["interfaces"][0]["mac"], "02:00:00:00:00:77");
    by_mac.check(&one, &result).success();
    by_mac.deleted(&one, Some(&result));
    assert_eq!(host.link("card")["address"], "02:00:00:00:00:77");

    // sysfs shows the interfaces of the namespace that it was mounted in.
    let by_path =
        network(&host).with("/device", json!("")).with("/kernelpath", json!("/sys/devices/virtual/none"));
    refused(&by_path.add(&one), 100, "device \"none\" has no interface on the host");
    refused(&by_path.status(), 50, "has no interface on the host");
    let by_pci = network(&host).with("/pciBusID", json!("ffff:1f:1f.7"));
    refused(&by_pci.add(&one), 100, "PCI device \"ffff:1f:1f.7\" is missing on the host");
    let by_id =
        network(&host).with("/device", json!("")).with("/runtimeConfig", json!({"deviceID": "none.sf.1"}));
    refused(&by_id.add(&one), 100, "device \"none.sf.1\" is missing on the host");
    for network in [by_path, by_pci, by_id] {
        network.deleted(&one, None);
    }
    assert_eq!((names(&host), recorded(&host)), (vec!["card".to_owned(), "lo".to_owned()], 0));
}

#[test]
fn addresses_that_were_known_under_another_mac_are_announced() {
    let (host, pod) = (Host::hasty(), Pod::new());
    let lan = card(&host);
    // While the card is moved, its other end has no carrier, and may forget all neighbours. With these settings an
    // announcement adds one again.
    lan.set_sysctl("ipv4/conf/lan0/arp_accept", "1");
    lan.set_sysctl("ipv6/conf/lan0/forwarding", "1");
    lan.set_sysctl("ipv6/conf/lan0/accept_untracked_na", "1");
    for ip in ["10.7.0.10", "fd00:7::10"] {
        lan.ip(&format!("neigh replace {ip} lladdr 02:00:00:00:00:99 dev lan0 nud stale"));
    }
    network(&host).added(&attachment("c1", &pod));
    for ip in ["10.7.0.10", "fd00:7::10"] {
        let known = || lan.ip(&format!("neigh show {ip} dev lan0"));
        assert!(wait_until(PATIENCE, || known().contains("02:00:00:00:00:77")), "{}", known());
    }
}
