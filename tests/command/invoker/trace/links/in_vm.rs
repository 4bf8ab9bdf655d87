//! Faults of VLANs and on ipvlan, which not each kernel has.

use cnimble_tests::{in_vm, need_recent_go, plugin_dir};
use serde_json::{Value, json};

use super::super::FAR6;
use super::super::setups::{bridge, on_uplink};
use super::{Fault, assert_named, fault};

fn faults_of_vlans_and_ipvlan() -> Vec<Fault> {
    let vlan = || json!([bridge(json!({"ipMasq": false, "vlan": 100}))]);
    let ipvlan = |more: Value| json!([on_uplink("ipvlan", more)]);
    vec![
        fault(
            "the port has lost its VLAN",
            vlan(),
            "bridge vlan del vid 100 dev END",
            "out host port:",
            "has none for untagged",
        ),
        Fault {
            to: "db",
            client: "10.214.1.3",
            ..fault(
                "the other port is in another VLAN",
                vlan(),
                "bridge vlan del vid 100 dev PEER; bridge vlan add vid 200 pvid untagged dev PEER",
                "out host port:",
                "is not in VLAN 100",
            )
        },
        fault(
            "the port is in a VLAN without the host",
            vlan(),
            "bridge vlan del vid 100 dev END; bridge vlan add vid 200 pvid untagged dev END",
            "out host port:",
            "not in VLAN 200",
        ),
        fault(
            "the master is down",
            ipvlan(json!({})),
            "ip link set up0 down",
            "out web link:",
            "has no carrier",
        ),
        Fault {
            from: "third",
            to: "web",
            client: "10.7.0.50",
            ..fault("the host's own master", ipvlan(json!({})), "", "out host master:", "hostShim")
        },
    ]
}

fn faults_of_vlans_with_ipv6() -> Vec<Fault> {
    let vlan = || json!([bridge(json!({"ipMasq": false, "vlan": 100}))]);
    let to = |client: &'static str, fault: Fault| Fault { to: client, client, ..fault };
    vec![
        to(
            FAR6,
            fault(
                "the port has lost its VLAN, with IPv6",
                vlan(),
                "bridge vlan del vid 100 dev END",
                "out host port:",
                "has none for untagged",
            ),
        ),
        to(
            "fd00:214:1::3",
            fault(
                "the other port is in another VLAN, with IPv6",
                vlan(),
                "bridge vlan del vid 100 dev PEER; bridge vlan add vid 200 pvid untagged dev PEER",
                "out host port:",
                "is not in VLAN 100",
            ),
        ),
    ]
}

/// Puts the bridge of the pods into a VRF, whose table has a route to the router.
const IN_VRF: &str = "ip link add red type vrf table 77; ip link set red up; \
                      ip link set br0 master red; ip link set up0 master red; \
                      ip address add fd00:7::2/64 dev up0 nodad; ip address add fd00:214:1::1/64 dev br0 nodad; \
                      ip route add default via 10.7.0.1 vrf red; ip -6 route add default via fd00:7::1 vrf red";

fn faults_of_vrfs() -> Vec<Fault> {
    let plain = || json!([bridge(json!({"ipMasq": false}))]);
    let in_vrf = |fault: Fault| Fault { before: IN_VRF, ..fault };
    let with_ipv6 = |fault: Fault| Fault { to: FAR6, client: FAR6, ..fault };
    vec![
        // Linux goes on with the main table if a VRF's table has no route, so only the answer gets lost.
        fault(
            "the bridge is in a VRF without a route, and the uplink is in none",
            plain(),
            "ip link add red type vrf table 77; ip link set red up; ip link set br0 master red",
            "back host route:",
            "the host's route leads to up0",
        ),
        in_vrf(fault(
            "the VRF has lost its route",
            plain(),
            "ip route del default vrf red",
            "out host route:",
            "no route",
        )),
        in_vrf(with_ipv6(fault(
            "the VRF has lost its route, with IPv6",
            plain(),
            "ip -6 route del default vrf red",
            "out host route:",
            "no route",
        ))),
        in_vrf(fault(
            "the VRF has a blackhole",
            plain(),
            "ip route add blackhole 192.0.2.0/24 vrf red",
            "out host route:",
            "blackhole",
        )),
        in_vrf(fault(
            "the uplink has left the VRF",
            plain(),
            "ip link set up0 nomaster",
            "out host route:",
            "no route",
        )),
    ]
}

#[test]
fn faults_of_vlans_and_ipvlan_are_named() {
    in_vm!();
    assert_named(plugin_dir(), &faults_of_vlans_and_ipvlan());
    assert_named(plugin_dir(), &faults_of_vlans_with_ipv6());
}

#[test]
fn faults_of_vrfs_are_named() {
    in_vm!();
    assert_named(plugin_dir(), &faults_of_vrfs());
}

#[test]
fn faults_of_vrfs_of_the_go_plugins_are_named() {
    in_vm!();
    need_recent_go!(go);
    assert_named(go, &faults_of_vrfs());
}

#[test]
fn faults_of_vlans_and_ipvlan_of_the_go_plugins_are_named() {
    in_vm!();
    need_recent_go!(go);
    assert_named(go, &faults_of_vlans_and_ipvlan());
    assert_named(go, &faults_of_vlans_with_ipv6());
}
