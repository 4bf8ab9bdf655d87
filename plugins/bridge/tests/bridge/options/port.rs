use serde_json::{Value, json};

use cnimble_tests::{Attachment, Host, Network, PATIENCE, Pod, Snapshot, configs, need, wait_until};

use super::veth;

fn port(host: &Host, result: &Value) -> Value {
    host.link(&veth(result))["linkinfo"]["info_slave_data"].clone()
}

#[test]
fn hairpin_mode() {
    need!("ip", "nft", "ping");
    let host = Host::new();
    let pod = Pod::new();
    let net = Network::new(&host, configs::v4(&host)).with("/hairpinMode", json!(true));
    let att = Attachment::new("one", &pod);
    let result = net.added(&att);
    assert_eq!(port(&host, &result)["hairpin"], true);
    net.check(&att, &result).success();
    // With hairpin a frame for an unknown MAC is flooded also to its sender.
    pod.ip("neigh add 10.1.2.99 lladdr 02:00:00:00:00:99 dev eth0");
    let received = || pod.ip_json("-s link show dev eth0")[0]["stats64"]["rx"]["packets"].as_u64();
    let before = received();
    pod.run("ping -n -c 1 -W 1 10.1.2.99");
    assert!(wait_until(PATIENCE, || received() > before), "{before:?} {:?}", received());
}

#[test]
fn promisc_mode() {
    need!("ip");
    let host = Host::new();
    let pod = Pod::new();
    let net = Network::new(&host, configs::v4(&host)).with("/promiscMode", json!(true));
    net.added(&Attachment::new("one", &pod));
    let flags = host.link("br0")["flags"].clone();
    assert!(flags.as_array().unwrap().contains(&json!("PROMISC")), "{flags}");
    let both = net.with("/hairpinMode", json!(true));
    let other = Pod::new();
    let error = both.add(&Attachment::new("two", &other)).error();
    assert_eq!(other.links(), ["lo"], "{error:?}");
}

#[test]
fn port_isolation() {
    need!("ip", "ping");
    let host = Host::new();
    let (one, two, free) = (Pod::new(), Pod::new(), Pod::new());
    let net = Network::new(&host, configs::v4(&host)).with("/portIsolation", json!(true));
    let result = net.added(&Attachment::new("one", &one));
    net.added(&Attachment::new("two", &two));
    net.with("/portIsolation", json!(false)).added(&Attachment::new("free", &free));
    assert_eq!(port(&host, &result)["isolated"], true);
    assert!(one.pings("10.1.2.1"), "the gateway");
    assert!(one.pings("10.1.2.4"), "a port that is not isolated");
    assert!(one.misses("10.1.2.3"), "another isolated port");
    net.check(&Attachment::new("one", &one), &result).success();
}

/// The host also routes packets back to the bridge.
#[test]
fn isolated_pods_dont_reach_each_other_by_way_of_the_gateway() {
    need!("ip", "nft", "ping");
    let host = Host::new();
    let pods = [Pod::new(), Pod::new(), Pod::new()];
    let [one, two, free] = &pods;
    let net = Network::new(&host, configs::dual(&host)).with("/portIsolation", json!(true));
    let open = net.with("/portIsolation", json!(false));
    let atts = [Attachment::new("one", one), Attachment::new("two", two), Attachment::new("free", free)];
    let results = [net.added(&atts[0]), net.added(&atts[1]), open.added(&atts[2])];
    let ip = |pod: usize, family: usize| {
        results[pod]["ips"][family]["address"].as_str().unwrap().split('/').next().unwrap()
    };
    // Every pod sends through the gateway to the others.
    for (pod, others) in [(0, [1, 2]), (1, [0, 2]), (2, [0, 1])] {
        for other in others {
            pods[pod].ip(&format!("route add {} via 10.1.2.1", ip(other, 0)));
            pods[pod].ip(&format!("route add {} via fd00:1:2::1", ip(other, 1)));
        }
    }
    for family in [0, 1] {
        for (from, to) in [(0, 2), (1, 2), (2, 0), (2, 1)] {
            assert!(pods[from].pings(ip(to, family)), "{from} to {to}: one of them is not isolated");
        }
        assert!(one.misses(ip(1, family)) && two.misses(ip(0, family)), "both are");
        assert!(host.pings(ip(0, family)));
    }
    // The source address is forged.
    let lie = format!("ip saddr {} ip daddr {}", ip(2, 0), ip(1, 0));
    two.nft("add table ip seen");
    two.nft("add chain ip seen in { type filter hook prerouting priority -300; }");
    two.nft(&format!("add rule ip seen in {lie} counter"));
    one.ip(&format!("addr add {}/32 dev eth0", ip(2, 0)));
    for pod in [one, free] {
        pod.run(&format!("ping -n -c 3 -i 0.2 -W 0.2 -I {} {}", ip(2, 0), ip(1, 0)));
        let seen = two.nft("list table ip seen");
        assert_eq!(!seen.contains("packets 0 "), std::ptr::eq(pod, free), "{seen}");
    }

    for (att, result) in atts.iter().zip(&results).take(2) {
        net.check(att, result).success();
    }
    host.nft("flush chain bridge cnimble isolation");
    assert_eq!(net.check(&atts[0], &results[0]).error().code, 103);
    net.deleted(&atts[0], Some(&results[0]));
    let left = host.nft("list ruleset");
    assert!(!left.contains("id: one") && left.contains("id: two"), "{left}");
    net.deleted(&atts[1], None);
    assert_eq!(host.nft("list ruleset"), "");
    open.check(&atts[2], &results[2]).success();
    // GC removes these rules, too.
    let (again, valid) = (Pod::new(), json!([{ "containerID": "free", "ifname": "eth0" }]));
    net.added(&Attachment::new("again", &again));
    assert!(host.nft("list ruleset").contains("id: again"));
    net.with("/cniVersion", json!(configs::newest())).gc(Some(valid)).success();
    assert_eq!(host.nft("list ruleset"), "");
}

#[test]
fn macspoofchk() {
    need!("ip", "nft", "ping");
    let host = Host::new();
    let (one, two) = (Pod::new(), Pod::new());
    let net = Network::new(&host, configs::dual(&host));
    let checked = net.with("/macspoofchk", json!(true));
    // Shared tables may stay.
    checked.added(&Attachment::new("other", &two));
    let before = Snapshot::of(&host).without_lines("last_reserved_ip");
    let att = Attachment::new("one", &one);
    let result = checked.added(&att);
    let own = result["interfaces"][2]["mac"].as_str().unwrap();
    assert!(one.pings("10.1.2.1") && one.pings("10.1.2.2") && one.pings("fd00:1:2::1"));
    checked.check(&att, &result).success();
    // Routes and addresses survive the change of the MAC. Neighbour entries don't.
    one.ip("link set eth0 address 02:00:00:00:66:66");
    host.ip("neigh flush dev br0");
    assert!(one.misses("10.1.2.1"), "a spoofed MAC must not pass (to the host)");
    assert!(one.misses("10.1.2.2"), "a spoofed MAC must not pass (to a pod)");
    assert!(one.misses("fd00:1:2::1"), "a spoofed MAC must not pass (v6)");
    assert!(two.pings("10.1.2.1"), "the other pod is not affected");
    one.ip(&format!("link set eth0 address {own}"));
    assert!(one.pings("10.1.2.1"), "its own MAC passes again");
    checked.deleted(&att, Some(&result));
    let after = Snapshot::of(&host).without_lines("last_reserved_ip");
    before.assert_same(&after, "after DEL");
}

#[test]
fn check_notices_lost_rules() {
    need!("ip", "nft");
    for key in ["/macspoofchk", "/ipMasq"] {
        let host = Host::new();
        let pod = Pod::new();
        let net = Network::new(&host, configs::dual(&host)).with(key, json!(true));
        let att = Attachment::new("one", &pod);
        let result = net.added(&att);
        net.check(&att, &result).success();
        host.nft("flush ruleset");
        let outcome = net.check(&att, &result);
        assert!(outcome.status == 1, "CHECK misses the rules of {key}");
        net.deleted(&att, Some(&result));
    }
}
