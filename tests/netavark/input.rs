//! Tests input of other versions of netavark, and input that no plugin could serve.

use serde_json::json;

use cnimble_tests::Node;

use crate::{Container, Driver, cni_network, proposed, write};

/// netavark 2 has routes of other types, which have no gateway.
#[test]
fn a_route_without_a_gateway_is_refused_and_hides_no_subnet() {
    cnimble_tests::need!("ip");
    let node = Node::new();
    let driver = Driver::new(&node);
    let routes = json!([{"destination": "10.5.0.0/16", "metric": null, "route_type": "blackhole"}]);
    let refused = driver.refusal(&["create"], &proposed(&json!({ "routes": routes })));
    assert!(refused.contains("--route 10.5.0.0/16"), "{refused}");
    // A network of netavark's own driver may have such a route, and its subnet is taken.
    node.sh("mkdir -p /etc/containers/networks; mount -t tmpfs none /etc/containers/networks");
    let known = json!({"name": "known", "routes": routes, "subnets": [{"subnet": "10.89.0.0/24"}]});
    write(&node, "/etc/containers/networks/known.json".as_ref(), &proposed(&known));
    let unicast = json!([{"destination": "10.5.0.0/16", "gateway": "10.89.1.9", "route_type": "unicast"}]);
    let created = driver.answer(&["create"], &proposed(&json!({ "routes": unicast })));
    assert_eq!(created["subnets"][0]["subnet"], "10.89.1.0/24");
}

#[test]
fn name_servers_of_a_network_are_refused() {
    cnimble_tests::need!("ip");
    let node = Node::new();
    let driver = Driver::new(&node);
    let refused = driver.refusal(&["create"], &proposed(&json!({"network_dns_servers": ["192.0.2.53"]})));
    assert!(refused.contains("podman run --dns"), "{refused}");
    driver.create(&json!({"network_dns_servers": []}));
}

/// netavark 2 leaves out what 1.17 sends as `null`.
#[test]
fn absent_fields_count_as_null() {
    cnimble_tests::need!("ip", "nft");
    let node = Node::new();
    let driver = Driver::new(&node);
    cni_network(&node, "demo", "10.89.7.0/24");
    let network = driver.create(&json!({"options": {"network": "demo"}, "labels": {"a": "b"}}));
    let mut one = Container::new(&node, "one", &network, &json!({}));
    one.input.as_object_mut().unwrap().retain(|_, value| !value.is_null());
    one.input["network_options"].as_object_mut().unwrap().retain(|_, value| !value.is_null());
    driver.setup(&one);
    driver.teardown(&one);
    driver.assert_nothing_left();
}

/// podman removes a container whose `setup` was refused by a `teardown` with the same input, which must succeed.
#[test]
fn keys_of_cni_args_that_are_no_users_are_refused() {
    cnimble_tests::need!("ip", "nft");
    let node = Node::new();
    let driver = Driver::new(&node);
    cni_network(&node, "demo", "10.89.7.0/24");
    let network = driver.create(&json!({"options": {"network": "demo"}}));
    for (number, key) in
        ["PODMAN_NETWORK", "K8S_POD_NAME", "IgnoreUnknown", "IP", "MAC", "a=b", "a;b"].iter().enumerate()
    {
        let options = json!({"options": {*key: "x"}});
        let one = Container::new(&node, &format!("one{number}"), &network, &options);
        let refused = driver.refusal(&["setup", &one.netns], &one.input);
        assert!(refused.starts_with(&format!("{key}=x: ")), "{refused}");
        driver.teardown(&one);
    }
    driver.assert_nothing_left();
}
