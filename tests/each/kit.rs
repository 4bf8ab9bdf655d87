//! The examples of the plugin kit and of the runtime library (`examples/` of both crates), on a real kernel.

use std::path::{Path, PathBuf};
use std::process::Command;

use cnimble_plugin::testing::Trial;
use cnimble_tests::{
    Attachment, Host, LIMIT, Network, Outcome, Pod, configs, copy, in_vm, need, plugin_dir, run_limited,
    script, skip,
};
use serde_json::json;

/// Returns the directory of the examples, which `cargo build --all-targets` creates.
fn examples() -> Option<PathBuf> {
    let program = std::env::current_exe().unwrap();
    let dir = program.parent()?.parent()?.join("examples");
    dir.join("anycast").exists().then_some(dir)
}

#[test]
fn a_plugin_of_the_kit_adds_checks_and_deletes() {
    need!("ip");
    let Some(examples) = examples() else { skip!("the example is not built: cargo build --examples") };
    let (host, pod) = (Host::new(), Pod::new());
    let attachment = Attachment::new("c1", &pod);
    let bridge = Network::new(&host, configs::dual(&host));
    let prev = bridge.added(&attachment);
    let before = pod.addrs("lo");
    let version = bridge.config["cniVersion"].clone();
    let config = |address: &str| json!({"cniVersion": version, "name": bridge.config["name"], "type": "anycast", "address": address});
    let anycast = Network::by(&examples, &host, config("192.0.2.80/32"));

    let result = anycast.call("ADD", &attachment, Some(&prev)).run().result();
    assert_eq!(result, prev);
    assert!(pod.addrs("lo").contains(&"192.0.2.80/32".to_owned()));
    assert_eq!(pod.sysctl("ipv4/conf/all/arp_ignore"), "1");
    anycast.check(&attachment, &result).success();
    // A repeated ADD fails at the address, and removes only its own work.
    anycast.call("ADD", &attachment, Some(&prev)).run().error();
    anycast.check(&attachment, &result).success();

    anycast.deleted(&attachment, Some(&result));
    assert_eq!(anycast.check(&attachment, &result).error().code, 103);
    assert_eq!(pod.addrs("lo"), before);
    anycast.deleted(&attachment, Some(&result));

    let refused = Network::by(&examples, &host, config("nonsense"));
    assert_eq!(refused.call("ADD", &attachment, Some(&prev)).run().error().code, 7);
    assert_eq!(pod.addrs("lo"), before);
}

/// Without CNI_COMMAND, as a person starts it.
#[test]
fn a_plugin_of_the_kit_claims_no_version_of_the_go_plugins() {
    let Some(examples) = examples() else { skip!("the example is not built: cargo build --examples") };
    let about = |program: PathBuf| {
        let outcome = std::process::Command::new(program).env_remove("CNI_COMMAND").output().unwrap();
        String::from_utf8(outcome.stderr).unwrap()
    };
    let own = about(examples.join("anycast"));
    assert!(own.starts_with("CNI anycast plugin\nCNI protocol versions supported: 0.1.0, "), "{own}");
    assert!(!own.contains("cnimble"), "{own}");
    let ours = about(plugin_dir().join("bridge"));
    assert!(ours.starts_with("CNI bridge plugin v1.9.1\n") && ours.contains("This is cnimble v"), "{ours}");
}

#[test]
fn the_kit_walks_a_plugin_through_all_versions_and_kills_it_at_each_step() {
    need!();
    let Some(examples) = examples() else { skip!("the example is not built: cargo build --examples") };
    let trial = Trial::chained(examples.join("anycast"), json!({"address": "192.0.2.80/32"}));
    trial.walk();
    trial.kill_at_each_step();
}

/// A plugin that runs a command for ADD, in the namespace of the pod or on the host, and removes nothing.
fn forgetful(dir: &Path, place: &str, command: &str) -> PathBuf {
    let plugin = dir.join("forgetful");
    let enter = if place == "pod" { "nsenter --net=$CNI_NETNS" } else { "" };
    script(
        &plugin,
        &format!(
            r#"#!/bin/bash
PATH=$PATH:/usr/sbin:/sbin:/usr/bin:/bin
config=$(cat)
if [[ $CNI_COMMAND == VERSION ]]; then
    echo '{{"cniVersion":"1.0.0","supportedVersions":["1.0.0"]}}'
elif [[ $config != *'"cniVersion":"1.0.0"'* ]]; then
    echo '{{"cniVersion":"1.0.0","code":1,"msg":"incompatible version"}}'
    exit 1
elif [[ $CNI_COMMAND == ADD ]]; then
    {enter} sh -ec '{command}' >&2 || exit 9
    echo '{{"cniVersion":"1.0.0"}}'
fi
"#
        ),
    );
    plugin
}

/// Makes a bridge `br0` with a port `port0`.
const BRIDGE: &str = "
    ip link add br0 type bridge
    ip link add port0 type veth peer name far0
    ip link set port0 master br0 up
    ip link set far0 up
    ip link set br0 up
";

/// Makes a discipline that takes classes, and a set of addresses.
const CLASSES_AND_SET: &str = "
    tc qdisc add dev far0 root handle 1: htb
    nft add table inet known
    nft add set inet known members '{ type ipv4_addr; }'
";

/// Asserts that the harness names what a forgetful plugin leaves. `before` made what host and pod had before it.
#[track_caller]
fn assert_named(before: &[&str], place: &str, kind: &str, command: &str) {
    let dir = tempfile::tempdir().unwrap();
    let trial = Trial::new(forgetful(dir.path(), place, command), json!({}));
    for ns in [trial.host(), trial.pod()] {
        let outcome =
            ns.enter(|| run_limited(Command::new("sh").args(["-ec", &before.concat()]), b"", LIMIT));
        Outcome::from("what was there before", outcome.unwrap()).success();
    }
    let outcome = std::thread::spawn(move || trial.walk()).join();
    let text = *outcome.expect_err(command).downcast::<String>().unwrap();
    let named = if kind == "file" { "file: ".to_owned() } else { format!("{place}: {kind}: ") };
    assert!(text.contains(&named) && text.contains("left behind"), "{command} in the {place}: {text}");
}

#[test]
fn the_kit_names_each_kind_of_object_that_a_plugin_forgets() {
    need!("ip", "bridge", "tc", "nft", "iptables-nft", "nsenter");
    let mut cases = Vec::new();
    for place in ["host", "pod"] {
        for (kind, command) in [
            ("link", "ip link add left type bridge"),
            ("link", "ip address add 192.0.2.9/24 dev lo"),
            ("link", "ip link set br0 mtu 1400"),
            ("link", "ip link delete far0"),
            ("nexthop", "ip nexthop add id 7 dev br0"),
            ("route", "ip route add 198.51.100.0/24 dev lo"),
            ("route", "ip -6 route add 2001:db8:7::/64 dev lo table 77"),
            ("rule", "ip rule add from 192.0.2.9 table 77"),
            ("rule", "ip -6 rule add from 2001:db8::9 table 77"),
            ("neighbour", "ip neighbour add 192.0.2.7 lladdr 02:00:00:00:00:01 dev br0 nud permanent"),
            ("proxy neighbour", "ip neighbour add proxy 192.0.2.8 dev br0"),
            ("forwarding entry", "bridge fdb add 02:00:00:00:00:02 dev port0 master static"),
            ("multicast entry", "bridge mdb add dev br0 port port0 grp 239.1.1.1 permanent"),
            ("traffic control", "tc qdisc add dev br0 root pfifo"),
            ("traffic control", "tc class add dev far0 parent 1: classid 1:1 htb rate 1mbit"),
            (
                "traffic control",
                "tc qdisc add dev port0 ingress; tc filter add dev port0 ingress u32 match u32 0 0",
            ),
            ("packet rule", "nft add table inet left"),
            ("packet rule", "nft add element inet known members { 192.0.2.9 }"),
            ("packet rule", "iptables-nft -A FORWARD -s 192.0.2.9 -j ACCEPT"),
            ("packet rule", "ip6tables-nft -A FORWARD -s 2001:db8::9 -j ACCEPT"),
            ("sysctl", "echo 1 >/proc/sys/net/ipv4/conf/all/arp_ignore"),
            (
                "sysctl",
                "echo 1 >/proc/sys/net/ipv6/conf/br0/accept_dad; echo 0 >/proc/sys/net/ipv6/conf/br0/accept_ra",
            ),
        ] {
            cases.push((place, kind, command));
        }
    }
    cases.push(("host", "file", "echo x >/run/left"));
    cases.push(("host", "file", "echo x >/var/lib/left"));
    // Most of a case is a wait for the difference to go.
    for some in cases.chunks(8) {
        std::thread::scope(|scope| {
            for (place, kind, command) in some {
                scope.spawn(|| assert_named(&[BRIDGE, CLASSES_AND_SET], place, kind, command));
            }
        });
    }
}

#[test]
fn the_kit_names_a_rule_of_legacy_iptables_that_a_plugin_forgets() {
    need!("ip", "bridge", "tc", "nft", "iptables-legacy", "iptables-legacy-save", "nsenter");
    if Host::new().run("iptables-legacy -t nat -S").status != 0 {
        skip!("this kernel has no legacy iptables");
    }
    assert_named(
        &[BRIDGE],
        "host",
        "packet rule",
        "iptables-legacy -t nat -A POSTROUTING -s 192.0.2.9 -j MASQUERADE",
    );
    assert_named(&[BRIDGE], "pod", "packet rule", "ip6tables-legacy -A FORWARD -s 2001:db8::9 -j ACCEPT");
}

mod vlans_in_vm {
    use super::*;

    /// A kernel without VLANs in bridges cannot have such an object.
    #[test]
    fn the_kit_names_a_vlan_that_a_plugin_forgets() {
        in_vm!();
        let command = "ip link set br0 type bridge vlan_filtering 1; bridge vlan add vid 7 dev port0";
        assert_named(&[BRIDGE], "host", "VLAN", command);
    }
}

/// Returns the paths of all files that plugins write.
fn files_of_the_machine() -> Vec<PathBuf> {
    fn collect(dir: &Path, found: &mut Vec<PathBuf>) {
        for entry in std::fs::read_dir(dir).into_iter().flatten().flatten() {
            found.push(entry.path());
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                collect(&entry.path(), found);
            }
        }
    }
    let mut found = Vec::new();
    for dir in ["/run/cni", "/run/cnimble", "/var/lib/cni"] {
        collect(Path::new(dir), &mut found);
    }
    found.sort();
    found
}

#[test]
fn trials_at_once_do_not_meet_and_leave_nothing_on_the_machine() {
    need!("ip", "bridge", "tc", "nft");
    let Some(examples) = examples() else { skip!("the example is not built: cargo build --examples") };
    let before = files_of_the_machine();
    let count = std::env::var("CNIMBLE_TRIALS").ok().and_then(|count| count.parse().ok()).unwrap_or(8);
    std::thread::scope(|scope| {
        for number in 0..count {
            let anycast = examples.join("anycast");
            scope.spawn(move || {
                Trial::chained(anycast, json!({"address": format!("192.0.2.{number}/32")})).walk();
            });
        }
    });
    assert_eq!(files_of_the_machine(), before);
}

#[test]
fn a_plugin_that_delegates_keeps_the_contract() {
    need!();
    let Some(examples) = examples() else { skip!("the example is not built: cargo build --examples") };
    // The harness looks for other plugins beside the plugin.
    let dir = tempfile::tempdir().unwrap();
    let wire = dir.path().join("wire");
    copy(&examples.join("wire"), &wire);
    copy(&plugin_dir().join("static"), &dir.path().join("static"));
    let ipam = json!({"type": "static", "addresses": [{"address": "10.9.0.2/24"}]});
    let trial = Trial::new(wire, json!({"ipam": ipam}));
    trial.walk();
    trial.kill_at_each_step();
}

#[test]
fn the_example_runtime_gives_a_command_a_network() {
    need!("ip", "nft");
    let Some(examples) = examples() else { skip!("the example is not built: cargo build --examples") };
    let host = Host::new();
    let dir = tempfile::tempdir().unwrap();
    let ipam = json!({"type": "host-local", "subnet": "10.9.0.0/24", "dataDir": dir.path()});
    let plugin = json!({"type": "bridge", "isGateway": true, "ipam": ipam});
    let list = json!({"cniVersion": "1.1.0", "name": "mynet", "plugins": [plugin]});
    std::fs::write(dir.path().join("mynet.conflist"), list.to_string()).unwrap();
    let before = host.links();
    let mut command = host.command(examples.join("run"));
    command.env("NETCONFPATH", dir.path()).env("CNI_PATH", plugin_dir());
    let script = format!("{} $CONTAINER && ip -4 -o address show eth0", examples.join("addresses").display());
    command.args(["mynet", "sh", "-ec", &script]);
    let outcome = Outcome::from("run", run_limited(&mut command, b"", LIMIT)).success();
    let text = outcome.text();
    assert!(text.starts_with("mynet eth0 10.9.0.2/24\n") && text.contains("inet 10.9.0.2/24"), "{text}");
    // The bridge stays.
    let after: Vec<String> = host.links().into_iter().filter(|name| name != "cni0").collect();
    assert_eq!(after, before);
}
