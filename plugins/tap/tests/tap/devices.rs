use cnimble_tests::{go_to_meet, skip, with_kind};

use super::*;

#[test]
fn a_pod_gets_a_tap_with_every_setting_and_del_leaves_nothing() {
    with_kind!("tap");
    let (host, pod) = (Host::hasty(), Pod::new());
    pod.ip("link add br0 type bridge");
    let mut all = config(&host);
    for (key, value) in [
        ("multiQueue", json!(true)),
        ("mtu", json!(1400)),
        ("mac", json!("02:00:00:00:00:07")),
        ("owner", json!(0)),
        ("group", json!(107)),
        ("bridge", json!("br0")),
    ] {
        all[key] = value;
    }
    let network = Network::new(&host, all);
    network.status().success();
    let attachment = Attachment::new("c1", &pod);
    let result = network.added(&attachment);
    let (link, tap) = (pod.link("eth0"), settings(&pod, "eth0"));
    assert_eq!(
        (&link["linkinfo"]["info_kind"], &tap["type"], &tap["persist"]),
        (&json!("tun"), &json!("tap"), &json!(true))
    );
    assert_eq!(tap["multi_queue"], true, "{tap}");
    assert_eq!(
        (&link["address"], &link["mtu"], &link["master"]),
        (&json!("02:00:00:00:00:07"), &json!(1400), &json!("br0"))
    );
    let text = pod.ip("-d link show dev eth0");
    assert!(text.contains("user root") || text.contains("user 0"), "{text}");
    assert!(text.contains("group "), "{text}");
    let interfaces = json!([{"name": "eth0", "mac": "02:00:00:00:00:07", "sandbox": pod.path()}]);
    assert_eq!((&result["interfaces"], &result["ips"][0]["interface"]), (&interfaces, &json!(0)));
    assert!(pod.addrs("eth0").contains(&"10.7.0.2/24".to_owned()), "{:?}", pod.addrs("eth0"));
    network.check(&attachment, &result).success();

    for (pointer, value, told) in [
        ("/owner", json!(1), "expected tun mode tap user 1 group 107 multi_queue"),
        ("/group", json!(108), "expected tun mode tap user 0 group 108 multi_queue"),
        ("/multiQueue", json!(false), "expected tun mode tap user 0 group 107"),
        ("/mtu", json!(1300), "has MTU 1400, expected at most 1300"),
        ("/bridge", json!("br1"), "is no port of bridge br1 in the pod"),
    ] {
        refused(&network.with(pointer, value).check(&attachment, &result), 103, told);
    }
    for pointer in ["/owner", "/group"] {
        network.with(pointer, json!(null)).check(&attachment, &result).success();
    }
    pod.ip("link set eth0 nomaster");
    refused(&network.check(&attachment, &result), 103, "is no port of bridge br0");
    pod.ip("link set eth0 down");
    refused(&network.check(&attachment, &result), 103, "is down");
    for prev in [Some(&result), None] {
        network.deleted(&attachment, prev);
        assert_eq!(leases(&host), [""; 0]);
    }
    assert_eq!(pod.links(), ["br0", "lo"]);
}

#[test]
fn without_ipam_and_settings_the_tap_is_up_without_an_owner() {
    with_kind!("tap");
    let (host, pod) = (Host::hasty(), Pod::new());
    let network = Network::new(&host, config(&host)).with("/ipam", json!({}));
    let attachment = Attachment::new("c1", &pod);
    let result = network.added(&attachment);
    assert!(pod.link("eth0")["flags"].as_array().unwrap().contains(&json!("UP")));
    assert_eq!(
        (settings(&pod, "eth0")["multi_queue"].clone(), result["ips"].clone()),
        (json!(false), Value::Null)
    );
    assert!(!pod.ip("-d link show dev eth0").contains("user "));
    network.check(&attachment, &result).success();
    network.deleted(&attachment, Some(&result));
    assert_eq!(pod.links(), ["lo"]);
}

#[test]
fn a_failed_add_leaves_the_pod_and_the_leases_as_they_were() {
    with_kind!("tap");
    let (host, pod) = (Host::hasty(), Pod::new());
    pod.ip("link add eth1 type veth peer name end");
    pod.ip("tuntap add mode tap name tap1");
    let before = Snapshot::of_ns(&pod);
    let network = Network::new(&host, config(&host));
    let attachment = Attachment::new("c1", &pod);
    let full = json!([[{"subnet": "10.7.0.0/24", "rangeStart": "10.7.0.1", "rangeEnd": "10.7.0.1"}]]);
    for (pointer, value, ifname, code, told) in [
        ("/name", json!("vms"), "eth1", 102, "\"eth1\" is already taken"),
        ("/name", json!("vms"), "tap1", 102, "\"tap1\" is already taken"),
        ("/bridge", json!("none"), "eth0", 100, "bridge \"none\" is missing in the pod"),
        ("/bridge", json!("eth1"), "eth0", 102, "not a bridge"),
        ("/mtu", json!(20), "eth0", 100, "mtu 20"),
        ("/ipam/ranges", full, "eth0", 101, "no IP addresses available"),
        ("/selinuxContext", json!("no such context"), "eth0", 100, "selinuxContext: can't set the context"),
    ] {
        refused(&network.with(pointer, value).add(&attachment.clone().ifname(ifname)), code, told);
        before.assert_same(&Snapshot::of_ns(&pod), told);
        assert_eq!(leases(&host), [""; 0], "{told}");
    }
    // The existing interface stays.
    network.deleted(&attachment.ifname("eth1"), None);
    before.assert_same(&Snapshot::of_ns(&pod), "after DEL");
}

#[test]
fn del_and_gc_go_by_what_is_left() {
    with_kind!("tap");
    let host = Host::hasty();
    let network = Network::new(&host, config(&host));
    let pods: Vec<Pod> = (0..4).map(|_| Pod::new()).collect();
    let attachments: Vec<_> =
        pods.iter().enumerate().map(|(number, pod)| Attachment::new(&format!("c{number}"), pod)).collect();
    let results: Vec<_> = attachments.iter().map(|attachment| network.added(attachment)).collect();
    network.deleted(&attachments[0].clone().netns(""), Some(&results[0]));
    network.with("/multiQueue", json!(true)).deleted(&attachments[1], None);
    assert_eq!((leases(&host).len(), pods[1].links()), (4, vec!["lo".to_owned()]));
    let gc = network.gc_call(Some(json!([attachments[3].listed()])));
    gc.pinning(host.dir(), &[&pods[2], &pods[3]]).run().success();
    assert_eq!((leases(&host).len(), pods[2].links()), (2, vec!["lo".to_owned()]));
    network.check(&attachments[3], &results[3]).success();
    // The tap belongs to another container.
    network.deleted(&Attachment::new("c9", &pods[3]), None);
    assert_eq!(pods[3].links(), ["eth0", "lo"]);
}

#[test]
fn either_set_checks_and_removes_what_the_other_made_and_results_are_the_same() {
    with_kind!("tap");
    let go = match go_to_meet() {
        Ok(go) if go.join("tap").exists() => go,
        Ok(_) => skip!("these Go plugins have no tap"),
        Err(why) => skip!("{why}"),
    };
    for (owner, group, queues) in [(json!(107), json!(108), true), (json!(null), json!(null), false)] {
        let host = Host::hasty();
        let mut config = config(&host);
        config["cniVersion"] = "1.0.0".into();
        (config["owner"], config["group"], config["multiQueue"]) = (owner, group, queues.into());
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
                    && !["ifalias", "ifindex", "address", "txqlen"].contains(&key.as_str())
            });
            // The program that attaches sets it again.
            link["linkinfo"]["info_data"]
                .as_object_mut()
                .unwrap()
                .retain(|key, _| !["pi", "vnet_hdr"].contains(&key.as_str()));
            (result["interfaces"][0]["sandbox"], result["interfaces"][0]["mac"]) = (json!(""), json!(""));
            result.as_object_mut().unwrap().retain(|key, value| key != "dns" || *value != json!({}));
            result["ips"].as_array_mut().unwrap().truncate(1);
            seen.push((result, link, pod.addrs("eth0")[0].clone()));
            other.deleted(&attachment, None);
            assert_eq!((leases(&host), pod.links()), (Vec::new(), vec!["lo".to_owned()]));
        }
        assert_eq!(seen[0], seen[1]);
    }
}
