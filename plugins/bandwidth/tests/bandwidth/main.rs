//! Tests of the plugin bandwidth.
#![cfg(test)]

mod leftovers;
mod rates;
mod reference;

use serde_json::{Value, json};

use cnimble_tests::{Attachment, Host, Network, Pod, Snapshot, configs, need, need_go};

/// In bits per second.
const RATE: u64 = 8_000_000;
/// In bits: 20 kB.
const BURST: u64 = 160_000;

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
    // A DEL without a namespace and prevResult leaves the limits. The next ADD replaces them.
    for (first, second) in (0..16).map(|number| (number / 4, number % 4)) {
        chain.add(&chain.net(&all[first]));
        chain.net(&all[first]).deleted(&chain.att.clone().netns(""), None);
        let net = chain.net(&all[second]);
        let result = chain.add(&net);
        net.check(&chain.att, &result).success();
        if first == second {
            // Numbers of qdisc handles increase.
            let seen = |state: &Value| state.as_array().unwrap().len();
            assert_eq!(seen(&fresh[second]), seen(&chain.qdiscs()), "{}", all[second]);
        }
        net.deleted(&chain.att, Some(&result));
        for del in ["root", "ingress"] {
            // Removes limits that the second ADD doesn't replace.
            chain.host.run(&format!("tc qdisc del dev {} {del}", chain.veth()));
        }
        chain.assert_state(&before, "both DELs");
    }
}

/// The Go plugin's DEL leaves an ifb or a queueing discipline in some cases.
#[test]
fn add_replaces_what_a_del_of_the_go_plugin_leaves() {
    need_go!(go, "ip", "tc");
    let chain = Chain::new();
    let before = chain.state();
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

    // CHECK notices each removal and change.
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

    // DEL with the complete prevResult, with nothing, and again.
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
            // Without these, DEL can't identify the interface.
            chain.host.sh(&format!("tc qdisc del dev {veth} root"));
            chain.host.sh(&format!("tc qdisc del dev {veth} ingress"));
        }
        chain.assert_state(&before, "DEL");
    }
    // The configuration may have changed or be invalid.
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
fn a_burst_below_a_packet_is_a_warning() {
    need!("ip", "tc");
    let chain = Chain::new();
    for (keys, warned) in [
        (
            json!({ "ingressRate": RATE, "ingressBurst": 12_120, "egressRate": RATE, "egressBurst": BURST }),
            None,
        ),
        (
            json!({ "ingressRate": RATE, "ingressBurst": BURST, "egressRate": RATE, "egressBurst": 12_112 }),
            Some(
                "egressBurst: the bucket holds 1513 bytes, and a packet of 1514 bytes (MTU 1500) never passes; that takes 12120 bits",
            ),
        ),
        (
            json!({ "runtimeConfig": { "bandwidth": { "ingressRate": RATE, "ingressBurst": 8000 } } }),
            Some("ingressBurst: the bucket holds 1000 bytes, and a packet of 1514 bytes"),
        ),
    ] {
        let net = chain.net(&keys);
        let outcome = net.call("ADD", &chain.att, Some(&chain.prev)).run().success();
        match warned {
            Some(text) => assert!(outcome.stderr.contains(text), "{keys}: {}", outcome.stderr),
            None => assert_eq!(outcome.stderr, "", "{keys}"),
        }
        net.deleted(&chain.att, Some(&outcome.result()));
    }
}
