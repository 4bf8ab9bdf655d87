//! Tests `cnimble guard`: losses of living pods on the host are repaired without a doctor.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};

use cnimble_tests::stream::Stream;
use cnimble_tests::trace::{self, Fate, untraceable};
use cnimble_tests::{
    Background, LIMIT, Lan, PATIENCE, Pod, announce, copy, need, plugin_dir, sample_size, skip, wait_until,
};

use super::faults::network;
use super::{HangingAdd, Node, findings, kinds, same, veths};

/// The argument of a damage, and the damage.
type Fault<'a> = (String, &'a dyn Fn(&str));

/// A running `cnimble guard`.
struct Guard {
    process: Background,
    log: PathBuf,
}

impl Guard {
    fn command(node: &Node) -> Command {
        let data = node.host.data_dir();
        node.cnimble(plugin_dir(), &["guard", "--data-dir", data.to_str().unwrap()]).command
    }

    fn start(node: &Node) -> Self {
        let log = node.host.dir().join("guard.log");
        let mut command = Guard::command(node);
        command.stderr(File::create(&log).unwrap());
        Guard { process: Background::start(&mut command), log }
    }

    fn log(&self) -> String {
        fs::read_to_string(&self.log).unwrap()
    }

    fn wait_for(&self, words: &str) {
        assert!(wait_until(PATIENCE, || self.log().contains(words)), "{words}: {}", self.log());
    }

    /// Ends it, and returns its log.
    fn stop(self) -> String {
        kill(Pid::from_raw(i32::try_from(self.process.pid()).unwrap()), Signal::SIGTERM).unwrap();
        let log = self.log.clone();
        let status = self.process.finish(std::time::Duration::from_secs_f32(PATIENCE)).status;
        assert!(status.success(), "{status}");
        fs::read_to_string(log).unwrap()
    }
}

impl Node {
    /// Waits until the doctor finds only `expected`.
    #[track_caller]
    fn comes_to(&self, expected: &[&str], when: &str, guard: &Guard) {
        let found = || {
            let outcome = self.doctor(&["--grace", "0"]);
            kinds(&findings(&outcome, if outcome.status == 0 { 0 } else { 6 }))
        };
        assert!(wait_until(PATIENCE, || found() == expected), "{when}: {:?}; {}", found(), guard.log());
    }
}

#[test]
fn a_guard_repairs_each_loss_on_the_host_and_nothing_in_a_pod() {
    need!("ip", "nft");
    let node = Node::new();
    node.network("doc", &network(&node, "doc", "10.213.22.0/24"));
    let mut routed = network(&node, "routed", "10.213.23.0/24");
    routed["plugins"][0]["type"] = json!("ptp");
    node.network("routed", &routed);
    let pods = [Pod::new(), Pod::new(), Pod::new()];
    let bridged = veths(&node.add(plugin_dir(), "doc", &pods[0], "one", 8001)).remove(0);
    let result = node.add(plugin_dir(), "doc", &pods[1], "two", 8002);
    let own = veths(&node.add(plugin_dir(), "routed", &pods[2], "three", 8003)).remove(0);
    let ip = result["ips"][0]["address"].as_str().unwrap().split('/').next().unwrap();
    let stream = Stream::between(&pods[0], &pods[1], ip);

    // A loss before the guard begins.
    node.host.nft("flush ruleset");
    let guard = Guard::start(&node);
    node.comes_to(&[], "at the beginning", &guard);
    let on_host = |command: &str| drop(node.host.ip(command));
    let faults: [Fault<'_>; 11] = [
        ("0".to_owned(), &|value| node.host.set_sysctl("ipv4/conf/br1/forwarding", value)),
        ("flush ruleset".to_owned(), &|command| drop(node.host.nft(command))),
        ("delete table inet cnimble".to_owned(), &|command| drop(node.host.nft(command))),
        (format!("link set {bridged} nomaster"), &on_host),
        (format!("link set {bridged} down"), &on_host),
        ("addr flush dev br1".to_owned(), &on_host),
        ("link set br1 down".to_owned(), &on_host),
        ("route del 10.213.22.0/24 dev br1".to_owned(), &on_host),
        ("link del br1".to_owned(), &on_host),
        (format!("route flush dev {own}"), &on_host),
        ("0".to_owned(), &|value| node.host.set_sysctl("ipv4/ip_forward", value)),
    ];
    for (command, damage) in faults {
        damage(&command);
        node.comes_to(&[], &command, &guard);
        stream.flows(&command);
        assert!(pods[0].pings("10.213.22.1") && pods[2].pings("10.213.23.1"), "{command}");
    }
    guard.wait_for("by process nft (");

    pods[0].ip("route del default");
    node.host.nft("flush ruleset");
    node.comes_to(&["pod-state found one"], "a change in a pod is left alone", &guard);
    let log = guard.stop();
    assert!(!log.contains("warning:") && !log.contains("error:"), "{log}");
}

#[test]
fn a_guard_gives_up_a_fight_and_serves_the_other_networks() {
    need!("ip", "nft");
    let node = Node::new();
    node.network("fought", &network(&node, "fought", "10.213.24.0/24"));
    let mut quiet = network(&node, "quiet", "10.213.25.0/24");
    quiet["plugins"][0]["bridge"] = json!("br2");
    node.network("quiet", &quiet);
    let pods = [Pod::new(), Pod::new()];
    node.add(plugin_dir(), "fought", &pods[0], "one", 8001);
    node.add(plugin_dir(), "quiet", &pods[1], "two", 8002);
    let guard = Guard::start(&node);
    let address = || node.host.ip("-4 addr show dev br1").contains("10.213.24.1/24");
    let gives_up = || guard.log().contains("network fought: the pod or another program changes again");
    for _ in 0..100 {
        node.host.ip("addr flush dev br1");
        assert!(wait_until(PATIENCE, || address() || gives_up()), "{}", guard.log());
        if gives_up() {
            break;
        }
    }
    guard
        .wait_for("leaves alone for 10 minutes what is lost on the host, by plugin bridge, of container one");
    node.host.ip("addr flush dev br1");
    node.host.ip("addr flush dev br2");
    node.comes_to(&["host-state found one"], "after it gave up", &guard);
    // Another part of the same pod is put back, and with it all of this pod.
    node.host.nft("flush ruleset");
    node.comes_to(&[], "another part", &guard);
    guard.stop();
}

/// A pod can set the MTU of its own end. Its fight is its own: the pods beside it get their rules back.
#[test]
fn a_pod_that_fights_costs_its_neighbours_nothing() {
    need!("ip", "nft");
    let node = Node::new();
    let _lan = Lan::behind(&node.host, "up0");
    node.host.ip("address add 10.7.0.2/24 dev up0");
    node.host.ip("route add default via 10.7.0.1 dev up0");
    let mut auto = network(&node, "auto", "10.213.28.0/24");
    auto["plugins"][0]["mtuAuto"] = json!(true);
    node.network("auto", &auto);
    let pods = [Pod::new(), Pod::new()];
    node.add(plugin_dir(), "auto", &pods[0], "fights", 8001);
    node.add(plugin_dir(), "auto", &pods[1], "quiet", 8002);
    let guard = Guard::start(&node);
    let gives_up = || guard.log().contains("leaves alone for 10 minutes");
    for round in 0..100 {
        pods[0].ip(&format!("link set eth0 mtu {}", 9000 - round));
        // The kernel reports no change of the pod's end. A change of the host makes the guard look.
        node.host.ip(&format!("link set up0 address 02:00:00:00:00:{round:02}"));
        let is_back = || pods[0].link("eth0")["mtu"] == 1500;
        assert!(wait_until(PATIENCE, || is_back() || gives_up()), "{}", guard.log());
        if gives_up() {
            break;
        }
    }
    guard.wait_for("what is lost on the host, by plugin bridge, of container fights\n");
    pods[0].ip("link set eth0 mtu 9000");
    node.host.nft("flush ruleset");
    node.comes_to(&[], "the rules of both", &guard);
    guard.stop();
}

/// Only the switches that the kernel does not report wait for the regular look.
#[test]
fn a_guard_follows_ports_limits_files_and_switches() {
    need!("ip", "nft", "bridge", "tc");
    let node = Node::new();
    let mut isolated = network(&node, "isolated", "10.213.29.0/24");
    isolated["plugins"][0]["portIsolation"] = json!(true);
    isolated["plugins"][0]["hairpinMode"] = json!(true);
    let limits = json!({"type": "bandwidth", "ingressRate": 80_000_000, "ingressBurst": 8_000_000,
        "egressRate": 80_000_000, "egressBurst": 8_000_000});
    isolated["plugins"].as_array_mut().unwrap().push(limits);
    node.network("isolated", &isolated);
    let pod = Pod::new();
    let veth = veths(&node.add(plugin_dir(), "isolated", &pod, "one", 8001)).remove(0);
    let ifb = node.host.links().into_iter().find(|name| name.starts_with("bwp")).unwrap();
    let lease = node.host.data_dir().join("isolated/10.213.29.2");
    let guard = Guard::start(&node);
    node.comes_to(&[], "at the beginning", &guard);
    let mac = || node.host.link("br1")["address"].as_str().unwrap().to_owned();
    let before = mac();
    for damage in [
        format!("bridge link set dev {veth} isolated off"),
        format!("bridge link set dev {veth} hairpin off"),
        format!("bridge link set dev {veth} learning off"),
        format!("bridge link set dev {veth} flood off"),
        format!("bridge link set dev {veth} state 0"),
        "ip link set br1 address 02:00:00:00:00:77".to_owned(),
        format!("tc qdisc del dev {veth} root"),
        format!("tc qdisc del dev {veth} ingress"),
        format!("tc qdisc del dev {ifb} root"),
        format!("ip link del {ifb}"),
        format!("ip link set {ifb} down"),
    ] {
        node.host.sh(&damage);
        node.comes_to(&[], &damage, &guard);
        assert!(pod.pings("10.213.29.1") && mac() == before, "{damage}");
    }
    assert!(!guard.log().contains("that the kernel does not report"), "{}", guard.log());
    node.host.set_sysctl(&format!("ipv6/conf/{veth}/accept_ra"), "2");
    node.host.set_sysctl("ipv6/conf/br1/accept_ra", "2");
    node.host.set_sysctl("ipv4/conf/br1/route_localnet", "0");
    fs::remove_file(&lease).unwrap();
    node.comes_to(&[], "what the kernel does not report", &guard);
    assert_eq!(node.host.sysctl(&format!("ipv6/conf/{veth}/accept_ra")), "0");
    assert_eq!(node.host.sysctl("ipv6/conf/br1/accept_ra"), "0");
    assert_eq!(node.host.sysctl("ipv4/conf/br1/route_localnet"), "2");
    assert!(lease.exists());
    let log = guard.stop();
    assert!(!log.contains("warning:") && !log.contains("error:"), "{log}");
}

/// Any program can have the name of a plugin.
#[test]
fn a_change_by_a_program_with_a_plugins_name_is_seen() {
    need!("ip", "nft");
    let node = Node::new();
    node.network("doc", &network(&node, "doc", "10.213.30.0/24"));
    let pod = Pod::new();
    node.add(plugin_dir(), "doc", &pod, "one", 8001);
    let guard = Guard::start(&node);
    node.comes_to(&[], "at the beginning", &guard);
    for name in ["bridge", "firewall", "portmap", "ptp", "cnimble"] {
        // The kernel takes the name of a process from its file.
        let nft = node.host.dir().join(name);
        copy(Path::new("/usr/sbin/nft"), &nft);
        node.host.sh(&format!("{} flush ruleset", nft.display()));
        node.comes_to(&[], name, &guard);
    }
    guard.stop();
}

/// The lock of a network with an ADD that hangs is waited for, and the losses of the others are not.
#[test]
fn an_add_that_hangs_delays_no_repair_elsewhere() {
    need!("ip", "nft", "jq");
    let node = Node::new();
    let hanging = HangingAdd::prepare(&node);
    let mut hangs = network(&node, "hangs", "10.213.31.0/24");
    hangs["plugins"].as_array_mut().unwrap().push(json!({"type": "waits"}));
    node.network("hangs", &hangs);
    let mut quiet = network(&node, "quiet", "10.213.32.0/24");
    quiet["plugins"][0]["bridge"] = json!("br2");
    node.network("quiet", &quiet);
    let pods = [Pod::new(), Pod::new(), Pod::new()];
    node.add(&hanging.plugins, "hangs", &pods[0], "one", 8001);
    node.add(&hanging.plugins, "quiet", &pods[1], "two", 8002);
    let guard = Guard::start(&node);
    node.comes_to(&[], "at the beginning", &guard);
    let mut add = hanging.begin(&node, "hangs", &pods[2]);
    // Each network loses something, and only one of them is locked.
    node.host.ip("addr flush dev br1");
    node.host.ip("addr flush dev br2");
    let address = |bridge: &str| node.host.ip(&format!("-4 addr show dev {bridge}")).contains("10.213.3");
    assert!(wait_until(PATIENCE / 4.0, || address("br2")), "{}", guard.log());
    assert!(add.running() && !address("br1"), "{}", guard.log());
    hanging.end(add);
    node.comes_to(&[], "after the ADD", &guard);
    guard.stop();
}

/// The MTUs of both ends of the pod's pair.
fn mtus(node: &Node, pod: &Pod, end: &str) -> [Value; 2] {
    [node.host.link(end)["mtu"].clone(), pod.link("eth0")["mtu"].clone()]
}

#[test]
fn both_ends_of_a_pair_follow_the_uplink() {
    need!("ip", "nft", "ping");
    let node = Node::new();
    let lan = Lan::behind(&node.host, "up0");
    lan.ip("link set lan0 mtu 9000");
    lan.ip("route add 10.213.0.0/16 via 10.7.0.2");
    node.host.ip("address add 10.7.0.2/24 dev up0");
    node.host.ip("route add default via 10.7.0.1 dev up0");
    let mut bridged = network(&node, "auto", "10.213.26.0/24");
    bridged["plugins"][0]["mtuAuto"] = json!(true);
    bridged["plugins"][0]["mtuOverhead"] = json!(50);
    let mut routed = bridged.clone();
    (routed["name"], routed["plugins"][0]["type"]) = (json!("routed"), json!("ptp"));
    routed["plugins"][0]["ipam"]["ranges"][0][0]["subnet"] = json!("10.213.27.0/24");
    routed["plugins"][0]["ipam"]["routes"] = json!([{"dst": "0.0.0.0/0"}]);
    node.network("auto", &bridged);
    node.network("routed", &routed);
    let (pods, mut ends) = ([Pod::new(), Pod::new(), Pod::new()], Vec::new());
    let names = ["auto", "auto", "routed"];
    for ((pod, name), port) in pods.iter().zip(names).zip(8001..) {
        ends.push(veths(&node.add(plugin_dir(), name, pod, &format!("c{port}"), port)).remove(0));
    }
    let all_have = |expected: u32| {
        let pairs = pods.iter().zip(&ends).map(|(pod, end)| mtus(&node, pod, end));
        pairs.flatten().chain([node.host.link("br1")["mtu"].clone()]).all(|mtu| mtu == expected)
    };
    assert!(all_have(1450));
    // A runtime may end pods after a CHECK that fails.
    node.host.ip("link set up0 mtu 1400");
    node.cnimble(plugin_dir(), &["check", "auto", pods[0].path(), "--container-id", "c8001"]).run().success();
    let found = findings(&node.doctor(&["--grace", "0"]), 6);
    assert_eq!(found.len(), 3, "{found:?}");
    assert!(found[0].to_string().contains("expected 1350"), "{found:?}");

    let guard = Guard::start(&node);
    let follows = |expected: u32, when: &str| {
        let found = || pods.iter().zip(&ends).map(|(pod, end)| mtus(&node, pod, end)).collect::<Vec<_>>();
        assert!(wait_until(PATIENCE, || all_have(expected)), "{when}: {:?}; {}", found(), guard.log());
        node.comes_to(&[], when, &guard);
        for pod in &pods {
            let full = format!("ping -M do -c 1 -W 5 -s {} 10.7.0.1", expected - 28);
            pod.sh(&full);
        }
        let (first, size) = (pods[1].addrs("eth0"), expected - 28);
        pods[0].sh(&format!("ping -M do -c 1 -W 5 -s {size} {}", first[0].split('/').next().unwrap()));
    };
    follows(1350, "before the guard began");
    for mtu in [9000, 1300, 1500] {
        node.host.ip(&format!("link set up0 mtu {mtu}"));
        follows(mtu - 50, "another MTU");
    }
    node.host.ip("route replace default via 10.7.0.1 dev up0 mtu 1450");
    follows(1400, "another route");
    node.host.ip("route del default");
    node.host.ip("route add default via 10.7.0.1 dev up0");
    follows(1450, "the route is back");

    // A smaller MTU is the pod's wish, and the uplink can be too small.
    pods[0].ip("link set eth0 mtu 1200");
    node.host.ip("link set up0 mtu 1400");
    let expected = [json!(1350), json!(1200)];
    assert!(wait_until(PATIENCE, || mtus(&node, &pods[0], &ends[0]) == expected), "{}", guard.log());
    node.comes_to(&[], "a smaller MTU in a pod", &guard);
    node.host.ip("link set up0 mtu 100");
    guard.wait_for("mtuAuto: the pod would have 50 of the 100 bytes of up0");
    assert_eq!(mtus(&node, &pods[0], &ends[0]), expected);
    guard.stop();
}

/// The points of a sample.
const POINTS: usize = 12;

/// Whatever it has done by then, the next look repairs the rest, and nothing is there twice.
#[test]
fn a_guard_may_be_killed_at_any_call_of_a_repair() {
    need!("ip", "nft");
    if let Some(why) = untraceable() {
        skip!("{why}");
    }
    let node = Node::new();
    node.network("doc", &network(&node, "doc", "10.213.31.0/24"));
    let pods = [Pod::new(), Pod::new()];
    let port = veths(&node.add(plugin_dir(), "doc", &pods[0], "one", 8001)).remove(0);
    node.add(plugin_dir(), "doc", &pods[1], "two", 8002);
    // Tables that come back may stand in another order.
    let state = || {
        let mut rules: Vec<String> = node.host.nft("-s list ruleset").lines().map(str::to_owned).collect();
        rules.sort();
        (node.state().0.without("nft"), rules)
    };
    let healthy = state();
    let is_whole = || node.doctor(&["--grace", "0"]).status == 0;
    let killed_at = |n: usize| {
        node.host.nft("flush ruleset");
        node.host.ip(&format!("link set {port} nomaster"));
        node.host.ip("-4 addr flush dev br1");
        trace::run(&mut Guard::command(&node), &[], &Fate::KilledAt(n), LIMIT).met
    };
    let heal = |n: usize| {
        findings(&node.doctor(&["--grace", "0", "--repair"]), 0);
        same(&healthy, &state(), &format!("killed at call {n}, and repaired by the next look"));
    };
    // So many calls, or fewer, repair everything.
    let mut all = 256;
    while killed_at(all) && !is_whole() {
        heal(all);
        all *= 2;
    }
    heal(all);
    let points = sample_size(POINTS).min(all);
    let mut met = 0;
    for point in 0..points {
        let n = all * point / points;
        met += usize::from(killed_at(n));
        heal(n);
    }
    announce("NOTE", &format!("guard: killed at {met} of {points} points among {all} calls"));
    assert!(met * 10 > points * 9, "only {met} points were reached");
}

/// A bridge stands in for the link on which kube-proxy in IPVS mode puts the addresses of Services.
#[test]
fn a_guard_keeps_published_ports_off_a_new_service() {
    need!("ip", "nft");
    let node = Node::new();
    node.network("doc", &network(&node, "doc", "10.213.22.0/24"));
    let pod = Pod::new();
    node.add(plugin_dir(), "doc", &pod, "one", 443);
    let guard = Guard::start(&node);
    node.comes_to(&[], "at the beginning", &guard);
    let excluded = |ip: &str| {
        let listed = node.host.run("nft list set inet cnimble portmap-services4");
        listed.status == 0 && String::from_utf8_lossy(&listed.stdout).contains(ip)
    };
    node.host.ip("link add kube-ipvs0 type bridge");
    for ip in ["10.96.0.1", "10.96.0.53"] {
        node.host.ip(&format!("addr add {ip}/32 dev kube-ipvs0"));
        assert!(wait_until(PATIENCE, || excluded(ip)), "{ip}: {}", guard.log());
    }
    node.host.ip("addr del 10.96.0.1/32 dev kube-ipvs0");
    assert!(wait_until(PATIENCE, || !excluded("10.96.0.1")), "{}", guard.log());
    assert!(excluded("10.96.0.53"));
    node.host.ip("link del kube-ipvs0");
    assert!(wait_until(PATIENCE, || !excluded("10.96.0.53")), "{}", guard.log());
    let log = guard.stop();
    assert!(!log.contains("warning:") && !log.contains("error:"), "{log}");
}

#[test]
fn a_guard_lets_rules_of_others_exempt_living_pods() {
    need!("ip", "nft", "iptables-nft", "iptables-nft-save");
    let node = Node::new();
    node.network("doc", &network(&node, "doc", "10.213.22.0/24"));
    let pods = [Pod::new(), Pod::new()];
    node.add(plugin_dir(), "doc", &pods[0], "one", 8001);
    let result = node.add(plugin_dir(), "doc", &pods[1], "two", 8002);
    let ip = result["ips"][0]["address"].as_str().unwrap().split('/').next().unwrap();
    let stream = Stream::between(&pods[0], &pods[1], ip);
    let guard = Guard::start(&node);
    node.comes_to(&[], "at the beginning", &guard);
    let rules = || (node.host.nft("list ruleset"), node.host.sh("iptables-nft-save -t nat"));
    let elements = |set: &str| {
        let listed = node.host.run("nft list ruleset");
        let text = String::from_utf8_lossy(&listed.stdout).into_owned();
        text.split(&format!("set {set}"))
            .nth(1)
            .map_or(0, |rest| rest.split('}').next().unwrap_or_default().matches("comment").count())
    };
    assert_eq!(elements("masq-10.213.22.0/24"), 2);
    node.host.sh("iptables-nft -t nat -I POSTROUTING -d 198.51.100.0/24 -j ACCEPT");
    let moved = || elements("masq-10.213.22.0/24") == 0 && rules().1.matches("-s 10.213.22.").count() == 2;
    assert!(wait_until(PATIENCE, moved), "{:?}; {}", rules(), guard.log());
    node.comes_to(&[], "after a rule for what pods send", &guard);
    assert!(rules().0.contains("portmap4"), "the ports stay where they are");
    node.host.sh("iptables-nft -t nat -I PREROUTING -s 198.51.100.7 -p tcp --dport 8001 -j ACCEPT");
    let moved = || rules().1.contains("--destination-ports 8001") || rules().1.contains("--dports 8001");
    assert!(wait_until(PATIENCE, moved), "{:?}; {}", rules(), guard.log());
    node.comes_to(&[], "after a rule for one port", &guard);
    assert!(rules().0.contains("8002 comment") && !rules().0.contains("8001 comment"), "{:?}", rules());
    stream.flows("while the rules moved");
    let log = guard.stop();
    assert!(!log.contains("error:"), "{log}");
}
