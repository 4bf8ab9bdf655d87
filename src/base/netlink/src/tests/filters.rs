//! That the kernel does the filtering: on a node with many pods, look-ups should not read
//! about all of them.

use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};

use super::{bridge, other_netns, plain_veth};
use crate::link::{Change, Filter, Mac, NewVeth, add_veth, set};
use crate::testing::in_netns;
use crate::{Netlink, addr, link, neigh, route_read};

/// How many messages the kernel answers with.
fn messages(netlink: &mut Netlink, query: RouteNetlinkMessage) -> usize {
    netlink.dump("count", query, |_| Ok(Some(()))).unwrap().len()
}

#[test]
fn the_kernel_sends_only_what_is_asked_for() {
    in_netns("the_kernel_sends_only_what_is_asked_for", || {
        let pod = other_netns();
        let mut netlink = Netlink::open().unwrap();
        let (one, two) = (bridge(&mut netlink, "br1"), bridge(&mut netlink, "br2"));
        let mut last = 0;
        for number in 0..30 {
            let (name, peer) = (format!("v{number}"), format!("e{number}"));
            let master = if number < 3 { one.index } else { two.index };
            let veth = NewVeth { master: Some(master), up: true, ..plain_veth(&name, &peer, &pod) };
            last = netlink.create_link(add_veth(&veth)).unwrap().index;
            let net = format!("10.0.{number}.1/24").parse().unwrap();
            let neighbour = format!("10.0.{number}.2").parse().unwrap();
            netlink
                .execute_all(vec![
                    addr::add(last, &name, net),
                    super::neigh::add_permanent(last, &name, neighbour, Mac::random()),
                ])
                .unwrap();
        }
        let up = Change { up: Some(true), ..Change::default() };
        netlink.execute(set(one.index, "br1", &up)).unwrap();

        let ports = Filter { master: Some(one.index), kind: None };
        assert_eq!(messages(&mut netlink, link::read::query(&ports)), 3);
        let bridges = Filter { master: None, kind: Some("bridge") };
        assert_eq!(messages(&mut netlink, link::read::query(&bridges)), 2);
        assert_eq!(messages(&mut netlink, addr::query(last)), netlink.addrs(last).unwrap().len());
        let neighbours = messages(&mut netlink, neigh::query(last));
        assert!(neighbours < 10, "{neighbours} neighbours of one link");
        let routes =
            route_read::query(AddressFamily::Inet, &route_read::RouteSelector { index: last, table: 254 });
        assert_eq!(messages(&mut netlink, routes), 1);
    });
}
