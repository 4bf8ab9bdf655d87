//! The same tests on a bridge with vlan filtering. They run in the virtual machine, which boots once for this module.

use serde_json::{Value, json};

use cnimble_tests::{Attachment, Host, Network, Pod, configs, in_vm, plugin_dir};

use super::places::{asking, forge, mac_of, port_of};
use super::reserved::Scene;

fn network<'h>(host: &'h Host, keys: &Value) -> Network<'h> {
    let mut config = configs::v4(host);
    for (key, value) in keys.as_object().unwrap() {
        config[key] = value.clone();
    }
    Network::new(host, config)
}

#[test]
fn frames_to_reserved_addresses_do_nothing_in_a_vlan() {
    in_vm!();
    for guarded in [false, true] {
        for (bridge, keys) in [
            (None, json!({"vlan": 100})),
            (None, json!({"vlan": 100, "preserveDefaultVlan": false})),
            (Some("vlan_filtering 1"), json!({})),
        ] {
            let mut keys = keys;
            keys["macspoofchk"] = guarded.into();
            let host = Host::hasty();
            let harm = Scene::new(&host, plugin_dir(), bridge, &keys).harm();
            assert!(harm.is_empty(), "{bridge:?} {keys}:\n{}", harm.join("\n"));
        }
    }
}

/// An interface of the host in a vlan accepts no router advertisements either. This holds for the gateway, even if an
/// administrator created it, and for its port, should it leave the bridge.
#[test]
fn a_vlans_gateway_believes_no_router() {
    in_vm!();
    for made_before in [false, true] {
        let host = Host::hasty();
        host.set_sysctl("ipv6/conf/default/accept_ra", "2");
        if made_before {
            host.ip("link add br0 type bridge vlan_filtering 1");
            host.ip("link set br0 up");
            host.ip("link add br0.100 type veth peer name vethgateway");
            host.ip("link set vethgateway master br0 up");
            host.sh("bridge vlan add dev vethgateway vid 100 pvid untagged");
            host.ip("link set br0.100 up");
            assert_eq!(host.sysctl("ipv6/conf/br0.100/accept_ra"), "2");
        }
        let pod = Pod::new();
        let net = network(&host, &json!({"vlan": 100}));
        let result = net.added(&Attachment::new("c1", &pod));
        assert!(pod.pings("10.1.2.1"));
        assert_eq!(host.sysctl("ipv6/conf/br0.100/accept_ra"), "0", "{made_before}");
        assert_eq!(host.sysctl(&format!("ipv6/conf/{}/accept_ra", port_of(&result))), "0");
        if !made_before {
            let gateway = host.link("br0.100");
            let port = gateway["link"].as_str().unwrap();
            assert_eq!(host.sysctl(&format!("ipv6/conf/{port}/accept_ra")), "0");
        }
    }
}

/// Each vlan has separate entries. The same address in two vlans is no conflict, and in one vlan it is.
#[test]
fn a_place_is_held_in_its_vlan() {
    in_vm!();
    for guarded in [true, false] {
        let host = Host::hasty();
        let of = |vlan: u16| {
            let net = network(&host, &json!({"vlan": vlan, "isGateway": false, "macspoofchk": guarded}));
            net.with("/name", json!(format!("vlan{vlan}")))
        };
        let mac = "02:00:00:00:00:42";
        let pods = [Pod::new(), Pod::new(), Pod::new(), Pod::new()];
        let att = |id: &str, pod: usize| Attachment::new(id, &pods[pod]);
        let mut ports = Vec::new();
        for (number, vlan) in [100, 200].into_iter().enumerate() {
            let id = format!("in{vlan}");
            let result = of(vlan).added(&att(&id, number).args(&format!("IgnoreUnknown=1;MAC={mac}")));
            ports.push(port_of(&result).to_owned());
        }
        let place = |vlan: u16| host.sh(&format!("bridge fdb get {mac} br br0 vlan {vlan}"));
        for (net, attachment) in asking(&of(100), &att("asks", 2), mac) {
            let err = net.add(&attachment).error();
            assert_eq!(err.code, 102, "{}", err.all());
            assert!(err.msg.contains(&ports[0]), "{}", err.all());
        }
        for (vlan, port) in [(100, &ports[0]), (200, &ports[1])] {
            assert!(place(vlan).contains(port), "{}", place(vlan));
            assert_eq!(place(vlan).contains("sticky"), guarded, "{}", place(vlan));
        }
        if guarded {
            // An unguarded neighbour in the same vlan claims the other's address.
            let open = of(100).with("/macspoofchk", json!(false));
            open.added(&att("liar", 3));
            assert_ne!(mac_of(&pods[3]), mac);
            forge(&host, &pods[3], mac, Some(100));
            assert!(place(100).contains(&ports[0]), "{}", place(100));
        }
    }
}

/// A trunk has an entry in each of its vlans.
#[test]
fn a_place_is_held_in_all_vlans_of_a_trunk() {
    in_vm!();
    let host = Host::hasty();
    let net = network(
        &host,
        &json!({
            "vlanTrunk": [{"minID": 5, "maxID": 7}], "macspoofchk": true, "isGateway": false,
        }),
    );
    let (pod, other) = (Pod::new(), Pod::new());
    let result = net.added(&Attachment::new("c1", &pod));
    let mac = mac_of(&pod);
    for vlan in [1, 5, 6, 7] {
        let place = host.sh(&format!("bridge fdb get {mac} br br0 vlan {vlan}"));
        assert!(place.contains(port_of(&result)) && place.contains("sticky"), "{place}");
    }
    let access = network(&host, &json!({"vlan": 6, "isGateway": false}));
    let err = access.add(&Attachment::new("c2", &other).args(&format!("IgnoreUnknown=1;MAC={mac}"))).error();
    assert_eq!(err.code, 102, "{}", err.all());
}
