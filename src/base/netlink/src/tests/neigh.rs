use std::net::IpAddr;

use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::neighbour::{NeighbourAttribute, NeighbourState};

use super::{other_netns, veth};
use crate::link::{Change, Mac, set};
use crate::neigh::entry;
use crate::request::Mode;
use crate::testing::in_netns;
use crate::{Netlink, Request};

/// `ip neighbour replace IP lladdr MAC dev LINK nud permanent`
pub(super) fn add_permanent(index: u32, link: &str, ip: IpAddr, mac: Mac) -> Request {
    let mut message = entry(index, ip);
    message.header.state = NeighbourState::Permanent;
    message.attributes.push(NeighbourAttribute::LinkLayerAddress(mac.to_vec()));
    let what = format!("add neighbour {ip} at {mac} to {link}");
    Request::new(what, Mode::Replace, RouteNetlinkMessage::NewNeighbour(message))
}

#[test]
fn permanent_neighbours() {
    in_netns("permanent_neighbours", || {
        let pod = other_netns();
        let mut netlink = Netlink::open().unwrap();
        let up = Change { up: Some(true), ..Change::default() };
        let (one, two) = (veth(&mut netlink, "v0", "e0", &pod), veth(&mut netlink, "v1", "e1", &pod));
        let mac = Mac::random();
        let four: IpAddr = "10.0.0.1".parse().unwrap();
        let six: IpAddr = "fd00::1".parse().unwrap();
        netlink
            .execute_all(vec![
                set(one.index, "v0", &up),
                set(two.index, "v1", &up),
                add_permanent(one.index, "v0", four, Mac::random()),
                add_permanent(one.index, "v0", four, mac),
                add_permanent(one.index, "v0", six, mac),
                add_permanent(two.index, "v1", four, Mac::random()),
            ])
            .unwrap();
        let mut found = netlink.neighbours(one.index).unwrap();
        found.sort();
        assert_eq!(found, [(four, mac), (six, mac)]);
        let err = netlink.execute(add_permanent(99, "v9", four, mac)).unwrap_err();
        assert!(err.is_missing(), "{err}");
        assert!(err.to_string().starts_with("add neighbour 10.0.0.1 at "), "{err}");
    });
}
