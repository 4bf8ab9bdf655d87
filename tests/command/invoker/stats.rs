//! Tests that `cnimble stats` shows the counters of the kernel.

use std::fs::{self, File};

use serde_json::{Value, json};

use cnimble_tests::{
    Background, Lan, Ns, Outcome, PATIENCE, Pod, need, need_go, plugin_dir, wait_until, with_kind,
};

use super::Node;

fn stats(node: &Node, args: &[&str]) -> Vec<Value> {
    let args: Vec<&str> = [&["stats", "--once", "--json"], args].concat();
    let text = node.cnimble(plugin_dir(), &args).run().success().text();
    serde_json::from_str::<Value>(&text).unwrap()["attachments"].as_array().unwrap().clone()
}

/// Waits until the counters equal those of the pod's interface. The kernel sends a packet now and then.
fn agree(node: &Node, pod: &Pod, id: &str) -> Value {
    let mut told = Value::Null;
    let mut counted = Value::Null;
    let agree = || {
        counted = pod.ip_json("-s link show eth0")[0]["stats64"].clone();
        told = stats(node, &[id])[0].clone();
        let has = |name: &str, way: &str, of: &str| told["counters"][name] == counted[way][of];
        has("rxBytes", "rx", "bytes")
            && has("rxPackets", "rx", "packets")
            && has("txBytes", "tx", "bytes")
            && has("txPackets", "tx", "packets")
    };
    let done = wait_until(PATIENCE, agree);
    assert!(done, "{told:#}\n{counted:#}");
    assert!(told["counters"]["rxBytes"].as_u64().unwrap() > 3 * 1000, "{told:#}");
    told
}

#[test]
fn counters_are_those_of_the_pods_interface() {
    need_go!(go, "ip", "ping");
    let node = Node::new();
    node.bridge("net", "1.0.0");
    let (ours, theirs) = (Pod::new(), Pod::new());
    let args = "IgnoreUnknown=1;K8S_POD_NAMESPACE=shop;K8S_POD_NAME=web";
    let line = ["add", "net", ours.path(), "--container-id", "ours", "--args", args];
    node.cnimble(plugin_dir(), &line).run().success();
    node.cnimble(go, &["add", "net", theirs.path(), "--container-id", "theirs"]).run().success();
    for (pod, id) in [(&ours, "ours"), (&theirs, "theirs")] {
        pod.sh("ping -q -c 3 -i 0.01 -s 1000 10.1.2.1");
        let told = agree(&node, pod, id);
        assert_eq!((&told["network"], &told["ifname"]), (&json!("net"), &json!("eth0")));
        assert!(node.host.links().contains(&told["hostLink"].as_str().unwrap().to_owned()), "{told:#}");
        assert_eq!(told["limitDrops"], json!({"rx": null, "tx": null}));
    }
    // Selects by name, then shows all.
    assert_eq!(stats(&node, &["shop/web"])[0]["containerID"], "ours");
    assert_eq!(stats(&node, &[]).len(), 2);
    let none = node.cnimble(plugin_dir(), &["stats", "--once", "web"]).run();
    assert_eq!(none.status, 2, "the namespace is not default: {}", none.describe());
    let table = node.cnimble(plugin_dir(), &["stats", "--once"]).run().success().text();
    let lines: Vec<&str> = table.lines().collect();
    assert!(
        lines[0].starts_with("POD") && lines.iter().any(|line| line.starts_with("shop/web  net")),
        "{table}"
    );
    // Without the cache the alias of the host end names the pod.
    fs::remove_dir_all(node.cache()).unwrap();
    let told = stats(&node, &[]);
    assert_eq!((told.len(), &told[0]["containerID"]), (1, &json!("ours")), "{told:#?}");
    assert!(told[0]["counters"]["rxBytes"].as_u64().unwrap() > 3000, "{told:#?}");
}

#[test]
fn an_interface_without_an_end_on_the_host_is_counted_in_the_pod() {
    need!("ip", "ping");
    with_kind!("macvlan");
    let node = Node::new();
    let _lan = Lan::behind(&node.host, "uplink");
    node.network(
        "net",
        &json!({"cniVersion": "1.0.0", "name": "net", "plugins": [{"type": "macvlan", "master": "uplink",
            "ipam": {"type": "static", "addresses": [{"address": "10.7.0.2/24"}]}}]}),
    );
    let pod = Pod::new();
    node.cnimble(plugin_dir(), &["add", "net", pod.path(), "--container-id", "web"]).run().success();
    pod.sh("ping -q -c 3 -i 0.01 -s 1000 10.7.0.1");
    assert_eq!(agree(&node, &pod, "web")["hostLink"], Value::Null);
}

/// Sends 100 KB at once, each datagram from its own socket. A single socket would wait for its packets to leave.
fn flood(from: &Ns, to: &str) {
    let script = format!("for _ in {{1..100}}; do printf %1000s > /dev/udp/{to}/9; done 2>/dev/null; true");
    Outcome::of(from.command("bash").args(["-c", &script])).success();
}

#[test]
fn what_a_limit_drops_is_told_and_rates_come_with_the_second_look() {
    need!("ip", "tc", "bash");
    let node = Node::new();
    let config = json!({
        "cniVersion": "1.0.0",
        "name": "net",
        "plugins": [
            {"type": "bridge", "bridge": "br0", "isGateway": true,
             "ipam": {"type": "host-local", "dataDir": node.host.data_dir(), "ranges": [[{"subnet": "10.1.2.0/24"}]]}},
            {"type": "bandwidth", "ingressRate": 80_000, "ingressBurst": 80_000, "egressRate": 80_000, "egressBurst": 80_000},
        ],
    });
    node.network("net", &config);
    let pod = Pod::new();
    node.cnimble(plugin_dir(), &["add", "net", pod.path(), "--container-id", "web"]).run().success();
    assert_eq!(stats(&node, &[])[0]["limitDrops"], json!({"rx": 0, "tx": 0}));
    let out = node.host.dir().join("live");
    let mut command = node.cnimble(plugin_dir(), &["stats", "--json", "--interval", "0.1"]).command;
    command.stdout(File::create(&out).unwrap());
    let _live = Background::start(&mut command);
    let looked = || fs::read_to_string(&out).unwrap().contains('\n');
    assert!(wait_until(PATIENCE, looked), "the first look is before the traffic");
    // The traffic exceeds the limit, so packets are dropped.
    flood(&node.host, "10.1.2.2");
    flood(&pod, "10.1.2.1");
    let drops = |link: &str| {
        let shown: Value =
            serde_json::from_str(&node.host.sh(&format!("tc -s -j qdisc show dev {link} root"))).unwrap();
        shown[0]["drops"].clone()
    };
    let links = node.host.links();
    let ifb = links.iter().find(|link| link.starts_with("bwp")).unwrap();
    let (mut told, mut counted) = (Value::Null, Value::Null);
    let agree = wait_until(PATIENCE, || {
        told = stats(&node, &[])[0].clone();
        counted = json!({"rx": drops(told["hostLink"].as_str().unwrap()), "tx": drops(ifb)});
        told["limitDrops"] == counted && ["rx", "tx"].iter().all(|way| counted[way].as_u64().unwrap() > 0)
    });
    assert!(agree, "{told:#} {counted}");
    let rate = || {
        let text = fs::read_to_string(&out).unwrap();
        let lines = text.split_inclusive('\n').filter(|line| line.ends_with('\n'));
        let mut looks = lines.map(|line| serde_json::from_str::<Value>(line).unwrap());
        let first = looks.next();
        first.is_some_and(|first| first["attachments"][0]["bytesPerSecond"].is_null())
            && looks.any(|look| {
                look["attachments"][0]["bytesPerSecond"]["rx"].as_f64().is_some_and(|rate| rate > 0.0)
            })
    };
    assert!(wait_until(PATIENCE, rate), "{}", fs::read_to_string(&out).unwrap());
}
