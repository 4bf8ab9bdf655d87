//! ADD, CHECK, DEL and VERSION of bridge, host-local and loopback in every version of the
//! specification, and what a pod has when ADD returns.
// Tests stop at the first surprise; clippy doesn't see that this whole crate is one.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use std::collections::BTreeSet;

use cnimble_tests::{
    Attachment, Host, Network, PATIENCE, PLUGINS, Pod, Snapshot, configs, copy, leases, need, plugin_dir,
    script, wait_until,
};
use serde_json::{Value, json};

/// What stays of a network without pods.
fn without_last_reserved(snapshot: Snapshot) -> Snapshot {
    snapshot.without_lines("last_reserved_ip")
}

#[test]
fn a_pod_comes_and_goes() {
    need!("ip", "nft", "ping");
    let host = Host::new();
    let net = Network::new(&host, configs::v4(&host));
    let first = Pod::new();
    let att = Attachment::new("one", &first);
    let result = net.added(&att);
    assert_eq!(result["ips"][0]["address"], "10.1.2.2/24", "{result:#}");
    assert_eq!(result["ips"][0]["gateway"], "10.1.2.1", "{result:#}");
    assert!(first.pings_once("10.1.2.1"));
    net.check(&att, &result).success();

    // The second pod leaves the host as the first one had it, and its namespace empty.
    let before = without_last_reserved(Snapshot::of(&host));
    let second = Pod::new();
    let empty = Snapshot::of_ns(&second).without("sysctl");
    let att2 = Attachment::new("two", &second);
    let result2 = net.added(&att2);
    assert!(first.pings_once("10.1.2.3"), "pod to pod");
    net.deleted(&att2, Some(&result2));
    let after = without_last_reserved(Snapshot::of(&host));
    before.assert_same(&after, "after DEL of the second pod");
    empty.assert_same(&Snapshot::of_ns(&second).without("sysctl"), "the second pod after DEL");

    // A second DEL has nothing to do.
    net.deleted(&att2, Some(&result2));
    before.assert_same(&without_last_reserved(Snapshot::of(&host)), "after DEL again");
    assert!(first.pings_once("10.1.2.1"), "the first pod is not affected");
}

/// The bytes that ADD prints, with what differs from run to run filled in.
#[test]
fn results_have_the_reference_form_in_every_version() {
    need!("ip", "nft");
    for version in configs::VERSIONS {
        if *version > configs::newest() {
            continue; // the reference plugins of this machine are older
        }
        let host = Host::new();
        let pod = Pod::new();
        let net = Network::new(&host, configs::dual(&host)).with("/cniVersion", json!(version));
        let att = Attachment::new("one", &pod).args("MAC=0a:58:0a:01:02:02;IgnoreUnknown=1");
        let outcome = net.add(&att).success();
        let text = outcome.text();
        let bridge = host.link("br0")["address"].as_str().unwrap().to_owned();
        let veth = host.links().into_iter().find(|name| name.starts_with("veth")).unwrap();
        let veth_mac = host.link(&veth)["address"].as_str().unwrap().to_owned();
        let expected = match *version {
            "0.1.0" | "0.2.0" => include_str!("forms/old.json"),
            "0.3.0" | "0.3.1" | "0.4.0" => include_str!("forms/middle.json"),
            "1.0.0" => include_str!("forms/new.json"),
            _ => include_str!("forms/newest.json"),
        }
        .trim_end()
        .replace("VERSION", version)
        .replace("BRIDGE", &bridge)
        .replace("VETHMAC", &veth_mac)
        .replace("VETH", &veth)
        .replace("SANDBOX", pod.path());
        assert_eq!(text, expected, "version {version}");
        let prev: Value = serde_json::from_str(&text).unwrap();
        let check = net.check(&att, &prev);
        if *version < "0.4.0" {
            assert_eq!(check.error().code, 1, "CHECK came with 0.4.0: {}", check.describe());
        } else {
            check.success();
        }
        net.deleted(&att, (*version >= "0.4.0").then_some(&prev));
        assert_eq!(host.links(), ["br0", "lo"], "version {version}");
    }
}

/// The first version that a plugin speaks.
fn oldest(plugin: &str) -> &'static str {
    match plugin {
        "bandwidth" => "0.3.0",
        "firewall" => "0.4.0",
        _ => "0.1.0",
    }
}

#[test]
fn version_is_one_compact_line() {
    need!();
    let host = Host::new();
    for plugin in PLUGINS {
        // podman sends "dummy" everywhere.
        let outcome = host
            .call(plugin)
            .command("VERSION")
            .attachment("dummy", "dummy", "dummy")
            .env("CNI_PATH", "dummy")
            .config(&json!({"cniVersion": "1.0.0"}))
            .run()
            .success();
        let versions: Vec<String> = configs::VERSIONS
            .iter()
            .filter(|version| **version >= oldest(plugin) && **version <= configs::newest())
            .map(|version| format!("\"{version}\""))
            .collect();
        let expected = format!(
            "{{\"cniVersion\":\"{}\",\"supportedVersions\":[{}]}}\n",
            configs::newest(),
            versions.join(",")
        );
        assert_eq!(outcome.text(), expected, "{plugin}");
        assert_eq!(outcome.stderr, "", "{plugin}");
    }
}

#[test]
fn without_a_command_it_says_what_it_is() {
    need!();
    let host = Host::new();
    for plugin in PLUGINS {
        let outcome = host.call(plugin).unset("CNI_PATH").run().success();
        assert!(outcome.stdout.is_empty(), "{}", outcome.describe());
        assert!(outcome.stderr.contains(plugin), "{}", outcome.describe());
        let newest = configs::newest();
        for version in configs::VERSIONS.iter().filter(|v| **v >= oldest(plugin) && **v <= newest) {
            assert!(outcome.stderr.contains(version), "{}", outcome.describe());
        }
    }
}

#[test]
fn a_copy_of_the_file_works_and_another_name_is_an_error() {
    need!("ip");
    let host = Host::new();
    let pod = Pod::new();
    let dir = host.dir().join("copies");
    std::fs::create_dir(&dir).unwrap();
    for name in ["bridge", "host-local", "loopback"] {
        copy(&plugin_dir().join(name), &dir.join(name));
    }
    copy(&plugin_dir().join("bridge"), &dir.join("other"));
    // Different files: the delegate is executed rather than called in the process.
    let net = Network::by(&dir, &host, configs::dual(&host)).with("/ipMasq", json!(true));
    let att = Attachment::new("one", &pod);
    let result = net.added(&att);
    assert_eq!(result["ips"][0]["address"], "10.1.2.2/24", "{result:#}");
    net.check(&att, &result).success();
    net.deleted(&att, Some(&result));
    assert!(!host.data_dir().join("net64/10.1.2.2").exists());
    let error = host.call_in(&dir, "other").command("VERSION").run().error();
    assert!(error.all().contains("other"), "{error:?}");
}

#[test]
fn what_the_host_has_when_add_returns() {
    need!("ip", "nft");
    let host = Host::new();
    let pod = Pod::new();
    let net = Network::new(&host, configs::dual(&host));
    let result = net.added(&Attachment::new("one", &pod));
    // Exactly lo, the bridge and one veth.
    let links = host.links();
    assert_eq!(links.len(), 3, "{links:?}");
    let veth = links.iter().find(|name| name.starts_with("veth")).expect("a veth");
    assert_eq!(veth.len(), 12, "veth and 8 hex digits: {veth}");
    assert_eq!(result["interfaces"][1]["name"], *veth);
    assert_eq!(result["interfaces"][0]["name"], "br0");
    assert_eq!(result["interfaces"][0]["mac"], host.link("br0")["address"]);
    assert_eq!(result["interfaces"][1]["mac"], host.link(veth)["address"]);
    // The kernel may tell so of the bridge only some time after its port.
    assert!(wait_until(PATIENCE, || host.link("br0")["operstate"] == "UP"), "{}", host.link("br0"));
    let port = host.link(veth);
    assert_eq!(port["operstate"], "UP");
    assert_eq!(port["master"], "br0");
    assert_eq!(port["linkinfo"]["info_slave_data"]["state"], "forwarding");
    assert_eq!(port["linkinfo"]["info_slave_data"]["hairpin"], false);
    assert_eq!(port["linkinfo"]["info_slave_data"]["isolated"], false);
    assert_eq!(host.addrs("br0"), ["10.1.2.1/24", "fd00:1:2::1/64"]);
    assert_eq!(host.sysctl("ipv6/conf/br0/accept_ra"), "0");
    // The bridge takes what comes in by a port, so the port needs no address, not even its own.
    assert_eq!(host.ip(&format!("addr show dev {veth} to 0/0")), "");
    assert_eq!(host.ip(&format!("-6 addr show dev {veth}")), "");
    assert_eq!(host.sysctl("ipv4/ip_forward"), "1");
    assert_eq!(host.sysctl("ipv6/conf/all/forwarding"), "1");
}

#[test]
fn what_the_pod_has_when_add_returns() {
    need!("ip", "nft", "ping");
    let host = Host::new();
    let pod = Pod::new();
    let net = Network::new(&host, configs::dual(&host));
    let result = net.added(&Attachment::new("one", &pod));
    let link = pod.ip_json("addr show dev eth0")[0].clone();
    assert_eq!(link["operstate"], "UP", "{link:#}");
    assert_eq!(link["address"], result["interfaces"][2]["mac"]);
    let addrs = link["addr_info"].as_array().unwrap();
    let local: Vec<&Value> = addrs.iter().filter(|addr| addr["scope"] == "link").collect();
    assert_eq!(local.len(), 1, "link-local v6: {link:#}");
    let tentative = |addr: &&Value| addr["tentative"] == true;
    assert!(!addrs.iter().filter(|addr| addr["scope"] == "global").any(|addr| tentative(&addr)), "{link:#}");
    // The link-local one is the kernel's own, which it settles in a worker, without probing.
    let settled = || !pod.ip("-6 addr show dev eth0 scope link").contains("tentative");
    assert!(wait_until(PATIENCE, settled), "{link:#}");
    assert_eq!(pod.addrs("eth0"), ["10.1.2.2/24", "fd00:1:2::2/64"]);
    // The v4 address knows its broadcast address, as `ip addr add … brd +` would have it.
    let v4 = addrs.iter().find(|addr| addr["family"] == "inet").unwrap();
    assert_eq!(v4["broadcast"], "10.1.2.255", "{v4:#}");
    // A pod may talk the moment that ADD returns.
    for target in ["10.1.2.1", "fd00:1:2::1"] {
        assert!(pod.pings_once(target), "{target}");
    }
    assert!(pod.ip("-4 route").contains("default via 10.1.2.1 dev eth0"));
    assert!(pod.ip("-6 route").contains("default via fd00:1:2::1 dev eth0"));
    // The MAC goes with the address, so there is nobody to tell.
    assert_eq!(link["address"], "0a:58:0a:01:02:02");
    assert_eq!(pod.sysctl("ipv4/conf/eth0/arp_notify"), "0");
    assert_eq!(pod.sysctl("ipv6/conf/eth0/accept_dad"), "0");
    assert_eq!(pod.sysctl("ipv6/conf/eth0/disable_ipv6"), "0");
    assert_eq!(pod.sysctl("ipv6/conf/eth0/keep_addr_on_down"), "1");
    assert_eq!(pod.sysctl("ipv4/ip_forward"), host_default_forwarding(), "the pod is no router");
}

/// With many namespaces the pod's switches are looked for in a procfs of the plugin's own.
#[test]
fn switches_among_hundreds_of_pods() {
    need!("ip", "nft", "unshare", "mount", "strace");
    let host = Host::hasty();
    let pod = Pod::new();
    // As if it were the 501st. `ip netns set` wants a name in /run/netns, which is nobody's here.
    host.shell(&format!(
        "exec unshare --mount sh -ec 'mkdir -p /run/netns; mount -t tmpfs none /run/netns; : >/run/netns/pod
        mount --no-canonicalize --bind {} /run/netns/pod; ip netns set pod 500'",
        pod.path()
    ));
    let net = Network::new(&host, configs::dual(&host));
    let one = Attachment::new("one", &pod);
    // Who may not mount one does with the one that is there.
    for wrapper in [&[][..], &["strace", "-o", "/dev/null", "-e", "inject=fsopen:error=EPERM"]] {
        net.call("ADD", &one, None).under(wrapper).run().success();
        assert_eq!(pod.sysctl("ipv6/conf/eth0/accept_dad"), "0");
        assert_eq!(pod.sysctl("ipv6/conf/eth0/keep_addr_on_down"), "1");
        assert!(pod.pings("fd00:1:2::1"));
        net.call("DEL", &one, None).run().success();
        assert_eq!(pod.links(), ["lo"]);
    }
}

/// An MTU that is too small for IPv6, with which the kernel has no address modes to set.
#[test]
fn an_mtu_without_ipv6() {
    need!("ip", "nft", "ping");
    let host = Host::hasty();
    let pod = Pod::new();
    let net = Network::new(&host, configs::v4(&host)).with("/mtu", json!(1000));
    let one = Attachment::new("one", &pod);
    let result = net.added(&one);
    assert_eq!(host.link(result["interfaces"][1]["name"].as_str().unwrap())["mtu"], 1000);
    assert_eq!(pod.link("eth0")["mtu"], 1000);
    assert!(pod.pings("10.1.2.1"));
    net.call("CHECK", &one, Some(&result)).run().success();
    net.call("DEL", &one, Some(&result)).run().success();
}

#[test]
fn an_address_that_was_known_under_another_mac_is_announced() {
    need!("ip");
    let host = Host::new();
    let net = Network::new(&host, configs::v4(&host));
    let pods: Vec<Pod> = (0..3).map(|_| Pod::new()).collect();
    net.added(&Attachment::new("zero", &pods[0]));
    let known = |ip: &str| host.ip_json(&format!("neigh show {ip} dev br0"))[0]["lladdr"].clone();
    // As after a pod of another plugin set that had the address and is gone.
    for ip in ["10.1.2.3", "10.1.2.4"] {
        host.ip(&format!("neigh replace {ip} lladdr 02:00:00:00:00:77 dev br0 nud stale"));
    }
    net.added(&Attachment::new("one", &pods[1]));
    assert_eq!(pods[1].sysctl("ipv4/conf/eth0/arp_notify"), "1");
    // The kernel has announced it, and has heard of it as soon as it gets round to it.
    assert!(wait_until(PATIENCE, || known("10.1.2.3") == "0a:58:0a:01:02:03"), "{}", known("10.1.2.3"));
    // A MAC of the user's own choice is announced, too, whoever knew what.
    let own = net.with("/args", json!({"cni": {"mac": "02:00:00:00:00:11"}}));
    let result = own.added(&Attachment::new("two", &pods[2]));
    assert_eq!(result["interfaces"][2]["mac"], "02:00:00:00:00:11");
    assert!(wait_until(PATIENCE, || known("10.1.2.4") == "02:00:00:00:00:11"), "{}", known("10.1.2.4"));
}

/// What a fresh namespace has.
fn host_default_forwarding() -> String {
    Pod::new().sysctl("ipv4/ip_forward")
}

#[test]
fn the_sandbox_is_the_netns_to_the_letter() {
    need!("ip");
    let host = Host::new();
    let pod = Pod::new();
    let dir = host.dir().join("run");
    std::fs::create_dir(&dir).unwrap();
    std::os::unix::fs::symlink(pod.path(), dir.join("ns")).unwrap();
    let path = format!("{}//./ns", dir.display());
    let net = Network::new(&host, configs::v4(&host));
    let att = Attachment::new("one", &pod).netns(&path);
    let result = net.added(&att);
    assert_eq!(result["interfaces"][2]["sandbox"], path.as_str(), "{result:#}");
    net.check(&att, &result).success();
    net.deleted(&att, Some(&result));
    assert_eq!(pod.links(), ["lo"]);
}

#[test]
fn the_bridge_keeps_its_mac() {
    need!("ip");
    // Unless it is pinned, a bridge takes the lowest MAC of its ports.
    for gateway in [false, true] {
        let host = Host::new();
        let net = Network::new(&host, configs::v4(&host)).with("/isGateway", json!(gateway));
        let pods: Vec<Pod> = (0..4).map(|_| Pod::new()).collect();
        net.added(&Attachment::new("first", &pods[0]));
        let mac = host.link("br0")["address"].clone();
        for (number, pod) in pods.iter().enumerate().skip(1) {
            let att = Attachment::new(&format!("pod{number}"), pod);
            let result = net.added(&att);
            assert_eq!(result["interfaces"][0]["mac"], mac);
            assert_eq!(host.link("br0")["address"], mac);
        }
        // A port with the lowest possible MAC, and the departure of the first port.
        host.ip("link add low address 02:00:00:00:00:01 type veth peer name lowpeer");
        host.ip("link set low master br0 up");
        net.deleted(&Attachment::new("first", &pods[0]), None);
        assert_eq!(host.link("br0")["address"], mac, "isGateway {gateway}");
    }
}

#[test]
fn an_address_that_comes_back_is_heard_of() {
    need!("ip", "ping");
    let host = Host::new();
    let net = Network::new(&host, configs::v4(&host));
    let (old, new, neighbour) = (Pod::new(), Pod::new(), Pod::new());
    net.added(&Attachment::new("neighbour", &neighbour));
    let att = Attachment::new("old", &old).args("IgnoreUnknown=1;IP=10.1.2.9");
    net.added(&att);
    assert!(neighbour.pings_once("10.1.2.9"));
    net.deleted(&att, None);
    let result = net.added(&Attachment::new("new", &new).args("IgnoreUnknown=1;IP=10.1.2.9"));
    let mac = result["interfaces"][2]["mac"].as_str().unwrap();
    // The neighbour has learned the new MAC from the announcement, without asking.
    assert!(
        wait_until(PATIENCE, || neighbour.ip("neigh show 10.1.2.9").contains(mac)),
        "{}",
        neighbour.ip("neigh show")
    );
    assert!(neighbour.pings_once("10.1.2.9"));
}

#[test]
fn loopback_and_bridge_at_the_same_time_in_one_pod() {
    need!("ip", "nft");
    let host = Host::new();
    let net = Network::new(&host, configs::dual(&host));
    let lo = Network::new(&host, configs::loopback());
    for round in 0..10 {
        let pod = Pod::new();
        pod.ip("link set lo down");
        let att = Attachment::new(&format!("pod{round}"), &pod);
        let lo_att = att.clone().ifname("lo");
        let (one, two) = std::thread::scope(|scope| {
            let one = scope.spawn(|| lo.add(&lo_att));
            let two = scope.spawn(|| net.add(&att));
            (one.join().unwrap(), two.join().unwrap())
        });
        let result = two.result();
        assert_eq!(one.result()["interfaces"][0]["name"], "lo");
        assert!(pod.link("lo")["flags"].as_array().unwrap().contains(&json!("UP")));
        std::thread::scope(|scope| {
            let one = scope.spawn(|| lo.del(&lo_att, None).success());
            let two = scope.spawn(|| net.del(&att, Some(&result)).success());
            one.join().unwrap();
            two.join().unwrap();
        });
        assert_eq!(pod.links(), ["lo"]);
    }
}

#[test]
fn fifty_adds_at_the_same_time() {
    need!("ip", "nft", "ping");
    let host = Host::new();
    let net = Network::new(&host, configs::dual(&host)).with("/ipMasq", json!(true));
    let pods: Vec<Pod> = (0..50).map(|_| Pod::new()).collect();
    let each = |work: &(dyn Fn(usize, Attachment) -> Value + Sync)| -> Vec<Value> {
        std::thread::scope(|scope| {
            let threads: Vec<_> = pods
                .iter()
                .enumerate()
                .map(|(number, pod)| {
                    let att = Attachment::new(&format!("pod{number}"), pod);
                    scope.spawn(move || work(number, att))
                })
                .collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        })
    };
    let results = each(&|_, att| net.added(&att));
    let mut addresses = BTreeSet::new();
    let mut names = BTreeSet::new();
    for result in &results {
        for ip in result["ips"].as_array().unwrap() {
            assert!(addresses.insert(ip["address"].to_string()), "given out twice: {ip}");
        }
        names.insert(result["interfaces"][1]["name"].to_string());
    }
    assert_eq!((addresses.len(), names.len()), (100, 50));
    for pod in [&pods[0], &pods[49]] {
        assert!(pod.pings("10.1.2.1") && pod.pings("fd00:1:2::1"));
    }
    each(&|number, att| {
        net.check(&att, &results[number]).success();
        Value::Null
    });
    each(&|number, att| {
        net.deleted(&att, Some(&results[number]));
        Value::Null
    });
    assert_eq!(host.links(), ["br0", "lo"]);
    let left: Vec<String> = leases(&host.data_dir())
        .into_iter()
        .filter(|line| line.starts_with("net64/10.") || line.starts_with("net64/fd"))
        .collect();
    assert!(left.is_empty(), "{left:#?}");
    let rules = Snapshot::of(&host).lines_with("pod");
    assert!(rules.is_empty(), "{rules:#?}");
}

#[test]
fn a_failing_add_leaves_a_bridge_to_others_as_it_was() {
    need!("ip");
    let host = Host::new();
    // An IPAM plugin that waits until it may fail.
    let bin = host.dir().join("bin");
    std::fs::create_dir(&bin).unwrap();
    for name in ["bridge", "host-local"] {
        std::os::unix::fs::symlink(plugin_dir().join(name), bin.join(name)).unwrap();
    }
    let (started, go) = (host.dir().join("started"), host.dir().join("go"));
    let waits = format!(
        "#!/bin/sh\n[ $CNI_COMMAND = ADD ] || exit 0\ntouch {}\n\
         n=0; while [ ! -e {} ] && [ $n -lt 2000 ]; do sleep 0.1; n=$((n+1)); done\nexit 1\n",
        started.display(),
        go.display()
    );
    script(&bin.join("failing"), &waits);

    let (bad, good) = (Pod::new(), Pod::new());
    let net = Network::by(&bin, &host, configs::dual(&host));
    std::thread::scope(|scope| {
        let failing = scope.spawn(|| {
            net.with("/ipam", json!({"type": "failing"})).add(&Attachment::new("bad", &bad)).error()
        });
        assert!(wait_until(PATIENCE, || started.exists()));
        net.added(&Attachment::new("good", &good));
        std::fs::write(&go, "").unwrap();
        failing.join().unwrap();
    });
    assert_eq!(host.sysctl("ipv6/conf/br0/accept_ra"), "0");
    assert_eq!(host.addrs("br0"), ["10.1.2.1/24", "fd00:1:2::1/64"]);
    assert!(good.pings("10.1.2.1") && good.pings("fd00:1:2::1"));
}

#[test]
fn loopback_brings_lo_up_and_down() {
    need!("ip");
    let host = Host::new();
    let pod = Pod::new();
    pod.ip("link set lo down");
    let net = Network::new(&host, configs::loopback());
    let att = Attachment::new("one", &pod).ifname("lo");
    let result = net.added(&att);
    assert_eq!(
        result["interfaces"],
        json!([{"name": "lo", "mac": "00:00:00:00:00:00", "sandbox": pod.path()}])
    );
    assert_eq!(
        result["ips"],
        json!([{"address": "127.0.0.1/8", "interface": 0}, {"address": "::1/128", "interface": 0}])
    );
    net.check(&att, &result).success();
    pod.ip("link set lo down");
    let error = net.check(&att, &result).error();
    assert!(error.all().contains("loopback interface is down"), "{error:?}");
    net.added(&att);
    net.deleted(&att, Some(&result));
    assert!(!pod.link("lo")["flags"].as_array().unwrap().contains(&json!("UP")));

    // A prevResult passes through, in the caller's version.
    let prev = json!({"cniVersion": configs::newest(), "ips": [{"address": "10.9.9.9/24"}]});
    let passed = net.call("ADD", &att, Some(&prev)).run().result();
    assert_eq!(passed["ips"][0]["address"], "10.9.9.9/24", "{passed:#}");

    // An address that has no business there.
    pod.ip("addr add 10.7.7.7/32 dev lo");
    let error = net.add(&att).error();
    assert!(error.all().contains("loopback interface found with non-loopback address"), "{error:?}");
}

/// CHECK sees each thing that somebody takes away.
#[test]
fn check_notices_what_is_gone() {
    need!("ip", "nft");
    let damages: &[(&str, &str)] = &[
        ("address v4", "pod: ip addr del 10.1.2.2/24 dev eth0"),
        ("address v6", "pod: ip addr del fd00:1:2::2/64 dev eth0"),
        ("route v4", "pod: ip route del default"),
        ("route v6", "pod: ip -6 route del default"),
        ("mac", "pod: ip link set eth0 address 0a:00:00:00:00:01"),
        ("container interface", "pod: ip link set eth0 name other"),
        ("port", "host: ip link set VETH nomaster"),
        ("host interface", "host: ip link del VETH"),
        ("bridge", "host: ip link del br0"),
        ("lease", "lease"),
    ];
    for (what, damage) in damages {
        let host = Host::new();
        let pod = Pod::new();
        let net = Network::new(&host, configs::dual(&host));
        let att = Attachment::new("one", &pod);
        let result = net.added(&att);
        net.check(&att, &result).success();
        let veth = result["interfaces"][1]["name"].as_str().unwrap();
        let damage = damage.replace("VETH", veth);
        match damage.split_once(": ") {
            Some(("pod", line)) => pod.sh(line),
            Some((_, line)) => host.sh(line),
            None => {
                std::fs::remove_file(host.data_dir().join("net64/10.1.2.2")).unwrap();
                std::fs::remove_file(host.data_dir().join("net64/fd00:1:2::2")).unwrap();
                String::new()
            }
        };
        let outcome = net.check(&att, &result);
        assert!(outcome.status == 1, "CHECK misses {what}: {}", outcome.describe());
        outcome.error();
        // Whatever is missing, DEL gets along.
        net.deleted(&att, Some(&result));
    }
}
