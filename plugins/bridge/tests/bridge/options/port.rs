//! The host's end: `hairpinMode`, `promiscMode`, `portIsolation`, `macspoofchk`.

use serde_json::{Value, json};

use cnimble_tests::{Attachment, Host, Network, PATIENCE, Pod, Snapshot, configs, need, wait_until};

use super::veth;

/// The flags of the bridge port.
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
    // What it is for: a frame that goes out of the port it came in. A MAC that the bridge
    // doesn't know is flooded, with hairpin also to the sender.
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

#[test]
fn macspoofchk() {
    need!("ip", "nft", "ping");
    let host = Host::new();
    let (one, two) = (Pod::new(), Pod::new());
    let net = Network::new(&host, configs::dual(&host));
    let checked = net.with("/macspoofchk", json!(true));
    // Tables that pods share may stay when the last one goes.
    checked.added(&Attachment::new("other", &two));
    let before = Snapshot::of(&host).without_lines("last_reserved_ip");
    let att = Attachment::new("one", &one);
    let result = checked.added(&att);
    let own = result["interfaces"][2]["mac"].as_str().unwrap();
    assert!(one.pings("10.1.2.1") && one.pings("10.1.2.2") && one.pings("fd00:1:2::1"));
    checked.check(&att, &result).success();
    // Routes and v6 addresses survive the change of MAC, the neighbours forget.
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
