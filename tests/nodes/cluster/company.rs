//! Tests `cnimble node` beside other firewalls. The settings in docs/CLUSTER.md suffice for them, and a reload of their
//! rules does no harm.

use std::path::Path;

use cnimble_tests::{Host, need};

use super::members::Site;

/// A firewall: its rules (in `rules/`), and an administrator's settings as commands with the same effect in the kernel.
struct Firewall {
    rules: &'static [&'static str],
    told: &'static [&'static str],
}

fn load(host: &Host, rules: &[&str]) {
    let dir = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/nodes/rules"));
    for name in rules {
        let file = dir.join(name);
        let file = file.display();
        match name.rsplit('.').next() {
            Some("nft") => host.shell(&format!("for table in inet\\ firewalld ip\\ kube-proxy; do nft delete table $table 2>/dev/null || :; done; nft -f {file}")),
            Some("rules6") => host.shell(&format!("ip6tables-nft-restore {file}")),
            _ => host.shell(&format!("iptables-nft-restore {file}")),
        };
    }
}

/// Asserts that pods of two nodes behind the firewall reach each other and the world, also after a reload of its rules.
fn passes(firewall: &Firewall) {
    need!("ip", "nft", "iptables-nft-restore", "ip6tables-nft-restore");
    let mut site = Site::new(2);
    site.settled();
    site.add_pods();
    let tables: Vec<String> =
        site.members.iter().map(|node| node.host.nft("-s list table inet cnimble-node")).collect();
    for _ in 0..2 {
        for node in &site.members {
            load(&node.host, firewall.rules);
            firewall.told.iter().for_each(|line| drop(node.host.shell(line)));
        }
        site.all_reach_all();
    }
    for (node, table) in site.members.iter().zip(&tables) {
        assert_eq!(node.host.nft("-s list table inet cnimble-node"), *table);
    }
}

#[test]
fn docker_that_is_told_lets_pods_of_other_nodes_through() {
    passes(&Firewall {
        rules: &["docker.rules"],
        told: &[
            "iptables-nft -I DOCKER-USER -s 10.1.0.0/16 -j ACCEPT",
            "iptables-nft -I DOCKER-USER -d 10.1.0.0/16 -j ACCEPT",
        ],
    });
}

#[test]
fn ufw_that_is_told_lets_pods_of_other_nodes_through() {
    // The effect of `ufw route allow from 10.1.0.0/16`, and `to`.
    passes(&Firewall {
        rules: &["ufw.rules", "ufw.rules6"],
        told: &[
            "iptables-nft -A ufw-user-forward -s 10.1.0.0/16 -j ACCEPT",
            "iptables-nft -A ufw-user-forward -d 10.1.0.0/16 -j ACCEPT",
            "ip6tables-nft -A ufw6-user-forward -s fd00:1::/32 -j ACCEPT",
            "ip6tables-nft -A ufw6-user-forward -d fd00:1::/32 -j ACCEPT",
        ],
    });
}

#[test]
fn firewalld_that_is_told_lets_pods_of_other_nodes_through() {
    // The effect of `firewall-cmd --zone=trusted --add-source=…`.
    passes(&Firewall {
        rules: &["firewalld.nft"],
        told: &[
            "nft insert rule inet firewalld filter_FORWARD_ZONES ip saddr 10.1.0.0/16 accept",
            "nft insert rule inet firewalld filter_FORWARD_ZONES ip6 saddr fd00:1::/32 accept",
        ],
    });
}

#[test]
fn kube_proxy_with_its_masquerade_mark_need_not_be_told() {
    passes(&Firewall { rules: &["kube-proxy.rules"], told: &[] });
}

#[test]
fn kube_proxy_with_nftables_need_not_be_told() {
    passes(&Firewall { rules: &["kube-proxy.nft"], told: &[] });
}
