//! Faults of frames: filters of MAC addresses, the forwarding database, and programs on links.

use cnimble_tests::{need, need_recent_go, plugin_dir};
use serde_json::{Value, json};

use super::super::setups::bridge;
use super::super::{FAR, FAR6};
use super::{At, Fault, assert_named, fault};

fn plain() -> Value {
    json!([bridge(json!({}))])
}

/// A fault on the way to the other pod, `db`.
fn to_db(make: &'static str, station: &'static str, says: &'static str) -> Fault {
    Fault { to: "db", client: "10.214.1.3", ..fault(make, plain(), make, station, says) }
}

fn faults_of_filters() -> Vec<Fault> {
    let other_mac = |client| Fault {
        at: At::Web,
        to: client,
        client,
        ..fault(
            "the MAC check drops the pod's questions",
            json!([bridge(json!({"macspoofchk": true}))]),
            "ip link set eth0 address 02:00:00:00:00:77",
            "out host bridge rules: bridge ",
            "drops the question for the neighbour by rule",
        )
    };
    vec![
        other_mac(FAR),
        other_mac(FAR6),
        fault(
            "a rule drops by MAC",
            plain(),
            "mac=$(nsenter --net=WEB_NS ip -o link show eth0 | sed 's/.*ether \\([0-9a-f:]*\\).*/\\1/'); \
             nft \"table bridge own { chain pre { type filter hook prerouting priority 0; ether saddr $mac drop; }; }\"",
            "out host bridge rules: bridge own pre drops it",
            "ether saddr",
        ),
        fault(
            "ebtables drops what comes by a port",
            plain(),
            "ebtables-nft -A INPUT -i END -j DROP",
            "out host bridge rules: bridge filter INPUT drops it",
            "drop",
        ),
        to_db(
            "ebtables-nft -A FORWARD -i END -j DROP",
            "out host bridge rules: bridge filter FORWARD drops it",
            "drop",
        ),
        Fault {
            to: FAR6,
            client: FAR6,
            ..fault(
                "a rule drops neighbour discovery",
                plain(),
                "nft 'table inet own { chain in { type filter hook input priority 0; \
                 icmpv6 type nd-neighbor-solicit drop; }; }'; nsenter --net=WEB_NS ip -6 neighbour flush dev eth0",
                "out host input: inet own in drops the question for the neighbour",
                "nd-neighbor-solicit drop",
            )
        },
    ]
}

fn faults_of_bridges() -> Vec<Fault> {
    vec![
        to_db(
            "mac=$(nsenter --net=DB_NS ip -o link show eth0 | sed 's/.*ether \\([0-9a-f:]*\\).*/\\1/'); \
             bridge fdb replace $mac dev END master static sticky",
            "out host bridge:",
            "instead of",
        ),
        to_db(
            "bridge link set dev PEER learning off flood off; \
             mac=$(nsenter --net=DB_NS ip -o link show eth0 | sed 's/.*ether \\([0-9a-f:]*\\).*/\\1/'); \
             bridge fdb del $mac dev PEER master",
            "out host bridge:",
            "knows no port for",
        ),
        fault(
            "a chain on the port drops",
            plain(),
            "nft 'table netdev own { chain in { type filter hook ingress device END priority 0; \
             ip daddr 192.0.2.1 drop; }; }'",
            "out host lost:",
            "nft chain own in on ",
        ),
    ]
}

#[test]
fn faults_of_filters_and_bridges_are_named() {
    need!("ip", "nft", "ping", "bridge", "ebtables-nft", "nsenter");
    assert_named(plugin_dir(), &faults_of_filters());
    assert_named(plugin_dir(), &faults_of_bridges());
}

#[test]
fn faults_of_filters_and_bridges_of_the_go_plugins_are_named() {
    need_recent_go!(go, "ip", "nft", "ping", "bridge", "ebtables-nft", "nsenter");
    assert_named(go, &faults_of_filters());
    assert_named(go, &faults_of_bridges());
}

/// What a program does cannot be seen, so it is named where the packet was lost.
#[test]
fn ebpf_programs_are_named() {
    need!("ip", "nft", "ping", "tc", "as", "dd");
    let tc = "PROGRAMS\ntc qdisc add dev END clsact; \
              tc filter add dev END ingress bpf da obj DIR/programs.o sec classifier";
    let xdp = "PROGRAMS\nip link set dev END xdpgeneric obj DIR/programs.o sec xdp";
    for (make, says) in [(tc, "[classifier] on "), (xdp, "These can have dropped it: XDP program ")] {
        fault(make, plain(), make, "out host lost:", says).assert_named(plugin_dir());
    }
}
