//! The nodes of a cluster, as an API server reports them.

use std::net::IpAddr;

use cnimble_agent::fuzzing;
use cnimble_agent::plan::{Host, plan};
use cnimble_netlink::route::NewRoute;
use ipnetwork::IpNetwork;

/// The link of the host, and its connected networks.
const UPLINK: u32 = 2;
const CONNECTED: [&str; 2] = ["192.0.2.0/24", "2001:db8::/64"];
/// The destination of an administrator's route.
const FOREIGN: &str = "10.1.7.0/24";

fn overlap(one: &IpNetwork, other: &IpNetwork) -> bool {
    one.is_ipv4() == other.is_ipv4() && (one.contains(other.network()) || other.contains(one.network()))
}

/// Takes any bytes for nodes, one a line. The plan must never harm the host or the nodes.
pub fn nodes(bytes: &[u8]) {
    let nodes = fuzzing::nodes(bytes);
    let connected = CONNECTED.map(|cidr| cidr.parse::<IpNetwork>().unwrap());
    let foreign: IpNetwork = FOREIGN.parse().unwrap();
    let mut routes: Vec<_> = connected.iter().map(|cidr| (NewRoute::to(*cidr, UPLINK), 2)).collect();
    let via: IpAddr = "192.0.2.254".parse().unwrap();
    routes.push((NewRoute { via: Some(via), ..NewRoute::to(foreign, UPLINK) }, 4));
    let host = Host { routes, ..Host::default() };
    let plan = plan(&nodes, "node1", &host);
    let networks: Vec<&IpNetwork> = plan.routes.keys().chain(&plan.own).collect();
    for (number, cidr) in networks.iter().enumerate() {
        assert!(cidr.prefix() >= if cidr.is_ipv4() { 8 } else { 16 }, "{cidr}");
        assert_eq!(cidr.ip(), cidr.network());
        assert!(networks[..number].iter().all(|other| !overlap(cidr, other)), "{cidr} twice");
        assert!(plan.pods.contains(cidr), "{cidr} isn't masqueraded to");
        let node = nodes.values().flat_map(|node| &node.ips).find(|ip| cidr.contains(**ip));
        assert_eq!(node, None, "{cidr} has a node's address");
    }
    for (cidr, hop) in &plan.routes {
        assert!(connected.iter().all(|other| !overlap(cidr, other)), "{cidr} is connected");
        assert_ne!(*cidr, foreign);
        let via = hop.via.unwrap();
        assert!(hop.index == UPLINK && connected.iter().any(|cidr| cidr.contains(via)), "{hop:?}");
        assert!(nodes[&hop.node].ips.contains(&via) && hop.node != "node1", "{hop:?}");
    }
    for (node, why) in &plan.conditions {
        assert!(!node.contains(char::is_control) && !why.contains(char::is_control), "{node:?}: {why:?}");
    }
}
