//! Tests that possibly living objects stay and that failed repairs are reported.

use std::fs;

use serde_json::{Value, json};

use cnimble_tests::{Pod, need, plugin_dir};

use super::{Node, chain, findings, kinds, same, veths};

#[test]
fn doctor_leaves_alone_what_may_live() {
    need!("ip", "nft");
    let node = Node::new();
    let mut network = chain(&node, "doc", "br1", "10.213.5.0/24");
    node.network("doc", &network);
    let (pod, other) = (Pod::new(), Pod::new());
    node.add(plugin_dir(), "doc", &pod, "one", 8001);
    // A pod without a cache entry and without a link on the host. Only its lease and the address in its namespace show
    // that it lives.
    other.ip("link add eth0 type veth peer name eth1");
    other.ip("addr add 10.213.5.200/24 dev eth0");
    let store = node.host.data_dir().join("doc");
    fs::write(store.join("10.213.5.200"), "macvlan\r\neth0").unwrap();
    // A lease of a recent ADD, and one with a time in the future.
    fs::write(store.join("10.213.5.201"), "young\r\neth0").unwrap();
    let ahead = fs::File::create(store.join("10.213.5.202")).unwrap();
    fs::write(store.join("10.213.5.202"), "ahead\r\neth0").unwrap();
    ahead.set_modified(std::time::SystemTime::now() + std::time::Duration::from_secs(100_000)).unwrap();
    // Rules for an address without a known owner, but in use by a namespace.
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
    let found = findings(&node.doctor(&["--repair"]), 6);
    assert_eq!(kinds(&found), ["lease left ahead", "lease left young", "rules left stranger"]);
    same(&state, &node.state(), "what may live");

    // Time tells of young leases, but not of the others: only the latter are a fault.
    node.host.nft("delete element inet cnimble masq-10.213.5.0/24 { 10.213.5.210 }");
    let found = findings(&node.doctor(&[]), 6);
    assert_eq!(kinds(&found), ["lease left ahead", "lease left young"]);
    fs::remove_file(store.join("10.213.5.202")).unwrap();
    assert_eq!(kinds(&findings(&node.doctor(&[]), 0)), ["lease left young"]);

    // Without the cache the pod's link is evidence for all of its parts.
    fs::remove_dir_all(node.cache()).unwrap();
    fs::remove_file(store.join("10.213.5.201")).unwrap();
    let state = node.state();
    assert_eq!(findings(&node.doctor(&["--repair", "--grace", "0"]), 0), [] as [Value; 0]);
    same(&state, &node.state(), "without the cache");

    // A stale entry with the address of a living pod: its DEL uses names alone. Rules of iptables without an owner
    // stay.
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

/// The set with this pod's address is beside one with ports. An IPv6 address has the length of a link's name.
#[test]
fn doctor_leaves_isolated_pods_alone() {
    need!("ip", "nft");
    let node = Node::new();
    let mut network = chain(&node, "doc", "br1", "10.213.7.0/24");
    network["plugins"] = json!([network["plugins"][0]]);
    network["plugins"][0]["portIsolation"] = json!(true);
    network["plugins"][0]["ipam"]["ranges"] =
        json!([[{"subnet": "10.213.7.0/24"}], [{"subnet": "fd00:213:7::/64"}]]);
    node.network("doc", &network);
    let pod = Pod::new();
    node.add(plugin_dir(), "doc", &pod, "one", 8001);
    assert!(node.host.nft("list set bridge cnimble isolated6").contains("fd00:213:7::2"));
    let state = node.state();
    assert_eq!(findings(&node.doctor(&["--repair", "--grace", "0"]), 0), [] as [Value; 0]);
    same(&state, &node.state(), "isolated pods");
}

/// A young lease may be that of an ADD at work, so no repair is for it. The DEL of its container's record removes it,
/// and the rules of iptables, which the DEL finds by the addresses.
#[test]
fn a_young_lease_that_goes_with_its_record_is_not_left_alone() {
    need!("ip", "nft", "iptables", "iptables-save");
    let node = Node::new();
    let mut network = chain(&node, "doc", "br1", "10.213.47.0/24");
    network["plugins"][2]["backend"] = json!("iptables");
    node.network("doc", &network);
    let pod = Pod::new();
    let links = veths(&node.add(plugin_dir(), "doc", &pod, "one", 8001));
    drop(pod);
    node.gone(&links);
    let found = findings(&node.doctor(&["--grace", "3600"]), 6);
    assert!(kinds(&found).contains(&"lease left one".to_owned()), "{found:#?}");
    let found = findings(&node.doctor(&["--grace", "3600", "--repair"]), 0);
    assert!(kinds(&found).contains(&"lease repaired one".to_owned()), "{found:#?}");
    assert!(found.iter().all(|of| of["doubt"].is_null()), "{found:#?}");
    assert!(!node.host.data_dir().join("doc/10.213.47.2").exists());
    assert_eq!(findings(&node.doctor(&["--grace", "3600"]), 0), [] as [Value; 0]);
    assert!(!node.host.sh("iptables-save").contains("10.213.47.2"));
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
    // The command that tells more looks at the same leases.
    let data = dir.to_str().unwrap();
    let gc = ["gc", "doc", "--gone", "--grace", "0", "--data-dir", data];
    let outcome = node.cnimble(&empty, &gc).run();
    let hint = format!(
        "`cnimble doctor --cache-dir {} --data-dir {data} --grace 0` names a remedy for each of the node",
        node.cache().display()
    );
    assert!(outcome.status == 7 && outcome.stderr.contains(&hint), "{}", outcome.describe());
    // Once the plugins exist, the entry is removed, too.
    assert_eq!(kinds(&findings(&node.doctor(&["--repair"]), 0)), ["cache-entry repaired one"]);
}
