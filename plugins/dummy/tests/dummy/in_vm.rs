//! Tests in the virtual machine, which boots once per module.

use cnimble_tests::{Snapshot, go_to_meet, in_vm};

use super::*;

#[test]
fn a_pod_gets_its_addresses_and_routes_and_del_leaves_nothing() {
    in_vm!();
    let (host, pod) = (Host::new(), Pod::new());
    let network = Network::new(&host, config(&host));
    network.status().success();
    let attachment = Attachment::new("c1", &pod);
    let result = network.added(&attachment);

    let link = pod.link("eth0");
    assert_eq!(link["linkinfo"]["info_kind"], "dummy");
    let interfaces = json!([{"name": "eth0", "mac": link["address"], "sandbox": pod.path()}]);
    assert_eq!(result["interfaces"], interfaces);
    assert_eq!(result["ips"][0]["address"], "10.7.0.2/24");
    assert_eq!(result["ips"][1]["interface"], 0);
    assert_eq!(pod.addrs("eth0")[..2], ["10.7.0.2/24", "fd00:7::2/64"], "{:?}", pod.addrs("eth0"));
    assert!(pod.ip("route show 10.99.0.0/16").contains("via 10.7.0.1 dev eth0"));
    assert!(pod.pings("10.7.0.2") && pod.pings("fd00:7::2"), "IPv6 works when ADD returns");
    assert_eq!(host.links(), ["lo"]);
    network.check(&attachment, &result).success();

    pod.ip("address del 10.7.0.2/24 dev eth0");
    refused(&network.check(&attachment, &result), 103, "lacks address 10.7.0.2/24");
    for prev in [Some(&result), None] {
        network.deleted(&attachment, prev);
        assert_eq!((leases(&host), pod.links()), (Vec::new(), vec!["lo".to_owned()]));
    }
}

#[test]
fn del_works_without_a_namespace_and_gc_removes_interfaces_and_gives_leases_back() {
    in_vm!();
    let host = Host::new();
    let network = Network::new(&host, config(&host));
    let pods = [Pod::new(), Pod::new(), Pod::new()];
    let attachments: Vec<_> =
        pods.iter().zip(["c0", "c1", "c2"]).map(|(pod, id)| Attachment::new(id, pod)).collect();
    let results: Vec<_> = attachments.iter().map(|attachment| network.added(attachment)).collect();
    let [gone, one, two] = pods;
    drop(gone);
    let nowhere = Attachment::new("c0", &Pod::new()).netns("");
    network.deleted(&nowhere, Some(&results[0]));
    assert_eq!(leases(&host).len(), 4, "{:?}", leases(&host));
    // A used address must not go to another pod.
    let gc = network.gc_call(Some(json!([attachments[2].listed()])));
    gc.pinning(host.dir(), &[&one, &two]).run().success();
    assert_eq!((leases(&host).len(), one.links()), (2, vec!["lo".to_owned()]), "{:?}", leases(&host));
    network.check(&attachments[2], &results[2]).success();
}

#[test]
fn a_failed_add_leaves_the_pod_and_the_leases_as_they_were() {
    in_vm!();
    let (host, pod) = (Host::new(), Pod::new());
    pod.ip("link add eth1 type dummy");
    let before = Snapshot::of_ns(&pod);
    let network = Network::new(&host, config(&host));
    // A taken name, a route without a reachable gateway, an empty range.
    refused(&network.add(&Attachment::new("c1", &pod).ifname("eth1")), 102, "\"eth1\" is already taken");
    let routes = json!([{"dst": "10.99.0.0/16", "gw": "10.200.0.1"}]);
    let failed = network.with("/ipam/routes", routes).add(&Attachment::new("c1", &pod));
    assert_ne!(failed.status, 0);
    let full = json!([[{"subnet": "10.7.0.0/24", "rangeStart": "10.7.0.1", "rangeEnd": "10.7.0.1"}]]);
    let failed = network.with("/ipam/ranges", full).add(&Attachment::new("c1", &pod));
    assert_ne!(failed.status, 0);
    assert_eq!(leases(&host), [""; 0]);
    before.assert_same(&Snapshot::of_ns(&pod), "after the failures");
    // The existing interface stays.
    network.deleted(&Attachment::new("c1", &pod).ifname("eth1"), None);
    assert!(pod.links().contains(&"eth1".to_owned()) || pod.link("eth1")["ifalias"].is_null());
}

#[test]
fn del_recognizes_an_interface_that_the_pod_has_changed() {
    in_vm!();
    let host = Host::new();
    let network = Network::new(&host, config(&host));
    let foreign = "7d24d33e39064c8a-1eeb2d13d47685fc";
    let other_mac = "link set eth0 address 02:00:00:00:be:ef".to_owned();
    // Commands in the pod, whether DEL succeeds, and removes the interface.
    let deeds: [(&[String], bool, bool); 6] = [
        (&["link set eth0 alias mine".into()], true, true),
        (std::slice::from_ref(&other_mac), true, true),
        (&["link set eth0 down".into(), "link set eth0 name x".into()], true, true),
        (&["link set eth0 alias mine".into(), other_mac.clone()], false, false),
        (&[format!("link set eth0 alias {foreign}")], false, false),
        // As if another runtime had added it again.
        (&[format!("link set eth0 alias {foreign}"), other_mac.clone()], true, false),
    ];
    for (commands, succeeds, goes) in deeds {
        let pod = Pod::new();
        let attachment = Attachment::new("c1", &pod);
        let result = network.added(&attachment);
        for command in commands {
            pod.ip(command);
        }
        let outcome = network.del(&attachment, Some(&result));
        assert_eq!(outcome.status == 0, succeeds, "{commands:?}: {}", outcome.describe());
        assert_eq!(pod.links() == ["lo"], goes, "{commands:?}: {:?}", pod.links());
        if succeeds {
            assert_eq!(leases(&host), [""; 0], "{commands:?}");
        } else {
            refused(&outcome, 102, "is in use by another interface eth0");
            assert_eq!(leases(&host).len(), 2, "{commands:?}");
            pod.ip("link del eth0");
            network.deleted(&attachment, Some(&result));
        }
    }
}

#[test]
fn either_set_removes_what_the_other_made() {
    in_vm!();
    let go = match go_to_meet() {
        Ok(go) if go.join("dummy").exists() => go,
        Ok(_) => skip!("these Go plugins have no dummy"),
        Err(why) => skip!("{why}"),
    };
    let (host, pod) = (Host::new(), Pod::new());
    let mut config = config(&host);
    config["cniVersion"] = "1.0.0".into();
    let ours = Network::new(&host, config);
    let theirs = ours.served_by(go);
    for (one, other) in [(&ours, &theirs), (&theirs, &ours)] {
        let attachment = Attachment::new("c1", &pod);
        let result = one.added(&attachment);
        other.check(&attachment, &result).success();
        other.deleted(&attachment, Some(&result));
        assert_eq!((leases(&host), pod.links()), (Vec::new(), vec!["lo".to_owned()]));
    }
}
