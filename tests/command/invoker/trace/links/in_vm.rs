//! Faults of VLANs and on ipvlan, which not each kernel has.

use cnimble_tests::{in_vm, need_recent_go, plugin_dir};
use serde_json::{Value, json};

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

#[test]
fn faults_of_vlans_and_ipvlan_are_named() {
    in_vm!();
    assert_named(plugin_dir(), &faults_of_vlans_and_ipvlan());
}

#[test]
fn faults_of_vlans_and_ipvlan_of_the_go_plugins_are_named() {
    in_vm!();
    need_recent_go!(go);
    assert_named(go, &faults_of_vlans_and_ipvlan());
}
