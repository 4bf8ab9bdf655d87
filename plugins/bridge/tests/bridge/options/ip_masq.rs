//! `ipMasq` with real packets; see also `masquerade`.

use serde_json::json;

use cnimble_tests::{
    Attachment, Host, LIMIT, Network, Ns, PATIENCE, Pod, Snapshot, configs, need, wait_until,
};

/// Without a route back, an answer proves masquerading.
fn outside(host: &Host) -> Ns {
    let outside = Ns::new();
    host.cable("uplink", &outside, "eth0");
    host.ip("addr add 192.0.2.1/24 dev uplink");
    host.ip("addr add 2001:db8:2::1/64 dev uplink nodad");
    outside.ip("addr add 192.0.2.2/24 dev eth0");
    outside.ip("addr add 2001:db8:2::2/64 dev eth0 nodad");
    outside
}

#[test]
fn ip_masq() {
    need!("ip", "nft", "ping", "iptables");
    for backend in [None, Some("nftables"), Some("iptables")] {
        if backend.is_some() && configs::newest() < "1.1.0" {
            continue; // the reference plugins of this machine are older
        }
        let host = Host::new();
        let _outside = outside(&host);
        let (one, two) = (Pod::new(), Pod::new());
        let plain = Network::new(&host, configs::dual(&host));
        let mut net = plain.with("/ipMasq", json!(true));
        if let Some(backend) = backend {
            net = net.with("/ipMasqBackend", json!(backend));
        }
        let (att, att2) = (Attachment::new("one", &one), Attachment::new("two", &two));
        let result = net.added(&att);
        let before = Snapshot::of(&host).without_lines("last_reserved_ip");
        let result2 = plain.added(&att2);
        assert!(one.pings("192.0.2.2"), "{backend:?}: v4");
        assert!(one.pings("2001:db8:2::2"), "{backend:?}: v6");
        assert!(two.misses("192.0.2.2"), "the pod without ipMasq has no way");
        assert!(one.pings("10.1.2.3"));
        net.check(&att, &result).success();
        plain.deleted(&att2, Some(&result2));
        let after = Snapshot::of(&host).without_lines("last_reserved_ip");
        before.assert_same(&after, &format!("{backend:?}: another pod came and went"));

        // A second pod and its DEL change nothing for the first.
        let result2 = net.added(&att2);
        assert!(two.pings("192.0.2.2") && two.pings("2001:db8:2::2"));
        net.deleted(&att2, Some(&result2));
        let after = Snapshot::of(&host).without_lines("last_reserved_ip");
        before.assert_same(&after, &format!("{backend:?}: a masqueraded pod came and went"));
        assert!(one.pings("192.0.2.2"));
        net.deleted(&att, Some(&result));
        let left = Snapshot::of(&host).mentions("10.1.2.2");
        assert!(left.is_empty(), "{backend:?}: {left:#?}");
    }
}

#[test]
fn masquerade_leaves_the_own_network_and_multicast_alone() {
    need!("ip", "nft", "ping", "tcpdump");
    let host = Host::new();
    let outside = outside(&host);
    let (one, two) = (Pod::new(), Pod::new());
    let net = Network::new(&host, configs::dual(&host)).with("/ipMasq", json!(true));
    net.added(&Attachment::new("one", &one));
    net.added(&Attachment::new("two", &two));
    // With bridge-nf the bridge's own traffic passes the rules, too.
    host.set_sysctl("bridge/bridge-nf-call-iptables", "1");
    // The first echo request in `ns`.
    let seen = |ns: &Ns, to: &str| {
        let mut command = ns.command("tcpdump");
        command.args([
            "-n",
            "-l",
            "-c",
            "1",
            "--immediate-mode",
            "-i",
            "eth0",
            "icmp[icmptype] == icmp-echo",
        ]);
        command.stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::piped());
        let mut dump = cnimble_tests::Background::start(&mut command);
        // The dump misses packets before it listens.
        wait_until(PATIENCE, || {
            one.run(&format!("ping -n -c 1 -W 1 {to}"));
            !dump.running()
        });
        let output = dump.finish(LIMIT);
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    let line = seen(&two, "10.1.2.3");
    assert!(line.contains("10.1.2.2 > 10.1.2.3"), "{line}");
    let line = seen(&outside, "192.0.2.2");
    assert!(line.contains("192.0.2.1 > 192.0.2.2"), "{line}");
}

#[test]
fn ip_masq_of_one_family() {
    need!("ip", "nft", "ping", "iptables");
    for (backend, kind) in [("nftables", "bridge"), ("iptables", "bridge"), ("nftables", "ptp")] {
        for (family, masqueraded, other) in
            [("ipv4", "192.0.2.2", "2001:db8:2::2"), ("ipv6", "2001:db8:2::2", "192.0.2.2")]
        {
            let host = Host::new();
            let _outside = outside(&host);
            let pod = Pod::new();
            let net = Network::new(&host, configs::dual(&host))
                .with("/type", json!(kind))
                .with("/ipMasq", json!(true))
                .with("/ipMasqBackend", json!(backend))
                .with("/ipMasqFamily", json!(family));
            let att = Attachment::new("one", &pod);
            let result = net.added(&att);
            assert!(pod.pings(masqueraded), "{kind} {backend} {family}");
            assert!(pod.misses(other), "{kind} {backend} {family}");
            net.check(&att, &result).success();
            assert_eq!(net.with("/ipMasqFamily", json!("")).check(&att, &result).error().code, 103);
            net.deleted(&att, Some(&result));
            let left = host.nft("list ruleset");
            assert!(!left.contains("10.1.2.") && !left.contains("fd00:"), "{left}");
        }
    }
}
