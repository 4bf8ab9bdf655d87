//! Set-ups with kinds of links that not each kernel has. The machine's kernel has no rules for IP packets, so the router
//! has routes to pods.

use cnimble_tests::{in_vm, need_recent_go, plugin_dir};
use serde_json::{Value, json};

use super::{FAR, FAR6, ROUTES_BACK, Setup, assert_healthy, on_uplink, outside, ranges, second_bridge, with};

/// A bridge without masquerading.
fn bridge(more: Value) -> Value {
    super::bridge(with(json!({"ipMasq": false}), more))
}

/// A set-up that the router can answer.
fn setup(name: &'static str, plugins: Value) -> Setup {
    Setup::new(name, plugins).router(ROUTES_BACK)
}

fn vlans() -> Vec<Setup> {
    vec![
        setup("a VLAN", json!([bridge(json!({"vlan": 100}))])),
        setup(
            "a VLAN beside the default one",
            json!([bridge(json!({"vlan": 100, "preserveDefaultVlan": true}))]),
        ),
        setup("a trunk", json!([bridge(json!({"vlanTrunk": [{"id": 7}, {"minID": 10, "maxID": 20}]}))])),
        setup("vlan", json!([{"type": "vlan", "master": "up0", "vlanId": 7, "ipam": outside(8)}]))
            .router(
                "ip link add link lan0 name lan0.7 type vlan id 7; ip link set lan0.7 up; \
                 ip address add 10.8.0.1/24 dev lan0.7; ip address add fd00:8::1/64 dev lan0.7 nodad",
            )
            .to(&[FAR, FAR6, "gateway", "192.0.2.1:8080"])
            .answers_third(&[]),
    ]
}

#[test]
fn vlans_are_healthy() {
    in_vm!();
    assert_healthy(plugin_dir(), vlans());
}

fn ipvlan_and_vrf() -> Vec<Setup> {
    let l3 = json!({"mode": "l3", "ipam": with(ranges(1), json!({"routes": [{"dst": "0.0.0.0/0"}, {"dst": "::/0"}]}))});
    vec![
        setup("ipvlan, l2", json!([on_uplink("ipvlan", json!({}))]))
            .to(&[FAR, FAR6, "gateway", "db", "fd00:7::51", "db:9", "192.0.2.1:8080"])
            .answers_third(&[]),
        setup("ipvlan, l3", json!([on_uplink("ipvlan", l3)]))
            .to(&[FAR, "db", "192.0.2.1:8080"])
            .answers_third(&[]),
        setup("vrf", json!([bridge(json!({}))]))
            .second(json!([second_bridge(), {"type": "vrf", "vrfname": "blue"}]))
            .to(&[FAR, FAR6, "db", "third:9"])
            .answers_third(&["web", "10.214.2.2", "fd00:214:2::2"]),
    ]
}

/// Bridges and the uplink in a VRF of the host.
fn host_vrf() -> Vec<Setup> {
    let in_vrf = "ip link add red type vrf table 77; ip link set red up; ip link set up0 master red; \
                  ip address add fd00:7::2/64 dev up0 nodad; \
                  ip route add default via 10.7.0.1 vrf red; ip -6 route add default via fd00:7::1 vrf red; \
                  for of in br0 br9; do ip link add $of type bridge; ip link set $of up master red; done";
    // The main table has no default route to the internet.
    let to = &[FAR, FAR6, "gateway", "10.7.0.2", "db", "fd00:214:1::3", "third:9", "192.0.2.1:8080"];
    vec![setup("a VRF of the host", json!([bridge(json!({}))])).host(in_vrf).to(to)]
}

#[test]
fn a_vrf_of_the_host_is_healthy() {
    in_vm!();
    assert_healthy(plugin_dir(), host_vrf());
}

#[test]
fn ipvlan_and_vrf_are_healthy() {
    in_vm!();
    assert_healthy(plugin_dir(), ipvlan_and_vrf());
}

#[test]
fn vlans_ipvlan_and_vrf_of_the_go_plugins_are_healthy() {
    in_vm!();
    need_recent_go!(go);
    assert_healthy(go, vlans());
    assert_healthy(go, ipvlan_and_vrf());
    assert_healthy(go, host_vrf());
}
