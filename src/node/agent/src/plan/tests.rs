use super::*;
use crate::Node;

fn node(cidrs: &[&str], ips: &[&str], created: &str) -> Node {
    Node {
        cidrs: cidrs.iter().map(|cidr| cidr.parse().unwrap()).collect(),
        ips: ips.iter().map(|ip| ip.parse().unwrap()).collect(),
        created: created.to_owned(),
        wrong: Vec::new(),
    }
}

fn route(dst: &str, via: Option<&str>, index: u32) -> NewRoute {
    NewRoute { via: via.map(|via| via.parse().unwrap()), ..NewRoute::to(dst.parse().unwrap(), index) }
}

fn host() -> Host {
    let routes = vec![
        (route("0.0.0.0/0", Some("192.0.2.254"), 2), 3),
        (route("192.0.2.0/24", None, 2), 2),
        (route("2001:db8::/64", None, 2), 2),
        (route("172.17.0.0/16", None, 3), 2),
        (route("10.9.0.0/24", Some("192.0.2.77"), 2), 4),
    ];
    let addresses = ["192.0.2.1", "2001:db8::1", "172.17.0.1"].map(|ip| ip.parse().unwrap());
    Host { routes, addresses: addresses.into(), ..Host::default() }
}

fn nodes(more: &[(&str, Node)]) -> Nodes {
    let mut nodes = Nodes::from([(
        "me".to_owned(),
        node(&["10.1.0.0/24", "fd00:1::/64"], &["192.0.2.1", "2001:db8::1"], "1"),
    )]);
    nodes.extend(more.iter().map(|(name, node)| ((*name).to_owned(), node.clone())));
    nodes
}

fn hops(plan: &Plan) -> Vec<String> {
    plan.routes
        .iter()
        .map(|(cidr, hop)| format!("{cidr} via {} dev {}", hop.via.unwrap(), hop.index))
        .collect()
}

#[test]
fn a_node_on_the_link_gets_a_route_of_each_family() {
    let plan = plan(
        &nodes(&[("b", node(&["10.2.0.0/24", "fd00:2::/64"], &["192.0.2.2", "2001:db8::2"], "2"))]),
        "me",
        &host(),
    );
    assert_eq!(hops(&plan), ["10.2.0.0/24 via 192.0.2.2 dev 2", "fd00:2::/64 via 2001:db8::2 dev 2"]);
    assert_eq!((plan.own.len(), plan.pods.len(), plan.conditions), (2, 4, vec![]));
}

#[test]
fn no_node_gets_a_network_with_this_hosts_or_the_api_servers_address() {
    let reserved = [("198.51.100.7", "the API server"), ("203.0.113.1", "this host")]
        .map(|(ip, what)| (ip.parse().unwrap(), what));
    let host = Host { reserved: reserved.into(), ..host() };
    for (cidr, why) in [
        ("198.51.100.0/24", "198.51.100.7 is the address of the API server"),
        ("203.0.113.0/28", "203.0.113.1 is the address of this host"),
    ] {
        let wanted = format!("podCIDR {cidr} is refused: {why}");
        let mut all = nodes(&[]);
        all.insert("me".to_owned(), node(&[cidr, "fd00:1::/64"], &["192.0.2.1"], "1"));
        let own = plan(&all, "me", &host);
        assert_eq!((own.own.len(), own.conditions), (1, vec![("me".to_owned(), wanted.clone())]));
        let other = plan(&nodes(&[("b", node(&[cidr], &["192.0.2.2"], "2"))]), "me", &host);
        assert!(
            other.routes.is_empty() && other.conditions == [("b".to_owned(), wanted)],
            "{:?}",
            other.conditions
        );
    }
}

#[test]
fn an_address_that_moves_between_nodes_is_no_way_while_this_host_has_it() {
    let shared = node(&["10.2.0.0/24"], &["172.17.0.1", "192.0.2.2"], "2");
    let plan = plan(&nodes(&[("b", shared)]), "me", &host());
    assert_eq!(hops(&plan), ["10.2.0.0/24 via 192.0.2.2 dev 2"]);
}

#[test]
fn hostile_networks_are_refused_and_the_others_stay() {
    let good = ("good", node(&["10.2.0.0/24"], &["192.0.2.2"], "2"));
    for (cidr, ip, words) in [
        ("10.1.0.128/25", "192.0.2.9", "overlaps 10.1.0.0/24 of node me"),
        ("10.0.0.0/8", "192.0.2.9", "overlaps 10."),
        ("192.0.2.0/25", "192.0.2.9", "is the address of a node"),
        ("192.0.2.128/25", "192.0.2.9", "connected to 192.0.2.0/24"),
        ("172.17.5.0/24", "192.0.2.9", "connected to 172.17.0.0/16"),
        ("10.2.0.0/24", "192.0.2.9", "overlaps 10.2.0.0/24 of node good"),
        ("10.9.0.0/24", "192.0.2.9", "cnimble has not made"),
        ("10.3.0.0/24", "198.51.100.9", "is on no link"),
        ("10.3.0.0/24", "192.0.2.1", "192.0.2.1 is an address of this host"),
        ("fd00:3::/64", "192.0.2.9", "no InternalIP of that family"),
    ] {
        let bad = ("bad", node(&[cidr], &[ip], "3"));
        let plan = plan(&nodes(&[good.clone(), bad]), "me", &host());
        assert_eq!(hops(&plan), ["10.2.0.0/24 via 192.0.2.2 dev 2"], "{cidr}");
        let [(name, why)] = plan.conditions.as_slice() else { panic!("{:?}", plan.conditions) };
        assert!(name == "bad" && why.contains(words), "{why}");
    }
}

#[test]
fn of_two_nodes_with_one_network_the_one_that_has_it_keeps_it() {
    let both = nodes(&[
        ("b", node(&["10.2.0.0/24"], &["192.0.2.2"], "2")),
        ("c", node(&["10.2.0.0/24"], &["192.0.2.3"], "1")),
    ]);
    assert_eq!(hops(&plan(&both, "me", &host())), ["10.2.0.0/24 via 192.0.2.3 dev 2"]);
    let mut host = host();
    host.routes.push((route("10.2.0.0/24", Some("192.0.2.2"), 2), PROTOCOL));
    let plan = plan(&both, "me", &host);
    assert_eq!(hops(&plan), ["10.2.0.0/24 via 192.0.2.2 dev 2"]);
    assert_eq!(plan.conditions.len(), 1);
}

#[test]
fn the_own_network_is_no_part_of_what_the_host_is_connected_to() {
    let mine = |cidr| Nodes::from([("me".to_owned(), node(&[cidr], &["192.0.2.1"], "1"))]);
    for bad in ["172.17.3.0/24", "192.0.2.128/25"] {
        let plan = plan(&mine(bad), "me", &host());
        assert!(plan.own.is_empty() && plan.conditions.len() == 1, "{plan:?}");
    }
    let mut host = host();
    host.routes.push((route("10.1.0.0/24", None, 7), 2));
    host.routes.push((route("10.1.0.5/32", None, 8), 3));
    assert_eq!(plan(&mine("10.1.0.0/24"), "me", &host).own.len(), 1);
}

#[test]
fn ten_thousand_nodes_are_planned_without_a_square() {
    let many: Nodes = (0..10_000_u32)
        .map(|n| {
            let cidr = format!("10.{}.{}.0/24", n / 256, n % 256);
            let ip = format!("192.168.{}.{}", n / 250, n % 250 + 1);
            (format!("n{n}"), node(&[&cidr], &[&ip], ""))
        })
        .collect();
    let host = Host { routes: vec![(route("192.168.0.0/16", None, 2), 2)], ..Host::default() };
    let plan = plan(&many, "n0", &host);
    assert_eq!((plan.routes.len(), plan.pods.len(), plan.conditions.len()), (9_999, 10_000, 0));
}

/// Returns a host with pods of a subnet that nodes own blocks of, their routes, and one to a borrowed address.
fn sharing() -> Host {
    let mut host = host();
    host.shared = vec!["10.1.0.0/16".parse().unwrap()];
    host.routes.extend([
        (route("10.1.0.5/32", None, 8), 3),
        // The address is of a block that another node owns.
        (route("10.1.0.127/32", None, 9), 3),
    ]);
    host
}

fn sharers(more: &[(&str, Node)]) -> Nodes {
    let mut nodes =
        Nodes::from([("me".to_owned(), node(&["10.1.0.0/26", "10.1.0.127/32"], &["192.0.2.1"], ""))]);
    nodes.extend(more.iter().map(|(name, node)| ((*name).to_owned(), node.clone())));
    nodes
}

#[test]
fn blocks_and_borrowed_addresses_in_them_get_routes_and_the_subnet_is_the_clusters() {
    let other = node(&["10.1.0.64/26", "10.1.0.63/32"], &["192.0.2.2"], "");
    let third = node(&["10.1.0.126/32"], &["192.0.2.3"], "");
    let plan = plan(&sharers(&[("b", other), ("c", third)]), "me", &sharing());
    assert_eq!(
        hops(&plan),
        [
            "10.1.0.63/32 via 192.0.2.2 dev 2",
            "10.1.0.64/26 via 192.0.2.2 dev 2",
            "10.1.0.126/32 via 192.0.2.3 dev 2"
        ]
    );
    let pods: Vec<String> = plan.pods.iter().map(ToString::to_string).collect();
    assert_eq!((plan.own.len(), pods, plan.conditions), (2, vec!["10.1.0.0/16".to_owned()], vec![]));
}

#[test]
fn hostile_blocks_are_refused_and_the_others_stay() {
    let good = ("good", node(&["10.1.0.64/26", "10.1.0.190/32"], &["192.0.2.2"], ""));
    for (cidr, ips, words) in [
        ("192.168.0.0/26", &["192.0.2.9"][..], "block 192.168.0.0/26 is refused: it is no part of"),
        ("10.1.0.64/26", &["192.0.2.9"], "overlaps 10.1.0.64/26 of node good"),
        ("10.1.0.0/26", &["192.0.2.9"], "overlaps 10.1.0.0/26 of node me"),
        ("10.1.0.127/32", &["192.0.2.9"], "overlaps 10.1.0.127/32 of node me"),
        ("10.1.0.190/32", &["192.0.2.9"], "overlaps 10.1.0.190/32 of node good"),
        ("10.1.1.0/26", &[], "the store has no address of the node"),
        ("10.1.1.0/26", &["198.51.100.9"], "is on no link"),
        ("10.1.1.0/26", &["10.1.1.9"], "10.1.1.9 is the address of a node"),
    ] {
        let bad = ("worse", node(&[cidr], ips, ""));
        let plan = plan(&sharers(&[good.clone(), bad]), "me", &sharing());
        assert_eq!(
            hops(&plan),
            ["10.1.0.64/26 via 192.0.2.2 dev 2", "10.1.0.190/32 via 192.0.2.2 dev 2"],
            "{cidr}"
        );
        let [(name, why)] = plan.conditions.as_slice() else { panic!("{:?}", plan.conditions) };
        assert!(name == "worse" && why.contains(words), "{why}");
    }
}

#[test]
fn pods_of_a_bridge_get_the_subnet_by_it_and_borrowed_addresses() {
    let local = |plan: &Plan| plan.local.keys().map(ToString::to_string).collect::<Vec<_>>();
    let mut host = sharing();
    assert_eq!(local(&plan(&sharers(&[]), "me", &host)), [""; 0]);
    host.routes.retain(|(route, _)| !host.shared[0].contains(route.dst.ip()));
    host.bridge = Some(7);
    let made = plan(&sharers(&[]), "me", &host);
    assert_eq!(local(&made), ["10.1.0.0/16", "10.1.0.127/32"]);
    assert!(made.local.values().all(|hop| hop.via.is_none() && hop.index == 7));
    // The agent's routes do not count as networks that the host is connected to.
    host.routes.push((route("10.1.0.0/16", None, 7), PROTOCOL));
    let other = ("b", node(&["10.1.0.64/26"], &["192.0.2.2"], ""));
    assert_eq!(
        hops(&plan(&sharers(std::slice::from_ref(&other)), "me", &host)),
        ["10.1.0.64/26 via 192.0.2.2 dev 2"]
    );
    // The administrator's route is not changed.
    host.routes.push((route("10.1.0.0/16", Some("192.0.2.254"), 2), 3));
    let left = plan(&sharers(&[other]), "me", &host);
    assert_eq!(local(&left), ["10.1.0.127/32"]);
    assert!(left.conditions[0].1.contains("that cnimble has not made"), "{:?}", left.conditions);
}
