//! Tests that need vlan interfaces. The machine boots once per module.

use cnimble_tests::{go_to_meet, skip, with_kind};

use super::*;

/// A network outside, in VLAN 7.
fn tagged(host: &Host) -> Lan {
    let lan = Lan::behind(host, "uplink");
    lan.ip("address flush dev lan0");
    lan.ip("link add link lan0 name lan7 type vlan id 7");
    lan.ip("link set lan7 up");
    lan.ip("address add 10.7.0.1/24 dev lan7");
    lan.ip("address add fd00:7::1/64 dev lan7 nodad");
    lan
}

#[test]
fn an_ipv6_address_of_another_host_fails_add_and_leaves_nothing() {
    with_kind!("vlan");
    let (host, pod) = (Host::hasty(), Pod::new());
    let lan = tagged(&host);
    let network = Network::new(&host, config(&host));
    lan.assert_asked("lan7", &network, &Attachment::new("c1", &pod), &pod);
}

#[test]
fn an_ipv4_address_of_another_host_fails_add_if_it_is_probed_for() {
    with_kind!("vlan");
    let (host, pod) = (Host::hasty(), Pod::new());
    let lan = tagged(&host);
    let network = Network::new(&host, config(&host)).with("/arpProbe", json!(true));
    lan.assert_asked("lan7", &network, &Attachment::new("c1", &pod), &pod);
}

#[test]
fn a_pod_is_in_the_masters_vlan_and_del_leaves_nothing() {
    with_kind!("vlan");
    let (host, pod) = (Host::hasty(), Pod::new());
    let lan = tagged(&host);
    host.ip("link add eth0 type veth peer name eth1");
    let before = Snapshot::of(&host).without("leases");
    let network = Network::new(&host, config(&host)).with("/mtu", json!(1400));
    network.status().success();
    let attachment = Attachment::new("c1", &pod);
    let result = network.added(&attachment);
    let link = pod.link("eth0");
    assert_eq!(
        (&link["linkinfo"]["info_kind"], &link["linkinfo"]["info_data"]["id"]),
        (&json!("vlan"), &json!(7))
    );
    let interfaces = json!([{"name": "eth0", "mac": link["address"], "sandbox": pod.path()}]);
    assert_eq!(result["interfaces"], interfaces);
    assert_eq!(pod.addrs("eth0")[..2], ["10.7.0.10/24", "fd00:7::10/64"], "{:?}", pod.addrs("eth0"));
    assert!(pod.pings_once("10.7.0.1") && pod.pings_once("fd00:7::1") && lan.pings_once("10.7.0.10"));
    network.check(&attachment, &result).success();
    refused(
        &network.with("/vlanId", json!(8)).check(&attachment, &result),
        103,
        "is vlan id 7, expected vlan id 8",
    );
    for prev in [Some(&result), None] {
        network.deleted(&attachment, prev);
        assert_eq!((leases(&host), pod.links()), (Vec::new(), vec!["lo".to_owned()]));
    }
    before.assert_same(&Snapshot::of(&host).without("leases"), "after DEL");
}

#[test]
fn the_first_and_the_last_vlan_work_and_one_is_for_one_pod() {
    with_kind!("vlan");
    let (host, pods) = (Host::hasty(), [Pod::new(), Pod::new(), Pod::new()]);
    let _lan = Lan::behind(&host, "uplink");
    let network = Network::new(&host, config(&host)).with("/ipam", json!({}));
    for (id, pod) in [0, 4094].into_iter().zip(&pods) {
        let network = network.with("/vlanId", json!(id));
        let attachment = Attachment::new("c1", pod);
        let result = network.added(&attachment);
        assert_eq!(pod.link("eth0")["linkinfo"]["info_data"]["id"], id);
        assert!(pod.link("eth0")["flags"].as_array().unwrap().contains(&json!("UP")));
        network.check(&attachment, &result).success();
    }
    let again = network.with("/vlanId", json!(4094)).add(&Attachment::new("c2", &pods[2]));
    refused(&again, 102, "vlan id 4094; its master uplink is up");
    assert_eq!(pods[2].links(), ["lo"]);
}

#[test]
fn a_master_that_is_down_and_an_mtu_above_its_own_are_refused() {
    with_kind!("vlan");
    let (host, pod) = (Host::hasty(), Pod::new());
    let _lan = Lan::behind(&host, "uplink");
    let (before, inside) = (Snapshot::of(&host).without("leases"), Snapshot::of_ns(&pod));
    let network = Network::new(&host, config(&host));
    let attachment = Attachment::new("c1", &pod);
    let large = network.with("/mtu", json!(1501));
    refused(&large.add(&attachment), 7, "invalid MTU 1501, must be [0, master MTU(1500)]");
    refused(&large.status(), 50, "invalid MTU 1501");
    before.assert_same(&Snapshot::of(&host).without("leases"), "after the MTU");
    host.ip("link set uplink down");
    refused(&network.status(), 51, "master \"uplink\" is down");
    refused(&network.add(&attachment), 100, "Network is down");
    inside.assert_same(&Snapshot::of_ns(&pod), "after the failures");
    assert_eq!(leases(&host), [""; 0]);
}

#[test]
fn a_failed_add_leaves_host_pod_and_leases_as_they_were() {
    with_kind!("vlan");
    let (host, pod) = (Host::hasty(), Pod::new());
    let _lan = Lan::behind(&host, "uplink");
    pod.ip("link add eth1 type veth peer name end");
    let (before, inside) = (Snapshot::of(&host).without("leases"), Snapshot::of_ns(&pod));
    let network = Network::new(&host, config(&host));
    let attachment = Attachment::new("c1", &pod);
    let full = json!([[{"subnet": "10.7.0.0/24", "rangeStart": "10.7.0.1", "rangeEnd": "10.7.0.1"}]]);
    for (pointer, value, ifname, code, told) in [
        ("/master", json!("none"), "eth0", 100, "master \"none\" is missing on the host"),
        ("/name", json!("outside"), "eth1", 102, "\"eth1\" is already taken"),
        ("/ipam/ranges", full, "eth0", 101, "no IP addresses available"),
        ("/ipam/routes", json!([{"dst": "10.99.0.0/16", "gw": "10.200.0.1"}]), "eth0", 100, "add route"),
    ] {
        refused(&network.with(pointer, value).add(&attachment.clone().ifname(ifname)), code, told);
        inside.assert_same(&Snapshot::of_ns(&pod), told);
        before.assert_same(&Snapshot::of(&host).without("leases"), told);
        assert_eq!(leases(&host), [""; 0], "{told}");
    }
    network.deleted(&attachment.ifname("eth1"), None);
    inside.assert_same(&Snapshot::of_ns(&pod), "after DEL");
}

#[test]
fn with_link_in_container_the_master_is_in_the_pod() {
    with_kind!("vlan");
    let (host, pod, lan) = (Host::hasty(), Pod::new(), Pod::new());
    pod.cable("uplink", &lan, "lan0");
    let before = Snapshot::of_ns(&pod);
    let network = Network::new(&host, config(&host)).with("/linkInContainer", json!(true));
    let attachment = Attachment::new("c1", &pod).ifname("net1");
    let result = network.added(&attachment);
    assert_eq!(pod.link("net1")["link"], "uplink");
    network.check(&attachment, &result).success();
    // The VLAN is taken, then the name.
    refused(
        &network.add(&Attachment::new("c2", &pod).ifname("net2")),
        102,
        "vlan id 7; its master uplink is up",
    );
    let other = network.with("/vlanId", json!(8));
    refused(&other.add(&Attachment::new("c2", &pod).ifname("net1")), 102, "\"net1\" is already taken");
    network.deleted(&attachment, Some(&result));
    before.assert_same(&Snapshot::of_ns(&pod), "after DEL");
}

#[test]
fn del_and_gc_go_by_what_is_left() {
    with_kind!("vlan");
    let host = Host::hasty();
    let _lan = Lan::behind(&host, "uplink");
    let network = |id: usize| Network::new(&host, config(&host)).with("/vlanId", json!(id));
    let pods: Vec<Pod> = (0..4).map(|_| Pod::new()).collect();
    let attachments: Vec<_> =
        pods.iter().enumerate().map(|(number, pod)| Attachment::new(&format!("c{number}"), pod)).collect();
    let results: Vec<_> = attachments
        .iter()
        .enumerate()
        .map(|(number, attachment)| network(number).added(attachment))
        .collect();
    network(0).deleted(&attachments[0].clone().netns(""), Some(&results[0]));
    // The Go plugin needs the master.
    network(1).with("/master", json!("none")).deleted(&attachments[1], None);
    assert_eq!((leases(&host).len(), pods[1].links()), (4, vec!["lo".to_owned()]));
    let gc = network(9).gc_call(Some(json!([attachments[3].listed()])));
    gc.pinning(host.dir(), &[&pods[2], &pods[3]]).run().success();
    assert_eq!((leases(&host).len(), pods[2].links()), (2, vec!["lo".to_owned()]));
    network(3).check(&attachments[3], &results[3]).success();
    host.ip("link del uplink");
    network(3).deleted(&attachments[3], Some(&results[3]));
    assert_eq!(leases(&host), [""; 0]);
}

#[test]
fn either_set_checks_and_removes_what_the_other_made_and_results_are_the_same() {
    with_kind!("vlan");
    let go = match go_to_meet() {
        Ok(go) if go.join("vlan").exists() => go,
        Ok(_) => skip!("these Go plugins have no vlan"),
        Err(why) => skip!("{why}"),
    };
    for id in [0, 7] {
        let host = Host::hasty();
        let _lan = Lan::behind(&host, "uplink");
        let mut config = config(&host);
        config["cniVersion"] = "1.0.0".into();
        config["vlanId"] = id.into();
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
        assert_eq!(seen[0], seen[1], "{id}");
    }
}

/// They have no alias, and both have the master's MAC, also a new one.
#[test]
fn of_two_vlans_of_the_go_plugin_del_removes_one() {
    with_kind!("vlan");
    let (host, pod) = (Host::hasty(), Pod::new());
    let _lan = Lan::behind(&host, "uplink");
    let network = |id: u16| Network::new(&host, config(&host)).with("/vlanId", json!(id));
    let (one, two) = (Attachment::new("c1", &pod).ifname("net1"), Attachment::new("c1", &pod).ifname("net2"));
    let (result, other) = (network(7).added(&one), network(8).added(&two));
    for name in ["net1", "net2"] {
        pod.ip(&format!("link set {name} alias ''"));
    }
    network(7).deleted(&one, Some(&result));
    assert_eq!(pod.links(), ["lo", "net2"]);
    host.ip("link set uplink address 02:00:00:00:00:99");
    assert_ne!(pod.link("net2")["address"], other["interfaces"][0]["mac"]);
    network(8).deleted(&two, Some(&other));
    assert_eq!((leases(&host), pod.links()), (Vec::new(), vec!["lo".to_owned()]));
}

#[test]
fn without_a_master_or_with_a_vlan_out_of_range_it_is_refused() {
    let (host, pod) = (Host::new(), Pod::new());
    let network = Network::new(&host, config(&host));
    let attachment = Attachment::new("c1", &pod);
    refused(&network.with("/master", json!("")).add(&attachment), 7, "\"master\" field is required");
    refused(&network.with("/vlanId", json!(4095)).add(&attachment), 7, "invalid VLAN ID 4095");
}
