//! Tests `cnimble node` on three nodes of a cluster. Pods reach each other without NAT, and the world with it. Changes
//! of the cluster break no stream between living pods.

mod company;
mod many;
mod members;
mod options;
mod table;
mod watched;

use serde_json::json;

use cnimble_tests::stream::Stream;
use cnimble_tests::{PATIENCE, need, wait_until};

use members::{Site, object};

#[test]
fn pods_of_three_nodes_reach_each_other_without_nat_and_the_world_with_it() {
    need!("ip", "nft");
    let mut site = Site::new(3);
    site.settled();
    site.add_pods();
    site.all_reach_all();
    for member in &site.members {
        assert!(!std::fs::read_to_string(member.conflist()).unwrap().contains("ipMasq"));
        // The table has one rule per family, and its guard, for any number of nodes.
        assert_eq!(member.host.nft("list table inet cnimble-node").matches("saddr").count(), 4);
    }
    let first = &mut site.members[0];
    first.agent = None;
    assert_eq!(first.routes().len(), 4, "an agent that ends leaves its routes");
    let dir = first.host.dir().display();
    first.run(&format!("node --remove --conf-dir {dir}/net.d")).success();
    assert!(first.routes().is_empty() && !first.conflist().exists());
    assert!(!first.host.nft("list tables").contains("cnimble-node"));
}

#[test]
fn a_stream_between_pods_goes_on_whatever_happens_to_the_cluster() {
    need!("ip", "nft");
    let mut site = Site::new(3);
    site.settled();
    site.add_pods();
    let stream = Stream::between(&site.members[0].pod, &site.members[1].pod, &site.members[1].ips[0]);
    let six = Stream::between(&site.members[2].pod, &site.members[0].pod, &site.members[0].ips[1]);
    let flows = |when: &str| [&stream, &six].iter().for_each(|stream| stream.flows(when));
    flows("at first");
    site.join(4);
    site.settled();
    flows("a node came");
    let gone = site.members.pop().unwrap();
    site.api.delete("default/node4");
    drop(gone);
    site.settled();
    flows("a node went");
    // Others follow a changed network at once. The node's pod keeps its address and its gateway.
    let mut moved = object(3);
    moved["spec"]["podCIDRs"] = json!(["10.1.33.0/24", "fd00:1:33::/64"]);
    site.api.put(moved);
    let [first, _, third] = &site.members[..] else { panic!() };
    third.says("are still leased");
    third.file_with("10.1.33.0/24");
    assert!(wait_until(PATIENCE, || first
        .routes()
        .iter()
        .any(|route| route.starts_with("10.1.33.0/24 via 192.0.2.3"))));
    stream.flows("a network changed");
    site.api.put(object(3));
    site.settled();
    flows("a network changed back");
    site.api.fail(Some(503));
    let first = &mut site.members[0];
    first.says("nodes are as they were told of last");
    first.agent = None;
    first.start("");
    flows("the API server is gone, and the agent was killed");
    assert_eq!(first.routes().len(), 4, "an agent that knows no nodes removes no routes");
    site.api.fail(None);
    site.settled();
    // Another reason for a look can restore the route once, but not repeatedly.
    for _ in 0..5 {
        site.members[0].host.ip("route del 10.1.3.0/24");
        site.settled();
    }
    flows("a route was removed by hand");
    stream.end();
    six.end();
}

#[test]
fn a_route_of_the_administrator_stays_and_hostile_nodes_change_nothing() {
    need!("ip", "nft");
    let mut site = Site::new(1);
    site.settled();
    site.add_pods();
    let first = &site.members[0];
    let file = std::fs::read_to_string(first.conflist()).unwrap();
    first.host.ip("route add 10.1.7.0/24 via 192.0.2.254 proto static");
    let before = first.host.ip("route show");
    let hostile = [
        (4, "10.1.4.0/24", "192.0.2.1", "192.0.2.1 is an address of this host"),
        (5, "0.0.0.0/0", "192.0.2.5", "is too large"),
        (6, "10.1.1.128/25", "192.0.2.6", "overlaps 10.1.1.0/24 of node node1"),
        (7, "10.1.7.0/24", "192.0.2.7", "that cnimble has not made"),
        (8, "192.0.2.128/25", "192.0.2.8", "this host is connected to 192.0.2.0/24"),
        (9, "10.1.9.0/24", "nowhere", "InternalIP \\\"nowhere\\\" is no address"),
        (10, "10.1.10.0/24", "198.51.100.1", "is on no link of this host"),
    ];
    for (number, cidr, ip, _) in hostile {
        let mut node = object(number);
        node["spec"] = json!({"podCIDRs": [cidr]});
        node["status"] = json!({"addresses": [{"type": "InternalIP", "address": ip}]});
        site.api.put(node);
    }
    for (_, _, _, words) in hostile {
        first.says(&words.replace('\\', ""));
    }
    // The last node becomes known after the others were processed.
    site.api.put(object(20));
    let came = || first.routes().len() == 2;
    assert!(wait_until(PATIENCE, came), "{:?}", first.routes());
    site.api.delete("default/node20");
    assert!(wait_until(PATIENCE, || first.routes().is_empty()), "{:?}", first.routes());
    assert_eq!(first.host.ip("route show"), before);
    // Faults of other nodes don't affect this node.
    assert_eq!((first.get("/healthz").unwrap().0, first.metric("failures")), (200, Some(0)));
    assert_eq!(std::fs::read_to_string(first.conflist()).unwrap(), file);
    // The administrator's route is deleted, and the agent's is added.
    first.host.ip("route del 10.1.7.0/24");
    assert!(wait_until(PATIENCE, || first.routes().iter().any(|route| route.starts_with("10.1.7.0/24"))));
    // The node is deleted, but the configuration stays.
    site.api.delete("default/node1");
    first.says("the API server has no node node1");
    assert_eq!(std::fs::read_to_string(first.conflist()).unwrap(), file);
}
