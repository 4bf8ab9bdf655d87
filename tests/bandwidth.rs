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
        let (host, pod) = (Host::new(), Pod::new());
        let att = Attachment::new("one", &pod);
        let prev = Network::new(&host, configs::v4(&host)).added(&att);
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

/// Payload in bits that gets from `from` to `to`, whose address is `ip`, by TCP, and how many
/// seconds that takes from the first moment to the last: two, or more on a slow machine.
fn transfer(from: &Ns, to: &Ns, ip: &str) -> (f64, f64) {
    let listener = to.within(|| TcpListener::bind((ip, 0)).unwrap());
    let port = listener.local_addr().unwrap().port();
    std::thread::scope(|scope| {
        let start = Instant::now();
        scope.spawn(|| {
            from.within(|| {
                let mut stream = TcpStream::connect((ip, port)).unwrap();
                stream.set_write_timeout(Some(LIMIT)).unwrap();
                // Until the receiver has enough.
                while stream.write(&[0; 16 * 1024]).is_ok() {}
            });
        });
        let (mut stream, _) = listener.accept().unwrap();
        stream.set_read_timeout(Some(LIMIT)).unwrap();
        let mut buffer = vec![0; 64 * 1024];
        let mut bytes = 0;
        loop {
            bytes += stream.read(&mut buffer).unwrap();
            if start.elapsed() >= Duration::from_secs(2) {
                return (bytes as f64 * 8.0, start.elapsed().as_secs_f64());
            }
        }
    })
}

/// No transfer is more than a tenth faster than `rate` allows after the burst, and one of them is
/// nearly as fast; others may have had a machine that is too slow. With the headers, which the
/// kernel counts as well: 66 bytes of a packet of 1514.
fn assert_rate(rate: u64, from: &Ns, to: &Ns, ip: &str, what: &str) {
    let mut seen = Vec::new();
    let reached = wait_until(PATIENCE, || {
        let (bits, seconds) = transfer(from, to, ip);
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
    assert_rate(RATE, &chain.host, &chain.pod, &ip, "ingress");
    assert_rate(RATE / 2, &chain.pod, &chain.host, &gateway, "egress");
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
        chain.host.sh(&format!("tc qdisc del dev {veth} root"));
        chain.host.sh(&format!("tc qdisc del dev {veth} ingress"));
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
        (json!({ "unshapedSubnets": ["10.0.0.0/8"] }), &chain.prev, 2, "unshapedSubnets"),
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
            format!("tc qdisc add dev {veth} ingress"),
            102,
            "ingress qdisc already",
            format!("tc qdisc del dev {veth} ingress"),
        ),
    ] {
        chain.host.sh(&stand);
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
