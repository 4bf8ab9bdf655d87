//! The examples of the plugin kit and of the runtime library (`examples/` of both crates), on a real kernel.

use std::path::PathBuf;

use cnimble_plugin::testing::Trial;
use cnimble_tests::{
    Attachment, Host, LIMIT, Network, Outcome, Pod, configs, copy, need, plugin_dir, run_limited, skip,
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
