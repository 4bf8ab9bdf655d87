//! Pools by namespace, annotation and argument. Fixed addresses, and addresses of pods by their names.

use std::collections::BTreeSet;
use std::fs;

use serde_json::{Value, json};

use cnimble_tests::{Host, PATIENCE, need, wait_until};

use super::boots::claimed;
use super::site::Site;
use super::{Node, address, cluster, cluster_of, refused};

/// The network's ranges, a pool of a namespace in both families, and a pool of each family.
fn with_pools<'h>(node: &Node<'h>) -> Node<'h> {
    let pools = json!([
        {"name": "db", "namespaces": ["prod", "test"], "ranges": [[{"subnet": "10.8.0.0/24"}], [{"subnet": "fd00:8::/64"}]]},
        {"name": "four", "ranges": [[{"subnet": "10.7.0.0/24", "exclude": ["10.7.0.0/25", "10.7.0.130"]}]]},
        {"name": "six", "ranges": [[{"subnet": "fd00:7::/64", "exclude": ["fd00:7::/120"]}]]},
    ]);
    let ranges = json!([[{"subnet": "10.9.0.0/16"}], [{"subnet": "fd00:9::/64"}]]);
    let routes = json!([{"dst": "0.0.0.0/0"}, {"dst": "::/0"}]);
    node.clone().with("ranges", ranges).with("pools", pools).with("routes", routes)
}

fn pod(namespace: &str, name: &str) -> String {
    format!("IgnoreUnknown=1;K8S_POD_NAMESPACE={namespace};K8S_POD_NAME={name}")
}

/// Returns the node, where pods have these annotations.
fn annotated<'h>(node: &Node<'h>, annotations: &Value) -> Node<'h> {
    let mut node = node.clone();
    node.config["runtimeConfig"] = json!({"io.kubernetes.cri.pod-annotations": annotations});
    node
}

/// Returns the addresses of the result, without their lengths.
fn ips(result: &Value) -> Vec<String> {
    let address = |ip: &Value| ip["address"].as_str().unwrap().split('/').next().unwrap().to_owned();
    result["ips"].as_array().unwrap().iter().map(address).collect()
}

#[track_caller]
fn begin_with(result: &Value, beginnings: &[&str]) {
    let ips = ips(result);
    assert_eq!(ips.len(), beginnings.len(), "{result}");
    assert!(ips.iter().zip(beginnings).all(|(ip, begin)| ip.starts_with(begin)), "{beginnings:?}: {result}");
}

/// Runs CHECK or DEL with the result of ADD.
fn with_result(node: &Node<'_>, verb: &str, id: &str, args: &str, result: &Value) -> Result<Value, Value> {
    let mut node = node.clone();
    node.config["prevResult"] = result.clone();
    node.run(verb, id, args, None)
}

#[test]
fn a_pod_gets_addresses_of_the_pool_of_its_namespace_or_of_the_pool_that_it_names() {
    let host = Host::new();
    let (_etcd, nodes) = cluster(&host, 1, "10.9.0.0/16");
    let node = with_pools(&nodes[0]);
    begin_with(&node.run("ADD", "p1", "", None).unwrap(), &["10.9.", "fd00:9:"]);
    begin_with(&node.run("ADD", "p2", &pod("dev", "a"), None).unwrap(), &["10.9.", "fd00:9:"]);
    let prod = pod("prod", "a");
    let both = node.run("ADD", "p3", &prod, None).unwrap();
    begin_with(&both, &["10.8.0.", "fd00:8:"]);
    let four = annotated(&node, &json!({"cnimble/pool": "four"}));
    let of_four = four.run("ADD", "p4", &pod("dev", "b"), None).unwrap();
    begin_with(&of_four, &["10.7.0.1"]);
    assert_eq!(of_four["routes"], json!([{"dst": "0.0.0.0/0"}]));
    begin_with(&four.run("ADD", "p5", &prod, None).unwrap(), &["10.7.0.1"]);
    // The argument comes before the annotation.
    let mut six = four.clone();
    six.config["args"] = json!({"cni": {"pool": "six"}});
    begin_with(&six.run("ADD", "p6", &prod, None).unwrap(), &["fd00:7:"]);

    // CHECK knows the addresses of each family, with any pod's arguments.
    with_result(&node, "CHECK", "p3", &prod, &both).unwrap();
    with_result(&four, "CHECK", "p4", "", &of_four).unwrap();
    fs::remove_file(node.store().join(&ips(&both)[1])).unwrap();
    refused(with_result(&node, "CHECK", "p3", &prod, &both), 103, "Failed to find address");
    // DEL works if the pool is gone.
    let mut without = annotated(&node, &json!({"cnimble/pool": "gone"}));
    without.config["ipam"]["pools"] = json!([]);
    with_result(&without, "DEL", "p3", &prod, &both).unwrap();
    assert!(!node.store().join(&ips(&both)[0]).exists());
    node.run("STATUS", "", "", None).unwrap();
}

#[test]
fn no_pod_gets_an_address_of_a_pool_of_other_namespaces() {
    let host = Host::new();
    let (_etcd, nodes) = cluster(&host, 1, "10.9.0.0/16");
    let node = with_pools(&nodes[0]);
    let pool = |name: &str| annotated(&node, &json!({"cnimble/pool": name}));
    let wanted = |ips: &str| annotated(&node, &json!({"cnimble/ips": ips}));
    let mut argument = node.clone();
    argument.config["args"] = json!({"cni": {"pool": "db"}});
    for args in ["", &pod("dev", "a")] {
        refused(
            pool("db").run("ADD", "p1", args, None),
            7,
            "annotation cnimble/pool: pool \"db\" is for other",
        );
        refused(argument.run("ADD", "p1", args, None), 7, "args.cni.pool: pool \"db\" is for other");
        for ip in ["10.8.0.9", "fd00:8::9"] {
            refused(
                wanted(ip).run("ADD", "p1", args, None),
                7,
                &format!("annotation cnimble/ips: {ip} is no address"),
            );
        }
    }
    let fixed = format!("{};IP=10.8.0.9", pod("dev", "a"));
    // The pod is refused before a block is claimed.
    refused(node.run("ADD", "p1", &fixed, None), 101, "10.8.0.9");
    assert!(claimed(&node).iter().all(|first| !first.starts_with("fd00:8:") && !first.starts_with("10.8.")));
    let own = format!("{};IP=10.8.0.9", pod("test", "a"));
    begin_with(&node.run("ADD", "p1", &own, None).unwrap(), &["10.8.0.9", "fd00:8:"]);
}

#[test]
fn an_annotation_lists_addresses_as_json_or_with_commas_and_a_wrong_one_is_named() {
    let host = Host::new();
    let (_etcd, nodes) = cluster(&host, 1, "10.9.0.0/16");
    let node = with_pools(&nodes[0]);
    let wanted = |ips: &str| annotated(&node, &json!({"cnimble/ips": ips}));
    let given = |id: &str, list: &str| ips(&wanted(list).run("ADD", id, &pod("dev", id), None).unwrap());
    assert_eq!(given("p1", "10.9.7.7,fd00:9::77"), ["10.9.7.7", "fd00:9::77"]);
    assert_eq!(given("p2", r#"["fd00:9::78", "10.9.7.8"]"#), ["10.9.7.8", "fd00:9::78"]);
    let one = given("p3", " 10.9.7.9/16 ");
    assert!(one[0] == "10.9.7.9" && one[1].starts_with("fd00:9:"), "{one:?}");
    // The address of the runtime comes first, and an empty annotation is none.
    let first = wanted("").run("ADD", "p4", "IP=10.9.7.10", None).unwrap();
    begin_with(&first, &["10.9.7.10", "fd00:9:"]);
    for (list, words) in [
        ("10.9", "annotation cnimble/ips: invalid IP address: 10.9"),
        (r#"{"a": 5}"#, "annotation cnimble/ips: invalid IP address: {"),
        ("10.9.7.11,", "annotation cnimble/ips: invalid IP address: "),
        ("10.1.0.1", "annotation cnimble/ips: 10.1.0.1 is no address for this pod"),
    ] {
        refused(wanted(list).run("ADD", "p9", &pod("dev", "p9"), None), 7, words);
    }
    refused(wanted("10.9.7.7").run("ADD", "p9", &pod("dev", "p9"), None), 101, "10.9.7.7");
    let pool = annotated(&node, &json!({"cnimble/pool": "x"}));
    refused(pool.run("ADD", "p9", "", None), 7, "annotation cnimble/pool: pool \"x\" is none of ipam.pools");
    // Excluded addresses of a pool are given to none.
    for (name, ip) in [("four", "10.7.0.130"), ("six", "fd00:7::9")] {
        let both = json!({"cnimble/pool": name, "cnimble/ips": ip});
        refused(annotated(&node, &both).run("ADD", "p9", "", None), 7, &format!("{ip} is no address"));
    }
}

#[test]
fn a_pod_of_a_name_gets_its_addresses_again_on_another_node() {
    let host = Host::new();
    let (_etcd, nodes) = cluster(&host, 1, "10.9.0.0/16");
    let named = json!({"prod/web-0": ["10.9.3.60", "fd00:9::3c"], "prod/web-1": "10.9.3.7"});
    let ranges = json!([[{"subnet": "10.9.0.0/16"}], [{"subnet": "fd00:9::/64"}]]);
    let node = |n: usize| nodes[n].clone().with("ranges", ranges.clone()).with("addresses", named.clone());
    let (one, two) = (node(0), node(1));
    let web = pod("prod", "web-0");
    let result = one.run("ADD", "p1", &web, None).unwrap();
    assert_eq!(ips(&result), ["10.9.3.60", "fd00:9::3c"]);
    // The other node holds the addresses.
    refused(two.run("ADD", "q1", &web, None), 101, "node a");
    with_result(&one, "DEL", "p1", &web, &result).unwrap();
    assert_eq!(ips(&two.run("ADD", "q1", &web, None).unwrap()), ["10.9.3.60", "fd00:9::3c"]);
    refused(one.run("ADD", "p1", &web, None), 101, "node b");
    // The address stays with its block, and the other family comes from the ranges.
    let middle = pod("prod", "web-1");
    let result = one.run("ADD", "p2", &middle, None).unwrap();
    begin_with(&result, &["10.9.3.7", "fd00:9:"]);
    with_result(&one, "DEL", "p2", &middle, &result).unwrap();
    refused(two.run("ADD", "q2", &middle, None), 101, "node a");
    // No other pod gets it, even on request.
    for args in [pod("dev", "web-1"), String::from("IgnoreUnknown=1")] {
        refused(one.run("ADD", "p3", &format!("{args};IP=10.9.3.7"), None), 101, "10.9.3.7");
    }
    let asking = annotated(&one, &json!({"cnimble/ips": "10.9.3.7"}));
    refused(asking.run("ADD", "p3", &pod("dev", "web-1"), None), 7, "annotation cnimble/ips: 10.9.3.7");
    assert_eq!(ips(&one.run("ADD", "p3", &middle, None).unwrap())[0], "10.9.3.7");
}

/// A /28 has two blocks of 7 and two tails of 1. The gateway is 10.9.0.1, and the broadcast address isn't given.
#[test]
fn a_full_network_keeps_the_addresses_of_names() {
    let host = Host::new();
    let (_etcd, nodes) = cluster_of(&host, 1, "10.9.0.0/28", 29);
    let node =
        nodes[0].clone().with("addresses", json!({"prod/web-0": "10.9.0.5", "prod/web-1": ["10.9.0.7"]}));
    let mut given = BTreeSet::new();
    let err = loop {
        match node.add(&format!("p{}", given.len())) {
            Ok(ip) => assert!(given.insert(ip)),
            Err(err) => break err,
        }
    };
    assert_eq!((given.len(), &err["code"]), (11, &json!(101)), "{err}: {given:?}");
    assert!(!given.contains("10.9.0.5/28") && !given.contains("10.9.0.7/28"), "{given:?}");
    for (n, ip) in ["10.9.0.5/28", "10.9.0.7/28"].iter().enumerate() {
        let result = node.run("ADD", &format!("web{n}"), &pod("prod", &format!("web-{n}")), None).unwrap();
        assert_eq!(address(&result), *ip);
    }
}

#[test]
fn the_agent_keeps_no_spare_block_of_a_pool_and_an_idle_one_returns() {
    let host = Host::new();
    let (_etcd, nodes) = cluster(&host, 1, "10.9.0.0/16");
    let (one, two) = (with_pools(&nodes[0]).offline(5), with_pools(&nodes[1]).offline(5));
    one.operate("tend").unwrap();
    let is_pools = |first: &String| ["10.8.", "fd00:8:"].iter().any(|begin| first.starts_with(begin));
    let of_pools = || claimed(&one).into_iter().filter(is_pools).count();
    assert_eq!((of_pools(), claimed(&one).len()), (0, 2), "{:?}", claimed(&one));
    let args = format!("{};IP=10.8.0.9", pod("prod", "a"));
    let result = one.run("ADD", "p1", &args, None).unwrap();
    assert_eq!(of_pools(), 2, "{:?}", claimed(&one));
    with_result(&one, "DEL", "p1", &args, &result).unwrap();
    refused(two.run("ADD", "q1", &args, None), 101, "node a");
    // The agent returns the pool's blocks after `offline`.
    let is_free = || {
        one.operate("tend").unwrap();
        of_pools() == 0
    };
    assert!(wait_until(PATIENCE, is_free), "{:?}", claimed(&one));
    begin_with(&two.run("ADD", "q1", &args, None).unwrap(), &["10.8.0.9", "fd00:8:"]);
}

#[test]
fn a_freed_address_of_a_pool_comes_last_though_others_get_addresses_meanwhile() {
    let host = Host::new();
    let (_etcd, nodes) = cluster(&host, 1, "10.9.0.0/16");
    let node = with_pools(&nodes[0]);
    let prod = pod("prod", "a");
    let freed = node.run("ADD", "p1", &prod, None).unwrap();
    with_result(&node, "DEL", "p1", &prod, &freed).unwrap();
    node.added("p2");
    let next = node.run("ADD", "p3", &prod, None).unwrap();
    assert!(ips(&next).iter().all(|ip| !ips(&freed).contains(ip)), "{next}");
}

#[test]
fn wrong_pools_and_addresses_are_refused_with_their_keys() {
    let host = Host::new();
    let node = Node::new(&host, 1, "a", "10.9.0.0/16");
    let range = |subnet: &str| json!([[{"subnet": subnet}]]);
    let pool = |name: &str, ranges: Value| json!({"name": name, "ranges": ranges});
    for (key, value, words) in [
        ("pools", json!([{"ranges": range("10.8.0.0/16")}]), "ipam.pools[0].name: "),
        (
            "pools",
            json!([pool("a", range("10.8.0.0/16")), pool("a", range("10.7.0.0/16"))]),
            "ipam.pools[1].name: ",
        ),
        ("pools", json!([pool("a", json!([]))]), "ipam.pools[0].ranges: "),
        ("pools", json!([pool("a", range("10.9.4.0/24"))]), "overlaps with 10.9.0.1-10.9.255.254"),
        (
            "pools",
            json!([pool("a", range("fd00::/64")), pool("b", range("fd00::/80"))]),
            "ipam.pools[1].ranges: ",
        ),
        ("pools", json!([pool("a", range("10.8.0.1/16"))]), "Network has host bits set"),
        ("addresses", json!({"prod/a": "10.8.0.1"}), "ipam.addresses: 10.8.0.1 of prod/a is in no range"),
        (
            "addresses",
            json!({"prod/a": "10.9.0.9", "prod/b": ["10.9.0.9"]}),
            "10.9.0.9 of prod/b is listed twice",
        ),
        ("addresses", json!({"prod/a": "x"}), "invalid IP address: x"),
    ] {
        refused(node.clone().with(key, value).run("ADD", "p1", "", None), 7, words);
    }
}

#[test]
fn pods_of_pools_reach_others_without_nat_and_the_agents_network_asks_for_annotations() {
    pods_of_pools_reach_others("", "");
}

/// A bridge has one IPv4 gateway.
#[test]
fn pods_of_pools_on_bridges_reach_others_by_the_gateway_of_the_other_ranges() {
    pods_of_pools_reach_others("--plugin bridge", r#", "gateway": "10.1.0.1""#);
}

fn pods_of_pools_reach_others(options: &str, gateway: &str) {
    need!("ip", "nft", "etcd", "etcdctl");
    let world = Site::world();
    let ranges = format!(r#"[[{{"subnet": "10.2.0.0/16"{gateway}}}], [{{"subnet": "fd00:2::/64"}}]]"#);
    let pools = format!(r#"[{{"name": "db", "namespaces": ["prod"], "ranges": {ranges}}}]"#);
    let keys = format!(r#""blockSize": 28, "ranges": [[{{"subnet": "10.1.0.0/16"}}]], "pools": {pools}"#);
    let mut site = Site::with(&world, &keys, options);
    site.join(1);
    site.init();
    site.join(2);
    site.add_pods();
    let annotations = r#"{"io.kubernetes.cri.pod-annotations":{"cnimble/ips":"10.2.3.4"}}"#;
    for (member, caps) in site.members.iter_mut().zip([annotations, "{}"]) {
        member.verb_options = format!("--args {} --cap-args {caps}", pod("prod", "a"));
        member.add_pod();
    }
    let ips: Vec<&Vec<String>> = site.members.iter().map(|member| &member.pods[1].ips).collect();
    assert_eq!(ips[0][0], "10.2.3.4");
    assert!(ips[1][0].starts_with("10.2.") && ips.iter().all(|ips| ips[1].starts_with("fd00:2:")), "{ips:?}");
    site.settled();
    site.all_reach_all();
    for member in &mut site.members {
        member.check_pods();
        member.del_pod();
    }
    site.all_reach_all();
}
