//! Tests that orphans are removed and lost parts of pods are restored.

use std::fs;

use serde_json::{Value, json};

use cnimble_cni::{Attachment, Owner};
use cnimble_rules::objects::bridge::UNFINISHED;
use cnimble_tests::{Lan, Pod, need, need_go, plugin_dir, with_kind};

use super::faults::network;
use super::{Node, chain, findings, heals, kinds, same, veths};

#[test]
fn the_way_of_the_host_to_a_macvlan_is_restored() {
    need!("ip", "ping");
    with_kind!("macvlan");
    let (node, pod) = (Node::new(), Pod::new());
    let _lan = Lan::behind(&node.host, "uplink");
    node.host.ip("address add 10.7.0.2/24 dev uplink");
    let ipam = json!({"type": "host-local", "dataDir": node.host.data_dir(),
        "ranges": [[{"subnet": "10.7.0.0/24", "rangeStart": "10.7.0.10"}]]});
    let plugin = json!({"type": "macvlan", "master": "uplink", "hostShim": true, "ipam": ipam});
    node.network("lan", &json!({"cniVersion": "1.0.0", "name": "lan", "plugins": [plugin]}));
    node.add(plugin_dir(), "lan", &pod, "one", 8001);
    let shim = node.host.links().into_iter().find(|name| name.starts_with("shim")).unwrap();
    for damage in ["route del 10.7.0.10/32".to_owned(), format!("link del {shim}")] {
        node.host.ip(&damage);
        let looked = node.doctor(&["--grace", "0"]);
        assert_eq!(kinds(&findings(&looked, 6)), ["host-state found one"], "{damage}");
        let repaired = node.doctor(&["--grace", "0", "--repair"]);
        assert_eq!(kinds(&findings(&repaired, 0)), ["host-state repaired one"], "{damage}");
        assert!(node.host.pings("10.7.0.10"), "{damage}");
    }
}

/// The node has lost its records, and one pod. Its interface went with its namespace, but its shim did not.
#[test]
fn the_way_of_the_host_to_a_removed_macvlan_is_removed() {
    need!("ip");
    with_kind!("macvlan");
    let (node, pods) = (Node::new(), [Pod::new(), Pod::new()]);
    let _lan = Lan::behind(&node.host, "uplink");
    node.host.ip("address add 10.7.0.2/24 dev uplink");
    let ipam = json!({"type": "host-local", "dataDir": node.host.data_dir(),
        "ranges": [[{"subnet": "10.7.0.0/24", "rangeStart": "10.7.0.10"}]]});
    let plugin = json!({"type": "macvlan", "master": "uplink", "hostShim": true, "ipam": ipam});
    node.network("lan", &json!({"cniVersion": "1.0.0", "name": "lan", "plugins": [plugin]}));
    let shims = || {
        let names = node.host.links().into_iter().filter(|name| name.starts_with("shim"));
        let mut names: Vec<String> = names.collect();
        names.sort();
        names
    };
    let [living, dead] = pods;
    node.add(plugin_dir(), "lan", &living, "living", 8001);
    let of_living = shims();
    node.add(plugin_dir(), "lan", &dead, "dead", 8002);
    let cache = format!("{}/results/lan-dead-eth0", node.cache().display());
    fs::remove_file(&cache).unwrap();
    fs::remove_file(node.host.data_dir().join("lan/10.7.0.11")).unwrap();
    // Another link with such a name, and a shim with another author's alias.
    node.host.ip("link add shim0123456789a link uplink type macvlan mode bridge");
    assert_eq!(kinds(&findings(&node.doctor(&["--grace", "0"]), 0)), [] as [String; 0]);
    drop(dead);
    let found = findings(&node.doctor(&["--grace", "0"]), 6);
    assert_eq!(kinds(&found), ["shim found dead"], "{found:#?}");
    findings(&node.doctor(&["--grace", "0", "--repair"]), 0);
    let mut left = of_living;
    left.push("shim0123456789a".to_owned());
    left.sort();
    assert_eq!(shims(), left);
    assert_eq!(kinds(&findings(&node.doctor(&["--grace", "0"]), 0)), [] as [String; 0]);
}

/// Verbs were killed at the points where each leaves the most: between making a bridge and its alias, between the batches
/// of a DEL, and between the last lease and the index.
#[test]
fn what_killed_verbs_left_beside_a_pod_is_removed() {
    need!("ip", "nft");
    let node = Node::new();
    node.network("doc", &chain(&node, "doc", "br1", "10.213.1.0/24"));
    let pod = Pod::new();
    node.add(plugin_dir(), "doc", &pod, "one", 8001);
    let healthy = node.state();
    node.host.ip(&format!("link add br9 group {UNFINISHED} type bridge"));
    node.host.nft("add set inet cnimble masq-10.9.0.0/16 { type ipv4_addr; }");
    node.host.nft("add rule inet cnimble postrouting ip saddr @masq-10.9.0.0/16 masquerade");
    let leases = node.host.data_dir().join("gone");
    fs::create_dir_all(&leases).unwrap();
    fs::write(leases.join(".cnimble-index"), "").unwrap();
    let found = findings(&node.doctor(&["--grace", "0"]), 6);
    let expected = ["empty-rules found -", "unfinished-bridge found -", "unfinished-file found -"];
    assert_eq!(kinds(&found), expected, "{found:#?}");
    findings(&node.doctor(&["--grace", "0", "--repair"]), 0);
    assert!(!leases.join(".cnimble-index").exists());
    fs::remove_dir_all(&leases).unwrap();
    same(&healthy, &node.state(), "after the repair");
}

/// A removed directory of leases is a frequent accident, and the next pods get addresses of living ones.
#[test]
fn lost_leases_of_living_pods_are_given_again() {
    need!("ip", "nft");
    let node = Node::new();
    node.network("doc", &chain(&node, "doc", "br1", "10.213.1.0/24"));
    let (one, two, late) = (Pod::new(), Pod::new(), Pod::new());
    node.add(plugin_dir(), "doc", &one, "one", 8001);
    node.add(plugin_dir(), "doc", &two, "two", 8002);
    let leases = node.host.data_dir().join("doc");
    let content = |ip: &str| fs::read_to_string(leases.join(ip)).unwrap();
    let before = ["10.213.1.2", "10.213.1.3"].map(content);
    fs::remove_dir_all(&leases).unwrap();
    let found = kinds(&findings(&node.doctor(&["--grace", "0"]), 6));
    assert_eq!(found, ["host-state found one", "host-state found two"]);
    let repaired = kinds(&findings(&node.doctor(&["--grace", "0", "--repair"]), 0));
    assert_eq!(repaired, ["host-state repaired one", "host-state repaired two"]);
    assert_eq!(["10.213.1.2", "10.213.1.3"].map(content), before);
    let result = node.add(plugin_dir(), "doc", &late, "late", 8003);
    assert_eq!(result["ips"][0]["address"], "10.213.1.4/24");

    // Another pod has the address by now.
    fs::write(leases.join("10.213.1.2"), "another\r\neth0").unwrap();
    let failed = kinds(&findings(&node.doctor(&["--grace", "0", "--repair"]), 7));
    assert!(failed.contains(&"host-state failed one".to_owned()), "{failed:?}");
    assert_eq!(content("10.213.1.2"), "another\r\neth0");
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

    // One pod without a DEL, and another without a DEL and without its entry.
    let (known, unknown) = (Pod::new(), Pod::new());
    let mut links = veths(&node.add(plugin_dir(), "doc", &known, "known", 8002));
    links.extend(veths(&node.add(plugin_dir(), "doc", &unknown, "unknown", 8003)));
    drop((known, unknown));
    node.gone(&links);
    fs::remove_file(node.entry("doc", "unknown")).unwrap();
    // Files from a killed process or a power cut.
    let store = node.host.data_dir().join("doc");
    fs::write(store.join("10.213.1.77"), "").unwrap();
    fs::write(store.join("10.213.1.78"), "old-form").unwrap();
    fs::write(store.join(".cnimble-new-1-1"), "half").unwrap();
    node.file("cache/results/doc-x-eth0", "");
    node.file("cache/.cnimble-1-1", "half");
    // A veth pair that leads to no pod.
    let attachment = Attachment { container_id: "nowhere".into(), ifname: "eth0".into() };
    let owner = Owner { network: "doc".into(), attachment };
    node.host.ip("link add vethdeadbeef type veth peer name lost");
    node.host
        .run_with("ip -batch -", format!("link set vethdeadbeef alias \"{}\"", owner.comment()).as_bytes())
        .success();
    // A policy for a bridge that doesn't exist.
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
    need_go!(go, "ip", "nft", "iptables-nft-save");
    let node = Node::new();
    let mut network = chain(&node, "doc", "br1", "10.213.2.0/24");
    network["cniVersion"] = json!("0.4.0");
    network["plugins"][3]["ingressRate"] = json!(80_000_000);
    network["plugins"][3]["ingressBurst"] = json!(8_000_000);
    node.network("doc", &network);
    let live = Pod::new();
    node.add(go, "doc", &live, "live", 8001);
    // Shared chains stay, as with the Go plugins. There are tables of newer releases, with rules of a living and of a
    // removed pod.
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
        // The order of the tables may change.
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
    // Only the pod's own elements are lost.
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
    assert!(outcome.text().ends_with("repaired; the plugins' objects are whole\n"), "{}", outcome.describe());
    assert_eq!(node.host.nft("list ruleset"), "");
    assert_eq!(node.host.sysctl("ipv4/conf/br1/route_localnet"), "0");
    assert_eq!(findings(&node.doctor(&["--grace", "0"]), 0), [] as [Value; 0]);

    // Empty chains and sets of an interrupted verb.
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

/// Two networks of a node may give out the same address. The network shows the owner of rules, and each pod gets back
/// its own.
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
    // The repair makes emptied sets anew, and they then stand behind the others.
    let rules = || {
        let listed = node.host.nft("-s list ruleset");
        let mut lines: Vec<String> = listed.lines().map(str::to_owned).collect();
        lines.sort();
        lines
    };
    let before = rules();
    // Deletes only elements of the later network, with sets beside those of the other.
    let hash = |set: &str| set.rsplit('-').next().is_some_and(|end| end.len() == 16);
    let sets = before.iter().filter_map(|line| line.strip_prefix("\tset ")?.strip_suffix(" {"));
    let beside: Vec<&str> = sets.filter(|set| hash(set)).collect();
    assert_eq!(beside.len(), 4, "masquerading, forwarding, hairpin, localhost: {before:?}");
    for set in beside {
        node.host.nft(&format!("flush set inet cnimble {set}"));
    }
    let found = findings(&node.doctor(&["--repair"]), 0);
    assert_eq!(kinds(&found), ["missing-rules repaired two"]);
    assert_eq!(rules(), before);
    // Deletes all rules of both pods.
    node.host.nft("flush ruleset");
    let found = findings(&node.doctor(&["--repair"]), 0);
    assert_eq!(found.len(), 8, "{found:?}");
    assert_eq!(findings(&node.doctor(&[]), 0), [] as [Value; 0]);
}

/// The ruleset was flushed, and the pod was removed without DEL. Only the link shows that portmap has opened localhost.
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

/// Simulates a Go plugin that is killed after it filled its container's chain and before it added the jump.
#[test]
fn doctor_removes_a_chain_that_nothing_leads_to_unless_its_container_lives() {
    need!("ip", "nft", "iptables-nft");
    let node = Node::new();
    node.network("doc", &chain(&node, "doc", "br1", "10.213.9.0/24"));
    let pod = Pod::new();
    node.add(plugin_dir(), "doc", &pod, "live", 8091);
    let chains = [("live", "CNI-0123456789abcdef01234567"), ("dead", "CNI-76543210fedcba9876543210")];
    for (id, chain) in chains {
        let comment = format!("name: \"doc\" id: \"{id}\"");
        node.host.shell(&format!(
            "iptables-nft -t nat -N {chain}; \
             iptables-nft -t nat -A {chain} -d 10.213.9.0/24 -m comment --comment '{comment}' -j ACCEPT"
        ));
    }
    let found = findings(&node.doctor(&["--repair", "--grace", "0"]), 0);
    assert_eq!(kinds(&found), ["rules repaired dead"]);
    let nat = node.host.sh("iptables-nft-save -t nat");
    assert!(nat.contains(chains[0].1) && !nat.contains(chains[1].1), "{nat}");
}

/// firewall's rules are in nf_tables while FORWARD is empty.
#[test]
fn doctor_lets_pods_pass_that_forward_shuts_out() {
    need!("ip", "nft", "ping", "iptables-nft");
    let node = Node::new();
    let pods = [Pod::new(), Pod::new()];
    for ((name, subnet), pod) in [("br1", "10.213.34.0/24"), ("br2", "10.213.35.0/24")].into_iter().zip(&pods)
    {
        let mut network = network(&node, name, subnet);
        network["plugins"][0]["bridge"] = json!(name);
        network["plugins"].as_array_mut().unwrap().remove(1);
        node.network(name, &network);
        node.add(plugin_dir(), name, pod, name, 8001);
    }
    let ip = pods[1].addrs("eth0")[0].split('/').next().unwrap().to_owned();
    assert!(pods[0].pings(&ip));
    // As dockerd and ufw do.
    node.host.sh("iptables-nft -P FORWARD DROP");
    assert!(pods[0].misses(&ip));
    let found = findings(&node.doctor(&["--repair"]), 0);
    assert_eq!(kinds(&found), ["missing-rules repaired br1", "missing-rules repaired br2"]);
    assert!(pods[0].pings(&ip));
}

/// Each part of a limit is put back, and the limit is the same as after ADD.
#[test]
fn limits_of_bandwidth_come_back() {
    need!("ip", "nft", "tc");
    let node = Node::new();
    let mut limited = chain(&node, "doc", "br1", "10.213.36.0/24");
    limited["plugins"][3]["ingressRate"] = json!(80_000_000);
    limited["plugins"][3]["ingressBurst"] = json!(8_000_000);
    node.network("doc", &limited);
    let pod = Pod::new();
    let veth = veths(&node.add(plugin_dir(), "doc", &pod, "one", 8001)).remove(0);
    let ifb = node.host.links().into_iter().find(|name| name.starts_with("bwp")).unwrap();
    let limits = || {
        let qdiscs = [&veth, &ifb].map(|link| node.host.sh(&format!("tc qdisc show dev {link}")));
        // The number of a filter depends on the number of filters before it.
        let filter = node.host.sh(&format!("tc filter show dev {veth} ingress"));
        (qdiscs, filter.contains(&format!("Redirect to device {ifb}")))
    };
    let before = limits();
    assert!(before.0.iter().all(|qdisc| qdisc.contains("tbf")) && before.1, "{before:?}");
    for damage in [
        format!("tc qdisc del dev {veth} root"),
        format!("tc qdisc change dev {veth} root handle 1: tbf rate 1mbit burst 10kb latency 25ms"),
        format!("tc filter del dev {veth} ingress"),
        format!("tc qdisc del dev {veth} ingress"),
        format!("tc qdisc del dev {ifb} root"),
        format!("ip link set {ifb} down"),
        format!("ip link del {ifb}"),
    ] {
        node.host.sh(&damage);
        let looked = node.doctor(&["--grace", "0"]);
        assert_eq!(kinds(&findings(&looked, 6)), ["host-state found one"], "{damage}");
        let repaired = node.doctor(&["--grace", "0", "--repair"]);
        assert_eq!(kinds(&findings(&repaired, 0)), ["host-state repaired one"], "{damage}");
        assert_eq!(limits(), before, "{damage}");
    }
    // A limit of another program stays.
    node.host.sh(&format!("tc qdisc replace dev {veth} root handle 7: pfifo"));
    assert_eq!(kinds(&findings(&node.doctor(&["--repair"]), 7)), ["host-state failed one"]);
    assert!(node.host.sh(&format!("tc qdisc show dev {veth}")).contains("pfifo"));
}

/// The plugins loopback and tuning want something in the pod only.
#[test]
fn parts_in_a_pod_come_back_on_request() {
    need!("ip", "nft");
    let node = Node::new();
    let mut tuned = chain(&node, "tuned", "br1", "10.213.37.0/24");
    let tuning = json!({"type": "tuning", "mtu": 1400, "sysctl": {"net.ipv4.conf.eth0.log_martians": "1"},
        "dataDir": node.host.dir().join("tuning")});
    tuned["plugins"].as_array_mut().unwrap().push(tuning);
    node.network("tuned", &tuned);
    node.network("lo", &json!({"cniVersion": "1.0.0", "name": "lo", "plugins": [{"type": "loopback"}]}));
    let pod = Pod::new();
    node.add(plugin_dir(), "tuned", &pod, "one", 8001);
    node.cnimble(plugin_dir(), &["add", "lo", pod.path(), "--container-id", "one", "--ifname", "lo"])
        .run()
        .success();
    let saved = || fs::read_to_string(node.host.dir().join("tuning/one_eth0.json")).unwrap();
    let before = saved();
    let damages: [(&str, &dyn Fn()); 3] = [
        ("lo", &|| drop(pod.ip("link set lo down"))),
        ("tuning", &|| pod.set_sysctl("ipv4/conf/eth0/log_martians", "0")),
        ("tuning", &|| drop(pod.ip("link set eth0 mtu 1300"))),
    ];
    for (what, damage) in damages {
        damage();
        let found = findings(&node.doctor(&["--repair"]), 6);
        assert_eq!(kinds(&found), ["pod-state found one"], "{what}");
        assert!(found[0]["what"].as_str().unwrap().contains(what), "{found:#?}");
        let repaired = node.doctor(&["--repair", "--pods"]);
        assert_eq!(kinds(&findings(&repaired, 0)), ["pod-state repaired one"], "{what}");
        assert_eq!(findings(&node.doctor(&[]), 0), [] as [Value; 0]);
    }
    assert_eq!((pod.link("eth0")["mtu"].as_u64(), saved()), (Some(1400), before));
}
