//! Tests hosts with the rules of Docker, ufw, firewalld, kube-proxy or an administrator. There pods reach exactly the
//! hosts that they reach with the Go plugins.
//!
//! The files in `rules/` have the form of each tool's rules in the kernel.
#![cfg(test)]

mod cluster;
mod nat;
mod site;

use std::path::Path;

use cnimble_tests::{go_to_meet, need, plugin_dir, skip};

use site::{LATER, Reach, SOON, Site};

/// The chains of plugins that are tested.
const CHAINS: [&[&str]; 4] = [
    &["bridge"],
    &["bridge", "firewall"],
    &["bridge", "portmap"],
    &["bridge", "portmap", "firewall", "tuning"],
];

/// The number of repetitions with more patience after a difference.
const ATTEMPTS: usize = 4;

fn compare(rules: &str, go: &Path, chain: &[&str]) {
    let [ours, theirs] = [plugin_dir(), go].map(|plugins| Site::new(plugins, rules, chain));
    let mut reach: [Vec<Reach>; 2] = [ours.reach(SOON), theirs.reach(SOON)];
    for _ in 0..ATTEMPTS {
        if reach[0] == reach[1] {
            break;
        }
        reach = [ours.reach(LATER), theirs.reach(LATER)];
    }
    assert_eq!(reach[0], reach[1], "{rules} {chain:?}: ours and the Go plugins'\n{}", ours.ruleset());
    let passes = |what: &str| reach[0].iter().any(|(name, there)| *name == what && *there);
    assert!(passes("host to pod"), "{rules} {chain:?}: {:?}", reach[0]);
    // firewalld has to be configured, and doesn't run here.
    if chain.contains(&"firewall") && rules != "firewalld.nft" {
        for what in ["pod to world", "pod to world, IPv6", "pod to pod", "pod to pod, IPv6"] {
            assert!(passes(what), "{rules} {chain:?}: {:?}", reach[0]);
        }
    }
}

fn node(rules: &str) {
    need!("ip", "nft", "iptables-nft-restore", "ip6tables-nft-restore");
    let go = match go_to_meet() {
        Ok(go) => go,
        Err(why) => skip!("{why}"),
    };
    std::thread::scope(|scope| {
        let name = std::thread::current().name().unwrap_or(rules).to_owned();
        let runs: Vec<_> = CHAINS
            .iter()
            .map(|chain| {
                let thread = std::thread::Builder::new().name(format!("{name} {chain:?}"));
                thread.spawn_scoped(scope, || compare(rules, go, chain)).unwrap()
            })
            .collect();
        for run in runs {
            if let Err(panic) = run.join() {
                std::panic::resume_unwind(panic);
            }
        }
    });
}

#[test]
fn a_plain_host() {
    node("");
}

#[test]
fn forward_with_policy_drop() {
    node("drop.rules");
}

#[test]
fn forward_with_a_reject_at_the_end() {
    node("reject.rules");
}

#[test]
fn ufw() {
    node("ufw.rules");
}

#[test]
fn firewalld_without_its_daemon() {
    node("firewalld.nft");
}

#[test]
fn docker() {
    node("docker.rules");
}

#[test]
fn kube_proxy_with_iptables() {
    node("kube-proxy.rules");
}

#[test]
fn kube_proxy_with_nftables() {
    node("kube-proxy.nft");
}
