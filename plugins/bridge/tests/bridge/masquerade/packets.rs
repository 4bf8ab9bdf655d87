//! Real packets that leave the node.

use cnimble_tests::need;
use cnimble_tests::segment::reset_seen;

use super::{Path, add, owner, remove, ruleset};

#[test]
fn what_leaves_the_pod_network_comes_from_the_node() {
    need!("nft", "ip");
    let path = Path::new();
    // Unmasqueraded packets have a way back.
    path.world.ip("route add 10.1.0.0/16 via 192.0.2.1");
    path.world.ip("-6 route add fd01::/64 via 2001:db8::1");
    assert_eq!(path.seen("192.0.2.9"), "10.1.0.5");
    assert_eq!(path.seen("2001:db8::9"), "fd01::5");

    let pod = owner("net1", "pod1");
    add(&path.node, &pod, &["10.1.0.5/16", "fd01::5/64"]);
    assert_eq!(path.seen("192.0.2.9"), "192.0.2.1");
    assert_eq!(path.seen("2001:db8::9"), "2001:db8::1");

    // Packets to the pod network, and another pod's, keep their source.
    path.world.ip("addr add 10.1.7.7/32 dev lo");
    path.node.ip("route add 10.1.7.7/32 via 192.0.2.9");
    path.pod.ip("route add 10.1.7.7/32 via 10.1.0.1");
    assert_eq!(path.seen("10.1.7.7"), "10.1.0.5");

    remove(&path.node, &pod, &["10.1.0.5/16", "fd01::5/64"]);
    assert_eq!(path.seen("192.0.2.9"), "10.1.0.5");
    assert_eq!(path.seen("2001:db8::9"), "fd01::5");
}

#[test]
fn what_connection_tracking_calls_invalid_does_not_leave_with_the_pods_address() {
    need!("nft", "ip");
    let path = Path::new();
    let families = [("10.1.0.5", "192.0.2.9"), ("fd01::5", "2001:db8::9")];
    let pod = owner("net1", "pod1");
    add(&path.node, &pod, &["10.1.0.5/16", "fd01::5/64"]);
    // Without the guard the packets leave with the pod's source.
    path.node.nft("flush chain inet cnimble masq-guard");
    for (from, to) in families {
        assert_eq!(reset_seen(&path.pod, from, &path.world, to), Some(from.parse().unwrap()));
    }
    // The next ADD restores the rule.
    add(&path.node, &owner("net1", "pod2"), &["10.1.0.6/16", "fd01::6/64"]);
    for (from, to) in families {
        assert_eq!(reset_seen(&path.pod, from, &path.world, to), None, "{from}");
    }
    assert_eq!(path.seen("192.0.2.9"), "192.0.2.1");
    assert_eq!(path.seen("2001:db8::9"), "2001:db8::1");

    remove(&path.node, &owner("net1", "pod2"), &[]);
    remove(&path.node, &pod, &[]);
    assert_eq!(ruleset(&path.node), "");
}

#[test]
fn what_is_invalid_but_would_not_be_masqueraded_passes() {
    need!("nft", "ip");
    let path = Path::new();
    add(&path.node, &owner("net1", "pod1"), &["10.1.0.5/16", "fd01::5/64"]);
    let passes = |from: &str, listener: &_, to: &str| {
        assert_eq!(reset_seen(&path.pod, from, listener, to), Some(from.parse().unwrap()), "{from} to {to}");
    };
    // To the node itself.
    passes("10.1.0.5", &path.node, "192.0.2.1");
    passes("fd01::5", &path.node, "2001:db8::1");
    // From an address that isn't masqueraded.
    path.pod.ip("addr add 10.1.0.77/16 dev eth0");
    path.world.ip("route add 10.1.0.0/16 via 192.0.2.1");
    passes("10.1.0.77", &path.world, "192.0.2.9");
    // To the own network, and to another's pod.
    for (net, other) in
        [("10.1.0.0/16", "10.1.7.7"), ("10.2.0.0/16", "10.2.0.9"), ("10.0.0.0/16", "10.0.0.9")]
    {
        path.world.ip(&format!("addr add {other}/32 dev lo"));
        path.node.ip(&format!("route add {other}/32 via 192.0.2.9"));
        path.pod.ip(&format!("route add {other}/32 via 10.1.0.1"));
        if !net.starts_with("10.1.") {
            assert_eq!(reset_seen(&path.pod, "10.1.0.5", &path.world, other), None, "{other} is no pod yet");
            add(&path.node, &owner("net2", other), &[&format!("{other}/16")]);
        }
        passes("10.1.0.5", &path.world, other);
    }
}

/// The table of the previous version.
const BEFORE: &str = "\
table inet cnimble {
	set masq-10.1.0.0/16 {
		type ipv4_addr
	}
	set masq-10.2.0.0/16 {
		type ipv4_addr
	}
	chain postrouting {
		type nat hook postrouting priority srcnat; policy accept;
		ip daddr 224.0.0.0/4 return
		ip6 daddr ff00::/8 return
		ip saddr @masq-10.1.0.0/16 ip daddr != 10.1.0.0/16 masquerade
		ip saddr @masq-10.2.0.0/16 ip daddr != 10.2.0.0/16 masquerade
	}
}
";

#[test]
fn the_next_pod_completes_the_table_of_an_earlier_version() {
    need!("nft", "ip");
    let path = Path::new();
    let loaded = path.node.run_with("nft -f -", BEFORE.as_bytes());
    assert_eq!(loaded.status, 0, "{loaded:?}");
    std::thread::scope(|scope| {
        for n in 5..9 {
            let node = &path.node;
            scope.spawn(move || {
                add(node, &owner("net1", &format!("pod{n}")), &[&format!("10.1.0.{n}/16")]);
            });
        }
    });
    assert_eq!(reset_seen(&path.pod, "10.1.0.5", &path.world, "192.0.2.9"), None);
    let listed = ruleset(&path.node);
    for network in ["10.1.0.0/16", "10.2.0.0/16"] {
        let rules = |end: &str| listed.matches(&format!("daddr != {network} {end}")).count();
        assert_eq!((rules("masquerade"), rules("drop")), (1, 1), "{listed}");
        assert_eq!(listed.matches(&format!("ip daddr @masq-{network} return")).count(), 1, "{listed}");
    }
    assert!(listed.contains("priority srcnat + 1;") && !listed.contains("priority srcnat;"), "{listed}");
    let jumps = listed.matches("ct state invalid jump masq-invalid").count();
    assert_eq!((jumps, listed.matches("224.0.0.0/4 return").count()), (1, 2), "{listed}");
}
