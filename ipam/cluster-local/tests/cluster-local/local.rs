//! A node's own addresses: without etcd, with fixed addresses, and in a short subnet.

use std::collections::BTreeSet;

use cnimble_tests::{Host, copy, plugin_dir};
use serde_json::json;

use super::{assert_no_block_is_lost, cluster, refused};

#[test]
fn add_del_and_check_go_on_while_etcd_is_away() {
    let host = Host::new();
    let (mut etcd, nodes) = cluster(&host, 1, "10.9.0.0/16");
    let node = &nodes[0];
    node.added("p0");
    etcd.kill(0);
    let mut given = BTreeSet::new();
    let mut n = 0;
    let err = loop {
        n += 1;
        match node.add(&format!("q{n}")) {
            Ok(ip) => assert!(given.insert(ip)),
            Err(err) => break err,
        }
        assert!(n < 100);
    };
    // The first pod has an address of the block, and the spare block is fetched later.
    assert!(given.len() >= 50, "{} addresses", given.len());
    assert_eq!(err["code"], 11, "{err}");
    assert_eq!(node.run("STATUS", "", "", None).unwrap_err()["code"], 50);
    node.run("CHECK", "q1", "", None).unwrap();
    node.run("DEL", "q1", "", None).unwrap();
    node.added("again");
    node.run("STATUS", "", "", None).unwrap_err();
    node.run("DEL", "q2", "", None).unwrap();
    node.run("STATUS", "", "", None).unwrap();
}

/// On a node on which only plugins and command were replaced, the program has its former name.
#[test]
fn the_plugin_finds_the_program_by_its_former_name() {
    let host = Host::new();
    let (_etcd, nodes) = cluster(&host, 1, "10.9.0.0/16");
    let bare = host.dir().join("bare");
    std::fs::create_dir(&bare).unwrap();
    copy(&plugin_dir().join("cluster-local"), &bare.join("cluster-local"));
    let add = |id: &str| nodes[0].run_in(&bare, "ADD", id, "", None);
    refused(add("p1"), 104, "no program \"cluster-local-store\" in CNI_PATH");
    copy(&plugin_dir().join("cluster-local-store"), &bare.join("cluster-local-etcd"));
    add("p2").unwrap();
    assert_no_block_is_lost(&nodes[..1]);
}

#[test]
fn a_spare_block_exists_before_the_last_address_is_given() {
    let host = Host::new();
    let (mut etcd, nodes) = cluster(&host, 1, "10.9.0.0/16");
    for n in 0..45 {
        nodes[0].added(&format!("p{n}"));
    }
    assert_eq!(nodes[0].share()["owned"].as_array().unwrap().len(), 2);
    etcd.kill(0);
    for n in 45..90 {
        nodes[0].added(&format!("p{n}"));
    }
}

#[test]
fn a_fixed_address_works_where_no_other_node_gives_it() {
    let host = Host::new();
    let (_etcd, nodes) = cluster(&host, 1, "10.9.0.0/16");
    let fixed = |node: usize, id: &str, ip: &str| nodes[node].run("ADD", id, &format!("IP={ip}"), None);
    // The addresses are in the middle of a block, in a block's tail, and in a block that this node
    // already owns.
    for (id, ip) in [("p1", "10.9.200.7"), ("p2", "10.9.3.63"), ("p3", "10.9.200.8")] {
        assert_eq!(super::address(&fixed(0, id, ip).unwrap()), format!("{ip}/16"));
    }
    for (id, ip) in [("p1", "10.9.200.9"), ("p2", "10.9.3.63"), ("p3", "10.9.200.7")] {
        let err = fixed(1, id, ip).unwrap_err();
        assert_eq!(err["code"], 101, "{err}");
    }
    nodes[0].run("DEL", "p2", "", Some("10.9.3.63/16")).unwrap();
    fixed(1, "p4", "10.9.3.63").unwrap();
    assert_no_block_is_lost(&nodes[..2]);
}

/// A /25 has two blocks of 56 and two tails of 8. These are 112 + 15 addresses, because the last address
/// is the broadcast address.
#[test]
fn a_short_subnet_gives_single_addresses_and_takes_them_back() {
    let host = Host::new();
    let (_etcd, nodes) = cluster(&host, 1, "10.9.0.0/25");
    nodes[0].added("p0");
    nodes[1].added("p0");
    let mut given = BTreeSet::new();
    let mut n = 0;
    let err = loop {
        n += 1;
        match nodes[2].add(&format!("q{n}")) {
            Ok(ip) => assert!(given.insert(ip)),
            Err(err) => break err,
        }
    };
    assert_eq!((given.len(), &err["code"]), (15, &json!(101)), "{err}");
    let ip = given.pop_first().unwrap();
    let leases = std::fs::read_dir(nodes[2].store()).unwrap().map(|entry| entry.unwrap());
    let name = ip.trim_end_matches("/25");
    let lease = leases.into_iter().find(|entry| entry.file_name() == name).unwrap();
    let owner = std::fs::read_to_string(lease.path()).unwrap();
    let id = owner.split("\r\n").next().unwrap();
    nodes[2].run("DEL", id, "", Some(&ip)).unwrap();
    // The node no longer owns it.
    assert_no_block_is_lost(&nodes);
    assert_eq!(nodes[2].share()["owned"].as_array().unwrap().len(), 14);
    nodes[0].run("ADD", "fixed", &format!("IP={name}"), None).unwrap();
}

#[test]
fn gc_releases_leases_and_two_families_come_from_two_blocks() {
    let host = Host::new();
    let (_etcd, mut nodes) = cluster(&host, 1, "10.9.0.0/16");
    nodes[0].config["ipam"]["ranges"] = json!([[{"subnet": "10.9.0.0/16"}], [{"subnet": "fd00:9::/64"}]]);
    let result = nodes[0].run("ADD", "p1", "", None).unwrap();
    assert_eq!(result["ips"].as_array().unwrap().len(), 2, "{result}");
    assert_eq!(nodes[0].share()["owned"].as_array().unwrap().len(), 2);
    nodes[0].config["cni.dev/valid-attachments"] = json!([]);
    nodes[0].run("GC", "", "", None).unwrap();
    let names = std::fs::read_dir(nodes[0].store()).unwrap().map(|entry| entry.unwrap().file_name());
    assert!(!names.into_iter().any(|name| cnimble_leases::address(&name.to_string_lossy()).is_some()));
}

#[test]
fn with_routed_an_address_has_its_full_length_and_a_way_to_the_gateway() {
    let host = Host::new();
    let (_etcd, nodes) = cluster(&host, 1, "10.9.0.0/16");
    let ranges = json!([[{"subnet": "10.9.0.0/16"}], [{"subnet": "fd00:9::/64"}]]);
    let node = nodes[0].clone().with("routed", true.into()).with("ranges", ranges);
    let node = node.with("routes", json!([{"dst": "0.0.0.0/0"}]));
    let result = node.run("ADD", "p1", "IP=10.9.200.7", None).unwrap();
    assert_eq!(result["ips"][0], json!({"address": "10.9.200.7/32", "gateway": "10.9.0.1"}));
    assert!(result["ips"][1]["address"].as_str().unwrap().ends_with("/128"), "{result}");
    let ways = json!([{"dst": "10.9.0.1/32", "gw": "0.0.0.0"}, {"dst": "fd00:9::1/128", "gw": "::"}, {"dst": "0.0.0.0/0"}]);
    assert_eq!(result["routes"], ways);
    node.run("CHECK", "p1", "", None).unwrap();
}

#[test]
fn a_pod_of_the_same_name_gets_its_address_again_while_the_node_owns_it() {
    let host = Host::new();
    let (_etcd, nodes) = cluster(&host, 1, "10.9.0.0/16");
    let node = nodes[0].clone().with("keepFor", 3600.into());
    let args = "IgnoreUnknown=1;K8S_POD_NAMESPACE=default;K8S_POD_NAME=web-0";
    let add = |id: &str| super::address(&node.run("ADD", id, args, None).unwrap());
    let ip = add("p1");
    node.run("DEL", "p1", args, Some(&ip)).unwrap();
    assert_ne!(node.added("other"), ip);
    assert_eq!(add("p2"), ip);
    node.run("DEL", "p2", args, Some(&ip)).unwrap();
    // An address of another node's block isn't given.
    let kept = node.store().join(".cnimble-kept");
    let foreign = nodes[1].added("q1");
    let text = std::fs::read_to_string(&kept).unwrap();
    let changed = text.replace(ip.trim_end_matches("/16"), foreign.trim_end_matches("/16"));
    assert_ne!(changed, text);
    std::fs::write(&kept, changed).unwrap();
    assert_ne!(add("p3"), foreign);
}
