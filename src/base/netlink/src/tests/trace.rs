//! What a packet is followed by: chosen routes, policy routing, states of neighbours and ports, numbers of namespaces,
//! captures and the trace of rules.

use std::net::IpAddr;
use std::time::{Duration, Instant};

use nix::errno::Errno;

use super::neigh::add_permanent;
use super::{bridge, other_netns, plain_veth, veth};
use crate::link::{Change, Link, Mac, NewVeth, add_veth, set};
use crate::lookup::{Packet, RouteKind};
use crate::neigh::Resolution;
use crate::nft::{Batch, Expr, Family, Hook, HookPoint, Meta, Nft, REG1, Table, TraceMonitor, Verdict};
use crate::packet::{Direction, Pattern, Socket, SocketPurpose};
use crate::policy::RuleAction;
use crate::port_state::PortState;
use crate::raw::{RawSocket, Transport};
use crate::testing::in_netns;
use crate::{NetNs, Netlink, addr, rule, sysctl};

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn up(netlink: &mut Netlink, link: &Link) {
    let up = Change { up: Some(true), ..Change::default() };
    netlink.execute(set(link.index, &link.name, &up)).unwrap();
}

fn packet(to: &str, from: Option<&str>, input: Option<u32>) -> Packet {
    Packet { to: ip(to), from: from.map(ip), input, output: None, transport: Some((6, 1000, 80)) }
}

#[test]
fn the_kernel_tells_its_choice_and_its_refusals() {
    in_netns("the_kernel_tells_its_choice_and_its_refusals", || {
        let pod = other_netns();
        let mut netlink = Netlink::open().unwrap();
        let link = veth(&mut netlink, "v0", "e0", &pod);
        up(&mut netlink, &link);
        netlink.execute(addr::add(link.index, "v0", "10.1.0.1/24".parse().unwrap())).unwrap();
        sysctl::write("net/ipv4/ip_forward", "1").unwrap();
        let chosen = netlink.choose_route(&packet("10.1.0.9", None, None)).unwrap();
        assert_eq!((chosen.kind, chosen.index, chosen.via), (RouteKind::Unicast, link.index, None));
        assert_eq!((chosen.source, chosen.table), (Some(ip("10.1.0.1")), 254));
        let local = netlink.choose_route(&packet("10.1.0.1", Some("10.1.0.2"), Some(link.index))).unwrap();
        // Without rules of its own, a namespace has the table local in the table main.
        assert_eq!(local.kind, RouteKind::Local);
        assert!([254, 255].contains(&local.table), "{}", local.table);
        let mut refusal = |to: &str| {
            netlink.choose_route(&packet(to, Some("10.1.0.2"), Some(link.index))).unwrap_err().errno
        };
        assert_eq!(refusal("10.9.0.1"), Errno::ENETUNREACH);
        sysctl::write("net/ipv4/ip_forward", "0").unwrap();
        assert_eq!(refusal("10.1.0.9"), Errno::EHOSTUNREACH);
    });
}

#[test]
fn rules_and_routes_of_all_kinds_are_listed() {
    in_netns("rules_and_routes_of_all_kinds_are_listed", || {
        let mut netlink = Netlink::open().unwrap();
        netlink.execute(rule::add(ip("10.1.0.2"), 66, 4)).unwrap();
        let rules = netlink.policy_rules(true).unwrap();
        let found = rules.iter().find(|rule| rule.action == RuleAction::Table(66)).unwrap();
        assert_eq!(found.from, Some("10.1.0.2/32".parse().unwrap()));
        assert!(!found.more && found.mark.is_none() && found.input.is_none(), "{found:?}");
        assert_eq!(rules.first().map(|rule| rule.action), Some(RuleAction::Table(255)));
        let lo = netlink.link("lo").unwrap();
        up(&mut netlink, &lo);
        let routes = netlink.routes_of_all_kinds(true).unwrap();
        assert!(routes.iter().any(|of| of.kind == RouteKind::Local && of.table == 255), "{routes:?}");
    });
}

#[test]
fn a_host_end_is_proven_by_the_number_of_its_namespace() {
    in_netns("a_host_end_is_proven_by_the_number_of_its_namespace", || {
        let (pod, stranger) = (other_netns(), other_netns());
        let mut netlink = Netlink::open().unwrap();
        assert_eq!(netlink.number_of(&pod).unwrap(), None, "no link leads there");
        let end = veth(&mut netlink, "v0", "e0", &pod);
        assert_eq!(netlink.number_of(&pod).unwrap(), netlink.link("v0").unwrap().peer_netnsid);
        assert_eq!(netlink.number_of(&stranger).unwrap(), None);
        let other = veth(&mut netlink, "v1", "e0", &stranger);
        assert_ne!(netlink.number_of(&pod).unwrap(), netlink.number_of(&stranger).unwrap());
        assert_ne!(end.index, other.index);
    });
}

#[test]
fn states_of_ports_and_neighbours_are_told() {
    in_netns("states_of_ports_and_neighbours_are_told", || {
        let pod = other_netns();
        let mut netlink = Netlink::open().unwrap();
        let bridge = bridge(&mut netlink, "br0");
        let new = NewVeth { master: Some(bridge.index), ..plain_veth("v0", "e0", &pod) };
        let port = netlink.create_link(add_veth(&new)).unwrap();
        assert_eq!(netlink.link_at(port.index).unwrap().frames.unwrap().state, PortState::Disabled);
        assert_eq!(netlink.link_at(bridge.index).unwrap().frames, None);
        let mut inside = Netlink::open_in(&pod).unwrap();
        let e0 = inside.link("e0").unwrap();
        up(&mut inside, &e0);
        up(&mut netlink, &bridge);
        up(&mut netlink, &port);
        let end = Instant::now() + Duration::from_secs(10);
        while netlink.link_at(port.index).unwrap().frames.unwrap().state != PortState::Forwarding {
            assert!(Instant::now() < end, "the port doesn't forward");
        }
        let mac = Mac::random();
        netlink.execute(add_permanent(bridge.index, "br0", ip("10.1.0.2"), mac)).unwrap();
        let mut resolution = |text: &str| netlink.resolution(bridge.index, ip(text)).unwrap();
        assert_eq!(resolution("10.1.0.2"), Some(Resolution::Permanent(mac)));
        assert_eq!(resolution("10.1.0.3"), None);
    });
}

/// A namespace and its pod at 10.1.0.1 and 10.1.0.2.
fn pair() -> (NetNs, Link, Link) {
    let pod = other_netns();
    let mut netlink = Netlink::open().unwrap();
    let link = veth(&mut netlink, "v0", "e0", &pod);
    let mut inside = Netlink::open_in(&pod).unwrap();
    let e0 = inside.link("e0").unwrap();
    inside.execute(addr::add(e0.index, "e0", "10.1.0.2/24".parse().unwrap())).unwrap();
    netlink.execute(addr::add(link.index, "v0", "10.1.0.1/24".parse().unwrap())).unwrap();
    up(&mut inside, &e0);
    up(&mut netlink, &link);
    (pod, link, e0)
}

/// A SYN with this sequence number, and no checksum that counts.
fn syn(number: u32) -> Vec<u8> {
    let mut bytes = vec![0xee, 0x48, 0, 80];
    bytes.extend(number.to_be_bytes());
    bytes.extend([0, 0, 0, 0, 0x50, 2, 0xff, 0xff, 0, 0, 0, 0]);
    bytes
}

#[test]
fn a_capture_sees_the_packet_alone_and_a_trace_the_rule_that_drops_it() {
    in_netns("a_capture_sees_the_packet_alone_and_a_trace_the_rule_that_drops_it", || {
        let (pod, link, e0) = pair();
        let mut rules = Nft::new();
        let table = Table::new(Family::Inet, "own");
        let mut batch = Batch::new();
        batch.create_table(table);
        let chain = table.chain("input");
        batch.create_base_chain(chain, Hook { kind: "filter", hook: HookPoint::Input, priority: 0 });
        let tcp = [Expr::meta(Meta::L4proto, REG1), Expr::equal(REG1, &[6]), Expr::verdict(Verdict::Drop)];
        batch.add_rule(chain, &tcp, "");
        rules.commit(&batch).unwrap();
        let handle = rules.rules(table, Some("input")).unwrap()[0].handle;

        let mut monitor = TraceMonitor::open().unwrap();
        let mut tracer = Nft::open_here().unwrap();
        let load = Expr::payload(crate::nft::Header::Transport, 4, 4, REG1);
        let condition = vec![
            Expr::meta(Meta::L4proto, REG1),
            Expr::equal(REG1, &[6]),
            load,
            Expr::equal(REG1, &[0, 0, 0, 7]),
        ];
        tracer.trace_packets("test-trace", &[condition]).unwrap();
        assert!(rules.has_table(Table::new(Family::Inet, "test-trace")).unwrap());

        let outside = Socket::open(SocketPurpose::Ip(Pattern::Tcp(7)), link.index).unwrap();
        let inside =
            pod.enter(|| Socket::open(SocketPurpose::Ip(Pattern::Tcp(7)), e0.index)).unwrap().unwrap();
        let raw = pod.enter(|| RawSocket::open(Transport::Tcp, true)).unwrap().unwrap();
        raw.send(&syn(8), ip("10.1.0.1")).unwrap();
        raw.send(&syn(7), ip("10.1.0.1")).unwrap();

        let mut buffer = [0; 256];
        let end = Instant::now() + Duration::from_secs(10);
        let mut steps = Vec::new();
        while !steps.iter().any(|step: &crate::nft::TraceStep| step.dropped) {
            assert!(Instant::now() < end, "{steps:?}");
            steps.extend(monitor.read().unwrap());
        }
        let dropped: Vec<_> = steps.iter().filter(|step| step.dropped).collect();
        assert_eq!(dropped.len(), 1, "{steps:?}");
        assert_eq!((&*dropped[0].table, &*dropped[0].chain, dropped[0].rule), ("own", "input", Some(handle)));
        for (socket, expected) in [(&outside, Direction::Received), (&inside, Direction::Sent)] {
            let mut seen = Vec::new();
            while let Some((direction, packet)) = socket.capture(&mut buffer).unwrap() {
                // The pattern takes ICMPv6, too, and the kernel reports its own multicast groups by it.
                if packet[0] >> 4 == 4 {
                    seen.push((direction, packet[24..28].to_vec()));
                }
            }
            assert_eq!(seen, [(expected, vec![0, 0, 0, 7])], "only one packet has the number");
        }
        let hooks = rules.hooked_chains().unwrap();
        assert!(hooks.iter().any(|of| of.hook == HookPoint::Input && of.chain.table == "own"), "{hooks:?}");
        drop(tracer);
        assert!(!rules.has_table(Table::new(Family::Inet, "test-trace")).unwrap(), "it goes with its socket");
    });
}
