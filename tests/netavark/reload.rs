//! Tests `podman network reload`: `teardown`, and then `setup` with the addresses and the MAC from before.

use serde_json::{Value, json};

use cnimble_tests::Node;

use crate::{Container, Driver, cni_network, write};

/// Asks for what the container had, as podman does at a reload.
fn ask_for(container: &mut Container, answer: &Value) {
    let interface = &answer["interfaces"]["eth0"];
    let address = |subnet: &Value| subnet["ipnet"].as_str().unwrap().split('/').next().unwrap().to_owned();
    let addresses: Vec<String> = interface["subnets"].as_array().unwrap().iter().map(address).collect();
    container.input["network_options"]["static_ips"] = json!(addresses);
    container.input["network_options"]["static_mac"] = interface["mac_address"].clone();
}

#[test]
fn a_reload_keeps_the_address_where_the_network_can() {
    cnimble_tests::need!("ip", "nft");
    let node = Node::new();
    let driver = Driver::new(&node);
    cni_network(&node, "demo", "10.89.7.0/24");
    let network = driver.create(&json!({"options": {"network": "demo"}}));
    let mut one = Container::new(&node, "one", &network, &json!({})).publish(8080);
    let answer = driver.setup(&one);
    node.nft("flush ruleset");
    ask_for(&mut one, &answer);
    driver.teardown(&one);
    assert_eq!(driver.setup(&one), answer);
    assert!(node.nft("list ruleset").contains("8080"));
    driver.teardown(&one);
    driver.assert_nothing_left();
}

#[test]
fn a_reload_works_where_the_network_can_not_give_the_address() {
    cnimble_tests::need!("ip", "nft");
    let node = Node::new();
    let driver = Driver::new(&node);
    // This plugin of another maker gives each ADD the next address, and a wish is none of its business.
    let list = json!({"cniVersion": "1.0.0", "name": "next", "plugins": [{"type": "next"}]});
    write(&node, "/etc/cni/net.d/next.conflist".as_ref(), &list);
    std::fs::create_dir(node.dir().join("plugins")).unwrap();
    cnimble_tests::script(&node.dir().join("plugins/next"), NEXT);
    let dir = node.dir().join("plugins");
    let network = driver.create(&json!({"options": {"network": "next", "plugin-dir": dir}}));
    let mut one = Container::new(&node, "one", &network, &json!({}));
    let answer = driver.setup(&one);
    assert_eq!(answer["interfaces"]["eth0"]["subnets"][0]["ipnet"], "10.89.7.1/24");
    ask_for(&mut one, &answer);
    driver.teardown(&one);
    let answer = driver.setup(&one);
    assert_eq!(answer["interfaces"]["eth0"]["subnets"][0]["ipnet"], "10.89.7.2/24");
    // The note of the teardown is used up: from now on the address is a wish of the user's.
    let refused = driver.refusal(&["setup", &one.netns], &one.input);
    assert!(refused.contains("the address 10.89.7.1"), "{refused}");
    driver.assert_nothing_left();
}

/// podman repeats a reload that has failed, and asks for the same addresses.
#[test]
fn a_reload_that_failed_can_be_repeated() {
    cnimble_tests::need!("ip", "nft");
    let node = Node::new();
    let driver = Driver::new(&node);
    let list = json!({"cniVersion": "1.0.0", "name": "next", "plugins": [{"type": "next"}]});
    write(&node, "/etc/cni/net.d/next.conflist".as_ref(), &list);
    std::fs::create_dir(node.dir().join("plugins")).unwrap();
    cnimble_tests::script(&node.dir().join("plugins/next"), NEXT);
    let dir = node.dir().join("plugins");
    let network = driver.create(&json!({"options": {"network": "next", "plugin-dir": dir}}));
    let mut one = Container::new(&node, "one", &network, &json!({}));
    let answer = driver.setup(&one);
    ask_for(&mut one, &answer);
    driver.teardown(&one);
    node.sh("touch /run/broken");
    driver.refusal(&["setup", &one.netns], &one.input);
    node.sh("rm /run/broken");
    driver.teardown(&one);
    let answer = driver.setup(&one);
    assert_ne!(answer["interfaces"]["eth0"]["subnets"][0]["ipnet"], "10.89.7.1/24");
    driver.teardown(&one);
    driver.assert_nothing_left();
}

/// Gives addresses in order, unless it is broken. It makes an interface, and its result does not name it.
const NEXT: &str = r#"#!/bin/sh
exec 3>&1 >&2
case $CNI_COMMAND in
VERSION) echo '{"cniVersion":"1.0.0","supportedVersions":["1.0.0"]}' >&3 ;;
ADD)
    [ ! -e /run/broken ] || exit 1
    count=$(cat /run/next 2>/dev/null || echo 0)
    count=$((count + 1))
    echo $count >/run/next
    nsenter --net="$CNI_NETNS" ip link add "$CNI_IFNAME" type veth peer name other
    echo '{"cniVersion":"1.0.0","ips":[{"address":"10.89.7.'$count'/24"}]}' >&3
    ;;
DEL) nsenter --net="$CNI_NETNS" ip link del "$CNI_IFNAME" || true ;;
esac
"#;
