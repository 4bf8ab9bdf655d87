//! Tests living pods that one fault cuts off.

use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use cnimble_tests::stream::Stream;
use cnimble_tests::{Pod, need, need_go, plugin_dir};

use super::super::scripts;
use super::{Node, findings, kinds, veths};

pub(super) fn network(node: &Node, name: &str, subnet: &str) -> Value {
    json!({
        "cniVersion": "1.0.0",
        "name": name,
        "plugins": [
            {
                "type": "bridge", "bridge": "br1", "isDefaultGateway": true, "ipMasq": true, "macspoofchk": true,
                "ipam": {"type": "host-local", "dataDir": node.host.data_dir(), "ranges": [[{"subnet": subnet}]]},
            },
            {"type": "portmap", "capabilities": {"portMappings": true}},
            {"type": "firewall"},
        ],
    })
}

/// The kind of the findings, the argument of the damage, the affected pods, and the damage.
type Fault<'a> = (&'a str, &'a str, &'a [&'a str], &'a dyn Fn(&str));

/// Returns interfaces, addresses and routes, without counters.
pub(super) fn inside(pod: &Pod) -> String {
    let routes = pod.ip("route");
    // A lost carrier can be shown for a moment.
    format!("{:?} {}", pod.addrs("eth0"), routes.replace(" linkdown", ""))
}

fn check(node: &Node, network: &str, pod: &Pod, id: &str) -> i32 {
    node.cnimble(plugin_dir(), &["check", network, pod.path(), "--container-id", id]).run().status
}

#[test]
fn doctor_finds_each_fault_of_a_living_pod_and_repairs_it() {
    need!("ip", "nft");
    let node = Node::new();
    node.network("doc", &network(&node, "doc", "10.213.20.0/24"));
    let pods = [Pod::new(), Pod::new(), Pod::new()];
    let ids = ["one", "three", "two"];
    let mut ends = Vec::new();
    for ((pod, id), port) in pods.iter().zip(ids).zip(8001..) {
        ends.extend(veths(&node.add(plugin_dir(), "doc", pod, id, port)));
    }
    let ip = pods[2].addrs("eth0")[0].split('/').next().unwrap().to_owned();
    let stream = Stream::between(&pods[1], &pods[2], &ip);
    let (before, mac) = (inside(&pods[0]), node.host.link("br1")["address"].clone());
    let routes = node.host.ip("route");
    assert_eq!(findings(&node.doctor(&["--grace", "0"]), 0), [] as [Value; 0]);

    let on_host = |command: &str| drop(node.host.ip(command));
    let in_pod = |command: &str| drop(pods[0].ip(command));
    let (of_one, of_all) = (&ids[..1], &ids[..]);
    let faults: [Fault<'_>; 12] = [
        ("missing-rules", "flush ruleset", of_all, &|command| drop(node.host.nft(command))),
        ("pod-state", "route del default", of_one, &in_pod),
        ("pod-state", "addr flush dev eth0", of_one, &in_pod),
        ("pod-state", "link set eth0 down", of_one, &in_pod),
        ("host-state", &format!("link set {} nomaster", ends[0]), of_one, &on_host),
        ("host-state", &format!("link set {} down", ends[0]), of_one, &on_host),
        ("host-state", "addr flush dev br1", of_all, &on_host),
        ("host-state", "route del 10.213.20.0/24 dev br1", of_all, &on_host),
        ("host-state", "link set br1 down", of_all, &on_host),
        ("host-state", "link del br1", of_all, &on_host),
        ("host-state", "0", of_all, &|value| node.host.set_sysctl("ipv4/conf/br1/forwarding", value)),
        ("host-state", "0", of_all, &|value| node.host.set_sysctl("ipv4/ip_forward", value)),
    ];
    for (kind, command, ids, damage) in faults {
        damage(command);
        let expected =
            |outcome: &str| ids.iter().map(|id| format!("{kind} {outcome} {id}")).collect::<Vec<_>>();
        let found = findings(&node.doctor(&["--grace", "0"]), 6);
        assert_eq!(kinds(&found), expected("found"), "{command}: {found:#?}");
        if kind == "pod-state" {
            let found = findings(&node.doctor(&["--grace", "0", "--repair"]), 6);
            assert_eq!(kinds(&found), expected("found"), "{command}: the pod may want it so");
            assert_ne!(inside(&pods[0]), before, "{command}");
            let found = findings(&node.doctor(&["--grace", "0", "--repair", "--pods"]), 0);
            assert_eq!(kinds(&found), expected("repaired"), "{command}");
        } else {
            let found = findings(&node.doctor(&["--grace", "0", "--repair"]), 0);
            assert_eq!(kinds(&found), expected("repaired"), "{command}: {found:#?}");
        }
        assert_eq!(findings(&node.doctor(&["--grace", "0"]), 0), [] as [Value; 0], "{command}");
        assert_eq!(inside(&pods[0]), before, "{command}");
        assert_eq!(node.host.link("br1")["address"], mac, "{command}");
        for (pod, id) in pods.iter().zip(["one", "three", "two"]) {
            assert_eq!(check(&node, "doc", pod, id), 0, "{command}: {id}");
        }
        assert!(pods[0].pings("10.213.20.1"), "{command}");
        let forwarding = ["ipv4/ip_forward", "ipv4/conf/br1/forwarding"].map(|key| node.host.sysctl(key));
        assert_eq!(forwarding, ["1", "1"], "{command}");
        assert_eq!(node.host.ip("route"), routes, "{command}");
        stream.flows(command);
    }
}

#[test]
fn doctor_puts_back_the_routes_to_a_bridges_ipv6_networks() {
    need!("ip", "nft", "ping");
    let node = Node::new();
    let pods = [Pod::new(), Pod::new()];
    // The second gateway is link-local.
    for (at, gateway) in
        [("fd00:213:1::", Value::Null), ("fd00:213:2::", json!("fe80::1"))].into_iter().enumerate()
    {
        let (name, bridge, (first, gateway)) = (format!("net{at}"), format!("br{at}"), gateway);
        let mut network = network(&node, &name, "10.213.36.0/24");
        let mut range = json!({"subnet": format!("{first}/64")});
        if gateway != Value::Null {
            range["gateway"] = gateway;
        }
        network["plugins"][0]["bridge"] = json!(bridge);
        network["plugins"][0]["ipam"]["ranges"] = json!([[range]]);
        node.network(&name, &network);
        node.add(plugin_dir(), &name, &pods[at], &name, 8001 + u16::try_from(at).unwrap());
    }
    let routes = node.host.ip("-6 route");
    assert_eq!(findings(&node.doctor(&["--grace", "0"]), 0), [] as [Value; 0]);
    for (at, pod) in pods.iter().enumerate() {
        let subnet = format!("fd00:213:{}::/64", at + 1);
        node.host.ip(&format!("-6 route del {subnet} dev br{at}"));
        let found = findings(&node.doctor(&["--grace", "0"]), 6);
        assert_eq!(kinds(&found), [format!("host-state found net{at}")], "{found:#?}");
        findings(&node.doctor(&["--grace", "0", "--repair"]), 0);
        assert!(node.host.ip("-6 route").contains(&subnet), "{routes}");
        let ip = pod.addrs("eth0").into_iter().find(|addr| addr.starts_with("fd00")).unwrap();
        assert!(node.host.pings(ip.split('/').next().unwrap()));
    }
    assert_eq!(findings(&node.doctor(&["--grace", "0"]), 0), [] as [Value; 0]);
    // They go with the address, as the kernel's.
    node.host.ip("addr del fd00:213:1::1/64 dev br0");
    assert!(!node.host.ip("-6 route").contains("fd00:213:1::/64"));
}

/// A pod with its own veth pair needs the host end, its routes and forwarding.
#[test]
fn doctor_repairs_the_hosts_end_of_a_routed_pod() {
    need!("ip", "nft");
    let node = Node::new();
    let mut network = network(&node, "doc", "10.213.21.0/24");
    network["plugins"][0]["type"] = json!("ptp");
    network["plugins"][0]["ipam"]["routes"] = json!([{"dst": "0.0.0.0/0"}]);
    node.network("doc", &network);
    let pod = Pod::new();
    let end = veths(&node.add(plugin_dir(), "doc", &pod, "one", 8001)).remove(0);
    let before = inside(&pod);
    for (kind, command) in [
        ("host-state", format!("link set {end} down")),
        ("host-state", format!("addr flush dev {end}")),
        ("host-state", format!("route flush dev {end}")),
        ("host-state", "0".to_owned()),
        ("pod-state", "addr flush dev eth0".to_owned()),
    ] {
        match kind {
            "pod-state" => drop(pod.ip(&command)),
            _ if command == "0" => node.host.set_sysctl(&format!("ipv4/conf/{end}/forwarding"), &command),
            _ => drop(node.host.ip(&command)),
        }
        let found = findings(&node.doctor(&["--grace", "0"]), 6);
        assert_eq!(kinds(&found), [format!("{kind} found one")], "{command}: {found:#?}");
        let found = findings(&node.doctor(&["--grace", "0", "--repair", "--pods"]), 0);
        assert_eq!(kinds(&found), [format!("{kind} repaired one")], "{command}: {found:#?}");
        assert_eq!(findings(&node.doctor(&["--grace", "0"]), 0), [] as [Value; 0], "{command}");
        assert!(pod.pings("10.213.21.1"), "{command}");
    }
    // The kernel's route to the subnet comes after the plugin's again.
    let own = "10.213.21.0/24 dev eth0 proto kernel scope link";
    let after: Vec<String> =
        inside(&pod).lines().filter(|line| !line.contains(own)).map(str::to_owned).collect();
    let count = |text: &str| text.lines().count();
    assert_eq!(after.len(), count(&before), "{before}{after:?}");
}

/// A substitute for flannel's plugin that hands the pod to bridge.
pub(super) fn flannel(node: &Node, config: &Value) -> PathBuf {
    let file = node.host.dir().join("delegated.json");
    std::fs::write(&file, config.to_string()).unwrap();
    let run = format!("cat >/dev/null\nexec {}/bridge <{}", plugin_dir().display(), file.display());
    let bin = scripts(node.host.dir(), &[("flannel", &run)]);
    PathBuf::from(format!("{}:{}", bin.display(), plugin_dir().display()))
}

#[test]
fn doctor_looks_at_the_hosts_part_of_what_it_can_not_check() {
    need!("ip", "nft");
    for (name, why) in [
        ("old", "version 0.3.1 has no CHECK"),
        ("unchecked", "disableCheck"),
        ("cbr0", "version 0.3.1 has no CHECK"),
    ] {
        let node = Node::new();
        let mut config = network(&node, name, "10.213.22.0/24");
        match name {
            "unchecked" => config["disableCheck"] = json!(true),
            _ => {
                config["cniVersion"] = json!("0.3.1");
                config["plugins"].as_array_mut().unwrap().truncate(1);
            }
        }
        let mut delegated = config["plugins"][0].clone();
        delegated["cniVersion"] = json!("0.3.1");
        delegated["name"] = json!(name);
        let plugins = flannel(&node, &delegated);
        if name == "cbr0" {
            let delegate = json!({"bridge": "br1", "isDefaultGateway": true});
            config["plugins"] = json!([{"type": "flannel", "delegate": delegate}]);
        }
        node.network(name, &config);
        let pod = Pod::new();
        node.cnimble(&plugins, &["add", name, pod.path(), "--container-id", "one"]).run().result();
        let gateway = node.host.addrs("br1")[0].split('/').next().unwrap().to_owned();
        node.host.ip("link set br1 down");
        pod.ip("route del default");
        let doctor = |args: &[&str], status: i32| look(&node, &plugins, args, status);
        let (found, not_checked) = doctor(&[], 6);
        assert_eq!(kinds(&found), ["host-state found one"], "{name}: {found:#?}");
        assert_eq!(
            not_checked,
            [format!("network {name}: only the host's part is checked: {why} (1 attachment)")]
        );
        doctor(&["--repair", "--pods"], 0);
        assert_eq!(doctor(&[], 0).0, [] as [Value; 0], "{name}");
        assert!(pod.pings(&gateway), "{name}");
        assert!(!pod.ip("route").contains("default"), "{name}: nothing was done in the pod");
    }
}

fn look(node: &Node, plugins: &Path, args: &[&str], status: i32) -> (Vec<Value>, Vec<Value>) {
    let dir = node.host.data_dir();
    let all = [&["doctor", "--json", "--grace", "0", "--data-dir", dir.to_str().unwrap()], args].concat();
    let outcome = node.cnimble(plugins, &all).run();
    let found = findings(&outcome, status);
    let document: Value = serde_json::from_slice(&outcome.stdout).unwrap();
    (found, document["notChecked"].as_array().unwrap().clone())
}

#[test]
fn doctor_finds_no_fault_of_the_go_plugins_pods() {
    need_go!(go, "ip", "nft", "iptables-nft-save");
    let node = Node::new();
    let mut names = Vec::new();
    for (version, kind, subnet) in [
        ("0.4.0", "bridge", "10.213.24.0/24"),
        ("1.0.0", "bridge", "10.213.24.0/24"),
        ("0.4.0", "ptp", "10.213.25.0/24"),
        ("1.0.0", "ptp", "10.213.31.0/24"),
    ] {
        let name = format!("{kind}-{}", version.replace('.', ""));
        let mut config = network(&node, &name, subnet);
        config["cniVersion"] = json!(version);
        config["plugins"][0]["type"] = json!(kind);
        if name == "bridge-100" {
            let ipam = &mut config["plugins"][0]["ipam"]["ranges"][0][0];
            ipam["rangeStart"] = json!("10.213.24.100");
        }
        node.network(&name, &config);
        names.push(name);
    }
    let pods: Vec<Pod> = names.iter().map(|_| Pod::new()).collect();
    for ((name, pod), port) in names.iter().zip(&pods).zip(8001..) {
        node.add(go, name, pod, name, port);
    }
    let state = node.state();
    assert_eq!(findings(&node.doctor(&["--grace", "0", "--repair", "--pods"]), 0), [] as [Value; 0]);
    super::same(&state, &node.state(), "after the doctor");
}

/// The host's end of a ptp pod is no bridge, so it has no ports. Its isolation is in use as long as the link is there.
#[test]
fn the_isolation_of_a_living_ptp_pod_stays() {
    need!("ip", "nft");
    let node = Node::new();
    let conflist = json!({
        "cniVersion": "1.0.0",
        "name": "doc",
        "plugins": [
            {
                "type": "ptp",
                "ipam": {
                    "type": "host-local", "dataDir": node.host.data_dir(), "ranges": [[{"subnet": "10.213.46.0/24"}]],
                },
            },
            {"type": "firewall", "backend": "nftables", "ingressPolicy": "same-bridge"},
        ],
    });
    node.network("doc", &conflist);
    let pod = Pod::new();
    node.cnimble(plugin_dir(), &["add", "doc", pod.path(), "--container-id", "one"]).run().success();
    let rules = node.host.nft("list ruleset");
    assert!(rules.contains("veth"), "{rules}");
    for args in [&["--grace", "0"][..], &["--grace", "0", "--repair"]] {
        assert_eq!(findings(&node.doctor(args), 0), [] as [Value; 0]);
    }
    assert_eq!(node.host.nft("list ruleset"), rules);
}

/// The codes from 100 on are a plugin's own, so only its words tell whether it has found a difference or could not look.
#[test]
fn of_a_plugin_of_another_maker_doctor_says_that_its_check_failed() {
    need!("ip", "nft", "jq");
    let (node, pod) = (Node::new(), Pod::new());
    let scripts = scripts(
        node.host.dir(),
        &[(
            "other",
            r#"cat >$0.in; case $CNI_COMMAND in
                ADD) jq .prevResult $0.in;;
                CHECK) echo '{"cniVersion":"1.0.0","code":999,"msg":"no connection to its daemon"}'; exit 1;;
            esac"#,
        )],
    );
    let mut config = network(&node, "doc", "10.213.45.0/24");
    config["plugins"][1] = json!({"type": "other"});
    node.network("doc", &config);
    let both = format!("{}:{}", plugin_dir().display(), scripts.display());
    let path = Path::new(&both);
    node.cnimble(path, &["add", "doc", pod.path(), "--container-id", "one"]).run().success();
    let data_dir = node.host.data_dir();
    let args = ["doctor", "--json", "--data-dir", data_dir.to_str().unwrap()];
    let found = findings(&node.cnimble(path, &args).run(), 6);
    assert_eq!(found.len(), 1, "{found:?}");
    assert_eq!(found[0]["what"], "by plugin other");
    let why = found[0]["why"].as_str().unwrap();
    assert!(why.starts_with("its CHECK failed: ") && why.contains("no connection to its daemon"), "{why}");
    node.cnimble(path, &["del", "doc", pod.path(), "--container-id", "one"]).run().success();
}
