//! Tests of the plugin ptp, with only the host between pods.
#![cfg(test)]

mod failure;
mod reference;
mod traffic;
mod verbs;

use serde_json::{Value, json};

use cnimble_tests::{Host, Snapshot, configs};

fn config(host: &Host) -> Value {
    let mut config = configs::dual(host);
    let keys = config.as_object_mut().unwrap();
    keys.remove("bridge");
    keys.remove("isGateway");
    keys.insert("type".into(), json!("ptp"));
    config
}

/// Forwarding is on before and after.
fn host() -> Host {
    let host = Host::new();
    host.set_sysctl("ipv4/ip_forward", "1");
    host.set_sysctl("ipv6/conf/all/forwarding", "1");
    host
}

fn state(host: &Host) -> Snapshot {
    Snapshot::of(host).without_lines("last_reserved_ip").without_lines("net64/lock").without_lines("net64/ ")
}

fn veth(result: &Value) -> &str {
    result["interfaces"][0]["name"].as_str().unwrap()
}

/// Without names and random parts.
fn routes(ns: &cnimble_tests::Ns, device: &str) -> Vec<String> {
    let mut lines = Vec::new();
    for family in ["-4", "-6"] {
        let text = ns.ip(&format!("{family} route show table all dev {device}"));
        lines.extend(
            text.lines()
                .filter(|line| !line.contains("fe80") && !line.contains("ff00::/8"))
                .map(str::to_owned),
        );
    }
    lines.sort();
    lines
}
