//! Tests that need ipvlan. The machine boots once per module.

use cnimble_tests::{PATIENCE, go_to_meet, skip, wait_until, with_kind};

use super::*;

fn link_local(pod: &Pod, name: &str) -> String {
    let found = pod.ip_json(&format!("-6 address show dev {name} scope link"));
    // `ip` prints empty objects for other scopes.
    let mut locals =
        found[0]["addr_info"].as_array().into_iter().flatten().filter_map(|info| info["local"].as_str());
    locals.next().unwrap_or_default().to_owned()
}

#[test]
fn a_pod_is_on_the_masters_network_with_its_mac_and_del_leaves_nothing() {
    with_kind!("ipvlan");
    let (host, pod, other) = (Host::hasty(), Pod::new(), Pod::new());
    let lan = Lan::behind(&host, "uplink");
    host.ip("link add eth0 type veth peer name eth1");
    let before = Snapshot::of(&host).without("leases");
    let network = Network::new(&host, config(&host)).with("/mtu", json!(1400));
    network.status().success();
    let attachment = Attachment::new("c1", &pod);
    let result = network.added(&attachment);
    let link = pod.link("eth0");
    assert_eq!(
        (&link["linkinfo"]["info_kind"], &link["linkinfo"]["info_data"]["mode"]),
        (&json!("ipvlan"), &json!("l2"))
    );
    assert_eq!(link["address"], host.link("uplink")["address"]);
    let interfaces = json!([{"name": "eth0", "mac": link["address"], "sandbox": pod.path()}]);
    assert_eq!(result["interfaces"], interfaces);
    assert_eq!(pod.addrs("eth0")[..2], ["10.7.0.10/24", "fd00:7::10/64"], "{:?}", pod.addrs("eth0"));
    let second = Attachment::new("c2", &other);
    let second_result = network.added(&second);
    for to in ["10.7.0.1", "fd00:7::1", "10.7.0.11", "fd00:7::11"] {
        assert!(pod.pings_once(to), "{to}");
    }
    assert!(lan.pings_once("10.7.0.10") && lan.pings_once("fd00:7::10"));
    // Link-local addresses derive from the common hardware address.
    let own = [link_local(&pod, "eth0"), link_local(&other, "eth0"), link_local(&host, "uplink")];
    assert!(own[0] != own[1] && own[0] != own[2] && own[1] != own[2], "{own:?}");
    assert!(own.iter().all(|address| address.starts_with("fe80:")), "{own:?}");
    network.check(&attachment, &result).success();
    network.deleted(&second, Some(&second_result));
    for prev in [Some(&result), None] {
        network.deleted(&attachment, prev);
        assert_eq!((leases(&host), pod.links()), (Vec::new(), vec!["lo".to_owned()]));
    }
    before.assert_same(&Snapshot::of(&host).without("leases"), "after DEL");
}

/// The kernel gives every ipvlan the master's new MAC, which a bond's failover changes.
#[test]
fn a_pod_of_the_go_plugin_is_removed_after_the_masters_mac_has_changed() {
    with_kind!("ipvlan");
    let (host, pod) = (Host::hasty(), Pod::new());
    let _lan = Lan::behind(&host, "uplink");
    let network = Network::new(&host, config(&host));
    let attachment = Attachment::new("c1", &pod);
    let result = network.added(&attachment);
    // Go's has no alias.
    pod.ip("link set eth0 alias ''");
    host.ip("link set uplink address 02:00:00:00:00:99");
    assert_ne!(pod.link("eth0")["address"], result["interfaces"][0]["mac"]);
    network.deleted(&attachment, Some(&result));
    assert_eq!((leases(&host), pod.links()), (Vec::new(), vec!["lo".to_owned()]));
}

#[test]
fn an_ipv6_address_of_another_host_fails_add_and_leaves_nothing() {
    with_kind!("ipvlan");
    let (host, pod) = (Host::hasty(), Pod::new());
    let lan = Lan::behind(&host, "uplink");
    let network = Network::new(&host, config(&host));
    lan.assert_asked("lan0", &network, &Attachment::new("c1", &pod), &pod);
}

#[test]
fn an_ipv4_address_of_another_host_fails_add_if_it_is_probed_for() {
    with_kind!("ipvlan");
    let (host, pod) = (Host::hasty(), Pod::new());
    let lan = Lan::behind(&host, "uplink");
    let network = Network::new(&host, config(&host)).with("/arpProbe", json!(true));
    lan.assert_asked("lan0", &network, &Attachment::new("c1", &pod), &pod);
}

#[test]
fn each_mode_is_set_and_checked_and_carries_packets() {
    with_kind!("ipvlan");
    for (mode, other) in [("l2", "l3"), ("l3", "l3s"), ("l3s", "l2")] {
        let (host, pod) = (Host::hasty(), Pod::new());
        let lan = Lan::behind(&host, "uplink");
        let network = Network::new(&host, config(&host)).with("/mode", json!(mode));
        let network = match mode {
            "l2" => network,
            // The parent routes: no neighbours, and no next hop.
            _ => network.with("/ipam/routes", json!([{"dst": "10.99.0.0/16", "gw": "0.0.0.0"}])),
        };
        let attachment = Attachment::new("c1", &pod);
        let outcome = network.add(&attachment);
        if outcome.status != 0 && mode == "l3s" {
            refused(&outcome, 100, "ipvlan mode l3s");
            skip!("this kernel has no ipvlan mode l3s");
        }
        let result = outcome.result();
        assert_eq!(pod.link("eth0")["linkinfo"]["info_data"]["mode"], mode);
        if mode != "l2" {
            host.ip("address add 10.7.0.2/24 dev uplink");
            lan.ip("route add 10.7.0.10/32 via 10.7.0.2 dev lan0");
        }
        assert!(pod.pings("10.7.0.1"), "{mode}");
        network.check(&attachment, &result).success();
        let told = format!("is ipvlan mode {mode}, expected ipvlan mode {other}");
        refused(&network.with("/mode", json!(other)).check(&attachment, &result), 103, &told);
        network.deleted(&attachment, Some(&result));
        assert_eq!(pod.links(), ["lo"]);
    }
}

#[test]
fn addresses_that_were_known_under_another_mac_are_announced() {
    with_kind!("ipvlan");
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
fn behind_another_plugin_master_and_addresses_are_those_of_its_result() {
    with_kind!("ipvlan");
    let (host, pod) = (Host::hasty(), Pod::new());
    let lan = Lan::behind(&host, "uplink");
    let mut bare = config(&host);
    for key in ["master", "ipam"] {
        bare.as_object_mut().unwrap().remove(key);
    }
    let network = Network::new(&host, bare);
    let prev = json!({
        "cniVersion": "1.1.0",
        "interfaces": [{"name": "uplink"}],
        "ips": [{"address": "10.7.0.33/24", "gateway": "10.7.0.1", "interface": 0}],
        "routes": [{"dst": "10.99.0.0/16"}],
    });
    let attachment = Attachment::new("c1", &pod);
    let result = network.call("ADD", &attachment, Some(&prev)).run().result();
    let interfaces = result["interfaces"].as_array().unwrap();
    assert_eq!((interfaces.len(), &interfaces[0]["name"]), (1, &json!("eth0")));
    assert_eq!((&result["ips"], &result["routes"]), (&prev["ips"], &prev["routes"]));
    assert!(lan.pings_once("10.7.0.33"));
    assert!(pod.ip("route show 10.99.0.0/16").contains("via 10.7.0.1 dev eth0"));
    network.check(&attachment, &result).success();
    pod.ip("address del 10.7.0.33/24 dev eth0");
    refused(&network.check(&attachment, &result), 103, "lacks address 10.7.0.33/24");
    network.deleted(&attachment, Some(&result));
    assert_eq!(pod.links(), ["lo"]);
    // Neither prevResult nor IPAM has addresses.
    let mut empty = prev.clone();
    empty["ips"] = json!([]);
    refused(
        &network.call("ADD", &attachment, Some(&empty)).run(),
        7,
        "ipvlan requires an IPAM configuration",
    );
    // The host lacks the result's master.
    let mut gone = prev.clone();
    gone["interfaces"][0]["name"] = json!("none");
    refused(
        &network.call("ADD", &attachment, Some(&gone)).run(),
        100,
        "master \"none\" is missing on the host",
    );
    assert_eq!(pod.links(), ["lo"]);
}

#[test]
fn with_link_in_container_the_master_is_in_the_pod() {
    with_kind!("ipvlan");
    let (host, pod, lan) = (Host::hasty(), Pod::new(), Pod::new());
    pod.cable("uplink", &lan, "lan0");
    lan.ip("address add 10.7.0.1/24 dev lan0");
    let before = Snapshot::of_ns(&pod);
    let network = Network::new(&host, config(&host)).with("/linkInContainer", json!(true));
    let attachment = Attachment::new("c1", &pod).ifname("net1");
    let result = network.added(&attachment);
    assert_eq!(pod.link("net1")["link"], "uplink");
    assert!(pod.pings_once("10.7.0.1"));
    network.check(&attachment, &result).success();
    network.deleted(&attachment, Some(&result));
    before.assert_same(&Snapshot::of_ns(&pod), "after DEL");
}

#[test]
fn without_the_key_the_master_is_the_link_of_the_default_route() {
    with_kind!("ipvlan");
    let (host, pod) = (Host::hasty(), Pod::new());
    let _lan = Lan::behind(&host, "uplink");
    let network = Network::new(&host, config(&host)).with("/master", json!(null));
    let attachment = Attachment::new("c1", &pod);
    refused(&network.add(&attachment), 100, "no default route interface on the host");
    host.ip("address add 10.7.0.2/24 dev uplink");
    host.ip("route add default via 10.7.0.1");
    let result = network.added(&attachment);
    network.check(&attachment, &result).success();
    network.status().success();
}

#[test]
fn a_failed_add_leaves_host_pod_and_leases_as_they_were() {
    with_kind!("ipvlan");
    let (host, pod) = (Host::hasty(), Pod::new());
    let _lan = Lan::behind(&host, "uplink");
    pod.ip("link add eth1 type veth peer name end");
    let (before, inside) = (Snapshot::of(&host).without("leases"), Snapshot::of_ns(&pod));
    let network = Network::new(&host, config(&host));
    let attachment = Attachment::new("c1", &pod);
    let full = json!([[{"subnet": "10.7.0.0/24", "rangeStart": "10.7.0.1", "rangeEnd": "10.7.0.1"}]]);
    for (pointer, value, ifname, code, told) in [
        ("/master", json!("none"), "eth0", 100, "master \"none\" is missing on the host"),
        ("/master", json!("lo"), "eth0", 100, "ipvlan mode l2; its master lo is up"),
        ("/name", json!("outside"), "eth1", 102, "\"eth1\" is already taken"),
        ("/ipam/ranges", full, "eth0", 101, "no IP addresses available"),
        ("/ipam/routes", json!([{"dst": "10.99.0.0/16", "gw": "10.200.0.1"}]), "eth0", 100, "add route"),
    ] {
        refused(&network.with(pointer, value).add(&attachment.clone().ifname(ifname)), code, told);
        inside.assert_same(&Snapshot::of_ns(&pod), told);
        before.assert_same(&Snapshot::of(&host).without("leases"), told);
        assert_eq!(leases(&host), [""; 0], "{told}");
    }
    // All of a master have the first one's mode.
    network.added(&attachment);
    let other = Pod::new();
    network.with("/mode", json!("l3")).add(&Attachment::new("c2", &other));
    network.deleted(&attachment.ifname("eth1"), None);
    assert!(pod.links().contains(&"eth1".to_owned()));
}

#[test]
fn del_and_gc_go_by_what_is_left() {
    with_kind!("ipvlan");
    let host = Host::hasty();
    let _lan = Lan::behind(&host, "uplink");
    let network = Network::new(&host, config(&host));
    let pods: Vec<Pod> = (0..4).map(|_| Pod::new()).collect();
    let attachments: Vec<_> =
        pods.iter().enumerate().map(|(number, pod)| Attachment::new(&format!("c{number}"), pod)).collect();
    let results: Vec<_> = attachments.iter().map(|attachment| network.added(attachment)).collect();
    // Without the namespace; without a master and with another mode.
    network.deleted(&attachments[0].clone().netns(""), Some(&results[0]));
    network.with("/mode", json!("l3")).with("/master", json!("none")).deleted(&attachments[1], None);
    assert_eq!((leases(&host).len(), pods[1].links()), (4, vec!["lo".to_owned()]));
    let gc = network.gc_call(Some(json!([attachments[3].listed()])));
    gc.pinning(host.dir(), &[&pods[2], &pods[3]]).run().success();
    assert_eq!((leases(&host).len(), pods[2].links()), (2, vec!["lo".to_owned()]));
    network.check(&attachments[3], &results[3]).success();
}

#[test]
fn either_set_checks_and_removes_what_the_other_made_and_results_are_the_same() {
    with_kind!("ipvlan");
    let go = match go_to_meet() {
        Ok(go) if go.join("ipvlan").exists() => go,
        Ok(_) => skip!("these Go plugins have no ipvlan"),
        Err(why) => skip!("{why}"),
    };
    for mode in ["l2", "l3"] {
        let host = Host::hasty();
        let _lan = Lan::behind(&host, "uplink");
        let mut config = config(&host);
        config["cniVersion"] = "1.0.0".into();
        config["mode"] = mode.into();
        config["mtu"] = 1400.into();
        let ours = Network::new(&host, config);
        let theirs = ours.served_by(go);
        let mut seen = Vec::new();
        for (one, other) in [(&ours, &theirs), (&theirs, &ours)] {
            let pod = Pod::new();
            let attachment = Attachment::new("c1", &pod).args("IgnoreUnknown=1;IP=10.7.0.77");
            let mut result = one.added(&attachment);
            other.check(&attachment, &result).success();
            let mut link = pod.link("eth0");
            link.as_object_mut().unwrap().retain(|key, _| {
                !key.starts_with("gso")
                    && !key.starts_with("gro")
                    && !["ifalias", "ifindex"].contains(&key.as_str())
            });
            result["interfaces"][0]["sandbox"] = json!("");
            // Before 1.9, the Go plugin printed an empty `dns`, and no length.
            result.as_object_mut().unwrap().retain(|key, value| key != "dns" || *value != json!({}));
            link["txqlen"] = json!(null);
            result["ips"].as_array_mut().unwrap().truncate(1);
            seen.push((result, link, pod.ip("route show"), pod.addrs("eth0")[0].clone()));
            other.deleted(&attachment, None);
            assert_eq!((leases(&host), pod.links()), (Vec::new(), vec!["lo".to_owned()]));
        }
        assert_eq!(seen[0], seen[1], "{mode}");
    }
}

#[test]
fn the_host_reaches_its_pods_by_a_shim_in_each_mode() {
    with_kind!("ipvlan");
    for mode in ["l2", "l3", "l3s"] {
        let (host, pod) = (Host::hasty(), Pod::new());
        let _lan = Lan::behind(&host, "uplink");
        host.ip("address add 10.7.0.2/24 dev uplink");
        host.ip("address add fd00:7::2/64 dev uplink nodad");
        let before = Snapshot::of(&host).without("leases");
        let network = Network::new(&host, config(&host)).with("/mode", json!(mode));
        let network = network.with("/ipam/routes", json!([])).with("/hostShim", json!(true));
        let attachment = Attachment::new("c1", &pod);
        if mode == "l2" {
            // The pod's packets would arrive at the master.
            host.set_sysctl("ipv4/conf/all/rp_filter", "1");
            refused(&network.add(&attachment), 100, "hostShim: rp_filter of uplink drops what pods answer");
            host.set_sysctl("ipv4/conf/all/rp_filter", "0");
            before.assert_same(&Snapshot::of(&host).without("leases"), "after a failed ADD");
        }
        let result = network.added(&attachment);
        assert!(host.pings("10.7.0.10") && host.pings("fd00:7::10"), "{mode}");
        network.check(&attachment, &result).success();
        network.deleted(&attachment, Some(&result));
        before.assert_same(&Snapshot::of(&host).without("leases"), mode);
    }
}

#[test]
fn a_master_that_carries_macvlans_is_busy_and_the_error_says_why() {
    with_kind!("ipvlan");
    let (host, pod) = (Host::hasty(), Pod::new());
    let _lan = Lan::behind(&host, "uplink");
    host.ip("link add link uplink name mv0 type macvlan mode bridge");
    let error = Network::new(&host, config(&host)).add(&Attachment::new("c1", &pod)).error();
    let why = "a link carries either macvlans or ipvlans";
    assert!(error.code == 100 && error.all().contains(why), "{error:?}");
}
