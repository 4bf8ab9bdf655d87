use std::collections::BTreeSet;

use serde_json::{Value, json};

use cnimble_tests::{
    Attachment, Host, Network, PATIENCE, Pod, Snapshot, configs, leases, need, plugin_dir, script, wait_until,
};

/// Drops what a network without pods leaves.
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

    // DEL of the second pod restores the state before.
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

    net.deleted(&att2, Some(&result2));
    before.assert_same(&without_last_reserved(Snapshot::of(&host)), "after DEL again");
    assert!(first.pings_once("10.1.2.1"), "the first pod is not affected");
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
    // An IPAM plugin that waits for a file and then fails.
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

/// CHECK notices each removed part.
#[test]
fn check_notices_what_is_gone() {
    need!("ip", "nft");
    let damages: &[(&str, &str)] = &[
        ("address v4", "pod: ip addr del 10.1.2.2/24 dev eth0"),
        ("address v6", "pod: ip addr del fd00:1:2::2/64 dev eth0"),
        ("route v4", "pod: ip route del default"),
        ("route v6", "pod: ip -6 route del default"),
        ("mac", "pod: ip link set eth0 address 0a:00:00:00:00:01"),
        // Older kernels can't rename a link that is up.
        ("container interface", "pod: ip link set eth0 down; ip link set eth0 name other"),
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
            Some(("pod", line)) => pod.shell(line),
            Some((_, line)) => host.shell(line),
            None => {
                std::fs::remove_file(host.data_dir().join("net64/10.1.2.2")).unwrap();
                std::fs::remove_file(host.data_dir().join("net64/fd00:1:2::2")).unwrap();
                String::new()
            }
        };
        let outcome = net.check(&att, &result);
        assert!(outcome.status == 1, "CHECK misses {what}: {}", outcome.describe());
        outcome.error();
        // DEL succeeds with any part missing.
        net.deleted(&att, Some(&result));
    }
}
