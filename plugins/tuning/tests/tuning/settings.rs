use serde_json::json;

use cnimble_tests::{Attachment, Host, Network, Pod, Snapshot, configs, need};

use super::{Chain, MAC};

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

    // The result is the prevResult with the new values.
    let mut expected = chain.prev.clone();
    expected["interfaces"][2]["mac"] = json!(MAC);
    assert_eq!(result, expected);
    net.check(&chain.att, &result).success();

    // CHECK notices each change.
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
        let changed = chain.pod.run(&format!("ip {change}"));
        if change.contains("eth9") && changed.stderr.contains("busy") {
            // A link that is up can be renamed since Linux 6.2.
            continue;
        }
        changed.success();
        let error = net.check(&chain.att, &result).error();
        assert!(error.code == 103 && error.all().contains(word), "{change}: {error:?}");
        chain.pod.ip(undo);
        net.check(&chain.att, &result).success();
    }
    chain.pod.set_sysctl("core/somaxconn", "544");
    let error = net.check(&chain.att, &result).error();
    assert!(error.code == 103 && error.msg.contains("net.core.somaxconn is \"544\""), "{error:?}");

    // Without prevResult, and again.
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
    // No key `sysctl`. The Go plugin crashes on this.
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

/// `all` affects interfaces with another value.
#[test]
fn a_sysctl_is_written_even_if_it_has_the_value() {
    need!("ip");
    let chain = Chain::new();
    chain.pod.set_sysctl("ipv6/conf/eth0/disable_ipv6", "1");
    assert_eq!(chain.pod.sysctl("ipv6/conf/all/disable_ipv6"), "0");
    let net = chain.net(&json!({"sysctl": {"net.ipv6.conf.all.disable_ipv6": "0"}}));
    let result = chain.add(&net);
    assert_eq!(chain.pod.sysctl("ipv6/conf/eth0/disable_ipv6"), "0");
    net.check(&chain.att, &result).success();
}

#[test]
fn a_read_only_proc_sys_is_written_by_root_and_suffices_for_present_values() {
    need!("ip", "unshare", "strace");
    const READ_ONLY: &str = "mount --bind -o ro /proc/sys /proc/sys && exec \"$0\" \"$@\"";
    // As in a user namespace, where no procfs can be mounted.
    const REFUSED: [&str; 5] = ["strace", "-o", "/dev/null", "-e", "inject=fsopen:error=EPERM"];
    let chain = Chain::new();
    chain.pod.set_sysctl("core/somaxconn", "543");
    for (value, wrapper, succeeds, now) in
        [("543", &REFUSED[..], true, "543"), ("544", &REFUSED, false, "543"), ("545", &[], true, "545")]
    {
        let net = chain.net(&json!({"sysctl": {"net.core.somaxconn": value}}));
        let call = net.call("ADD", &chain.att, Some(&chain.prev));
        let outcome = call.under(&[&["unshare", "--mount", "sh", "-c", READ_ONLY], wrapper].concat()).run();
        assert_eq!(outcome.status == 0, succeeds, "{value}: {}", outcome.describe());
        assert_eq!(chain.pod.sysctl("core/somaxconn"), now);
    }
}

#[test]
fn an_mtu_that_takes_ipv6_from_the_pod_is_a_warning() {
    need!("ip");
    let chain = Chain::new();
    for (mtu, warns) in [(1280, false), (1279, true)] {
        let net = chain.net(&json!({"mtu": mtu}));
        let outcome = net.call("ADD", &chain.att, Some(&chain.prev)).run().success();
        let told = "mtu: 1279 is too small for IPv6, which needs 1280 bytes: eth0 has lost fd00:1:2::2/64";
        assert_eq!(outcome.stderr.contains(told), warns, "{}", outcome.stderr);
        // As with the Go plugin, the result keeps the address.
        assert_eq!(outcome.result(), chain.prev);
        assert_eq!(chain.pod.addrs("eth0").contains(&"fd00:1:2::2/64".to_owned()), !warns);
    }
}
