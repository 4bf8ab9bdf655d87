//! The plugin tuning: values really set, checked, and put back, beside the Go plugin too.
// Tests stop at the first surprise; clippy doesn't see that this whole crate is one.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use std::path::PathBuf;

use cnimble_tests::{Attachment, Host, Network, Pod, Snapshot, configs, go_plugins, need, skip};
use serde_json::{Value, json};

/// A pod on a bridge, with tuning behind it.
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
        let prev = Network::new(&host, configs::dual(&host)).added(&att);
        Chain { host, pod, att, prev }
    }

    fn net(&self, keys: &Value) -> Network<'_> {
        let mut config = json!({
            "cniVersion": configs::newest(), "name": "net64", "type": "tuning", "dataDir": self.dir(),
        });
        config.as_object_mut().unwrap().extend(keys.as_object().unwrap().clone());
        Network::new(&self.host, config)
    }

    fn dir(&self) -> PathBuf {
        self.host.dir().join("tuning")
    }

    fn files(&self) -> Vec<String> {
        let Ok(entries) = std::fs::read_dir(self.dir()) else { return Vec::new() };
        let mut names: Vec<String> =
            entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    fn add(&self, net: &Network<'_>) -> Value {
        net.call("ADD", &self.att, Some(&self.prev)).run().result()
    }

    fn mac(&self) -> String {
        self.pod.link("eth0")["address"].as_str().unwrap().to_owned()
    }
}

const MAC: &str = "02:11:22:33:44:55";

#[test]
fn everything_is_set_checked_and_put_back() {
    need!("ip");
    let chain = Chain::new();
    let before = Snapshot::of_ns(&chain.pod);
    let old_mac = chain.mac();
    let net = chain.net(&json!({
        "sysctl": {
            "net.core.somaxconn": "543",
            "net/ipv4/conf/IFNAME/arp_filter": "1",
            "net.ipv4.tcp_rmem": "4096 100000 200000",
        },
        "mac": MAC, "mtu": 1400, "promisc": true, "allmulti": true, "txQLen": 321,
    }));
    let result = chain.add(&net);
    assert_eq!(chain.pod.sysctl("core/somaxconn"), "543");
    assert_eq!(chain.pod.sysctl("ipv4/conf/eth0/arp_filter"), "1");
    assert_eq!(chain.pod.sysctl("ipv4/tcp_rmem"), "4096\t100000\t200000");
    assert_ne!(chain.host.sysctl("core/somaxconn"), "543");
    let link = chain.pod.link("eth0");
    assert_eq!(link["address"], MAC);
    assert_eq!((&link["mtu"], &link["txqlen"]), (&json!(1400), &json!(321)));
    let flags = link["flags"].as_array().unwrap();
    assert!(flags.contains(&json!("PROMISC")) && flags.contains(&json!("ALLMULTI")), "{link}");

    // The result is the one before, but for what is new.
    let mut expected = chain.prev.clone();
    expected["interfaces"][2]["mac"] = json!(MAC);
    expected["interfaces"][2]["mtu"] = json!(1400);
    assert_eq!(result, expected);
    net.check(&chain.att, &result).success();

    // Each value that somebody changes is noticed.
    for (change, word, undo) in [
        ("link set eth0 mtu 1399", "MTU 1399, expected 1400", "link set eth0 mtu 1400"),
        ("link set eth0 promisc off", "promiscuous mode off", "link set eth0 promisc on"),
        ("link set eth0 allmulticast off", "all-multicast off", "link set eth0 allmulticast on"),
        ("link set eth0 txqueuelen 1", "queue length 1", "link set eth0 txqueuelen 321"),
        (
            "link set eth0 address 02:00:00:00:00:09",
            "MAC 02:00:00:00:00:09",
            "link set eth0 address 02:11:22:33:44:55",
        ),
        ("link set eth0 name eth9", "interface eth0 is missing", "link set eth9 name eth0 up"),
    ] {
        chain.pod.ip(change);
        let error = net.check(&chain.att, &result).error();
        assert!(error.code == 103 && error.all().contains(word), "{change}: {error:?}");
        chain.pod.ip(undo);
        net.check(&chain.att, &result).success();
    }
    chain.pod.set_sysctl("core/somaxconn", "544");
    let error = net.check(&chain.att, &result).error();
    assert!(error.code == 103 && error.msg.contains("net.core.somaxconn is \"544\""), "{error:?}");

    // DEL needs no prevResult, and a second one finds nothing to do.
    net.deleted(&chain.att, None);
    assert_eq!(chain.mac(), old_mac);
    assert_eq!(chain.files(), Vec::<String>::new());
    before.without("sysctl").assert_same(&Snapshot::of_ns(&chain.pod).without("sysctl"), "put back");
    net.deleted(&chain.att, None);
}

#[test]
fn the_sources_of_a_mac_in_order() {
    need!("ip");
    let chain = Chain::new();
    let config = json!({ "mac": "02:00:00:00:00:01" });
    let runtime = json!({ "mac": "02:00:00:00:00:01", "runtimeConfig": { "mac": "02:00:00:00:00:03" } });
    let args = json!({
        "mac": "02:00:00:00:00:01", "runtimeConfig": { "mac": "02:00:00:00:00:03" },
        "args": { "cni": { "mac": "02-00-00-00-00-04" } },
    });
    let none = json!({ "mac": "02:00:00:00:00:01", "args": { "cni": { "mac": "" } } });
    let env = "IgnoreUnknown=1;MAC=02:00:00:00:00:02;K8S_POD_NAME=x";
    let own = chain.mac();
    for (keys, env, expected) in [
        (&config, "", "02:00:00:00:00:01"),
        (&config, env, "02:00:00:00:00:02"),
        (&runtime, env, "02:00:00:00:00:03"),
        (&args, env, "02:00:00:00:00:04"),
        (&none, env, own.as_str()),
    ] {
        let net = chain.net(keys);
        let att = chain.att.clone().args(env);
        let result = net.call("ADD", &att, Some(&chain.prev)).run().result();
        assert_eq!(chain.mac(), expected, "{keys} {env}");
        assert_eq!(result["interfaces"][2]["mac"], expected);
        net.check(&att, &result).success();
        net.deleted(&att, Some(&result));
        assert_eq!(chain.mac(), own);
    }
}

#[test]
fn args_cni_win() {
    need!("ip");
    let chain = Chain::new();
    let net = chain.net(&json!({
        "sysctl": { "net.core.somaxconn": "500", "net.ipv4.ip_default_ttl": "60" },
        "mtu": 1400, "promisc": true, "allmulti": false, "txQLen": 1,
        "args": { "cni": {
            "sysctl": { "net/core/somaxconn": "501" },
            "mtu": 1300, "promisc": false, "allmulti": true, "txQLen": 2,
        } },
    }));
    chain.add(&net);
    assert_eq!(chain.pod.sysctl("core/somaxconn"), "501");
    assert_eq!(chain.pod.sysctl("ipv4/ip_default_ttl"), "60");
    let link = chain.pod.link("eth0");
    assert_eq!((&link["mtu"], &link["txqlen"]), (&json!(1300), &json!(2)));
    let flags = link["flags"].as_array().unwrap();
    assert!(!flags.contains(&json!("PROMISC")) && flags.contains(&json!("ALLMULTI")), "{link}");
    net.deleted(&chain.att, None);
    // Without a sysctl of its own, which the Go plugin doesn't survive.
    let net = chain.net(&json!({ "args": { "cni": { "sysctl": { "net.core.somaxconn": "502" } } } }));
    chain.add(&net);
    assert_eq!(chain.pod.sysctl("core/somaxconn"), "502");
    assert_eq!(chain.files(), Vec::<String>::new(), "nothing to be put back");
}

#[test]
fn every_version() {
    need!("ip");
    for version in configs::VERSIONS {
        let (host, pod) = (Host::new(), Pod::new());
        let att = Attachment::new("one", &pod);
        let prev = Network::new(&host, configs::v4(&host)).with("/cniVersion", json!(version)).added(&att);
        let net = Network::new(
            &host,
            json!({ "cniVersion": version, "name": "n", "type": "tuning", "dataDir": host.dir(), "mac": MAC }),
        );
        let result = net.call("ADD", &att, Some(&prev)).run().result();
        assert_eq!(pod.link("eth0")["address"], MAC, "{version}");
        let mut expected = prev.clone();
        if prev["interfaces"].is_array() {
            expected["interfaces"][2]["mac"] = json!(MAC);
        }
        assert_eq!(result, expected, "{version}");
        net.deleted(&att, None);
        assert_ne!(pod.link("eth0")["address"], MAC, "{version}");
    }
}

#[test]
fn a_failure_takes_everything_back() {
    need!("ip");
    let chain = Chain::new();
    let before = Snapshot::of_ns(&chain.pod);
    let fails = |keys: Value, code: u64, word: &str| {
        let old = chain.files();
        let error = chain.net(&keys).call("ADD", &chain.att, Some(&chain.prev)).run().error();
        assert!(error.code == code && error.all().contains(word), "{error:?}");
        before.assert_same(&Snapshot::of_ns(&chain.pod), word);
        assert_eq!(chain.files(), old);
        assert_ne!(chain.pod.sysctl("core/somaxconn"), "543");
    };
    let sysctl = json!({ "net.core.somaxconn": "543", "net.ipv4.conf.IFNAME.forwarding": "0" });
    let mut second = sysctl.clone();
    second["net.nonesuch"] = json!("1");
    fails(json!({ "sysctl": second, "mtu": 1400 }), 100, "net.nonesuch");
    let mut second = sysctl.clone();
    second["net.core.wmem_default"] = json!("many");
    fails(json!({ "sysctl": second, "mtu": 1400 }), 100, "net.core.wmem_default");
    // More than a veth can have: the last but one of the settings.
    fails(json!({ "sysctl": sysctl, "mac": MAC, "promisc": true, "mtu": 65_536 }), 100, "mtu 65536");
    fails(json!({ "mac": MAC, "dataDir": "/proc/self/tuning" }), 5, "/proc/self/tuning");
    // An older backup is there again after the failure.
    std::fs::create_dir_all(chain.dir()).unwrap();
    let file = chain.dir().join("one_eth0.json");
    std::fs::write(&file, "{\"mtu\": 1234}").unwrap();
    fails(json!({ "sysctl": sysctl, "mac": MAC, "mtu": 65_536 }), 100, "mtu 65536");
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "{\"mtu\": 1234}");
    // Nobody reads the result.
    let net = chain.net(&json!({ "sysctl": sysctl, "mac": MAC, "promisc": true, "mtu": 1400, "txQLen": 3 }));
    let call = net.call("ADD", &chain.att, Some(&chain.prev));
    let outcome = call.under(&["sh", "-c", "exec \"$0\" >/dev/full"]).run();
    assert_eq!(outcome.status, 1, "{}", outcome.describe());
    before.assert_same(&Snapshot::of_ns(&chain.pod), "stdout is full");
    assert_ne!(chain.pod.sysctl("core/somaxconn"), "543");
}

#[test]
fn bad_configurations() {
    need!("ip");
    let chain = Chain::new();
    let before = Snapshot::of_ns(&chain.pod);
    for (keys, word) in [
        (json!({ "sysctl": { "kernel.hostname": "x" } }), "kernel.hostname"),
        (json!({ "sysctl": { "net.core/../../kernel/hostname": "x" } }), "invalid net sysctl key"),
        (json!({ "sysctl": { "net.a": "1", "net/a": "2" } }), "the same key"),
        (json!({ "sysctl": { "net.core.somaxconn": 5 } }), "sysctl.net.core.somaxconn"),
        (json!({ "sysctl": [] }), "sysctl"),
        (json!({ "args": { "cni": { "sysctl": { "fs.x": "1" } } } }), "fs.x"),
        (json!({ "mac": "zz" }), "mac: invalid hardware address \"zz\""),
        (json!({ "mac": "01:00:5e:00:00:01" }), "multicast"),
        (json!({ "runtimeConfig": { "mac": "1" } }), "runtimeConfig.mac"),
        (json!({ "args": { "cni": { "mac": "1" } } }), "args.cni.mac"),
        (json!({ "mtu": -1 }), "mtu"),
        (json!({ "mtu": 67 }), "mtu: 67"),
        (json!({ "mtu": "1400" }), "mtu"),
        (json!({ "promisc": "yes" }), "promisc"),
        (json!({ "allmulti": 1 }), "allmulti"),
        (json!({ "txQLen": -1 }), "txQLen"),
        (json!({ "dataDir": 1 }), "dataDir"),
    ] {
        let net = chain.net(&keys);
        let error = net.call("ADD", &chain.att, Some(&chain.prev)).run().error();
        assert!(error.code == 7 && error.all().contains(word), "{word}: {error:?}");
        assert_eq!(net.check(&chain.att, &chain.prev).error().code, 7, "{word}");
        assert_eq!(net.status().error().code, 7, "{word}");
    }
    let net = chain.net(&json!({ "mtu": 1400 }));
    let text = net.config.to_string().replace("\"mtu\":1400", r#""sysctl":{"net.a":"1","net.a":"2"}"#);
    let call = net.call("ADD", &chain.att, None);
    assert_eq!(call.clone().stdin(text).run().error().code, 7);
    assert!(call.run().error().msg.contains("prevResult missing"));
    assert_eq!(call.run().error().code, 7);
    let att = chain.att.clone().args("MAC=zz");
    assert_eq!(net.call("ADD", &att, Some(&chain.prev)).run().error().code, 4);
    let att = chain.att.clone().netns("/nonesuch");
    assert_eq!(net.call("ADD", &att, Some(&chain.prev)).run().error().code, 8);
    let att = chain.att.clone().ifname("eth7");
    let error = net.call("ADD", &att, Some(&chain.prev)).run().error();
    assert!(error.code == 100 && error.all().contains("eth7"), "{error:?}");
    before.assert_same(&Snapshot::of_ns(&chain.pod), "nothing was touched");
    assert_eq!(chain.files(), Vec::<String>::new());
}

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
    // Another configuration, or one that ADD would refuse.
    for keys in [json!({}), json!({ "mac": "zz", "sysctl": 7, "mtu": -1 })] {
        add();
        chain.net(&keys).deleted(&chain.att, Some(&chain.prev));
        assert!(!file.exists());
        assert_eq!(chain.mac(), old);
    }
    // A broken file, and one that asks for what the kernel refuses.
    for text in ["", "{", "[]", "{\"mtu\": 70000, \"mac\": \"02:00:00:00:00:07\"}"] {
        add();
        std::fs::write(&file, text).unwrap();
        net.deleted(&chain.att, None);
        assert!(!file.exists(), "{text}");
    }
    assert_eq!(chain.mac(), "02:00:00:00:00:07", "the rest is put back all the same");
    // The interface is gone.
    add();
    chain.pod.ip("link del eth0");
    net.deleted(&chain.att, None);
    assert!(!file.exists());
    // No directory, or a file in its place.
    std::fs::remove_dir(chain.dir()).unwrap();
    net.deleted(&chain.att, None);
    std::fs::write(chain.dir(), "").unwrap();
    net.deleted(&chain.att, None);
    // What can't be removed is an error.
    let stuck = chain.net(&json!({ "dataDir": chain.host.dir() }));
    std::fs::create_dir_all(chain.host.dir().join("one_eth0.json/x")).unwrap();
    assert_eq!(stuck.del(&chain.att, None).error().code, 5);
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
fn only_what_is_on_the_list() {
    need!("ip", "mount");
    let chain = Chain::new();
    // A private /etc with the list; the machine's stays as it is.
    let script = "mount -t tmpfs none /etc && mkdir -p /etc/cni/tuning && printf '%s' \"$LIST\" >/etc/cni/tuning/allowlist.conf && exec \"$0\"";
    let run = |net: &Network<'_>, verb: &str, list: &str| {
        let call = net.call(verb, &chain.att, Some(&chain.prev)).env("LIST", list);
        call.under(&["unshare", "-m", "sh", "-ec", script]).run()
    };
    let net = chain
        .net(&json!({ "sysctl": { "net.core.somaxconn": "543", "net.ipv4.conf.IFNAME.arp_filter": "1" } }));
    let error = run(&net, "ADD", "^net.core.[a-z]*$\n").error();
    assert!(error.code == 7 && error.msg.contains("net.ipv4.conf.IFNAME.arp_filter"), "{error:?}");
    assert_ne!(chain.pod.sysctl("core/somaxconn"), "543");
    assert_eq!(run(&net, "STATUS", "nothing").error().code, 50);
    assert_eq!(run(&net, "ADD", "(").error().code, 7);
    run(&net, "ADD", "^net.core.[a-z]*$\n^net\\.ipv4\\.conf\\.IFNAME\\.").result();
    assert_eq!(chain.pod.sysctl("core/somaxconn"), "543");
    // Without sysctls the list doesn't matter.
    run(&chain.net(&json!({ "mtu": 1400 })), "ADD", "nothing").result();
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
    // Ours has the network as well.
    assert_eq!(text, their_text.replace("\n}", ",\n \"network\": \"net64\"\n}"));
    // Theirs has an empty object dns, and no MTU.
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
