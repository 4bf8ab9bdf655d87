use std::path::Path;

use serde_json::{Value, json};

use cnimble_tests::{
    Attachment, Host, Lan, Network, Pod, Snapshot, configs, go_plugins, need, need_go, plugin_dir, skip,
    with_kind,
};

use super::{Chain, MAC};

#[test]
fn del_in_every_shape() {
    need!("ip");
    let chain = Chain::new();
    let old = chain.mac();
    let net = chain.net(&json!({ "mac": MAC, "mtu": 1400 }));
    let file = chain.dir().join("one_eth0.json");
    let add = || {
        chain.add(&net);
        assert_eq!(chain.mac(), MAC);
        assert!(file.exists());
    };
    for netns in ["", "/nonesuch", "/proc/self/ns/mnt", "/etc/passwd"] {
        add();
        net.deleted(&chain.att.clone().netns(netns), None);
        assert!(!file.exists(), "{netns}");
        assert_eq!(chain.mac(), MAC, "who should know where it is?");
        chain.pod.ip(&format!("link set eth0 address {old}"));
    }
    // Another configuration, or an invalid one.
    for keys in [json!({}), json!({ "mac": "zz", "sysctl": 7, "mtu": -1 })] {
        add();
        chain.net(&keys).deleted(&chain.att, Some(&chain.prev));
        assert!(!file.exists());
        assert_eq!(chain.mac(), old);
    }
    // Broken, or with values that the kernel refuses.
    for text in ["", "{", "[]", "{\"mtu\": 70000, \"mac\": \"02:00:00:00:00:07\"}"] {
        add();
        std::fs::write(&file, text).unwrap();
        let outcome = net.del(&chain.att, None).success();
        let told = format!("eth0 in {} could not be restored: ", chain.pod.path());
        // An empty list is a backup without settings.
        assert_eq!(outcome.stderr.contains(&told), text != "[]", "{text}: {}", outcome.describe());
        assert!(!file.exists(), "{text}");
    }
    assert_eq!(chain.mac(), "02:00:00:00:00:07", "the rest is put back all the same");
    // The interface is gone.
    add();
    chain.pod.ip("link del eth0");
    net.deleted(&chain.att, None);
    assert!(!file.exists());
    // Missing, or a file.
    std::fs::remove_dir(chain.dir()).unwrap();
    net.deleted(&chain.att, None);
    std::fs::write(chain.dir(), "").unwrap();
    net.deleted(&chain.att, None);
    // It can't be removed.
    let stuck = chain.net(&json!({ "dataDir": chain.host.dir() }));
    std::fs::create_dir_all(chain.host.dir().join("one_eth0.json/x")).unwrap();
    assert_eq!(stuck.del(&chain.att, None).error().code, 5);
}

/// A process ID or a name is used again after a pod that ended without a DEL.
#[test]
fn the_pod_that_an_old_path_leads_to_keeps_its_settings() {
    need!("ip", "iptables");
    for knows_result in [true, false] {
        assert_another_pod_keeps_its_settings(plugin_dir(), knows_result);
    }
}

#[test]
fn so_does_a_pod_of_the_go_plugins() {
    need_go!(go, "ip", "iptables");
    assert_another_pod_keeps_its_settings(go, true);
}

/// The bridge of these plugins is in front of our tuning, whose DEL has a path that leads to another pod.
#[track_caller]
fn assert_another_pod_keeps_its_settings(plugins: &Path, knows_result: bool) {
    let host = Host::new();
    let bridge = Network::by(plugins, &host, configs::dual(&host)).with("/cniVersion", json!("1.0.0"));
    let tuning = |mtu: u32| {
        let keys =
            json!({"type": "tuning", "dataDir": host.dir().join("tuning"), "mtu": mtu, "promisc": true});
        let mut config = json!({"cniVersion": "1.0.0", "name": "net64"});
        config.as_object_mut().unwrap().extend(keys.as_object().unwrap().clone());
        Network::new(&host, config)
    };
    let (gone, live) = (Pod::new(), Pod::new());
    let add = |id: &str, pod: &Pod, mtu: u32| {
        let att = Attachment::new(id, pod);
        let prev = bridge.added(&att);
        tuning(mtu).call("ADD", &att, Some(&prev)).run().result()
    };
    let result = add("gone", &gone, 1400);
    add("live", &live, 1300);
    let before = Snapshot::of_ns(&live);
    let astray = Attachment::new("gone", &gone).netns(live.path());
    tuning(1400).deleted(&astray, Some(&result).filter(|_| knows_result));
    before.assert_same(&Snapshot::of_ns(&live), &format!("{}", plugins.display()));
    assert!(!host.dir().join("tuning/gone_eth0.json").exists());
}

/// An interface of the Go plugin macvlan has no alias, and the MAC of tuning in prevResult.
#[test]
fn the_main_plugin_deletes_an_interface_of_the_go_plugins_that_has_its_former_mac_again() {
    with_kind!("macvlan");
    let (host, pod) = (Host::hasty(), Pod::new());
    let _lan = Lan::behind(&host, "uplink");
    let ipam = json!({ "type": "static", "addresses": [{ "address": "10.7.0.9/24" }] });
    let network = |keys: Value| {
        let mut config = json!({ "cniVersion": configs::newest(), "name": "n", "dataDir": host.dir() });
        config.as_object_mut().unwrap().extend(keys.as_object().unwrap().clone());
        Network::new(&host, config)
    };
    let front = network(json!({ "type": "macvlan", "master": "uplink", "ipam": ipam }));
    let tuning = network(json!({ "type": "tuning", "mac": MAC }));
    let att = Attachment::new("one", &pod);
    let prev = front.added(&att);
    let result = tuning.call("ADD", &att, Some(&prev)).run().result();
    pod.shell("ip link set eth0 alias ''");
    tuning.deleted(&att, Some(&result));
    assert_eq!(pod.link("eth0")["address"], prev["interfaces"][0]["mac"]);
    front.deleted(&att, Some(&result));
    assert_eq!(pod.links(), ["lo"]);
}

#[test]
fn gc_and_status() {
    need!("ip");
    let chain = Chain::new();
    let keys = json!({ "mtu": 1400 });
    let net = chain.net(&keys).with("/cniVersion", json!("1.1.0"));
    net.status().success();
    assert_eq!(chain.files(), Vec::<String>::new());
    chain.add(&net);
    for (name, text) in [
        ("old_eth0.json", r#"{"mtu": 1500, "network": "net64"}"#),
        ("other_eth0.json", r#"{"mtu": 1500, "network": "net65"}"#),
        ("go_eth0.json", r#"{"mtu": 1500}"#),
        ("broken_eth0.json", "{"),
        ("file", r#"{"network": "net64"}"#),
    ] {
        std::fs::write(chain.dir().join(name), text).unwrap();
    }
    net.gc(None).success();
    assert_eq!(chain.files().len(), 6);
    net.gc(Some(json!([chain.att.listed()]))).success();
    assert_eq!(
        chain.files(),
        ["broken_eth0.json", "file", "go_eth0.json", "one_eth0.json", "other_eth0.json"]
    );
    net.gc(Some(json!([]))).success();
    assert!(!chain.files().contains(&"one_eth0.json".to_owned()));

    let blocked = net.with("/dataDir", json!(chain.dir().join("file/dir")));
    assert_eq!(blocked.status().error().code, 50);
    blocked.gc(Some(json!([]))).success();
}

#[test]
fn either_set_restores_what_the_other_changed() {
    need!("ip");
    let Some(go) = go_plugins().filter(|dir| dir.join("tuning").exists()) else {
        skip!("the Go plugin is not installed")
    };
    let chain = Chain::new();
    let ours = chain
        .net(&json!({ "mac": MAC, "mtu": 1400, "promisc": true, "allmulti": true }))
        .with("/cniVersion", json!("1.0.0"));
    let theirs = ours.served_by(go);
    let mut prev = chain.prev.clone();
    prev["cniVersion"] = json!("1.0.0");
    let before = Snapshot::of_ns(&chain.pod);
    let add = |net: &Network<'_>| net.call("ADD", &chain.att, Some(&prev)).run().result();
    let file = chain.dir().join("one_eth0.json");

    let (result, text) = (add(&ours), std::fs::read_to_string(&file).unwrap());
    theirs.check(&chain.att, &result).success();
    theirs.deleted(&chain.att, Some(&result));
    before.assert_same(&Snapshot::of_ns(&chain.pod), "the Go plugin put it back");
    assert_eq!(chain.files(), Vec::<String>::new());

    let (their_result, their_text) = (add(&theirs), std::fs::read_to_string(&file).unwrap());
    // With the network's name.
    assert_eq!(text, their_text.replace("\n}", ",\n \"network\": \"net64\"\n}"));
    // The Go plugin prints an empty `dns`, and no MTU.
    assert_eq!(result["ips"], their_result["ips"]);
    assert_eq!(result["routes"], their_result["routes"]);
    for (our, their) in [0, 1, 2].map(|i| (&result["interfaces"][i], &their_result["interfaces"][i])) {
        for key in ["name", "mac", "sandbox"] {
            assert_eq!(our[key], their[key]);
        }
    }
    ours.check(&chain.att, &their_result).success();
    ours.deleted(&chain.att, Some(&their_result));
    before.assert_same(&Snapshot::of_ns(&chain.pod), "ours put it back");
    assert_eq!(chain.files(), Vec::<String>::new());
}
