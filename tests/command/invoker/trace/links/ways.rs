//! Faults of ways: two networks of one pod, sources, connection tracking and IPsec, and IPv6 on macvlan.

use cnimble_tests::{need, need_recent_go, plugin_dir};
use serde_json::{Value, json};

use super::super::FAR6;
use super::super::setups::{bridge, on_uplink, second_bridge};
use super::{At, Fault, assert_named, fault};

const STRICT: &str = "echo 1 >/proc/sys/net/ipv4/conf/br0/rp_filter";
/// A router without routes to pods answers only what is masqueraded.
const NO_ROUTE_BACK: &str = "nsenter --net=ROUTER_NS ip route del 10.214.0.0/16";

fn plain() -> Value {
    json!([bridge(json!({}))])
}

/// A fault on the way from a pod of another network to the second interface of `web`.
fn to_second(second: Value, make: &'static str, station: &'static str, says: &'static str) -> Fault {
    let (from, client) = ("third", "10.214.2.2");
    Fault { second, from, to: client, client, ..fault(make, plain(), make, station, says) }
}

fn faults_of_ways() -> Vec<Fault> {
    vec![
        // Without sbr the answer leaves by the other interface.
        to_second(json!([second_bridge()]), STRICT, "back host reverse path:", "rp_filter is 1"),
        Fault {
            at: At::Web,
            before: STRICT,
            ..to_second(
                json!([second_bridge(), {"type": "sbr"}]),
                "ip route del default table 100",
                "back host reverse path:",
                "rp_filter is 1",
            )
        },
        fault(
            "the host has the pod's address, too",
            plain(),
            "ip address add 10.214.1.2/32 dev lo",
            "out host source:",
            "is it one of its own addresses?",
        ),
        Fault {
            before: NO_ROUTE_BACK,
            ..fault(
                "a rule keeps packets from connection tracking",
                plain(),
                "nft 'table ip own { chain pre { type filter hook prerouting priority -300; \
                 ip saddr 10.214.1.2 notrack; }; }'",
                "out host masquerade: rule ",
                "of ip own pre keeps it from connection tracking",
            )
        },
        Fault {
            before: NO_ROUTE_BACK,
            ..fault(
                "iptables keeps packets from connection tracking",
                plain(),
                "iptables-nft -t raw -A PREROUTING -s 10.214.1.2 -j CT --notrack",
                "out host masquerade: rule ",
                "of ip raw PREROUTING keeps it from connection tracking",
            )
        },
        Fault {
            from: "third",
            to: "db",
            client: "10.214.1.3",
            ..fault(
                "a pod of the other network has lost its address",
                plain(),
                "nsenter --net=DB_NS ip address del 10.214.1.3/24 dev eth0",
                "out db address:",
                "10.214.1.3 is on record for db, and no interface of it has the address",
            )
        },
        Fault {
            to: "10.214.1.3",
            client: "10.214.1.3",
            ..fault(
                "the other pod has lost its address",
                plain(),
                "nsenter --net=DB_NS ip address del 10.214.1.3/24 dev eth0",
                "out db address:",
                "10.214.1.3 is on record for db, and no interface of it has the address",
            )
        },
        fault(
            "an IPsec policy drops",
            plain(),
            "ip xfrm policy add dir fwd src 10.214.1.0/24 dst 192.0.2.1/32 action block",
            "out host ipsec:",
            "an IPsec policy for fwd from 10.214.1.0/24 to 192.0.2.1/32 drops it",
        ),
    ]
}

fn faults_of_ipv6_on_macvlan() -> Vec<Fault> {
    let macvlan = |more: Value| json!([on_uplink("macvlan", more)]);
    let to = |client: &'static str, fault: Fault| Fault { to: client, client, ..fault };
    vec![
        Fault {
            at: At::Web,
            ..to(
                FAR6,
                fault(
                    "the pod has no default route",
                    macvlan(json!({})),
                    "ip -6 route del default",
                    "out web route:",
                    "the pod has no route to 2001:db8::1",
                ),
            )
        },
        to(
            "fd00:7::1",
            fault(
                "the router has no address",
                macvlan(json!({})),
                "nsenter --net=ROUTER_NS ip address del fd00:7::1/64 dev lan0; \
                 nsenter --net=WEB_NS ip -6 neighbour flush dev eth0",
                "out web neighbour:",
                "no host on eth0 answers for fd00:7::1",
            ),
        ),
        to(
            "fd00:7::51",
            fault("private", macvlan(json!({"mode": "private"})), "", "out host master:", "mode private"),
        ),
    ]
}

#[test]
fn faults_of_ways_are_named() {
    need!("ip", "nft", "ping", "nsenter", "iptables-nft");
    assert_named(plugin_dir(), &faults_of_ways());
    assert_named(plugin_dir(), &faults_of_ipv6_on_macvlan());
}

#[test]
fn faults_of_ways_of_the_go_plugins_are_named() {
    need_recent_go!(go, "ip", "nft", "ping", "nsenter", "iptables-nft");
    assert_named(go, &faults_of_ways());
    assert_named(go, &faults_of_ipv6_on_macvlan());
}
