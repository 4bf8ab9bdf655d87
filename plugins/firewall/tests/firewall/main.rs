//! Tests of the plugin firewall.
#![cfg(test)]

mod bridges;
mod config;
mod direct;
mod firewalld;
mod hosts;
mod interfaces;
mod iptables;
mod nftables;
mod policies;

use serde_json::{Value, json};

use cnimble_tests::{Attachment, Host, Network, Ns, Pod, configs};

struct Member {
    pod: Pod,
    att: Attachment,
    prev: Value,
}

/// The network `net<number>` on the bridge `br<number>`.
fn bridge(host: &Host, number: u8) -> Network<'_> {
    Network::new(host, configs::dual(host))
        .with("/name", json!(format!("net{number}")))
        .with("/bridge", json!(format!("br{number}")))
        .with(
            "/ipam/ranges",
            json!([[{"subnet": format!("10.1.{number}.0/24")}], [{"subnet": format!("fd00:{number}::/64")}]]),
        )
}

fn join(host: &Host, number: u8, id: &str) -> Member {
    let pod = Pod::new();
    let att = Attachment::new(id, &pod);
    let prev = bridge(host, number).added(&att);
    Member { pod, att, prev }
}

impl Member {
    fn ip(&self, index: usize) -> &str {
        self.prev["ips"][index]["address"].as_str().unwrap().split('/').next().unwrap()
    }

    fn add(&self, net: &Network<'_>) -> Value {
        net.call("ADD", &self.att, Some(&self.prev)).run().result()
    }

    fn reaches(&self, other: &Member) -> bool {
        self.pod.pings(other.ip(0)) && self.pod.pings(other.ip(1))
    }

    fn misses(&self, other: &Member) -> bool {
        self.pod.misses(other.ip(0)) && self.pod.misses(other.ip(1))
    }
}

/// A link-local address is tentative in its first second.
fn meet(host: &Host, members: &[&Member]) {
    host.set_sysctl("ipv6/conf/all/forwarding", "1");
    for from in members {
        for to in members {
            assert!(from.reaches(to), "without a firewall");
        }
    }
}

fn firewall<'h>(host: &'h Host, number: u8, keys: &Value) -> Network<'h> {
    let mut config =
        json!({ "cniVersion": configs::newest(), "name": format!("net{number}"), "type": "firewall" });
    config.as_object_mut().unwrap().extend(keys.as_object().unwrap().clone());
    Network::new(host, config)
}

/// Both tables, without iptables' own lines.
fn rules(ns: &Ns) -> String {
    ns.shell("iptables-nft-save -t filter; ip6tables-nft-save -t filter")
        .lines()
        .filter(|line| line.contains("CNI-"))
        .map(|line| format!("{line}\n"))
        .collect()
}
