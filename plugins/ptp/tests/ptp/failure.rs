use serde_json::{Value, json};

use cnimble_tests::{Attachment, Host, Network, Pod, Snapshot, need, skip};

use super::{config, state};

#[test]
fn a_failed_add_leaves_nothing() {
    need!("ip", "nft");
    let host = Host::new();
    let net = Network::new(&host, config(&host)).with("/ipMasq", json!(true));
    let pod = Pod::new();
    let att = Attachment::new("a", &pod);
    let fails = |net: &Network<'_>, att: &Attachment, code: u64, part: &str| {
        let (before, inside) = (state(&host), Snapshot::of_ns(&pod));
        let err = net.add(att).error();
        assert_eq!(err.code, code, "{err:?}");
        assert!(err.all().contains(part) && !err.all().contains("left behind"), "{err:?}");
        before.assert_same(&state(&host), part);
        inside.assert_same(&Snapshot::of_ns(&pod), part);
    };
    host.ip("link add elsewhere type bridge");
    host.ip("link set elsewhere up");

    host.ip("route add 10.1.2.2/32 dev elsewhere scope host");
    fails(&net, &att, 102, "the host has a route to an address of the pod already");
    host.ip("route del 10.1.2.2/32 dev elsewhere");
    host.ip("-6 route add fd00:1:2::2/128 dev elsewhere");
    fails(&net, &att, 102, "the host has a route to an address of the pod already");
    host.ip("-6 route del fd00:1:2::2/128 dev elsewhere");

    pod.ip("link add eth0 type bridge");
    fails(&net, &att, 102, "container interface name \"eth0\" is already taken");
    pod.ip("link del eth0");

    let full = net.with(
        "/ipam/ranges",
        json!([[{"subnet": "10.1.2.0/24", "rangeStart": "10.1.2.9", "rangeEnd": "10.1.2.9"}]]),
    );
    let other = Pod::new();
    let other_att = Attachment::new("other", &other);
    full.added(&other_att);
    fails(&full, &att, 101, "no IP addresses available in range set: 10.1.2.9-10.1.2.9");
    fails(&full, &other_att, 102, "container other already has eth0 in this network");
    net.deleted(&other_att, None);

    let fixed = |addresses: Value| net.with("/ipam", json!({"type": "static", "addresses": addresses}));
    fails(&fixed(json!([])), &att, 104, "IPAM plugin returned missing IP config");
    fails(
        &fixed(json!([{"address": "10.5.0.2/16"}])),
        &att,
        104,
        "IPAM plugin returned no gateway for 10.5.0.2/16",
    );
    fails(
        &fixed(json!([{"address": "10.5.0.2/16", "gateway": "10.5.0.2"}])),
        &att,
        102,
        "IPAM gave the pod its own gateway's address, 10.5.0.2",
    );
    let lost = net.with("/ipam/routes", json!([{"dst": "10.9.0.0/16", "gw": "192.168.7.7"}]));
    fails(&lost, &att, 100, "add route 10.9.0.0/16 via 192.168.7.7 dev eth0");
    net.added(&att);
}

#[test]
fn bad_input_is_one_clear_error() {
    need!();
    let host = Host::new();
    let pod = Pod::new();
    let net = Network::new(&host, config(&host));
    for (pointer, value, code, msg) in [
        ("/ipam", json!(null), 7, "ipam.type is missing"),
        ("/ipam/type", json!(""), 7, "ipam.type is missing"),
        ("/ipam/type", json!("../host-local"), 7, "invalid plugin name \"../host-local\""),
        ("/ipam/type", json!("nowhere"), 104, "no plugin \"nowhere\" in CNI_PATH"),
        ("/mtu", json!(67), 7, "mtu: 67 is outside 68 to 65535 bytes"),
        ("/mtu", json!("1500"), 7, "mtu: invalid type: string \"1500\", expected i64"),
        ("/ipMasq", json!("yes"), 7, "ipMasq: invalid type: string \"yes\", expected a boolean"),
        (
            "/ipMasqBackend",
            json!("pf"),
            7,
            "ipMasqBackend: unknown backend \"pf\", expected iptables or nftables",
        ),
        ("/dns", json!([]), 7, "dns: invalid type: list, expected an object"),
        ("/cniVersion", json!("7"), 1, "incompatible CNI versions"),
    ] {
        let err = net.with(pointer, value).add(&Attachment::new("a", &pod)).error();
        assert_eq!((err.code, err.msg.as_str()), (code, msg));
    }
    let err = net.add(&Attachment::new("a", &pod).netns("/run/netns/was-here")).error();
    assert_eq!(err.code, 8, "{err:?}");
    assert_eq!(host.links(), ["lo"]);
    assert_eq!(pod.links(), ["lo"]);
}

/// At any message to the kernel.
#[test]
fn an_add_that_fails_or_dies_anywhere() {
    need!("ip", "nft", "strace");
    let host = Host::new();
    let net = Network::new(&host, config(&host))
        .with("/ipMasq", json!(true))
        .with("/ipMasqBackend", json!("nftables"));
    let pod = Pod::new();
    let att = Attachment::new("a", &pod);
    let call = net.call("ADD", &att, None);
    if call.clone().under(&["strace", "-f", "-o", "/dev/null", "true"]).run().status != 0 {
        skip!("strace may not trace here");
    }
    // Tables stay for the next pod by design.
    net.added(&att);
    net.deleted(&att, None);
    for fault in ["error=ENOBUFS", "signal=KILL"] {
        // A failed ADD switches forwarding off again, DEL never.
        let forwarding = if fault == "signal=KILL" { "1" } else { "0" };
        host.set_sysctl("ipv4/ip_forward", forwarding);
        host.set_sysctl("ipv6/conf/all/forwarding", forwarding);
        let before = state(&host);
        let (mut hits, mut faults) = (0, 0);
        for nth in 1..100 {
            let inject = format!("inject=sendto:{fault}:when={nth}");
            let trace = host.dir().join("trace");
            let wrapper =
                ["strace", "-f", "-o", trace.to_str().unwrap(), "-e", "trace=sendto", "-e", &inject];
            let outcome = call.clone().under(&wrapper).run();
            let hit = match fault {
                "signal=KILL" => outcome.status != 0,
                _ => std::fs::read_to_string(&trace).unwrap().contains("(INJECTED)"),
            };
            if outcome.status == 0 {
                // The last message has passed, or was sent again.
                net.deleted(&att, None);
                host.set_sysctl("ipv4/ip_forward", forwarding);
                host.set_sysctl("ipv6/conf/all/forwarding", forwarding);
            } else if fault == "signal=KILL" {
                faults += 1;
                net.deleted(&att, None);
            } else {
                faults += 1;
                let err = outcome.error();
                assert!(!err.all().contains("left behind"), "message {nth}: {err:?}");
            }
            if !hit {
                break;
            }
            hits += 1;
            before.assert_same(&state(&host), &format!("{fault} at message {nth}"));
            assert_eq!(pod.links(), ["lo"], "{fault} at message {nth}");
        }
        assert!((8..100).contains(&hits), "{fault}: {hits}");
        // The messages about packet rules are sent again, and then ADD succeeds.
        let fewest = if fault == "signal=KILL" { 8 } else { 5 };
        assert!((fewest..100).contains(&faults), "{fault}: {faults} of {hits}");
    }
}

/// Whoever chose the address, the host keeps its own addresses and its routers.
#[test]
fn the_host_gives_no_pod_an_address_that_it_needs() {
    need!("ip");
    let (host, world) = (Host::new(), Pod::new());
    host.cable("up0", &world, "eth0");
    world.ip("addr add 192.0.2.1/24 dev eth0");
    host.ip("addr add 192.0.2.2/24 dev up0");
    host.ip("route add default via 192.0.2.1");
    host.ip("route add 10.66.0.0/16 via 192.0.2.66");
    host.ip("route add 198.51.100.0/24 via 172.16.0.1 dev up0 onlink");
    let net = Network::new(&host, config(&host));
    let pod = Pod::new();
    let att = Attachment::new("a", &pod);
    let with = |address: &str, gateway: &str| {
        net.with("/ipam", json!({"type": "static", "addresses": [{"address": address, "gateway": gateway}]}))
    };
    let before = state(&host);
    for (address, gateway, why) in [
        ("192.0.2.2/32", "10.5.0.1", "the address 192.0.2.2, which is an address of the host"),
        ("127.0.0.1/8", "127.0.0.2", "the address 127.0.0.1, which is an address of the host"),
        ("192.0.2.1/32", "10.5.0.1", "the address 192.0.2.1, which is a next hop of the host's routes"),
        ("10.5.0.2/16", "192.0.2.66", "the gateway 192.0.2.66, which is a next hop of the host's routes"),
    ] {
        let err = with(address, gateway).add(&att).error();
        assert!(err.code == 102 && err.msg.contains(why), "{err:?}");
        before.assert_same(&state(&host), why);
        assert_eq!(pod.links(), ["lo"]);
    }
    // Any link has its own fe80::1.
    host.ip("-6 route add default via fe80::1 dev up0");
    for (address, gateway) in [("10.5.0.2/16", "10.5.0.1"), ("fd00:5::2/64", "fe80::1")] {
        net.deleted(&att, None);
        with(address, gateway).added(&att);
    }
}
