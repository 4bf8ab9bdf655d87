//! `cnimble doctor` on nodes with damage of every kind. What lives must never be touched.

use std::fs;
use std::path::Path;

use cnimble::rules::Owner;
use cnimble::spec::Attachment;
use cnimble_tests::{
    Outcome, PATIENCE, Pod, Snapshot, go_plugins, leases, need, plugin_dir, skip, wait_until,
};
use serde_json::{Value, json};

use super::Node;

/// A whole chain. The addresses are this module's: an address in any namespace of the
/// machine, also of another test, speaks for its lease.
fn chain(node: &Node, name: &str, bridge: &str, subnet: &str) -> Value {
    json!({
        "cniVersion": "1.0.0",
        "name": name,
        "plugins": [
            {
                "type": "bridge", "bridge": bridge, "isGateway": true, "ipMasq": true, "macspoofchk": true,
                "ipam": {"type": "host-local", "dataDir": node.host.data_dir(), "ranges": [[{"subnet": subnet}]]},
            },
            {"type": "portmap", "capabilities": {"portMappings": true}},
            {"type": "firewall"},
            {"type": "bandwidth", "egressRate": 80_000_000, "egressBurst": 8_000_000},
        ],
    })
}

fn ports(port: u16) -> String {
    json!({"portMappings": [{"hostPort": port, "containerPort": 80, "protocol": "tcp"}]}).to_string()
}

impl Node {
    fn add(&self, plugins: &Path, net: &str, pod: &Pod, id: &str, port: u16) -> Value {
        let ports = ports(port);
        let args = ["add", net, pod.path(), "--container-id", id, "--cap-args", &ports];
        self.cnimble(plugins, &args).run().result()
    }

    /// `cnimble doctor ARGS… --json`, with our plugins.
    fn doctor(&self, args: &[&str]) -> Outcome {
        let dir = self.host.data_dir();
        let mut all = vec!["doctor", "--json", "--data-dir", dir.to_str().unwrap()];
        all.extend(args);
        self.cnimble(plugin_dir(), &all).run()
    }

    /// Everything that may change but the order in which addresses are given.
    fn state(&self) -> (Snapshot, Vec<String>) {
        let mut cache = leases(&self.cache());
        cache.retain(|line| !line.contains(".corrupt-"));
        (Snapshot::settled(&self.host).without_lines("last_reserved_ip"), cache)
    }

    /// Waits until the links of pods that are gone are gone, too.
    fn gone(&self, links: &[String]) {
        assert!(
            wait_until(PATIENCE, || !self.host.links().iter().any(|link| links.contains(link))),
            "{links:?}"
        );
    }

    fn entry(&self, net: &str, id: &str) -> std::path::PathBuf {
        self.cache().join(format!("results/{net}-{id}-eth0"))
    }

    fn file(&self, path: &str, content: &str) {
        fs::write(self.host.dir().join(path), content).unwrap();
    }
}

/// The veths on the host in a result.
fn veths(result: &Value) -> Vec<String> {
    let names = result["interfaces"].as_array().unwrap().iter().map(|of| of["name"].as_str().unwrap());
    names.filter(|name| name.starts_with("veth")).map(str::to_owned).collect()
}

fn findings(outcome: &Outcome, status: i32) -> Vec<Value> {
    assert_eq!(outcome.status, status, "{}", outcome.describe());
    let document: Value = serde_json::from_slice(&outcome.stdout).unwrap();
    assert_eq!(document["healthy"], status == 0, "{document:#}");
    assert_eq!(document["notLookedAt"], json!([]));
    document["findings"].as_array().unwrap().clone()
}

/// `kind outcome container`, sorted, each once.
fn kinds(findings: &[Value]) -> Vec<String> {
    let text = |value: &Value| value.as_str().unwrap_or("-").to_owned();
    let of = |f: &Value| format!("{} {} {}", text(&f["kind"]), text(&f["outcome"]), text(&f["containerID"]));
    let mut kinds: Vec<String> = findings.iter().map(of).collect();
    kinds.sort();
    kinds.dedup();
    kinds
}

#[track_caller]
fn same(before: &(Snapshot, Vec<String>), after: &(Snapshot, Vec<String>), when: &str) {
    before.0.assert_same(&after.0, when);
    assert_eq!(before.1, after.1, "{when}: the cache");
}

/// Looks: finds `expected`, changes nothing. Repairs: all of it, and nothing else, so that the
/// node is as `healthy` was. Looks again: all is well.
#[track_caller]
fn heals(node: &Node, healthy: &(Snapshot, Vec<String>), expected: &[&str]) {
    let damaged = node.state();
    let looked = node.doctor(&["--grace", "0"]);
    let found = findings(&looked, 6);
    assert_eq!(kinds(&found), expected, "{found:#?}");
    same(&damaged, &node.state(), "after looking");
    let repaired = kinds(&findings(&node.doctor(&["--grace", "0", "--repair"]), 0));
    let expected: Vec<String> = expected.iter().map(|line| line.replace(" found ", " repaired ")).collect();
    assert_eq!(repaired, expected);
    same(healthy, &node.state(), "after the repair");
    assert_eq!(findings(&node.doctor(&["--grace", "0"]), 0), [] as [Value; 0]);
}

#[test]
fn doctor_repairs_what_our_plugins_left() {
    need!("ip", "nft");
    let node = Node::new();
    node.network("doc", &chain(&node, "doc", "br1", "10.213.1.0/24"));
    let live = Pod::new();
    node.add(plugin_dir(), "doc", &live, "live", 8001);
    let healthy = node.state();
    assert_eq!(findings(&node.doctor(&["--grace", "0"]), 0), [] as [Value; 0]);

    // A pod whose DEL never came; another, whose entry is lost, too.
    let (known, unknown) = (Pod::new(), Pod::new());
    let mut links = veths(&node.add(plugin_dir(), "doc", &known, "known", 8002));
    links.extend(veths(&node.add(plugin_dir(), "doc", &unknown, "unknown", 8003)));
    drop((known, unknown));
    node.gone(&links);
    fs::remove_file(node.entry("doc", "unknown")).unwrap();
    // What a killed process or a power cut leaves.
    let store = node.host.data_dir().join("doc");
    fs::write(store.join("10.213.1.77"), "").unwrap();
    fs::write(store.join("10.213.1.78"), "old-form").unwrap();
    fs::write(store.join(".cnimble-new-1-1"), "half").unwrap();
    node.file("cache/results/doc-x-eth0", "");
    node.file("cache/.cnimble-1-1", "half");
    // A pair that leads nowhere.
    let attachment = Attachment { container_id: "nowhere".into(), ifname: "eth0".into() };
    let owner = Owner { network: "doc".into(), attachment };
    node.host.ip("link add vethdeadbeef type veth peer name lost");
    node.host
        .run_with("ip -batch -", format!("link set vethdeadbeef alias \"{}\"", owner.comment()).as_bytes())
        .success();
    // A bridge with a policy that is gone.
    node.host.nft("add element inet cnimble forward-bridges { gone }");

    heals(
        &node,
        &healthy,
        &[
            "broken-cache-entry found -",
            "broken-lease found -",
            "cache-entry found known",
            "ifb found known",
            "ifb found unknown",
            "lease found known",
            "lease found old-form",
            "lease found unknown",
            "rules found -",
            "rules found known",
            "rules found unknown",
            "unfinished-file found -",
            "veth found nowhere",
        ],
    );
    assert!(live.pings("10.213.1.1"));
    node.cnimble(plugin_dir(), &["check", "doc", live.path(), "--container-id", "live"]).run().success();
}

#[test]
fn doctor_repairs_what_the_go_plugins_left() {
    need!("ip", "nft", "iptables-nft-save");
    let Some(go) = go_plugins() else { skip!("the Go plugins are not installed") };
    let node = Node::new();
    let mut network = chain(&node, "doc", "br1", "10.213.2.0/24");
    network["cniVersion"] = json!("0.4.0");
    network["plugins"][3]["ingressRate"] = json!(80_000_000);
    network["plugins"][3]["ingressBurst"] = json!(8_000_000);
    node.network("doc", &network);
    let live = Pod::new();
    node.add(go, "doc", &live, "live", 8001);
    // The chains that pods share stay with the Go plugins, too. Tables of newer releases,
    // with rules of a pod that lives and of one that doesn't.
    let owner = |id: &str| Owner {
        network: "doc".into(),
        attachment: Attachment { container_id: id.into(), ifname: "eth0".into() },
    };
    let newer = |id: &str, ip: &str, port: u16| {
        format!(
            "add table inet cni_plugins_masquerade
             add chain inet cni_plugins_masquerade masq_checks
             add rule inet cni_plugins_masquerade masq_checks ip saddr {ip} ip daddr != 10.213.2.0/24 masquerade comment \"{0}\"
             add table ip cni_hostport
             add chain ip cni_hostport hostports
             add rule ip cni_hostport hostports tcp dport {port} dnat to {ip}:80 comment \"{id}\"
             add table bridge nat
             add chain bridge nat PREROUTING\n",
            owner(id).comment()
        )
    };
    let live_ip = live.addrs("eth0")[0].split('/').next().unwrap().to_owned();
    node.host.run_with("nft -f -", newer("live", &live_ip, 9001).as_bytes()).success();
    let healthy = node.state();
    assert_eq!(findings(&node.doctor(&["--grace", "0"]), 0), [] as [Value; 0]);

    let (known, unknown) = (Pod::new(), Pod::new());
    let mut links = veths(&node.add(go, "doc", &known, "known", 8002));
    let lost = node.add(go, "doc", &unknown, "unknown", 8003);
    links.extend(veths(&lost));
    drop((known, unknown));
    node.gone(&links);
    fs::remove_file(node.entry("doc", "unknown")).unwrap();
    node.host.run_with("nft -f -", newer("newer", "10.213.2.99", 9002).as_bytes()).success();
    node.host.nft("add chain bridge nat cni-br-iface-gone-eth0-mac");
    node.host.nft("add rule bridge nat cni-br-iface-gone-eth0-mac ether saddr 02:00:00:00:00:01 return");
    node.host.nft("add chain bridge nat cni-br-iface-gone-eth0");
    node.host.nft("add rule bridge nat cni-br-iface-gone-eth0 jump cni-br-iface-gone-eth0-mac");
    node.host.nft("add rule bridge nat PREROUTING iifname vethgone jump cni-br-iface-gone-eth0");

    heals(
        &node,
        &healthy,
        &[
            "cache-entry found known",
            "ifb found -",
            "lease found known",
            "lease found unknown",
            "rules found -",
            "rules found known",
            "rules found newer",
            "rules found unknown",
        ],
    );
    assert!(live.pings("10.213.2.1"));
}

#[test]
fn doctor_puts_back_what_a_flush_took() {
    need!("ip", "nft");
    let node = Node::new();
    node.network("doc", &chain(&node, "doc", "br1", "10.213.3.0/24"));
    let pods = [Pod::new(), Pod::new()];
    for (pod, id) in pods.iter().zip(["one", "two"]) {
        node.add(plugin_dir(), "doc", pod, id, if id == "one" { 8001 } else { 8002 });
    }
    let rules = || {
        let mut lines: Vec<String> = node.host.nft("-s list ruleset").lines().map(str::to_owned).collect();
        // The tables may come in another order.
        lines.sort();
        lines
    };
    let before = rules();
    let check = |pod: &Pod, id: &str| {
        node.cnimble(plugin_dir(), &["check", "doc", pod.path(), "--container-id", id]).run().status
    };
    for damage in ["flush ruleset", "flush table inet cnimble", "delete table bridge cnimble"] {
        node.host.nft(damage);
        assert_eq!(check(&pods[0], "one"), 1, "{damage}");
        let damaged = node.state();
        let found = findings(&node.doctor(&[]), 6);
        let expected = ["missing-rules found one", "missing-rules found two"];
        assert_eq!(kinds(&found), expected, "{damage}: {found:#?}");
        same(&damaged, &node.state(), "after looking");
        findings(&node.doctor(&["--repair"]), 0);
        for (pod, id) in pods.iter().zip(["one", "two"]) {
            assert_eq!(check(pod, id), 0, "{damage}");
        }
        assert_eq!(rules(), before, "{damage}");
        assert_eq!(findings(&node.doctor(&[]), 0), [] as [Value; 0]);
    }
    // A pod's own elements only.
    let masq = "inet cnimble masq-10.213.3.0/24";
    node.host
        .nft(&format!("delete element {masq} {{ {} }}", pods[0].addrs("eth0")[0].split('/').next().unwrap()));
    assert_eq!(kinds(&findings(&node.doctor(&["--repair"]), 0)), ["missing-rules repaired one"]);
    assert_eq!(rules(), before);
}

#[test]
fn doctor_leaves_an_empty_node_without_a_table() {
    need!("ip", "nft");
    let node = Node::new();
    let mut network = chain(&node, "doc", "br1", "10.213.4.0/24");
    network["plugins"][2]["ingressPolicy"] = json!("same-bridge");
    node.network("doc", &network);
    let pod = Pod::new();
    let links = veths(&node.add(plugin_dir(), "doc", &pod, "one", 8001));
    assert_ne!(node.host.sysctl("ipv4/conf/br1/route_localnet"), "0");
    drop(pod);
    node.gone(&links);
    fs::remove_dir_all(node.cache()).unwrap();
    let text = node.cnimble(
        plugin_dir(),
        &["doctor", "--data-dir", node.host.data_dir().to_str().unwrap(), "--grace", "0", "--repair"],
    );
    let outcome = text.run().success();
    assert!(outcome.text().ends_with("repaired; all is well\n"), "{}", outcome.describe());
    assert_eq!(node.host.nft("list ruleset"), "");
    assert_eq!(node.host.sysctl("ipv4/conf/br1/route_localnet"), "0");
    assert_eq!(findings(&node.doctor(&["--grace", "0"]), 0), [] as [Value; 0]);

    // Chains and sets that an interrupted verb left, with no element in them.
    let pod = Pod::new();
    node.add(plugin_dir(), "doc", &pod, "two", 8001);
    node.host.nft("flush set inet cnimble masq-10.213.4.0/24");
    for set in [
        "portmap4",
        "portmap-local4",
        "portmap-hairpin-10.213.4.0/24",
        "forward4",
        "forward-bridges",
        "forward-inside",
    ] {
        let kind = if set == "portmap4" { "map" } else { "set" };
        node.host.nft(&format!("flush {kind} inet cnimble {set}"));
    }
    node.host.nft("flush set bridge cnimble ports");
    node.host.nft("flush set bridge cnimble sources");
    let links = node.host.links().into_iter().filter(|link| link.starts_with("veth")).collect::<Vec<_>>();
    drop(pod);
    node.gone(&links);
    fs::remove_dir_all(node.cache()).unwrap();
    let found = findings(&node.doctor(&["--grace", "0", "--repair"]), 0);
    assert_eq!(kinds(&found), ["empty-rules repaired -", "ifb repaired two", "lease repaired two"]);
    assert_eq!(node.host.nft("list ruleset"), "");
    assert_eq!(node.host.sysctl("ipv4/conf/br1/route_localnet"), "0");
}

#[test]
fn doctor_leaves_alone_what_may_live() {
    need!("ip", "nft");
    let node = Node::new();
    let mut network = chain(&node, "doc", "br1", "10.213.5.0/24");
    node.network("doc", &network);
    let (pod, other) = (Pod::new(), Pod::new());
    node.add(plugin_dir(), "doc", &pod, "one", 8001);
    // A pod of another kind: not in the cache, no link on the host; only its lease, and the
    // address in its namespace, tell that it lives.
    other.ip("link add eth0 type veth peer name eth1");
    other.ip("addr add 10.213.5.200/24 dev eth0");
    let store = node.host.data_dir().join("doc");
    fs::write(store.join("10.213.5.200"), "macvlan\r\neth0").unwrap();
    // An ADD that has just begun; an ADD of another clock.
    fs::write(store.join("10.213.5.201"), "young\r\neth0").unwrap();
    let ahead = fs::File::create(store.join("10.213.5.202")).unwrap();
    fs::write(store.join("10.213.5.202"), "ahead\r\neth0").unwrap();
    ahead.set_modified(std::time::SystemTime::now() + std::time::Duration::from_secs(100_000)).unwrap();
    // Rules for an address that nobody is known to have, but somebody has.
    other.ip("addr add 10.213.5.210/24 dev eth0");
    let comment = "0123456789abcdef-0123456789abcdef, net: x, if: eth0, id: stranger";
    node.host
        .run_with(
            "nft -f -",
            format!("add element inet cnimble masq-10.213.5.0/24 {{ 10.213.5.210 comment \"{comment}\" }}")
                .as_bytes(),
        )
        .success();
    let state = node.state();
    let found = findings(&node.doctor(&["--repair"]), 0);
    assert_eq!(kinds(&found), ["lease left ahead", "lease left young", "rules left stranger"]);
    same(&state, &node.state(), "what may live");

    // Without the cache: the pod's link speaks for all of it.
    fs::remove_dir_all(node.cache()).unwrap();
    for name in ["10.213.5.201", "10.213.5.202"] {
        fs::remove_file(store.join(name)).unwrap();
    }
    node.host.nft("delete element inet cnimble masq-10.213.5.0/24 { 10.213.5.210 }");
    let state = node.state();
    assert_eq!(findings(&node.doctor(&["--repair", "--grace", "0"]), 0), [] as [Value; 0]);
    same(&state, &node.state(), "without the cache");

    // A stale entry whose address is a living pod's by now: its DEL goes by names alone, and
    // iptables' rules, which name nobody, stay.
    network["name"] = json!("old");
    let address = pod.addrs("eth0")[0].clone();
    let result = json!({"cniVersion": "1.0.0", "ips": [{"address": address}], "interfaces": []});
    let config = serde_json::to_vec(&network).unwrap();
    let entry = json!({
        "kind": "cniCacheV1", "containerId": "stale", "ifName": "eth0", "networkName": "old",
        "netns": "/run/netns/no-such-namespace", "config": base64(&config), "result": result,
    });
    fs::create_dir_all(node.cache().join("results")).unwrap();
    fs::write(node.entry("old", "stale"), entry.to_string()).unwrap();
    let ip = address.split('/').next().unwrap();
    node.host.shell(&format!("iptables -N CNI-FORWARD; iptables -A CNI-FORWARD -s {ip}/32 -j ACCEPT"));
    let filter = node.host.sh("iptables-save -t filter");
    let found = findings(&node.doctor(&["--repair"]), 0);
    assert_eq!(kinds(&found), ["cache-entry repaired stale"]);
    assert!(!node.entry("old", "stale").exists());
    let without_time = |text: &str| text.lines().filter(|line| !line.starts_with('#')).count();
    assert_eq!(without_time(&node.host.sh("iptables-save -t filter")), without_time(&filter));
    node.host.shell("iptables -F CNI-FORWARD; iptables -X CNI-FORWARD");
    assert!(pod.pings("10.213.5.1"));
}

fn base64(bytes: &[u8]) -> String {
    use std::io::Write;
    let mut child = std::process::Command::new("base64")
        .arg("-w0")
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(bytes).unwrap();
    String::from_utf8(child.wait_with_output().unwrap().stdout).unwrap()
}

#[test]
fn doctor_says_what_it_could_not_repair() {
    need!("ip", "nft");
    let node = Node::new();
    node.network("doc", &chain(&node, "doc", "br1", "10.213.6.0/24"));
    let pod = Pod::new();
    let links = veths(&node.add(plugin_dir(), "doc", &pod, "one", 8001));
    drop(pod);
    node.gone(&links);
    let empty = node.host.dir().join("empty");
    fs::create_dir(&empty).unwrap();
    let dir = node.host.data_dir();
    let args = ["doctor", "--repair", "--grace", "0", "--data-dir", dir.to_str().unwrap()];
    let outcome = node.cnimble(&empty, &args).run();
    assert_eq!(outcome.status, 7, "{}", outcome.describe());
    assert!(outcome.text().contains("no plugin \"bandwidth\" in CNI_PATH"), "{}", outcome.describe());
    assert!(outcome.text().contains("1 could not be repaired"), "{}", outcome.describe());
    // With the plugins, the entry goes as well.
    assert_eq!(kinds(&findings(&node.doctor(&["--repair"]), 0)), ["cache-entry repaired one"]);
}

/// Two networks of a node may give out the same address. Whose rules are whose is told by the
/// network, and each pod gets back its own.
#[test]
fn doctor_knows_both_pods_of_one_address() {
    need!("ip", "nft");
    let node = Node::new();
    for (name, bridge) in [("east", "br1"), ("west", "br2")] {
        node.network(name, &chain(&node, name, bridge, "10.213.9.0/24"));
    }
    let pods = [Pod::new(), Pod::new()];
    node.add(plugin_dir(), "east", &pods[0], "one", 8001);
    node.add(plugin_dir(), "west", &pods[1], "two", 8002);
    let same = pods.iter().map(|pod| pod.addrs("eth0")).collect::<Vec<_>>();
    assert_eq!(same[0], same[1]);
    assert_eq!(findings(&node.doctor(&["--grace", "0"]), 0), [] as [Value; 0]);
    let rules = || node.host.nft("-s list ruleset");
    let before = rules();
    // One pod's elements only: of the later network, whose sets stand beside the others.
    let hash = |set: &str| set.rsplit('-').next().is_some_and(|end| end.len() == 16);
    let sets = before.lines().filter_map(|line| line.strip_prefix("\tset ")?.strip_suffix(" {"));
    let beside: Vec<&str> = sets.filter(|set| hash(set)).collect();
    assert_eq!(beside.len(), 4, "masquerading, forwarding, hairpin, localhost: {before}");
    for set in beside {
        node.host.nft(&format!("flush set inet cnimble {set}"));
    }
    let found = findings(&node.doctor(&["--repair"]), 0);
    assert_eq!(kinds(&found), ["missing-rules repaired two"]);
    assert_eq!(rules(), before);
    // All of both.
    node.host.nft("flush ruleset");
    let found = findings(&node.doctor(&["--repair"]), 0);
    assert_eq!(found.len(), 8, "{found:?}");
    assert_eq!(findings(&node.doctor(&[]), 0), [] as [Value; 0]);
}

/// The ruleset was flushed, and then the pod went without DEL: only the link tells that portmap
/// has opened localhost.
#[test]
fn doctor_closes_localhost_after_a_flush() {
    need!("ip", "nft");
    let node = Node::new();
    node.network("doc", &chain(&node, "doc", "br1", "10.213.10.0/24"));
    let pod = Pod::new();
    let links = veths(&node.add(plugin_dir(), "doc", &pod, "one", 8001));
    node.host.nft("flush ruleset");
    drop(pod);
    node.gone(&links);
    fs::remove_dir_all(node.cache()).unwrap();
    let found = findings(&node.doctor(&["--grace", "0", "--repair"]), 0);
    assert_eq!(kinds(&found), ["empty-rules repaired -", "ifb repaired one", "lease repaired one"]);
    let what =
        found.iter().map(|found| found["what"].as_str().unwrap()).find(|what| what.contains("localnet"));
    assert_eq!(what, Some("route_localnet of br1, which portmap has switched on"));
    assert_eq!(node.host.sysctl("ipv4/conf/br1/route_localnet"), "0");
    assert_eq!(findings(&node.doctor(&["--grace", "0"]), 0), [] as [Value; 0]);
}
