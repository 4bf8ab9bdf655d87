//! `acceptPublished`: published ports where FORWARD of iptables drops.

use serde_json::{Value, json};

use cnimble_tests::traffic::{Server, tcp, tcp_is_shut};
use cnimble_tests::{Network, go_plugins, need, skip};

use super::Site;

const OUTSIDE: [&str; 2] = ["192.0.2.1:8080", "[2001:db8::1]:8080"];

/// A site whose FORWARD drops what no rule accepts, and a network of the plugin alone.
fn shut_site() -> Site {
    let site = Site::new();
    for command in ["iptables-nft", "ip6tables-nft"] {
        site.host.sh(&format!("{command} -P FORWARD DROP"));
    }
    site
}

fn network(site: &Site) -> Network<'_> {
    site.network(json!([{"hostPort": 8080, "containerPort": 80, "protocol": "tcp"}]))
}

fn accepting(site: &Site) -> Network<'_> {
    network(site).with("/acceptPublished", json!(true))
}

fn pod_rules(site: &Site) -> usize {
    let saved = site.host.sh("iptables-nft-save -t filter") + &site.host.sh("ip6tables-nft-save -t filter");
    saved.lines().filter(|line| line.starts_with("-A CNI-FORWARD") && line.contains("DNAT")).count()
}

#[test]
fn published_ports_answer_where_forward_drops() {
    need!("nft", "ip", "iptables-nft-save");
    let site = shut_site();
    let _inside = Server::start(&site.pods[0], 80, "pod0");
    let _outside = Server::start(&site.world, 7000, "world");
    let attachment = site.attachment(0);
    let refused = network(&site);
    site.add(&refused, 0);
    assert!(OUTSIDE.iter().all(|to| tcp_is_shut(&site.world, to)));
    refused.deleted(&attachment, Some(&site.results[0]));

    let net = accepting(&site);
    net.with("/cniVersion", json!("1.1.0")).status().success();
    site.add(&net, 0);
    // Again: nothing is there twice.
    site.add(&net, 0);
    assert_eq!(pod_rules(&site), 4);
    for to in OUTSIDE {
        assert!(tcp(&site.world, to).unwrap().starts_with("pod0"), "{to}");
    }
    // Nothing else passes: not to a port that is not published, and not from the pod.
    let _hidden = Server::start(&site.pods[0], 81, "pod0");
    let pod = super::pod_ip(&site.results[0], false);
    assert!(tcp_is_shut(&site.world, &format!("{pod}:81")));
    assert!(tcp_is_shut(&site.world, &format!("{pod}:80")));
    assert!(tcp_is_shut(&site.pods[0], "192.0.2.9:7000"));

    net.check(&attachment, &site.results[0]).success();
    site.host.sh("ip6tables-nft -F CNI-FORWARD");
    let err = net.check(&attachment, &site.results[0]).error();
    assert_eq!(err.code, 103);
    assert!(err.all().contains("rules for published ports are missing"), "{}", err.all());
    site.add(&net, 0);
    net.check(&attachment, &site.results[0]).success();

    // Without the option, which was there at ADD.
    refused.deleted(&attachment, None);
    assert_eq!(pod_rules(&site), 0);
    site.add(&net, 0);

    // The other pod's rules stay.
    let other =
        site.network(json!([{"hostPort": 9090, "containerPort": 80}])).with("/acceptPublished", json!(true));
    site.add(&other, 1);
    assert_eq!(pod_rules(&site), 8);
    net.deleted(&attachment, None);
    assert_eq!(pod_rules(&site), 4);
    let gc = net.with("/cniVersion", json!("1.1.0"));
    gc.gc(Some(json!([site.attachment(1).listed()]))).success();
    assert_eq!(pod_rules(&site), 4);
    gc.gc(Some(json!([]))).success();
    assert_eq!(pod_rules(&site), 0);
}

#[test]
fn the_administrators_chain_comes_first() {
    need!("nft", "ip", "iptables-nft-save");
    let site = shut_site();
    let _inside = Server::start(&site.pods[0], 80, "pod0");
    site.host.sh("iptables-nft -N CNI-ADMIN");
    site.host.sh("iptables-nft -A CNI-ADMIN -s 192.0.2.9 -j DROP");
    site.add(&accepting(&site), 0);
    assert!(tcp_is_shut(&site.world, OUTSIDE[0]));
    assert!(tcp(&site.world, OUTSIDE[1]).unwrap().starts_with("pod0"));
}

#[test]
fn a_forward_without_rules_stays_so() {
    need!("nft", "ip");
    let site = Site::new();
    let before = site.ruleset();
    let net = accepting(&site);
    site.add(&net, 0);
    assert!(!site.ruleset().contains("CNI-FORWARD"));
    net.check(&site.attachment(0), &site.results[0]).success();
    net.deleted(&site.attachment(0), Some(&site.results[0]));
    assert_eq!(site.ruleset(), before);
}

#[test]
fn the_go_plugin_leaves_the_ports_shut() {
    need!("nft", "ip", "iptables-nft-save");
    let Some(go) = go_plugins() else { skip!("the Go plugins are not installed") };
    let site = shut_site();
    let _inside = Server::start(&site.pods[0], 80, "pod0");
    let mut prev: Value = site.results[0].clone();
    prev["cniVersion"] = json!("1.0.0");
    for interface in prev["interfaces"].as_array_mut().unwrap() {
        interface.as_object_mut().unwrap().remove("mtu");
    }
    let ours = accepting(&site).with("/cniVersion", json!("1.0.0"));
    for (net, answers) in [(ours.served_by(go), false), (ours, true)] {
        net.call("ADD", &site.attachment(0), Some(&prev)).run().success();
        if answers {
            assert!(tcp(&site.world, OUTSIDE[0]).is_ok());
        } else {
            assert!(tcp_is_shut(&site.world, OUTSIDE[0]));
        }
        net.deleted(&site.attachment(0), Some(&prev));
    }
}
