use cnimble_tests::{PATIENCE, wait_until, with_kind};

use super::*;

#[test]
fn a_pod_is_on_the_masters_network_and_del_leaves_nothing() {
    with_kind!("macvlan");
    let (host, pod, other) = (Host::hasty(), Pod::new(), Pod::new());
    let lan = Lan::behind(&host, "uplink");
    // As on nearly every host.
    host.ip("link add eth0 type veth peer name eth1");
    let before = Snapshot::of(&host);
    let network = Network::new(&host, config(&host));
    network.status().success();
    let attachment = Attachment::new("c1", &pod);
    let result = network.added(&attachment);

    let link = pod.link("eth0");
    assert_eq!(link["linkinfo"]["info_kind"], "macvlan");
    assert_eq!(settings(&pod, "eth0")["mode"], "bridge");
    let interfaces = json!([{"name": "eth0", "mac": link["address"], "sandbox": pod.path()}]);
    assert_eq!(result["interfaces"], interfaces);
    assert_eq!(
        (&result["ips"][0]["address"], &result["ips"][0]["interface"]),
        (&json!("10.7.0.10/24"), &json!(0))
    );
    assert_eq!(pod.addrs("eth0")[..2], ["10.7.0.10/24", "fd00:7::10/64"], "{:?}", pod.addrs("eth0"));
    assert!(pod.ip("route show 10.99.0.0/16").contains("via 10.7.0.1 dev eth0"));
    assert!(pod.pings("10.7.0.1") && pod.pings("fd00:7::1"));
    assert!(lan.pings("10.7.0.10") && lan.pings("fd00:7::10"));
    let second = Attachment::new("c2", &other);
    let second_result = network.added(&second);
    assert!(other.pings("10.7.0.10") && other.pings("fd00:7::10"), "pods of a bridge hear each other");
    assert_eq!(host.links(), ["eth0", "eth1", "lo", "uplink"], "nothing is on the host");
    network.check(&attachment, &result).success();

    network.deleted(&second, Some(&second_result));
    for prev in [Some(&result), None] {
        network.deleted(&attachment, prev);
        assert_eq!((leases(&host), pod.links()), (Vec::new(), vec!["lo".to_owned()]));
    }
    before.without("leases").assert_same(&Snapshot::of(&host).without("leases"), "after DEL");
}

#[test]
fn without_ipam_the_interface_is_up_and_has_no_addresses() {
    with_kind!("macvlan");
    let (host, pod) = (Host::hasty(), Pod::new());
    let _lan = Lan::behind(&host, "uplink");
    let network = Network::new(&host, config(&host)).with("/ipam", json!({}));
    network.status().success();
    let attachment = Attachment::new("c1", &pod);
    let result = network.added(&attachment);
    assert_eq!((&result["ips"], &result["routes"]), (&Value::Null, &Value::Null), "{result:#}");
    assert!(pod.link("eth0")["flags"].as_array().unwrap().contains(&json!("UP")));
    assert_eq!(pod.ip("-4 address show dev eth0"), "");
    network.check(&attachment, &result).success();
    network.deleted(&attachment, Some(&result));
    assert_eq!(pod.links(), ["lo"]);
}

#[test]
fn addresses_that_were_known_under_another_mac_are_announced() {
    with_kind!("macvlan");
    let (host, pod) = (Host::hasty(), Pod::new());
    let lan = Lan::behind(&host, "uplink");
    for ip in ["10.7.0.10", "fd00:7::10"] {
        lan.ip(&format!("neigh replace {ip} lladdr 02:00:00:00:00:77 dev lan0 nud stale"));
    }
    let network = Network::new(&host, config(&host));
    let result = network.added(&Attachment::new("c1", &pod));
    let mac = result["interfaces"][0]["mac"].as_str().unwrap();
    for ip in ["10.7.0.10", "fd00:7::10"] {
        let known = || lan.ip(&format!("neigh show {ip} dev lan0"));
        assert!(wait_until(PATIENCE, || known().contains(mac)), "{}", known());
    }
}

#[test]
fn twenty_adds_at_once_on_one_master_all_succeed() {
    with_kind!("macvlan");
    let host = Host::hasty();
    let _lan = Lan::behind(&host, "uplink");
    let network = Network::new(&host, config(&host));
    let pods: Vec<Pod> = (0..20).map(|_| Pod::new()).collect();
    std::thread::scope(|scope| {
        for (number, pod) in pods.iter().enumerate() {
            let network = &network;
            scope.spawn(move || network.added(&Attachment::new(&format!("c{number}"), pod)));
        }
    });
    let mut macs: Vec<String> = pods.iter().map(|pod| pod.link("eth0")["address"].to_string()).collect();
    macs.sort();
    macs.dedup();
    assert_eq!((macs.len(), leases(&host).len()), (20, 40));
}
