//! Tests `setup` and `teardown` of containers that live.

use serde_json::{Value, json};

use cnimble_tests::traffic::Server;
use cnimble_tests::{Node, Snapshot, command};

use crate::{Container, Driver, cni_network};

const SUBNETS: &str = r#"[{"subnet": "10.89.7.0/24"}, {"subnet": "fd00:89:7::/64"}]"#;

/// Returns the described network that most of these tests use.
fn described(driver: &Driver<'_>, options: &Value) -> Value {
    let subnets: Value = serde_json::from_str(SUBNETS).unwrap();
    driver.create(&json!({"subnets": subnets, "ipv6_enabled": true, "options": options}))
}

#[test]
fn a_described_network_has_podmans_addresses() {
    cnimble_tests::need!("ip", "nft");
    let node = Node::new();
    let driver = Driver::new(&node);
    for kind in ["ptp", "bridge"] {
        let network = described(&driver, &json!({ "type": kind }));
        let wanted = json!({"static_ips": ["10.89.7.9", "fd00:89:7::9"], "static_mac": "0a:58:00:00:00:09"});
        let one = Container::new(&node, "one", &network, &wanted).publish(8080);
        let answer = driver.setup(&one);
        assert_eq!(
            answer,
            json!({"interfaces": {"eth0": {
                "mac_address": "0a:58:00:00:00:09",
                "subnets": [
                    {"ipnet": "10.89.7.9/24", "gateway": "10.89.7.1"},
                    {"ipnet": "fd00:89:7::9/64", "gateway": "fd00:89:7::1"},
                ],
            }}}),
            "{kind}"
        );
        let inside = one.inside(&node);
        assert_eq!(inside.link("eth0")["address"], "0a:58:00:00:00:09", "{kind}");
        assert!(inside.pings("10.89.7.1") && inside.pings("fd00:89:7::1"), "{kind}");
        let _server = Server::start(&inside, 80, "one");
        assert!(cnimble_tests::traffic::tcp(&node, "127.0.0.1:8080").is_ok(), "{kind}: the port");
        // The command knows the attachment by the container's name.
        let listed = node.sh(&format!("{} ls", command().display()));
        assert!(listed.contains("default/one") && listed.contains("8080->80/tcp"), "{listed}");
        driver.teardown(&one);
        driver.teardown(&one);
        driver.assert_nothing_left();
        node.sh("ip netns del one");
    }
}

#[test]
fn further_networks_neither_publish_nor_have_the_default_route() {
    cnimble_tests::need!("ip", "nft");
    let node = Node::new();
    let driver = Driver::new(&node);
    let network = described(&driver, &json!({}));
    let addresses = json!(["10.89.7.9", "fd00:89:7::9"]);
    for (options, is_first) in
        [(json!({}), false), (json!({"publish": "true", "default-route": "true"}), true)]
    {
        let wanted = json!({"interface_name": "eth1", "static_ips": addresses, "options": options});
        let one = Container::new(&node, "one", &network, &wanted).publish(8080);
        driver.setup(&one);
        let routes = one.inside(&node).ip("route show default");
        assert_eq!(routes.contains("via 10.89.7.1"), is_first, "{options}: {routes}");
        assert_eq!(node.nft("list ruleset").contains("8080"), is_first, "{options}");
        driver.teardown(&one);
        node.sh("ip netns del one");
    }
    driver.assert_nothing_left();
}

#[test]
fn options_of_a_container_reach_the_plugins() {
    cnimble_tests::need!("ip", "nft", "tc");
    let node = Node::new();
    let driver = Driver::new(&node);
    let list = json!({"cniVersion": "1.0.0", "name": "limited", "plugins": [
        {"type": "ptp", "ipam": {"type": "host-local", "subnet": "10.89.7.0/24"}},
        {"type": "tuning", "sysctl": {"net.ipv4.conf.IFNAME.log_martians": "1"}},
        {"type": "bandwidth", "capabilities": {"bandwidth": true}},
    ]});
    crate::write(&node, "/etc/cni/net.d/limited.conflist".as_ref(), &list);
    let network = driver.create(&json!({"options": {"network": "limited"}}));
    let options = json!({"bandwidth.ingressRate": "8000000", "bandwidth.ingressBurst": "8000000"});
    let one = Container::new(&node, "one", &network, &json!({ "options": options }));
    let answer = driver.setup(&one);
    assert_eq!(answer["interfaces"]["eth0"]["subnets"][0]["ipnet"], "10.89.7.2/24");
    assert_eq!(one.inside(&node).sysctl("ipv4/conf/eth0/log_martians"), "1");
    let limits = node.sh("tc qdisc show");
    assert!(limits.contains("8Mbit"), "{limits}");
    driver.teardown(&one);
    let options = json!({"frobnicate.rate": "8"});
    let two = Container::new(&node, "two", &network, &json!({ "options": options }));
    assert!(driver.refusal(&["setup", &two.netns], &two.input).contains("capability frobnicate"));
    driver.assert_nothing_left();
}

#[test]
fn a_failed_setup_leaves_nothing() {
    cnimble_tests::need!("ip", "nft");
    let node = Node::new();
    let driver = Driver::new(&node);
    let network = described(&driver, &json!({}));
    let one = Container::new(&node, "one", &network, &json!({"static_ips": ["10.89.7.9"]})).publish(8080);
    driver.setup(&one);
    let before = Snapshot::settled(&node);
    // The port belongs to the first container.
    let two = Container::new(&node, "two", &network, &json!({"static_ips": ["10.89.7.10"]})).publish(8080);
    let outcome = driver.call(&["setup", &two.netns], &two.input);
    assert!(!outcome.describe().contains("record"), "{}", outcome.describe());
    let refused = driver.refusal(&["setup", &two.netns], &two.input);
    assert!(refused.contains("8080") && !refused.contains("not rolled back"), "{refused}");
    before.assert_same(&Snapshot::settled(&node), "after a failed setup");
    assert_eq!(driver.records().len(), 1);
    assert_eq!(two.inside(&node).links(), ["lo"]);
    driver.teardown(&one);
    driver.assert_nothing_left();
}

#[test]
fn ports_that_would_be_missing_are_an_error() {
    cnimble_tests::need!("ip", "nft");
    let node = Node::new();
    let driver = Driver::new(&node);
    let list = json!({"cniVersion": "1.0.0", "name": "plain", "plugins": [
        {"type": "ptp", "ipam": {"type": "host-local", "subnet": "10.89.7.0/24"}},
    ]});
    crate::write(&node, "/etc/cni/net.d/plain.conflist".as_ref(), &list);
    let network = driver.create(&json!({"options": {"network": "plain"}}));
    let one = Container::new(&node, "one", &network, &json!({})).publish(8080);
    let refused = driver.refusal(&["setup", &one.netns], &one.input);
    assert!(refused.contains("--network web:publish=false"), "{refused}");
    // podman's clean-up after the failure succeeds.
    driver.teardown(&one);
    let options = json!({"options": {"default-route": "true"}});
    let routed = Container::new(&node, "routed", &network, &options);
    assert!(driver.refusal(&["setup", &routed.netns], &routed.input).contains("default-route"));
    let options = json!({"options": {"publish": "false"}});
    let two = Container::new(&node, "two", &network, &options).publish(8080);
    driver.setup(&two);
    driver.teardown(&two);
    driver.assert_nothing_left();
}

#[test]
fn an_address_or_a_mac_that_was_asked_for_is_given_or_refused() {
    cnimble_tests::need!("ip", "nft");
    let node = Node::new();
    let driver = Driver::new(&node);
    cni_network(&node, "demo", "10.89.7.0/24");
    let network = driver.create(&json!({"options": {"network": "demo"}}));
    let wanted = json!({"static_ips": ["10.89.7.77"], "static_mac": "0a:58:00:00:00:77"});
    let one = Container::new(&node, "one", &network, &wanted);
    let answer = driver.setup(&one);
    assert_eq!(answer["interfaces"]["eth0"]["subnets"][0]["ipnet"], "10.89.7.77/24");
    assert_eq!(answer["interfaces"]["eth0"]["mac_address"], "0a:58:00:00:00:77");
    driver.teardown(&one);
    // Only the capability `ips` can ask for two addresses, and ptp takes no MAC.
    let list = json!({"cniVersion": "1.0.0", "name": "fixed", "plugins": [
        {"type": "ptp", "ipam": {"type": "static", "addresses": [{"address": "10.89.7.5/24", "gateway": "10.89.7.1"}]}},
    ]});
    crate::write(&node, "/etc/cni/net.d/fixed.conflist".as_ref(), &list);
    let network = driver.create(&json!({"options": {"network": "fixed"}}));
    for (index, (wanted, word)) in [
        (json!({"static_ips": ["10.89.7.6", "fd00::6"]}), "the address 10.89.7.6"),
        (json!({"static_mac": "0a:58:00:00:00:78"}), "the MAC 0a:58:00:00:00:78"),
    ]
    .into_iter()
    .enumerate()
    {
        let two = Container::new(&node, &format!("two{index}"), &network, &wanted);
        let refused = driver.refusal(&["setup", &two.netns], &two.input);
        assert!(refused.contains(word), "{refused}");
    }
    driver.assert_nothing_left();
}
