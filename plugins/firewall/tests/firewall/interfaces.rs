//! Policies for packets that arrive by a vlan's gateway or by the pod's own interface (ptp).

use serde_json::{Value, json};

use cnimble_tests::{Attachment, Host, Network, PATIENCE, Pod, configs, need, wait_until};

use super::{Member, bridge, firewall, join, meet};

fn policed<'h>(host: &'h Host, number: u8, backend: &str, policy: &str) -> Network<'h> {
    firewall(host, number, &json!({ "backend": backend, "ingressPolicy": policy }))
}

/// Moves the gateway to a veth pair with one end on the bridge, as with a vlan, which few test kernels have on bridges.
fn move_gateway(host: &Host, number: u8) {
    host.shell(&format!(
        "ip link add br{number}.100 type veth peer name vethgw{number}
         ip link set vethgw{number} master br{number} up
         ip link set br{number}.100 up
         ip addr flush dev br{number} scope global
         ip addr add 10.1.{number}.1/24 dev br{number}.100
         ip addr add fd00:{number}::1/64 dev br{number}.100 nodad"
    ));
}

fn ptp(host: &Host, number: u8) -> Network<'_> {
    let net = bridge(host, number).with("/type", json!("ptp"));
    net.with("/ipam/routes", json!([{ "dst": "0.0.0.0/0" }, { "dst": "::/0" }]))
}

fn alone(host: &Host, number: u8, id: &str) -> Member {
    let pod = Pod::new();
    let att = Attachment::new(id, &pod);
    let prev = ptp(host, number).added(&att);
    Member { pod, att, prev }
}

fn leave(host: &Host, number: u8, member: &Member, policy: &Network<'_>) {
    policy.deleted(&member.att, Some(&member.prev));
    bridge(host, number).deleted(&member.att, Some(&member.prev));
}

fn policies(host: &Host) -> String {
    let ruleset = host.nft("list ruleset");
    ruleset.lines().filter(|line| line.contains("ingressPolicy:")).collect()
}

#[test]
fn a_policy_holds_at_a_vlans_gateway_with_nf_tables() {
    at_a_vlans_gateway("nftables");
}

#[test]
fn a_policy_holds_at_a_vlans_gateway_with_iptables() {
    need!("iptables-nft-save");
    at_a_vlans_gateway("iptables");
}

fn at_a_vlans_gateway(backend: &str) {
    need!("ip", "nft", "ping");
    let host = Host::new();
    let first = join(&host, 1, "first");
    move_gateway(&host, 1);
    bridge(&host, 1).with("/isGateway", json!(false)).deleted(&first.att, None);
    // bridge would restore the gateway.
    let net = bridge(&host, 1).with("/isGateway", json!(false)).with("/isDefaultGateway", json!(false));
    let [a1, a2] = ["a1", "a2"].map(|id| {
        let pod = Pod::new();
        let att = Attachment::new(id, &pod);
        let mut prev = net.added(&att);
        pod.ip("route replace default via 10.1.1.1");
        pod.ip("route replace default via fd00:1::1");
        let gateway = json!({ "name": "br1.100", "mac": "02:00:00:00:01:00" });
        prev["interfaces"].as_array_mut().unwrap().push(gateway);
        Member { pod, att, prev }
    });
    let b = join(&host, 2, "b");
    meet(&host, &[&a1, &a2, &b]);
    let (same, other) =
        (policed(&host, 1, backend, "same-bridge"), policed(&host, 2, backend, "same-bridge"));
    a1.add(&same);
    a2.add(&same);
    b.add(&other);
    assert!(a1.misses(&b) && b.misses(&a1), "other bridges are shut out");
    assert!(a1.reaches(&a2), "the same bridge isn't");
    assert!(a1.pod.pings("10.1.1.1") && host.pings(a1.ip(0)), "nor the host");
    same.check(&a1.att, &a1.prev).success();

    // Nor through the gateway.
    let isolated = policed(&host, 1, backend, "isolated");
    for (from, to) in [(&a1, &a2), (&a2, &a1)] {
        from.pod.ip(&format!("route add {} via 10.1.1.1", to.ip(0)));
        from.pod.ip(&format!("route add {} via fd00:1::1", to.ip(1)));
    }
    assert!(a1.reaches(&a2), "by way of the gateway");
    a1.add(&isolated);
    a2.add(&isolated);
    assert!(a1.misses(&a2) && a2.misses(&a1) && a1.misses(&b), "isolated");
    isolated.check(&a1.att, &a1.prev).success();

    leave(&host, 1, &a1, &isolated);
    assert!(a2.misses(&b), "one is still there");
    isolated.check(&a2.att, &a2.prev).success();
    leave(&host, 1, &a2, &isolated);
    assert!(!policies(&host).contains("br1"), "{}", policies(&host));
    other.check(&b.att, &b.prev).success();
    leave(&host, 2, &b, &other);
    assert_eq!(policies(&host), "");
}

#[test]
fn a_pod_without_a_bridge_has_its_policy_alone() {
    need!("ip", "nft", "ping", "iptables-nft-save");
    std::thread::scope(|scope| {
        for (backend, policy) in [
            ("nftables", "same-bridge"),
            ("nftables", "isolated"),
            ("iptables", "same-bridge"),
            ("iptables", "isolated"),
        ] {
            scope.spawn(move || without_a_bridge(backend, policy));
        }
    });
}

fn without_a_bridge(backend: &str, policy: &str) {
    let host = Host::new();
    let (p, q) = (alone(&host, 1, "p"), alone(&host, 1, "q"));
    let (a, open) = (join(&host, 2, "a"), join(&host, 3, "open"));
    meet(&host, &[&p, &q, &a, &open]);
    let (net, other) = (policed(&host, 1, backend, policy), policed(&host, 2, backend, policy));
    for member in [&p, &q] {
        assert_eq!(member.add(&net), member.prev, "{backend} {policy}");
    }
    a.add(&other);
    let shut = |when: &str| {
        for (from, to) in [(&p, &a), (&a, &p), (&p, &q), (&q, &a)] {
            assert!(from.misses(to), "{backend} {policy} {when}: {} to {}", from.att.id, to.att.id);
        }
    };
    shut("after ADD");
    assert!(p.reaches(&open) && host.pings(p.ip(0)));
    net.check(&p.att, &p.prev).success();
    // The pod's end is not a bridge without ports.
    let valid: Value =
        json!([{ "containerID": "p", "ifname": "eth0" }, { "containerID": "q", "ifname": "eth0" }]);
    net.clone().with("/cniVersion", json!(configs::newest())).gc(Some(valid)).success();
    shut("after GC");
    for member in [&p, &q] {
        net.deleted(&member.att, Some(&member.prev));
        let port = member.prev["interfaces"][0]["name"].as_str().unwrap();
        assert!(!policies(&host).contains(port), "{backend} {policy}: {}", policies(&host));
        ptp(&host, 1).deleted(&member.att, Some(&member.prev));
    }
    other.check(&a.att, &a.prev).success();
    leave(&host, 2, &a, &other);
    assert_eq!(policies(&host), "", "{backend} {policy}");
}

#[test]
fn the_last_pods_del_without_a_result_takes_the_policy_along() {
    need!("ip", "nft", "iptables-nft-save");
    for backend in ["nftables", "iptables"] {
        for on_bridge in [true, false] {
            for lives in [true, false] {
                let host = Host::new();
                let net = policed(&host, 1, backend, "same-bridge");
                let other = policed(&host, 2, backend, "same-bridge");
                let enter = |id| if on_bridge { join(&host, 1, id) } else { alone(&host, 1, id) };
                let (stays, last, beside) = (join(&host, 2, "stays"), enter("last"), enter("beside"));
                stays.add(&other);
                for member in [last, beside] {
                    member.add(&net);
                    let main = if on_bridge { bridge(&host, 1) } else { ptp(&host, 1) };
                    let (port, mut att) = (member.prev["interfaces"][0]["name"].clone(), member.att.clone());
                    if !lives {
                        drop(member.pod);
                        att.netns = String::new();
                        let end = if on_bridge { &member.prev["interfaces"][1]["name"] } else { &port };
                        let end = end.as_str().unwrap();
                        assert!(wait_until(PATIENCE, || host.link(end).is_null()));
                    }
                    net.deleted(&att, None);
                    main.deleted(&att, None);
                    let what = format!("{backend}, on a bridge: {on_bridge}, lives: {lives}");
                    assert!(on_bridge || !policies(&host).contains(port.as_str().unwrap()), "{what}");
                }
                let what =
                    format!("{backend}, on a bridge: {on_bridge}, lives: {lives}: {}", policies(&host));
                if backend == "nftables" {
                    assert!(!policies(&host).contains("br1") && policies(&host).contains("br2"), "{what}");
                }
                other.check(&stays.att, &stays.prev).success();
                leave(&host, 2, &stays, &other);
                assert_eq!(policies(&host), "", "{what}");
            }
        }
    }
}

/// The result's name of the port is outdated.
#[test]
fn the_last_pods_del_takes_the_policy_along_when_its_port_was_renamed() {
    need!("ip", "nft", "iptables-nft-save");
    for backend in ["nftables", "iptables"] {
        for told in [true, false] {
            let host = Host::new();
            let (net, other) =
                (policed(&host, 1, backend, "same-bridge"), policed(&host, 2, backend, "open"));
            let (member, stays) = (join(&host, 1, "pod"), join(&host, 2, "stays"));
            member.add(&net);
            stays.add(&other);
            let port = member.prev["interfaces"][1]["name"].as_str().unwrap();
            host.ip(&format!("link set {port} down"));
            host.ip(&format!("link set {port} name renamed"));
            host.ip("link set renamed up");
            net.deleted(&member.att, Some(&member.prev).filter(|_| told));
            assert_eq!(policies(&host), "", "{backend}, with the result: {told}");
        }
    }
}
