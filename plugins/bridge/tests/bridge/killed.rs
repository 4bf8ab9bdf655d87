//! What a killed verb leaves on the host, and who completes or removes it.

use serde_json::{Value, json};

use cnimble_rules::objects::bridge::UNFINISHED;
use cnimble_tests::trace::{Places, State, Stepped, untraceable};
use cnimble_tests::{Attachment, Host, Network, Outcome, Pod, Snapshot, configs, need, skip};

/// The bridge that an ADD leaves if it is killed behind its first request.
fn leave_unfinished(host: &Host) {
    host.ip(&format!("link add br0 group {UNFINISHED} type bridge"));
}

fn is_there(host: &Host) -> bool {
    host.links().contains(&"br0".to_owned())
}

#[test]
fn the_next_add_completes_the_bridge_of_a_killed_one() {
    need!("ip", "nft");
    let host = Host::new();
    leave_unfinished(&host);
    host.ip("tuntap add dev up0 mode tap");
    let net = Network::new(&host, configs::dual(&host));
    let net = net.with("/uplink", json!("up0")).with("/mtu", json!(1400)).with("/promiscMode", json!(true));
    let pod = Pod::new();
    let att = Attachment::new("one", &pod);
    let result = net.added(&att);
    let bridge = host.link("br0");
    assert_eq!(bridge["ifalias"], "bridge with an uplink, made by cnimble");
    assert_eq!((&bridge["group"], &bridge["mtu"]), (&json!("default"), &json!(1400)));
    let flags = bridge["flags"].as_array().unwrap();
    assert!(flags.contains(&json!("UP")) && flags.contains(&json!("PROMISC")), "{bridge}");
    assert_eq!(host.link("up0")["master"], "br0");
    assert_eq!(host.sysctl("ipv6/conf/br0/accept_ra"), "0");
    net.check(&att, &result).success();
    // A foreign bridge would have its addresses probed, and would not lead on.
    assert_eq!(host.sysctl("ipv4/conf/br0/forwarding"), "1");
}

#[test]
fn what_killed_adds_left_is_removed() {
    need!("ip");
    let host = Host::new();
    let net = Network::new(&host, configs::v4(&host));
    let before = host.links();
    let pod = Pod::new();
    let att = Attachment::new("one", &pod);
    // DEL removes bridges only if that is configured.
    leave_unfinished(&host);
    net.deleted(&att, None);
    assert!(is_there(&host));
    net.with("/removeUnusedBridge", json!(true)).deleted(&att, None);
    assert_eq!(host.links(), before);
    leave_unfinished(&host);
    net.gc(Some(json!([]))).success();
    assert_eq!(host.links(), before);
    // An earlier version, or an administrator, uses it.
    for used in
        ["link set br0 up", "link add port0 type veth peer name port1", "address add 192.0.2.1/24 dev br0"]
    {
        leave_unfinished(&host);
        host.ip(used);
        if used.contains("port0") {
            host.ip("link set port0 master br0");
        }
        net.gc(Some(json!([]))).success();
        assert!(is_there(&host), "{used}");
        host.ip("link del br0");
    }
}

/// A DEL that was killed behind its first batch, and is repeated; and one that is never repeated.
#[test]
fn emptied_sets_go_beside_the_pods_of_another_network() {
    need!("ip", "nft");
    let host = Host::new();
    let net = Network::new(&host, configs::v4(&host)).with("/ipMasq", json!(true));
    let mut other = net.with("/name", json!("other")).with("/bridge", json!("br1"));
    other.config["ipam"]["ranges"] = json!([[{"subnet": "10.9.9.0/24"}]]);
    let (pod, neighbour) = (Pod::new(), Pod::new());
    other.added(&Attachment::new("neighbour", &neighbour));
    let before = host.nft("-s list ruleset");
    let att = Attachment::new("one", &pod);
    for repeated in [true, false] {
        let result = net.added(&att);
        let ip = result["ips"][0]["address"].as_str().unwrap().split('/').next().unwrap();
        host.nft(&format!("delete element inet cnimble masq-10.1.2.0/24 {{ {ip} }}"));
        if repeated {
            net.deleted(&att, Some(&result));
        } else {
            host.ip("link del br0");
            net.gc(Some(json!([]))).success();
            net.deleted(&att, None);
        }
        assert_eq!(host.nft("-s list ruleset"), before, "repeated: {repeated}");
    }
}

/// Leads one DEL to its `nth` message and lets another DEL and the ADD of the next pod pass it. `None` once it holds the
/// lock of the leases, for which the others would wait.
fn overtake(net: &Network<'_>, nth: usize) -> Option<()> {
    let (pod, next) = (Pod::new(), Pod::new());
    let (att, late) = (Attachment::new("one", &pod), Attachment::new("next", &next));
    let result = net.added(&att);
    let address = |result: &Value| result["ips"][0]["address"].clone();
    let mut slow = net.call("DEL", &att, Some(&result)).stepped(Places::Messages);
    let mut messages = 0;
    while messages < nth {
        if slow.look() != State::Ready || slow.call() == "flock" {
            lead_to_its_end(slow);
            return None;
        }
        messages += usize::from(slow.call().starts_with("send"));
        if messages < nth {
            slow.step();
        }
    }
    net.deleted(&att, Some(&result));
    let given = net.added(&late);
    assert_eq!(address(&given), address(&result));
    lead_to_its_end(slow);
    net.check(&late, &given).success();
    net.deleted(&late, Some(&given));
    Some(())
}

fn lead_to_its_end(mut process: Stepped) {
    while !matches!(process.look(), State::Ended(_)) {
        process.step();
    }
    Outcome::from("the overtaken DEL", process.finish()).success();
}

#[test]
fn an_overtaken_del_leaves_the_next_pod_its_address() {
    need!("ip", "nft");
    if let Some(why) = untraceable() {
        skip!("{why}");
    }
    let host = Host::new();
    let mut net = Network::new(&host, configs::v4(&host)).with("/ipMasq", json!(true));
    net.config["ipam"]["ranges"] =
        json!([[{"subnet": "10.1.2.0/24", "rangeStart": "10.1.2.5", "rangeEnd": "10.1.2.5"}]]);
    let mut nth = 1;
    while overtake(&net, nth).is_some() {
        nth += 1;
    }
    assert!(nth > 5, "a DEL has only {nth} messages before it locks the leases?");
}

/// The administrator's bridge has that group, too, and an alias.
#[test]
fn the_group_alone_marks_no_bridge() {
    need!("ip");
    let host = Host::new();
    leave_unfinished(&host);
    host.ip("link set br0 alias mine");
    let before = Snapshot::of(&host);
    let net = Network::new(&host, configs::v4(&host)).with("/removeUnusedBridge", json!(true));
    net.gc(Some(json!([]))).success();
    before.assert_same(&Snapshot::of(&host), "GC");
    let pod = Pod::new();
    net.added(&Attachment::new("one", &pod));
    assert_eq!(host.link("br0")["ifalias"], "mine");
}
