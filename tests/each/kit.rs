//! The example of the plugin kit, `src/host/plugin/examples/anycast.rs`, on a real kernel.

use std::path::PathBuf;

use cnimble_tests::{Attachment, Host, Network, Pod, configs, need, skip};
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
