//! Foreign and shared bridges, and the Go plugin, in the virtual machine, which boots once per module.

use cnimble_tests::in_vm;

use super::*;

/// From 1.8 on the Go plugins remove the default vlan from ports. These know CNI 1.1.0.
fn recent_go() -> Option<&'static std::path::Path> {
    let go = cnimble_tests::go_plugins()?;
    let said = std::process::Command::new(go.join("bridge")).stdin(std::process::Stdio::null()).output();
    String::from_utf8_lossy(&said.ok()?.stderr).contains("1.1.0").then_some(go)
}

#[test]
fn ports_have_the_vlans_that_the_go_plugin_gives_them() {
    in_vm!();
    let Some(go) = recent_go() else { skip!("no Go plugins of 1.8 or later here") };
    for keys in [
        json!({}),
        json!({"vlan": 0, "vlanTrunk": null}),
        json!({"vlan": 100}),
        json!({"vlan": 1}),
        json!({"vlan": 100, "preserveDefaultVlan": true}),
        json!({"vlan": 100, "isGateway": true}),
        json!({"vlan": 100, "isGateway": true, "preserveDefaultVlan": true}),
        json!({"vlanTrunk": [{"minID": 5, "maxID": 7}, {"id": 42}]}),
        json!({"vlanTrunk": [{"minID": 5, "maxID": 7}], "preserveDefaultVlan": true}),
        json!({"vlanTrunk": [{"minID": 1, "maxID": 3}]}),
        json!({"vlanTrunk": [{"id": 1}]}),
        json!({"vlan": 100, "vlanTrunk": [{"id": 1}, {"id": 42}]}),
        json!({"vlan": 100, "vlanTrunk": [{"id": 42}], "preserveDefaultVlan": true}),
        json!({"vlan": 100, "vlanTrunk": [{"id": 42}], "isGateway": true}),
        json!({"vlanTrunk": [{}]}),
        json!({"vlanTrunk": [{}, {"id": 42}]}),
        json!({"vlanTrunk": []}),
        json!({"vlan": 100, "vlanTrunk": [{}]}),
    ] {
        let seen = [false, true].map(|by_go| {
            let host = Host::new();
            let network = network(&host, &keys);
            let network = if by_go { network.served_by(go) } else { network };
            let member = Member::of(&network, "one");
            let veths = host.ip_json("link show type veth");
            let gateway = veths.as_array().unwrap().iter().find(|link| link["ifname"] == "br0.100");
            let gateway_port = gateway.map(|link| vids(&host, link["link"].as_str().unwrap()));
            (vids(&host, member.port()), gateway_port, filters(&host))
        });
        assert_eq!(seen[0], seen[1], "{keys}: ours, Go's");
    }
}

/// The Go plugin adds the vlan twice, and the tagged one counts: no untagged frames arrive.
#[test]
fn a_native_vlan_that_the_trunk_has_too_stays_native() {
    in_vm!();
    let host = Host::new();
    let keys = json!({"vlan": 100, "vlanTrunk": [{"minID": 99, "maxID": 101}]});
    let trunk = Member::of(&network(&host, &keys), "trunk");
    assert_eq!(vids(&host, trunk.port()), ["99", "100 pvid untagged", "101"]);
    let access = Member::of(&network(&host, &json!({"vlan": 100})), "access");
    assert!(trunk.reaches(access.address()) && access.reaches(trunk.address()));
}

#[test]
fn frames_of_the_default_vlan_dont_come_to_a_pod_of_another() {
    in_vm!();
    let host = Host::new();
    let plain = Member::of(&network(&host, &json!({"vlanTrunk": []})), "plain");
    let heard = |member: &Member| {
        member.pod.ip_json("-s link show eth0")[0]["stats64"]["rx"]["packets"].as_u64().unwrap()
    };
    for (preserve, hears) in [(true, true), (false, false)] {
        let keys = json!({"vlan": 100, "preserveDefaultVlan": preserve});
        let tagged = Member::of(&network(&host, &keys), &format!("tagged-{preserve}"));
        tagged.pod.set_sysctl("ipv6/conf/eth0/disable_ipv6", "1");
        let before = heard(&tagged);
        // Several requests, since nothing answers.
        plain.pod.run("ping -n -c 3 -i 0.2 -W 0.2 10.9.0.77");
        assert_eq!(heard(&tagged) > before, hears, "preserveDefaultVlan {preserve}");
    }
}

#[test]
fn a_bridge_that_does_not_filter_is_made_to() {
    in_vm!();
    let host = Host::new();
    let plain = network(&host, &json!({}));
    let (one, two) = (Member::of(&plain, "one"), Member::of(&plain, "two"));
    assert!(!filters(&host), "no vlan, no filter");
    let tagged = Member::of(&network(&host, &json!({"vlan": 100})), "tagged");
    assert!(filters(&host));
    assert_eq!(vids(&host, tagged.port()), ["100 pvid untagged"]);
    assert!(one.reaches(two.address()), "the pods that were there go on");
    assert!(one.misses(tagged.address()) && tagged.misses(one.address()));
}

/// Its owner can rely on tagged frames.
#[test]
fn a_bridge_of_others_with_their_ports_isnt_made_to_filter() {
    in_vm!();
    for (made_by_us, uplink, whose) in [
        (false, "link add uplink type dummy", "uplink"),
        (true, "link add uplink type dummy", "uplink"),
        (false, "link add uplink type veth peer name far", "uplink"),
        (true, "link add uplink type veth peer name far", "uplink"),
    ] {
        let host = Host::new();
        if made_by_us {
            let first = Member::of(&network(&host, &json!({})), "first");
            network(&host, &json!({})).deleted(&first.attachment, Some(&first.result));
        } else {
            host.ip("link add br0 type bridge");
            host.ip("link set br0 up");
        }
        host.set_sysctl("ipv6/conf/default/disable_ipv6", "1");
        host.ip(uplink);
        host.ip("link set uplink master br0 up");
        let (pod, net) = (Pod::new(), network(&host, &json!({"vlan": 100, "isGateway": true})));
        let before = Snapshot::of(&host);
        let error = net.add(&Attachment::new("one", &pod)).error();
        assert_eq!(error.code, 102, "{error:?}");
        assert!(error.msg.contains("br0") && error.all().contains(whose), "{error:?}");
        before.assert_same(&Snapshot::of(&host), "after the refusal");
        assert!(!filters(&host));
        // Networks with vlans work after the owner has switched the filter on.
        Member::of(&network(&host, &json!({})), "plain");
        host.ip("link set br0 type bridge vlan_filtering 1");
        net.added(&Attachment::new("one", &pod));
    }
}

/// On a bridge of the Go plugin they are foreign, on ours not.
#[test]
fn pods_of_the_go_plugin_keep_its_bridge_from_filtering_and_not_ours() {
    in_vm!();
    let Some(go) = cnimble_tests::go_plugins() else { skip!("no Go plugins here") };
    for go_comes_first in [true, false] {
        let host = Host::new();
        let plain = network(&host, &json!({}));
        let (ours, theirs) = (plain.clone(), plain.served_by(go));
        let (first, second) = if go_comes_first { (&theirs, &ours) } else { (&ours, &theirs) };
        let (one, two) = (Member::of(first, "one"), Member::of(second, "two"));
        let pod = Pod::new();
        let outcome = network(&host, &json!({"vlan": 100})).add(&Attachment::new("tagged", &pod));
        assert_eq!(filters(&host), !go_comes_first);
        if go_comes_first {
            assert_eq!(outcome.error().code, 102, "{:?}", outcome.error());
        } else {
            outcome.success();
        }
        assert!(one.reaches(two.address()), "the pods that were there go on");
    }
}

#[test]
fn pods_of_the_go_plugins_share_vlan_and_gateway_with_ours() {
    in_vm!();
    let Some(go) = cnimble_tests::go_plugins() else { skip!("no Go plugins here") };
    for go_comes_first in [true, false] {
        let host = Host::new();
        let ours = network(&host, &json!({"vlan": 100, "isGateway": true}));
        let theirs = ours.served_by(go);
        let (first, second) = if go_comes_first { (&theirs, &ours) } else { (&ours, &theirs) };
        let (one, two) = (Member::of(first, "one"), Member::of(second, "two"));
        assert_eq!(one.result["interfaces"][3], two.result["interfaces"][3]);
        assert!(one.reaches(two.address()) && one.reaches("10.9.0.1") && two.reaches("10.9.0.1"));
        // Each plugin checks the other's attachment, and removes it.
        second.check(&one.attachment, &one.result).success();
        first.check(&two.attachment, &two.result).success();
        second.deleted(&one.attachment, Some(&one.result));
        assert!(two.reaches("10.9.0.1"));
        first.deleted(&two.attachment, Some(&two.result));
        assert_eq!((one.pod.links(), two.pod.links()), (vec!["lo".into()], vec!["lo".into()]));
    }
}
