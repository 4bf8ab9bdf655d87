//! Tests in the virtual machine, which boots once per module.

use cnimble_tests::in_vm;

use super::*;

#[test]
fn an_access_port_has_its_vlan_and_keeps_the_default_one_if_wanted() {
    in_vm!();
    let host = Host::new();
    for (keys, wanted) in [
        (json!({"vlan": 100}), &["100 pvid untagged"][..]),
        (json!({"vlan": 100, "preserveDefaultVlan": true}), &["1 untagged", "100 pvid untagged"]),
        (json!({"vlan": 100, "preserveDefaultVlan": false}), &["100 pvid untagged"]),
        (json!({"vlan": 1}), &["1 pvid untagged"]),
        (json!({"vlan": 4094}), &["4094 pvid untagged"]),
        (json!({}), &["1 pvid untagged"]),
    ] {
        let network = network(&host, &keys);
        let member = Member::of(&network, "one");
        assert_eq!(vids(&host, member.port()), wanted, "{keys}");
        assert_eq!(vids(&host, "br0"), ["1 pvid untagged"], "{keys}");
        assert!(filters(&host), "{keys}");
        network.check(&member.attachment, &member.result).success();
        network.deleted(&member.attachment, Some(&member.result));
        assert_eq!(vids(&host, member.port()), [""; 0], "{keys}: after DEL");
        assert_eq!(all_vids(&host).as_array().unwrap().len(), 1, "{keys}: {}", all_vids(&host));
    }
}

#[test]
fn pods_meet_in_their_vlan_only() {
    in_vm!();
    for preserve in [true, false] {
        let host = Host::new();
        let member = |id: &str, vlan: u16| {
            let keys = json!({"vlan": vlan, "preserveDefaultVlan": preserve});
            Member::of(&network(&host, &keys), id)
        };
        let (one, two, other) = (member("one", 100), member("two", 100), member("other", 200));
        let plain = Member::of(&network(&host, &json!({})), "plain");
        let plain_two = Member::of(&network(&host, &json!({})), "plain-two");
        assert!(one.reaches(two.address()) && two.reaches(one.address()), "same vlan, {preserve}");
        assert!(plain.reaches(plain_two.address()), "no vlan, {preserve}");
        for stranger in [&other, &plain] {
            assert!(one.misses(stranger.address()), "another vlan, {preserve}");
            assert!(stranger.misses(one.address()), "another vlan, {preserve}");
        }
    }
}

#[test]
fn a_trunk_carries_the_vlans_that_it_lists() {
    in_vm!();
    let host = Host::new();
    let trunk = |keys: Value| {
        let mut keys = keys;
        keys["vlanTrunk"] = json!([{"minID": 5, "maxID": 7}, {"id": 42}, {"minID": 7, "maxID": 8, "id": 10}]);
        keys["ipam"] = json!({});
        network(&host, &keys)
    };
    let native = trunk(json!({"vlan": 7}));
    let member = Member::of(&native, "native");
    assert_eq!(vids(&host, member.port()), ["5", "6", "7 pvid untagged", "8", "10", "42"]);
    native.check(&member.attachment, &member.result).success();
    native.deleted(&member.attachment, Some(&member.result));
    let network_of_trunk = trunk(json!({}));
    let trunk = Member::of(&network_of_trunk, "trunk");
    assert_eq!(vids(&host, trunk.port()), ["1 pvid untagged", "5", "6", "7", "8", "10", "42"]);
    network_of_trunk.check(&trunk.attachment, &trunk.result).success();

    let access = |vlan: u16| Member::of(&network(&host, &json!({"vlan": vlan})), &format!("access{vlan}"));
    for (vlan, reachable) in [(6, true), (8, true), (42, true), (9, false)] {
        let access = access(vlan);
        trunk.pod.ip(&format!("link add link eth0 name eth0.{vlan} type vlan id {vlan}"));
        trunk.pod.ip(&format!("addr add 10.9.0.250/24 dev eth0.{vlan}"));
        trunk.pod.ip(&format!("link set eth0.{vlan} up"));
        let answered =
            if reachable { trunk.reaches(access.address()) } else { !trunk.misses(access.address()) };
        assert_eq!(answered, reachable, "vlan {vlan}");
        trunk.pod.ip(&format!("link del eth0.{vlan}"));
    }
    network_of_trunk.deleted(&trunk.attachment, Some(&trunk.result));
    assert_eq!(vids(&host, trunk.port()), [""; 0]);
}

fn gateway(host: &Host, preserve: bool) -> Network<'_> {
    let ranges = json!([[{"subnet": "10.9.0.0/24"}], [{"subnet": "fd09::/64"}]]);
    network(host, &json!({"vlan": 100, "isGateway": true, "preserveDefaultVlan": preserve}))
        .with("/ipam/ranges", ranges)
}

#[test]
fn a_vlan_has_its_gateway_on_an_interface_of_its_own() {
    in_vm!();
    for preserve in [true, false] {
        let host = Host::new();
        host.set_sysctl("ipv4/ip_forward", "1");
        host.set_sysctl("ipv4/conf/default/forwarding", "0");
        let network = gateway(&host, preserve);
        let one = Member::of(&network, "one");
        assert_eq!(host.sysctl("ipv4/conf/br0.100/forwarding"), "1");
        // The first packet passes: nothing has to settle first.
        assert!(one.pod.pings_once("fd09::1") && one.pod.pings_once("10.9.0.1"));
        let told = &one.result["interfaces"][3];
        let link = host.link("br0.100");
        assert_eq!(told["name"], "br0.100", "{}", one.result);
        assert_eq!(told["mac"], link["address"], "{}", one.result);
        assert_eq!(one.result["ips"][0]["interface"], 2, "{}", one.result);
        assert_eq!(host.addrs("br0.100"), ["10.9.0.1/24", "fd09::1/64"]);
        assert_eq!(host.addrs("br0"), [""; 0], "the bridge itself is not the gateway");
        let port = host.ip_json("link show master br0");
        let ports: Vec<&str> =
            port.as_array().unwrap().iter().map(|port| port["ifname"].as_str().unwrap()).collect();
        assert_eq!(ports.len(), 2, "{ports:?}");
        let port = ports.iter().find(|name| **name != one.port()).unwrap();
        let wanted = if preserve { &["1 untagged", "100 pvid untagged"][..] } else { &["100 pvid untagged"] };
        assert_eq!(vids(&host, port), wanted);

        let two = Member::of(&network, "two");
        assert_eq!(two.result["interfaces"][3], *told, "the second pod uses the same");
        assert_eq!(host.link("br0.100")["ifindex"], link["ifindex"]);
        assert_eq!(host.link("br0.100")["address"], link["address"]);
        assert_eq!(host.addrs("br0.100"), ["10.9.0.1/24", "fd09::1/64"]);
        assert!(two.reaches("10.9.0.1") && two.reaches("fd09::1") && two.reaches(one.address()));
        for member in [&one, &two] {
            network.check(&member.attachment, &member.result).success();
        }
        network.deleted(&one.attachment, Some(&one.result));
        assert!(two.reaches("10.9.0.1"), "after DEL of the first pod");
        network.deleted(&two.attachment, None);
        let left = host.ip_json("link show master br0");
        assert_eq!(left.as_array().unwrap().len(), 1, "only the gateway's port: {left}");
        let three = Member::of(&network, "three");
        network.clone().with("/cniVersion", json!("1.1.0")).gc(Some(json!([]))).success();
        assert_eq!(three.pod.links(), ["lo"]);
        assert_eq!(host.addrs("br0.100"), ["10.9.0.1/24", "fd09::1/64"], "GC leaves the gateway");
    }
}

#[test]
fn check_tells_when_a_vlan_is_gone() {
    in_vm!();
    let host = Host::new();
    let access = gateway(&host, true);
    let trunk = network(&host, &json!({"vlanTrunk": [{"minID": 5, "maxID": 7}]}));
    let (one, two) = (Member::of(&access, "one"), Member::of(&trunk, "two"));
    let (port, trunk_port) = (one.port(), two.port());
    let peer = host.link("br0.100")["link"].as_str().expect("its other end").to_owned();
    let mac = host.link("br0.100")["address"].as_str().expect("its MAC").to_owned();
    for (network, member, damage, repair, part) in [
        (
            &access,
            &one,
            format!("bridge vlan del dev {port} vid 100"),
            format!("bridge vlan add dev {port} vid 100 pvid untagged"),
            "vlan 100",
        ),
        // The vlan is no longer untagged.
        (
            &access,
            &one,
            format!("bridge vlan add dev {port} vid 100"),
            format!("bridge vlan add dev {port} vid 100 pvid untagged"),
            "vlan 100",
        ),
        (
            &access,
            &one,
            format!("bridge vlan del dev {peer} vid 100"),
            format!("bridge vlan add dev {peer} vid 100 pvid untagged"),
            "vlan 100",
        ),
        (&access, &one, "ip link set br0.100 down".into(), "ip link set br0.100 up".into(), "br0.100"),
        (
            &access,
            &one,
            "ip link set br0.100 address 02:00:00:00:00:01".into(),
            format!("ip link set br0.100 address {mac}"),
            "br0.100 has MAC",
        ),
        (
            &access,
            &one,
            "ip link set br0 type bridge vlan_filtering 0".into(),
            "ip link set br0 type bridge vlan_filtering 1".into(),
            "vlan",
        ),
        (
            &trunk,
            &two,
            format!("bridge vlan del dev {trunk_port} vid 6"),
            format!("bridge vlan add dev {trunk_port} vid 6"),
            "vlan 6",
        ),
    ] {
        network.check(&member.attachment, &member.result).success();
        host.sh(&damage);
        let error = network.check(&member.attachment, &member.result).error();
        assert!(error.all().contains(part), "{damage}: {error:?}");
        host.sh(&repair);
        if damage.ends_with("down") {
            host.run("ip addr add fd09::1/64 dev br0.100 nodad");
        }
    }
    // The gateway is another interface, so this MAC doesn't matter.
    host.ip("link set br0 address 02:00:00:00:00:02");
    access.check(&one.attachment, &one.result).success();
    trunk.check(&two.attachment, &two.result).success();
}

#[test]
fn a_failed_add_leaves_everything_as_before() {
    in_vm!();
    // No bridge, one that doesn't filter, and bridges with pods: in the same or another vlan, with or without its
    // gateway.
    type Prepare = fn(&Host) -> Vec<Member>;
    let scenes: [(&str, Prepare); 6] = [
        ("nothing", |_| Vec::new()),
        ("a bridge", |host| {
            host.ip("link add br0 address 02:00:00:00:00:09 type bridge");
            // Some traces of a bridge's first use stay, such as queues and offloads.
            host.shell("ip link set br0 up; ip link add port master br0 type veth peer name end");
            host.shell("ip link del port; ip link set br0 down");
            Vec::new()
        }),
        ("a pod without vlan", |host| vec![Member::of(&network(host, &json!({})), "before")]),
        ("a pod of another vlan", |host| vec![Member::of(&network(host, &json!({"vlan": 200})), "before")]),
        ("a pod of the vlan", |host| vec![Member::of(&network(host, &json!({"vlan": 100})), "before")]),
        ("two pods of the vlan and its gateway", |host| {
            vec![Member::of(&gateway(host, true), "before"), Member::of(&gateway(host, true), "two")]
        }),
    ];
    for (scene, prepare) in scenes {
        let host = Host::new();
        // A snapshot would wait for duplicate address detection.
        host.set_sysctl("ipv6/conf/default/accept_dad", "0");
        let members = prepare(&host);
        if !members.is_empty() {
            // Other pods may need forwarding.
            host.set_sysctl("ipv4/ip_forward", "1");
            host.set_sysctl("ipv6/conf/all/forwarding", "1");
        }
        let pod = Pod::new();
        let state = |host: &Host| Snapshot::of(host).without_lines("last_reserved_ip");
        let before = (state(&host), all_vids(&host), Snapshot::of_ns(&pod));
        let attachment = Attachment::new("failing", &pod);
        // This kernel can't masquerade: the last step fails.
        let late = gateway(&host, false).with("/ipMasq", json!(true));
        let trunk = network(&host, &json!({"vlanTrunk": [{"minID": 2, "maxID": 4094}], "ipMasq": true}));
        let ipam = gateway(&host, false).with("/ipam/type", json!("no-such-ipam"));
        let errors = [late, trunk, ipam].map(|network| network.add(&attachment).error());
        let when = format!("{scene}: {errors:#?}");
        before.0.assert_same(&state(&host), &when);
        assert_eq!(before.1, all_vids(&host), "{when}");
        before.2.assert_same(&Snapshot::of_ns(&pod), &when);
    }
}

#[test]
fn a_pod_that_comes_beside_a_failing_one_keeps_its_vlan_and_gateway() {
    in_vm!();
    for delay in [0, 30, 250] {
        let host = Host::new();
        host.ip("link add br0 type bridge");
        // The last step fails, after some time.
        let failing = gateway(&host, true).with("/ipMasq", json!(true));
        let failing = failing.with("/ipMasqBackend", json!("iptables"));
        let slow = host.dir().join("iptables-restore");
        host.shell(&format!("printf '#!/bin/sh\nsleep 0.5; exit 1' >{0}; chmod +x {0}", slow.display()));
        let working = gateway(&host, true);
        let pod = Pod::new();
        let attachment = Attachment::new("failing", &pod);
        let call = failing.call("ADD", &attachment, None);
        let call = call.env("PATH", format!("{}:/usr/sbin:/usr/bin:/sbin:/bin", host.dir().display()));
        let member = std::thread::scope(|scope| {
            let failure = scope.spawn(|| call.run().error());
            // Before, during or after the other's steps.
            std::thread::sleep(std::time::Duration::from_millis(delay));
            let member = Member::of(&working, "working");
            let error = failure.join().unwrap();
            assert!(error.msg.contains("iptables-restore"), "{error:?}");
            member
        });
        assert!(filters(&host), "{delay} ms");
        assert_eq!(vids(&host, member.port()), ["1 untagged", "100 pvid untagged"]);
        assert!(member.reaches("10.9.0.1") && member.reaches("fd09::1"), "{delay} ms");
        working.check(&member.attachment, &member.result).success();
    }
}
