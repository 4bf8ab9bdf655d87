//! Entries in a bridge's forwarding table. A pod's frames reach the pod, even if another sender claims its address.

use std::sync::atomic::{AtomicU8, Ordering};

use serde_json::{Value, json};

use cnimble_tests::{
    Attachment, Host, Network, Ns, PATIENCE, Pod, Snapshot, configs, need, skip, wait_until,
};

use super::frames;

pub(super) fn mac_of(pod: &Pod) -> String {
    pod.link("eth0")["address"].as_str().unwrap().to_owned()
}

pub(super) fn port_of(result: &Value) -> &str {
    result["interfaces"][1]["name"].as_str().unwrap()
}

/// Returns the port that the forwarding table has for `mac`, and the entry.
fn place(host: &Host, mac: &str, vlan: Option<u16>) -> (String, String) {
    let vlan = vlan.map(|id| format!("vlan {id}")).unwrap_or_default();
    let entry = host.sh(&format!("bridge fdb get {mac} br br0 {vlan}"));
    let port = entry.split_whitespace().nth(2).unwrap().to_owned();
    (port, entry)
}

/// Sends frames with the source `mac`, and then one that must be learned.
pub(super) fn forge(host: &Host, from: &Ns, mac: &str, vlan: Option<u16>) {
    let forged = frames::mac(mac);
    let everybody = [0xff; 6];
    let arp = |to, from| {
        let packet = frames::arp(from, "10.1.2.77".parse().unwrap(), "10.1.2.78".parse().unwrap());
        frames::ethernet(to, from, 0x0806, &packet)
    };
    static NEXT: AtomicU8 = AtomicU8::new(1);
    let honest = format!("02:00:00:00:77:{:02x}", NEXT.fetch_add(1, Ordering::Relaxed));
    let reserved = frames::reserved().map(|to| arp(to, forged));
    frames::send(
        from,
        &reserved.chain([arp(everybody, forged), arp(everybody, frames::mac(&honest))]).collect::<Vec<_>>(),
    );
    // The last frame has been learned, and so has everything learnable before it.
    place(host, &honest, vlan);
}

/// Returns all ways to request an address.
pub(super) fn asking<'h>(
    net: &Network<'h>,
    attachment: &Attachment,
    mac: &str,
) -> [(Network<'h>, Attachment); 3] {
    [
        (net.clone(), attachment.clone().args(&format!("IgnoreUnknown=1;MAC={mac}"))),
        (net.with("/runtimeConfig", json!({"mac": mac})), attachment.clone()),
        (net.with("/args", json!({"cni": {"mac": mac}})), attachment.clone()),
    ]
}

#[test]
fn the_address_of_another_pod_cant_be_asked_for() {
    need!("ip", "nft", "ping", "bridge");
    for (guarded, attackers) in [(true, true), (true, false), (false, false)] {
        let host = Host::hasty();
        let plain = Network::new(&host, configs::v4(&host));
        let with = |guarded: bool| plain.with("/macspoofchk", json!(guarded));
        let (victim, pod) = (Pod::new(), Pod::new());
        let result = with(guarded).added(&Attachment::new("victim", &victim));
        let mac = mac_of(&victim);
        assert!(victim.pings("10.1.2.1"));
        let before = Snapshot::settled(&host).without_lines("last_reserved_ip");
        for (net, attachment) in asking(&with(attackers), &Attachment::new("c1", &pod), &mac) {
            let err = net.add(&attachment).error();
            assert_eq!(err.code, 102, "{guarded} {attackers}: {}", err.all());
            assert!(err.msg.contains(&mac) && err.msg.contains(port_of(&result)), "{}", err.all());
            let now = Snapshot::settled(&host).without_lines("last_reserved_ip");
            before.assert_same(&now, &err.all());
        }
        assert_eq!(place(&host, &mac, None).0, port_of(&result));
        assert!(victim.pings_once("10.1.2.1"));
        // It cannot have an address of the host either.
        for own in [host.link("br0"), host.link(port_of(&result))] {
            let own = own["address"].as_str().unwrap();
            for (net, attachment) in asking(&with(attackers), &Attachment::new("c1", &pod), own) {
                let err = net.add(&attachment).error();
                assert_eq!(err.code, 102, "{}", err.all());
            }
        }
        // When the pod is gone, the address is free.
        plain.deleted(&Attachment::new("victim", &victim), Some(&result));
        let att = Attachment::new("c1", &pod).args(&format!("IgnoreUnknown=1;MAC={mac}"));
        let result = with(attackers).added(&att);
        assert_eq!((mac_of(&pod), place(&host, &mac, None).0.as_str()), (mac.clone(), port_of(&result)));
        with(attackers).check(&att, &result).success();
    }
}

#[test]
fn the_place_of_a_pod_whose_address_is_checked_cant_be_taken_by_any_port() {
    need!("ip", "nft", "ping", "bridge");
    let host = Host::hasty();
    let plain = Network::new(&host, configs::v4(&host));
    let (victim, pod, outside) = (Pod::new(), Pod::new(), Ns::new());
    let result = plain.with("/macspoofchk", json!(true)).added(&Attachment::new("victim", &victim));
    plain.added(&Attachment::new("c1", &pod));
    host.cable("up0", &outside, "eth0");
    host.ip("link set up0 master br0");
    let mac = mac_of(&victim);
    for attacker in [&pod, &outside] {
        forge(&host, attacker, &mac, None);
        let (port, entry) = place(&host, &mac, None);
        assert_eq!(port, port_of(&result), "{entry}");
        assert!(entry.contains("sticky"), "{entry}");
    }
    assert!(victim.pings_once("10.1.2.1"));
    // The same frames take over the entry of a pod without an address check.
    let other = Pod::new();
    plain.added(&Attachment::new("c2", &other));
    let mac = mac_of(&other);
    let taken = wait_until(PATIENCE, || {
        forge(&host, &outside, &mac, None);
        place(&host, &mac, None).0 == "up0"
    });
    assert!(taken, "{:?}", place(&host, &mac, None));
}

/// An address learned from a frame proves nothing, as any sender can forge it.
#[test]
fn a_lie_keeps_no_pod_from_coming() {
    need!("ip", "nft", "ping", "bridge");
    let host = Host::hasty();
    let net = Network::new(&host, configs::v4(&host));
    let (liar, outside) = (Pod::new(), Ns::new());
    net.added(&Attachment::new("liar", &liar));
    host.cable("up0", &outside, "eth0");
    host.ip("link set up0 master br0");
    // The address of the next pod is predictable.
    for (number, from) in [("3", &liar), ("4", &outside)] {
        let next = format!("0a:58:0a:01:02:0{number}");
        forge(&host, from, &next, None);
        let pod = Pod::new();
        let att = Attachment::new(&format!("c{number}"), &pod);
        let result = net.with("/macspoofchk", json!(true)).added(&att);
        assert_eq!(mac_of(&pod), next, "the test is out of date");
        assert_eq!(place(&host, &next, None).0, port_of(&result));
        assert!(pod.pings("10.1.2.1"));
    }
    // A machine that was seen on the uplink, and then moves to this node, is accepted.
    let mac = "02:00:00:00:00:42";
    forge(&host, &outside, mac, None);
    assert_eq!(place(&host, mac, None).0, "up0");
    let pod = Pod::new();
    let att = Attachment::new("moved", &pod).args(&format!("IgnoreUnknown=1;MAC={mac}"));
    let result = net.added(&att);
    assert_eq!(place(&host, mac, None).0, port_of(&result));
    assert!(pod.pings("10.1.2.1"));
}

/// A program that is already in the pod cannot send before its address is checked.
#[test]
fn the_address_is_checked_before_the_pods_interface_is_up() {
    need!("ip", "nft", "strace");
    let host = Host::hasty();
    if host.call("bridge").command("VERSION").under(&["strace", "-o", "/dev/null"]).run().status != 0 {
        skip!("strace may not trace here");
    }
    let pod = Pod::new();
    let net = Network::new(&host, configs::v4(&host)).with("/macspoofchk", json!(true));
    let file = host.dir().join("strace");
    let call = net.call("ADD", &Attachment::new("c1", &pod), None);
    call.under(&["strace", "-f", "-v", "-s", "65536", "-o", file.to_str().unwrap()]).run().success();
    let trace = std::fs::read_to_string(file).unwrap();
    let first = |part: &str| trace.lines().position(|line| line.contains(part)).unwrap();
    // The pod's namespace is entered once, and all work in it follows.
    let (checked, entered) = (first("NFT_MSG_NEWSETELEM"), first("setns("));
    assert!(checked < entered, "{checked} {entered}\n{trace}");
}
