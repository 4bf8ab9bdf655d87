//! The plugin bandwidth: limits that a real transfer feels, the kernel's view beside the Go
//! plugin's, and nothing left behind.
// Tests stop at the first surprise; clippy doesn't see that this whole crate is one.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

use cnimble_tests::{
    Attachment, Host, LIMIT, Network, Ns, PATIENCE, Pod, Snapshot, configs, go_plugins, need, skip,
    wait_until,
};
use serde_json::{Value, json};

/// Bits per second.
const RATE: u64 = 8_000_000;
/// Bits; 20 kB.
const BURST: u64 = 160_000;

/// A pod on a bridge, with bandwidth behind it.
struct Chain {
    host: Host,
    pod: Pod,
    att: Attachment,
    prev: Value,
}

impl Chain {
    fn new() -> Self {
        Chain::on(configs::v4)
    }

    fn on(bridge: fn(&Host) -> Value) -> Self {
        let (host, pod) = (Host::new(), Pod::new());
        let att = Attachment::new("one", &pod);
        let prev = Network::new(&host, bridge(&host)).added(&att);
        Chain { host, pod, att, prev }
    }

    fn net(&self, keys: &Value) -> Network<'_> {
        let mut config = json!({ "cniVersion": configs::newest(), "name": "net4", "type": "bandwidth" });
        config.as_object_mut().unwrap().extend(keys.as_object().unwrap().clone());
        Network::new(&self.host, config)
    }

    fn add(&self, net: &Network<'_>) -> Value {
        net.call("ADD", &self.att, Some(&self.prev)).run().result()
    }

    fn veth(&self) -> &str {
        self.prev["interfaces"][1]["name"].as_str().unwrap()
    }

    fn ifbs(&self) -> Vec<String> {
        self.host.links().into_iter().filter(|name| name.starts_with("bwp")).collect()
    }

    /// All that `tc` says of qdiscs.
    fn qdiscs(&self) -> Value {
        serde_json::from_str(&self.host.sh("tc -j qdisc show")).unwrap()
    }

    fn state(&self) -> (Snapshot, Value) {
        (Snapshot::of_ns(&self.host), self.qdiscs())
    }

    fn assert_state(&self, before: &(Snapshot, Value), when: &str) {
        before.0.assert_same(&Snapshot::of_ns(&self.host), when);
        assert_eq!(before.1, self.qdiscs(), "{when}");
    }
}

fn both() -> Value {
    json!({ "ingressRate": RATE, "ingressBurst": BURST, "egressRate": RATE / 2, "egressBurst": BURST })
}

/// A connection from one to the other, whose address is `ip`: both its ends.
fn connect(from: &Ns, to: &Ns, ip: &str) -> (TcpStream, TcpStream) {
    let listener = to.within(|| TcpListener::bind((ip, 0)).unwrap());
    let port = listener.local_addr().unwrap().port();
    let near = from.within(|| TcpStream::connect((ip, port)).unwrap());
    (near, listener.accept().unwrap().0)
}

/// Payload in bits that gets from one end to the other, and how many seconds that takes from the
/// first moment to the last: as many as wanted, or more on a slow machine.
fn pump(mut sender: TcpStream, mut receiver: TcpStream, wanted: Duration) -> (f64, f64) {
    std::thread::scope(|scope| {
        let start = Instant::now();
        scope.spawn(move || {
            sender.set_write_timeout(Some(LIMIT)).unwrap();
            // Until the receiver has enough.
            while sender.write(&[0; 16 * 1024]).is_ok() {}
        });
        receiver.set_read_timeout(Some(LIMIT)).unwrap();
        let mut buffer = vec![0; 64 * 1024];
        let mut bytes = 0;
        loop {
            bytes += receiver.read(&mut buffer).unwrap();
            if start.elapsed() >= wanted {
                drop(receiver);
                return (bytes as f64 * 8.0, start.elapsed().as_secs_f64());
            }
        }
    })
}

/// Two seconds of [`pump`] from `from` to `to`, whose address is `ip`.
fn transfer(from: &Ns, to: &Ns, ip: &str) -> (f64, f64) {
    let (near, far) = connect(from, to, ip);
    pump(near, far, Duration::from_secs(2))
}

/// No transfer is more than a tenth faster than `rate` allows after the burst, and one of them is
/// nearly as fast; others may have had a machine that is too slow. With the headers, which the
/// kernel counts as well: 66 bytes of a packet of 1514.
fn assert_rate(rate: u64, what: &str, transfer: impl Fn() -> (f64, f64)) {
    let mut seen = Vec::new();
    let reached = wait_until(PATIENCE, || {
        let (bits, seconds) = transfer();
        let (bits, allowed) = (bits * 1514.0 / 1448.0, rate as f64 * seconds);
        seen.push(format!("{:.2} Mbit/s in {seconds:.2} s", bits / seconds / 1e6));
        assert!(bits <= BURST as f64 + 1.1 * allowed, "{what}: {seen:?} of {rate}");
        bits >= 0.9 * allowed
    });
    eprintln!("{what}: {seen:?} of {:.2} Mbit/s", rate as f64 / 1e6);
    assert!(reached, "{what}: {seen:?} of {rate}");
}

#[test]
fn a_transfer_gets_the_rate_both_ways() {
    need!("ip");
    let chain = Chain::new();
    let ip = chain.pod.addrs("eth0")[0].split('/').next().unwrap().to_owned();
    let gateway = chain.host.addrs(chain.prev["interfaces"][0]["name"].as_str().unwrap())[0]
        .split('/')
        .next()
        .unwrap()
        .to_owned();
    let (bits, seconds) = transfer(&chain.host, &chain.pod, &ip);
    if bits / seconds < 5.0 * RATE as f64 {
        skip!("this machine transfers only {:.1} Mbit/s without a limit", bits / seconds / 1e6);
    }
    let net = chain.net(&both());
    let result = chain.add(&net);
    assert_rate(RATE, "ingress", || transfer(&chain.host, &chain.pod, &ip));
    assert_rate(RATE / 2, "egress", || transfer(&chain.pod, &chain.host, &gateway));
    net.check(&chain.att, &result).success();
}

/// Two far ends for each family: the second is in the lists.
const FAR: [[&str; 2]; 2] = [["198.51.100.1", "203.0.113.1"], ["2001:db8:1::1", "2001:db8:2::1"]];

#[test]
fn subnets_are_limited_or_not() {
    need!("ip", "tc");
    let chain = Chain::on(configs::dual);
    chain.host.ip("link set lo up");
    for ip in FAR.as_flattened() {
        let flag = if ip.contains(':') { "nodad" } else { "" };
        chain.host.ip(&format!("addr add {ip} dev lo {flag}"));
    }
    let bridge = chain.prev["interfaces"][0]["name"].as_str().unwrap();
    for gateway in chain.host.addrs(bridge).iter().filter(|addr| !addr.starts_with("fe80")) {
        let gateway = gateway.split('/').next().unwrap();
        let family = if gateway.contains(':') { "-6 " } else { "" };
        chain.pod.ip(&format!("{family}route replace default via {gateway} dev eth0"));
    }
    // What a pod receives comes from there, what it sends goes there.
    let down = |ip: &str, wanted: Duration| {
        let (near, far) = connect(&chain.pod, &chain.host, ip);
        pump(far, near, wanted)
    };
    let up = |ip: &str, wanted: Duration| {
        let (near, far) = connect(&chain.pod, &chain.host, ip);
        pump(near, far, wanted)
    };
    // Packets come in lumps of 64 KiB here, a fortieth of what comes in so long.
    let (long, short) = (Duration::from_secs(3), Duration::from_millis(200));
    let speed = |(bits, seconds): (f64, f64)| bits / seconds;
    let both_ways = |ip: &&str| speed(down(ip, short)).min(speed(up(ip, short)));
    let slowest = FAR.as_flattened().iter().map(both_ways).fold(f64::INFINITY, f64::min);
    if slowest < 5.0 * RATE as f64 {
        skip!("this machine transfers only {:.1} Mbit/s without a limit", slowest / 1e6);
    }
    // Whatever else the machine does: a limit would hold every time.
    let free = |what: &str, transfer: &dyn Fn() -> (f64, f64)| {
        assert!((0..10).any(|_| speed(transfer()) > 2.0 * RATE as f64), "{what} is limited");
    };
    for (family, key) in [(0, "shapedSubnets"), (1, "unshapedSubnets")] {
        let mut keys = both();
        keys["egressRate"] = json!(RATE);
        keys[key] = json!(["203.0.113.0/24", "2001:db8:2::/48"]);
        let net = chain.net(&keys);
        let result = chain.add(&net);
        net.check(&chain.att, &result).success();
        let [other, listed] = FAR[family];
        let (limited, not) = if key == "shapedSubnets" { (listed, other) } else { (other, listed) };
        assert_rate(RATE, &format!("from {limited}"), || down(limited, long));
        assert_rate(RATE, &format!("to {limited}"), || up(limited, long));
        free(&format!("from {not}"), &|| down(not, short));
        free(&format!("to {not}"), &|| up(not, short));
        net.deleted(&chain.att, Some(&result));
    }
}

#[test]
fn check_of_lists() {
    need!("ip", "tc");
    let chain = Chain::on(configs::dual);
    let before = chain.state();
    let keys = |key: &str, nets: &[&str]| {
        let mut keys = both();
        keys[key] = json!(nets);
        keys
    };
    let nets = ["10.0.0.0/8", "0.0.0.0/0", "fd00::/9", "fd00:1:2:3::/64"];
    for key in ["shapedSubnets", "unshapedSubnets"] {
        let net = chain.net(&keys(key, &nets));
        let result = chain.add(&net);
        net.check(&chain.att, &result).success();
        let ifb = chain.ifbs()[0].clone();
        let noticed = |keys: &Value, word: &str| {
            let error = chain.net(keys).check(&chain.att, &result).error();
            assert!(error.code == 103 && error.all().contains(word), "{key} {word}: {error:?}");
        };
        noticed(
            &json!({ "ingressRate": RATE, "ingressBurst": BURST / 2 }),
            if key == "shapedSubnets" { "the other class" } else { "expected 10000" },
        );
        noticed(&keys(key, &["10.0.0.0/8", "11.0.0.0/8"]), "no filter for 11.0.0.0/8");
        let other = if key == "shapedSubnets" { "unshapedSubnets" } else { "shapedSubnets" };
        noticed(&keys(other, &nets), "the other class");
        let mut faster = keys(key, &nets);
        faster["egressRate"] = json!(RATE);
        noticed(&faster, "rate 500000, expected 1000000");
        chain.host.sh(&format!("tc filter del dev {ifb} parent 1: prio 15"));
        noticed(&keys(key, &nets), "no filter for fd00::/9");
        chain.host.sh(&format!("tc filter del dev {} parent 1:", chain.veth()));
        noticed(&keys(key, &nets), "no filter for 10.0.0.0/8");
        net.deleted(&chain.att, Some(&result));
        chain.assert_state(&before, key);
    }
}

/// What a Go plugin of the newer kind makes, and what its DEL leaves of it.
fn go_htb(chain: &Chain, ifb: &str, shaped: bool) {
    let veth = chain.veth();
    let (default, listed) = if shaped { ("1", "1:30") } else { ("30", "1:1") };
    let mut commands = vec![
        format!("ip link add {ifb} up type ifb"),
        format!("tc qdisc add dev {veth} ingress"),
        format!(
            "tc filter add dev {veth} parent ffff: protocol all prio 1 u32 match u8 0 0 flowid 1:1 \
             action mirred egress redirect dev {ifb}"
        ),
    ];
    for (dev, rate) in [(veth, RATE), (ifb, RATE / 2)] {
        commands.extend([
            format!("tc qdisc add dev {dev} root handle 1: htb default {default}"),
            format!("tc class add dev {dev} parent 1: classid 1:30 htb rate {rate} burst {}", BURST / 8),
            format!("tc class add dev {dev} parent 1: classid 1:1 htb rate 800gbit quantum 2000"),
            format!(
                "tc filter add dev {dev} parent 1: protocol ip prio 16 u32 match ip dst 10.9.0.0/16 flowid {listed}"
            ),
        ]);
    }
    for command in commands {
        chain.host.sh(&command);
    }
}

#[test]
fn newer_go_plugins_limits_are_checked_and_replaced() {
    need!("ip", "tc");
    let chain = Chain::new();
    let plain = chain.net(&both());
    let result = chain.add(&plain);
    let ifb = chain.ifbs()[0].clone();
    plain.deleted(&chain.att, Some(&result));
    let before = chain.state();
    for shaped in [true, false] {
        go_htb(&chain, &ifb, shaped);
        let mut keys = both();
        let (key, other) =
            if shaped { ("shapedSubnets", "unshapedSubnets") } else { ("unshapedSubnets", "shapedSubnets") };
        keys[key] = json!(["10.9.0.0/16"]);
        let net = chain.net(&keys);
        net.check(&chain.att, &result).success();
        // Without a list it is as with unshapedSubnets.
        assert_eq!(plain.check(&chain.att, &result).status == 0, !shaped);
        let noticed = |change: &dyn Fn(&mut Value), word: &str| {
            let mut keys = keys.clone();
            change(&mut keys);
            let error = chain.net(&keys).check(&chain.att, &result).error();
            assert!(error.code == 103 && error.all().contains(word), "{word}: {error:?}");
        };
        noticed(&|keys| keys["ingressRate"] = json!(8000), "rate 1000000, expected 1000");
        noticed(&|keys| keys["egressBurst"] = json!(BURST * 2), "expected 40000");
        noticed(
            &|keys| {
                keys[other] = keys[key].take();
            },
            "the other class",
        );
        chain.host.sh(&format!("tc qdisc del dev {ifb} root"));
        noticed(&|_| {}, "expected htb");
        // DEL of theirs.
        net.deleted(&chain.att, Some(&result));
        chain.assert_state(&before, "our DEL");
        // Their DEL takes the ifb only; ADD after it.
        go_htb(&chain, &ifb, shaped);
        chain.host.ip(&format!("link del {ifb}"));
        let again = chain.add(&net);
        net.check(&chain.att, &again).success();
        net.deleted(&chain.att, Some(&again));
        chain.assert_state(&before, "our DEL after theirs");
    }
}

#[test]
fn add_del_add_on_the_same_interface() {
    need!("ip", "tc");
    let chain = Chain::new();
    let before = chain.state();
    let qdiscs = |keys: &Value| {
        let net = chain.net(keys);
        let result = chain.add(&net);
        net.check(&chain.att, &result).success();
        let state = chain.qdiscs();
        net.deleted(&chain.att, Some(&result));
        chain.assert_state(&before, "DEL");
        state
    };
    let mut listed = both();
    listed["unshapedSubnets"] = json!(["10.0.0.0/8"]);
    let only = |way: &str| json!({ format!("{way}Rate"): RATE, format!("{way}Burst"): BURST });
    let all = [both(), listed, only("ingress"), only("egress")];
    let fresh = all.each_ref().map(qdiscs);
    // A DEL that wasn't told anything leaves what it can't find; the next ADD takes its place.
    for (first, second) in (0..16).map(|number| (number / 4, number % 4)) {
        chain.add(&chain.net(&all[first]));
        chain.net(&all[first]).deleted(&chain.att.clone().netns(""), None);
        let net = chain.net(&all[second]);
        let result = chain.add(&net);
        net.check(&chain.att, &result).success();
        if first == second {
            // Handles of qdiscs count up.
            let seen = |state: &Value| state.as_array().unwrap().len();
            assert_eq!(seen(&fresh[second]), seen(&chain.qdiscs()), "{}", all[second]);
        }
        net.deleted(&chain.att, Some(&result));
        for del in ["root", "ingress"] {
            // Of the first one, where the second hasn't got it.
            chain.host.run(&format!("tc qdisc del dev {} {del}", chain.veth()));
        }
        chain.assert_state(&before, "both DELs");
    }
    // The Go plugin's DEL, where there is one.
    if let Some(go) = go_plugins().filter(|dir| dir.join("bandwidth").exists()) {
        let net = chain.net(&both()).with("/cniVersion", json!("1.0.0"));
        let mut prev = chain.prev.clone();
        prev["cniVersion"] = json!("1.0.0");
        let theirs = net.served_by(go).call("ADD", &chain.att, Some(&prev)).run().result();
        net.served_by(go).deleted(&chain.att, Some(&theirs));
        let ours = net.call("ADD", &chain.att, Some(&prev)).run().result();
        net.check(&chain.att, &ours).success();
        net.deleted(&chain.att, Some(&ours));
        chain.assert_state(&before, "after the Go plugin's DEL");
    }
}

#[test]
fn del_leaves_other_interfaces_alone() {
    need!("ip", "tc");
    let chain = Chain::new();
    let net = chain.net(&both());
    let result = chain.add(&net);
    let pod = Pod::new();
    let other = Attachment::new("two", &pod);
    // It has been told of an interface that is somebody else's.
    net.deleted(&other, Some(&result));
    net.check(&chain.att, &result).success();
}

#[test]
fn result_check_and_del() {
    need!("ip", "tc");
    let chain = Chain::new();
    let before = chain.state();
    let net = chain.net(&both());
    let result = chain.add(&net);
    // printf net4one | sha512sum
    let ifbs = chain.ifbs();
    assert_eq!(ifbs, ["bwp8f44e67ed110"]);
    let mut expected = chain.prev.clone();
    let link = chain.host.link(&ifbs[0]);
    expected["interfaces"].as_array_mut().unwrap().push(json!({ "name": ifbs[0], "mac": link["address"] }));
    assert_eq!(result, expected);
    assert_eq!(link["mtu"], chain.host.link(chain.veth())["mtu"]);
    assert!(link["ifalias"].as_str().unwrap().contains("net: net4, if: eth0, id: one"), "{link}");

    // CHECK sees each thing that somebody takes away or changes.
    let (veth, ifb) = (chain.veth().to_owned(), ifbs[0].clone());
    let noticed = |keys: Value, word: &str| {
        let error = chain.net(&keys).check(&chain.att, &result).error();
        assert!(error.code == 103 && error.all().contains(word), "{word}: {error:?}");
    };
    net.check(&chain.att, &result).success();
    let mut other = both();
    other["ingressRate"] = json!(RATE + 8);
    noticed(other, "rate 1000000, expected 1000001");
    let mut other = both();
    other["egressBurst"] = json!(BURST * 2);
    noticed(other, "burst 20000, expected 40000");
    for (change, word) in [
        (format!("filter del dev {veth} ingress"), "doesn't go to bwp"),
        (format!("qdisc del dev {veth} ingress"), "doesn't go to bwp"),
        (format!("qdisc del dev {ifb} root"), "expected tbf"),
        (format!("qdisc replace dev {ifb} root pfifo"), "root qdisc pfifo, expected tbf"),
    ] {
        chain.host.sh(&format!("tc {change}"));
        noticed(both(), word);
    }
    chain.host.ip(&format!("link set {ifb} down"));
    noticed(both(), "is down");
    chain.host.ip(&format!("link del {ifb}"));
    noticed(both(), "is missing");
    chain.host.sh(&format!("tc qdisc del dev {veth} root"));
    noticed(both(), "expected tbf");

    // DEL in every shape: with all that ADD knew, without anything, and again.
    for (att, prev) in [
        (chain.att.clone(), Some(&result)),
        (chain.att.clone(), None),
        (chain.att.clone().netns(""), None),
        (chain.att.clone().netns("/run/netns/gone"), Some(&result)),
    ] {
        let made = chain.add(&net);
        assert_eq!(chain.ifbs().len(), 1);
        net.deleted(&att, prev);
        assert_eq!(chain.ifbs(), Vec::<String>::new());
        net.deleted(&att, prev);
        assert_eq!(made["interfaces"].as_array().unwrap().len(), 4);
        if prev.is_none() {
            // It can't know the interface.
            chain.host.sh(&format!("tc qdisc del dev {veth} root"));
            chain.host.sh(&format!("tc qdisc del dev {veth} ingress"));
        }
        chain.assert_state(&before, "DEL");
    }
    // The configuration may have changed since, or make no sense any more.
    chain.add(&net);
    chain.net(&json!({ "ingressRate": 1 })).deleted(&chain.att, None);
    assert_eq!(chain.ifbs(), Vec::<String>::new());
}

#[test]
fn nothing_configured_is_passed_through() {
    need!("ip", "tc");
    let chain = Chain::new();
    let before = chain.state();
    let bridge = Network::new(&chain.host, configs::v4(&chain.host));
    for version in ["0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"] {
        let pod = Pod::new();
        let att = Attachment::new("two", &pod);
        let bridge = bridge.with("/cniVersion", json!(version));
        let added = bridge.add(&att).success();
        for keys in [json!({}), json!({ "ingressRate": 0, "runtimeConfig": { "bandwidth": null } })] {
            let net = chain.net(&keys).with("/cniVersion", json!(version));
            let passed = net.call("ADD", &att, Some(&added.result())).run().success();
            assert_eq!(passed.text(), added.text(), "{version} {keys}");
        }
        bridge.deleted(&att, None);
    }
    chain.assert_state(&before, "nothing configured");
    let net = chain.net(&both()).with("/cniVersion", json!("0.2.0"));
    assert_eq!(net.call("ADD", &chain.att, None).run().error().code, 1);
}

#[test]
fn what_runtimes_send() {
    need!("ip", "tc");
    let chain = Chain::new();
    // containerd's keys, and the burst that CRI-O sends for "no limit".
    let bandwidth =
        json!({ "IngressRate": RATE, "IngressBurst": 34_359_738_359_u64, "EgressRate": 0, "EgressBurst": 0 });
    let net = chain.net(&json!({ "runtimeConfig": { "bandwidth": bandwidth } }));
    let result = chain.add(&net);
    assert_eq!(result, chain.prev);
    assert_eq!(chain.ifbs(), Vec::<String>::new());
    let qdiscs: Value =
        serde_json::from_str(&chain.host.sh(&format!("tc -j qdisc show dev {}", chain.veth()))).unwrap();
    assert_eq!((&qdiscs[0]["kind"], &qdiscs[0]["options"]["rate"]), (&json!("tbf"), &json!(RATE / 8)));
    net.check(&chain.att, &result).success();
    net.deleted(&chain.att, Some(&result));
}

#[test]
fn bad_input_changes_nothing() {
    need!("ip", "tc");
    let chain = Chain::new();
    let before = chain.state();
    let mut no_host = chain.prev.clone();
    no_host["interfaces"].as_array_mut().unwrap().remove(1);
    let rows = [
        (json!({ "ingressRate": RATE }), &chain.prev, 7, "ingressBurst is missing"),
        (json!({ "egressBurst": BURST }), &chain.prev, 7, "egressRate is missing"),
        (json!({ "egressRate": 8, "egressBurst": 34_359_738_360_u64 }), &chain.prev, 7, "4GB"),
        (json!({ "egressRate": "8M", "egressBurst": 1 }), &chain.prev, 7, "egressRate"),
        (json!({ "unshapedSubnets": ["10.0.0.0/40"] }), &chain.prev, 7, "unshapedSubnets[0]: invalid CIDR"),
        (
            json!({ "shapedSubnets": ["10.0.0.0/8"], "unshapedSubnets": ["11.0.0.0/8"] }),
            &chain.prev,
            7,
            "exclude each other",
        ),
        (both(), &Value::Null, 7, "prevResult missing"),
        (json!({}), &Value::Null, 7, "prevResult missing"),
        (both(), &no_host, 7, "no peer to limit"),
    ];
    for (keys, prev, code, word) in rows {
        let error = chain.net(&keys).call("ADD", &chain.att, Some(prev)).run().error();
        assert!(error.code == code && error.all().contains(word), "{keys}: {error:?}");
        chain.assert_state(&before, word);
    }
    for (ifname, word) in [("eth9", "is missing"), ("lo", "not a veth")] {
        let att = chain.att.clone().ifname(ifname);
        let error = chain.net(&both()).call("ADD", &att, Some(&chain.prev)).run().error();
        assert!(error.code == 7 && error.all().contains(word), "{error:?}");
    }
    let att = chain.att.clone().netns("/run/netns/gone");
    assert_eq!(chain.net(&both()).call("ADD", &att, Some(&chain.prev)).run().error().code, 8);
    chain.assert_state(&before, "no such interface");
}

#[test]
fn a_failure_at_each_step_takes_everything_back() {
    need!("ip", "tc");
    let chain = Chain::new();
    let net = chain.net(&both());
    chain.add(&net);
    let ifb = chain.ifbs()[0].clone();
    net.deleted(&chain.att, None);
    let veth = chain.veth();
    for del in ["root", "ingress"] {
        chain.host.sh(&format!("tc qdisc del dev {veth} {del}"));
    }
    for (stand, code, word, clear) in [
        (
            format!("tc qdisc add dev {veth} root pfifo"),
            102,
            "root qdisc already",
            format!("tc qdisc del dev {veth} root"),
        ),
        (format!("ip link add {ifb} type bridge"), 102, "exists already", format!("ip link del {ifb}")),
        (
            format!(
                "tc qdisc add dev {veth} ingress && tc filter add dev {veth} ingress prio 5 u32 match u32 0 0 flowid 1:1"
            ),
            102,
            "ingress qdisc already",
            format!("tc qdisc del dev {veth} ingress"),
        ),
    ] {
        chain.host.shell(&stand);
        let before = chain.state();
        let error = net.call("ADD", &chain.att, Some(&chain.prev)).run().error();
        assert!(error.code == code && error.all().contains(word), "{stand}: {error:?}");
        assert!(!error.all().contains("left behind"), "{error:?}");
        chain.assert_state(&before, &stand);
        // What stands there is not DEL's to remove.
        net.deleted(&chain.att, None);
        chain.assert_state(&before, &stand);
        chain.host.sh(&clear);
    }
    // The last step of all: the result can't be printed.
    let before = chain.state();
    let full =
        net.call("ADD", &chain.att, Some(&chain.prev)).under(&["sh", "-c", "exec \"$0\" >/dev/full"]).run();
    assert_eq!(full.status, 1, "{}", full.describe());
    chain.assert_state(&before, "/dev/full");
    net.call("ADD", &chain.att, Some(&chain.prev)).run().success();
}

#[test]
fn gc_removes_what_is_not_valid() {
    need!("ip");
    let chain = Chain::new();
    let net = chain.net(&both());
    chain.add(&net);
    let pod = Pod::new();
    let other = Attachment::new("two", &pod);
    let prev = Network::new(&chain.host, configs::v4(&chain.host)).added(&other);
    net.call("ADD", &other, Some(&prev)).run().result();
    // Nobody's, and another network's.
    chain.host.ip("link add bwp000000000000 type ifb");
    assert_eq!(chain.ifbs().len(), 3);
    net.gc(None).success();
    chain.net(&json!({ "name": "net5" })).gc(Some(json!([]))).success();
    net.gc(Some(json!([chain.att.listed(), other.listed()]))).success();
    assert_eq!(chain.ifbs().len(), 3);
    net.gc(Some(json!([other.listed()]))).success();
    assert_eq!(chain.ifbs().len(), 2);
    net.gc(Some(json!([chain.att.clone().ifname("eth1").listed()]))).success();
    assert_eq!(chain.ifbs(), ["bwp000000000000"]);
    net.status().success();
    assert_eq!(chain.net(&json!({ "ingressRate": 1 })).status().error().code, 7);
}

#[test]
fn another_interface_of_the_container_keeps_its_ifb() {
    need!("ip");
    let chain = Chain::new();
    let net = chain.net(&both());
    chain.add(&net);
    net.deleted(&chain.att.clone().ifname("eth1"), None);
    assert_eq!(chain.ifbs().len(), 1);
    net.deleted(&chain.att, None);
    assert_eq!(chain.ifbs().len(), 0);
}

#[test]
fn the_same_as_the_go_plugin_and_del_of_each_others() {
    need!("ip", "tc");
    let Some(go) = go_plugins().filter(|dir| dir.join("bandwidth").exists()) else {
        skip!("no Go plugin bandwidth");
    };
    for keys in [
        both(),
        json!({ "ingressRate": 1_000_000_007_u64, "ingressBurst": 12_345_678 }),
        json!({ "egressRate": 65_432, "egressBurst": 800_000 }),
        json!({ "ingressRate": 100_000_000, "ingressBurst": u32::MAX, "egressRate": 100_000_000, "egressBurst": u32::MAX }),
    ] {
        let seen = |first: &std::path::Path, second: &std::path::Path| {
            let chain = Chain::new();
            let net = chain.net(&keys).with("/cniVersion", json!("1.0.0"));
            let mut prev = chain.prev.clone();
            prev["cniVersion"] = json!("1.0.0");
            let result = net.served_by(first).call("ADD", &chain.att, Some(&prev)).run().result();
            Network::new(&chain.host, net.config.clone()).check(&chain.att, &result).success();
            net.served_by(go).check(&chain.att, &result).success();
            // Names of veths differ from chain to chain.
            let qdiscs = chain.qdiscs().to_string().replace(chain.veth(), "veth");
            let ifbs = chain.ifbs();
            net.served_by(second).deleted(&chain.att, Some(&result));
            assert_eq!(chain.ifbs(), Vec::<String>::new(), "{}", second.display());
            let interfaces = result["interfaces"].as_array().unwrap().len();
            (serde_json::from_str::<Value>(&qdiscs).unwrap(), ifbs, interfaces)
        };
        let ours = cnimble_tests::plugin_dir();
        assert_eq!(seen(ours, go), seen(go, ours), "{keys}");
    }
}
