use serde_json::{Value, json};

use cnimble_tests::{Network, Snapshot, need};

use super::{Chain, MAC};

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
    // Too much for a veth. The last setting but one.
    fails(json!({ "sysctl": sysctl, "mac": MAC, "promisc": true, "mtu": 65_536 }), 100, "mtu 65536");
    fails(json!({ "mac": MAC, "dataDir": "/proc/self/tuning" }), 5, "/proc/self/tuning");
    // It restores an older backup.
    std::fs::create_dir_all(chain.dir()).unwrap();
    let file = chain.dir().join("one_eth0.json");
    std::fs::write(&file, "{\"mtu\": 1234}").unwrap();
    fails(json!({ "sysctl": sysctl, "mac": MAC, "mtu": 65_536 }), 100, "mtu 65536");
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "{\"mtu\": 1234}");
    // ADD can't print the result.
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
fn only_listed_sysctls_are_allowed() {
    need!("ip", "mount");
    let chain = Chain::new();
    // A private /etc has the list.
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
    // The list doesn't matter.
    run(&chain.net(&json!({ "mtu": 1400 })), "ADD", "nothing").result();
}
