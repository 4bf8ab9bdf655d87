//! Packets on their way out.

use cnimble_tests::need;

use super::{Path, add, owner, remove};

#[test]
fn what_leaves_the_pod_network_comes_from_the_node() {
    need!("nft", "ip");
    let path = Path::new();
    // The world knows the way back for as long as nothing is masqueraded.
    path.world.ip("route add 10.1.0.0/16 via 192.0.2.1");
    path.world.ip("-6 route add fd01::/64 via 2001:db8::1");
    assert_eq!(path.seen("192.0.2.9"), "10.1.0.5");
    assert_eq!(path.seen("2001:db8::9"), "fd01::5");

    let pod = owner("net1", "pod1");
    add(&path.node, &pod, &["10.1.0.5/16", "fd01::5/64"]);
    assert_eq!(path.seen("192.0.2.9"), "192.0.2.1");
    assert_eq!(path.seen("2001:db8::9"), "2001:db8::1");

    // A destination inside the pod network keeps the source, as does another pod's traffic.
    path.world.ip("addr add 10.1.7.7/32 dev lo");
    path.node.ip("route add 10.1.7.7/32 via 192.0.2.9");
    path.pod.ip("route add 10.1.7.7/32 via 10.1.0.1");
    assert_eq!(path.seen("10.1.7.7"), "10.1.0.5");

    remove(&path.node, &pod, &["10.1.0.5/16", "fd01::5/64"]);
    assert_eq!(path.seen("192.0.2.9"), "10.1.0.5");
    assert_eq!(path.seen("2001:db8::9"), "fd01::5");
}
