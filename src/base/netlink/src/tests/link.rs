use std::os::fd::AsFd;

use netlink_packet_route::RouteNetlinkMessage;
use nix::errno::Errno;
use rtnetlink::LinkBridge;

use super::{bridge, other_netns, plain_veth, veth};
use crate::link::{Change, Filter, Mac, NewBridge, NewVeth, add_bridge, add_veth};
use crate::link::{del, set, set_vlan_filtering};
use crate::testing::{in_netns, json};
use crate::{Netlink, Request, link::Link};

#[test]
fn veth_in_one_message() {
    in_netns("veth_in_one_message", || {
        let pod = other_netns();
        let mut netlink = Netlink::open().unwrap();
        let bridge = bridge(&mut netlink, "br0");
        let (mac, peer_mac) = (Mac::random(), Mac::random());
        let link = netlink
            .create_link(add_veth(&NewVeth {
                mac: Some(mac),
                master: Some(bridge.index),
                up: true,
                mtu: Some(1400),
                peer_mac: Some(peer_mac),
                ..plain_veth("veth0123abcd", "eth0", &pod)
            }))
            .unwrap();
        assert_eq!(
            link,
            Link {
                index: link.index,
                name: "veth0123abcd".to_owned(),
                kind: "veth".to_owned(),
                mac: Some(mac),
                mtu: 1400,
                up: true,
                promisc: false,
                oper_up: false,
                carrier: false,
                master: Some(bridge.index),
                settings: None,
                peer: link.peer,
                peer_netnsid: Some(0),
                alias: String::new(),
                port: None,
                frames: None,
                vlan_filtering: false,
                allmulti: false,
                txqlen: 1000,
                group: 0,
                // By the machine's own setting.
                forwards: link.forwards,
                accept_ra: Some(1),
                disable_ipv6: Some(false),
            }
        );

        let mut inside = Netlink::open_in(&pod).unwrap();
        let peer = inside.link("eth0").unwrap();
        assert!(link.forwards.is_some());
        assert_eq!(link.peer, Some(peer.index));
        assert_eq!(peer.peer, Some(link.index));
        assert_eq!((peer.mac, peer.mtu, peer.up), (Some(peer_mac), 1400, false));
        assert!(netlink.find_link("eth0").unwrap().is_none());

        // The look-up agrees with the echo, and knows the port.
        let looked_up = netlink.link_at(link.index).unwrap();
        assert_eq!(looked_up, netlink.link("veth0123abcd").unwrap());
        assert_eq!(looked_up.port, Some(crate::port::Port::default()));
        assert_eq!(Link { port: None, frames: None, ..looked_up }, link);
    });
}

#[test]
fn same_index_in_both_namespaces() {
    in_netns("same_index_in_both_namespaces", || {
        let pod = other_netns();
        let mut netlink = Netlink::open().unwrap();
        let link = veth(&mut netlink, "a", "b", &pod);
        let peer = Netlink::open_in(&pod).unwrap().link("b").unwrap();
        assert_eq!(link.index, peer.index, "fresh namespaces count alike");
        assert_eq!(link.peer, Some(peer.index));
    });
}

#[test]
fn bridge_keeps_its_mac() {
    in_netns("bridge_keeps_its_mac", || {
        let pod = other_netns();
        let mut netlink = Netlink::open().unwrap();
        let mac = Mac([2, 0xff, 0, 0, 0, 1]);
        let new = NewBridge { name: "br0", mtu: Some(1450), mac, vlan_filtering: false, group: None };
        let made = netlink.create_link(add_bridge(&new)).unwrap();
        assert_eq!((made.kind.as_str(), made.mac, made.mtu, made.up), ("bridge", Some(mac), 1450, false));
        // A bridge without an address of its own takes the lowest of its ports'.
        let low = NewVeth {
            mac: Some(Mac([2, 0, 0, 0, 0, 1])),
            master: Some(made.index),
            ..plain_veth("port", "eth0", &pod)
        };
        let port = netlink.create_link(add_veth(&low)).unwrap();
        assert_eq!(netlink.link("br0").unwrap().mac, Some(mac));
        netlink.execute(del(port.index, "port")).unwrap();
        assert_eq!(netlink.link("br0").unwrap().mac, Some(mac));
    });
}

#[test]
fn a_link_is_moved_named_and_marked_by_one_message_and_moved_also_where_its_name_is_taken() {
    in_netns("moved", || {
        let (pod, peers) = (other_netns(), other_netns());
        let (mut here, mut there) = (Netlink::open().unwrap(), Netlink::open_in(&pod).unwrap());
        let into = |name| Change {
            netns: Some(pod.as_fd()),
            name: Some(name),
            alias: Some("v0"),
            up: Some(true),
            ..Change::default()
        };
        let link = veth(&mut here, "v0", "p0", &peers);
        here.execute(set(link.index, "v0", &into("eth0"))).unwrap();
        assert_eq!(here.find_link("v0").unwrap(), None);
        let moved = there.link("eth0").unwrap();
        assert_eq!((moved.mac, moved.alias.as_str(), moved.up), (link.mac, "v0", true));
        // The name is taken there, but not that which it has here.
        let second = veth(&mut here, "v1", "p1", &peers);
        assert!(here.execute(set(second.index, "v1", &into("eth0"))).unwrap_err().is(Errno::EEXIST));
        assert_eq!(there.link("v1").unwrap().mac, second.mac);
        // Both are: it stays.
        let third = veth(&mut here, "v1", "p2", &peers);
        assert!(here.execute(set(third.index, "v1", &into("eth0"))).unwrap_err().is(Errno::EEXIST));
        assert_eq!(here.link("v1").unwrap().mac, third.mac);
        // That which it has here is: it gets the other one at once.
        here.execute(set(third.index, "v1", &into("eth1"))).unwrap();
        assert_eq!(there.link("eth1").unwrap().mac, third.mac);
        // Its number is what is asked for, but on older kernels.
        let fourth = veth(&mut here, "v2", "p3", &peers);
        here.execute(set(fourth.index, "v2", &Change { index: Some(77), ..into("eth2") })).unwrap();
        assert!([77, fourth.index].contains(&there.link("eth2").unwrap().index));
    });
}

#[test]
fn every_change() {
    in_netns("every_change", || {
        let pod = other_netns();
        let mut netlink = Netlink::open().unwrap();
        let bridge = bridge(&mut netlink, "br0");
        let link = veth(&mut netlink, "v0", "eth0", &pod);
        let mac = Mac::random();
        let change = Change {
            up: Some(true),
            mtu: Some(1300),
            mac: Some(mac),
            name: Some("v1"),
            alias: Some("pod web-0"),
            master: Some(bridge.index),
            netns: None,
            index: None,
            promisc: Some(true),
            allmulti: Some(true),
            txqlen: Some(7),
            addrgenmode_none: true,
            group: Some(77),
        };
        netlink.execute(set(link.index, "v0", &change)).unwrap();
        let changed = netlink.link("v1").unwrap();
        assert_eq!((changed.index, changed.mtu, changed.mac), (link.index, 1300, Some(mac)));
        assert_eq!((changed.up, changed.promisc, changed.master), (true, true, Some(bridge.index)));
        assert_eq!((changed.alias.as_str(), changed.group), ("pod web-0", 77));
        if let Some(shown) = json("every_change", "ip -d -j link show v1") {
            assert_eq!(shown[0]["txqlen"], 7);
            assert_eq!(shown[0]["inet6_addr_gen_mode"], "none");
            assert!(shown[0]["flags"].as_array().unwrap().contains(&"ALLMULTI".into()));
        }
        // Back again, and what isn't named stays.
        let back = Change {
            up: Some(false),
            master: Some(0),
            promisc: Some(false),
            allmulti: Some(false),
            ..Change::default()
        };
        netlink.execute(set(link.index, "v1", &back)).unwrap();
        let changed = netlink.link("v1").unwrap();
        assert_eq!((changed.up, changed.promisc, changed.master), (false, false, None));
        assert_eq!((changed.mtu, changed.mac), (1300, Some(mac)));
    });
}

#[test]
fn errors_have_operation_object_and_reason() {
    in_netns("errors_have_operation_object_and_reason", || {
        let pod = other_netns();
        let mut netlink = Netlink::open().unwrap();
        let first = veth(&mut netlink, "v0", "eth0", &pod);
        let again = netlink.create_link(add_veth(&plain_veth("v0", "eth1", &pod))).unwrap_err();
        assert!(again.is(Errno::EEXIST), "{again}");
        assert_eq!(again.to_string(), "add veth v0: File exists");
        let taken = netlink.create_link(add_veth(&plain_veth("v1", "eth0", &pod))).unwrap_err();
        assert!(taken.is(Errno::EEXIST), "{taken}");
        assert!(netlink.find_link("v1").unwrap().is_none(), "half a pair is left");

        // In the kernel's own words.
        let up = Change { mtu: Some(10), ..Change::default() };
        let err = netlink.execute(set(first.index, "v0", &up)).unwrap_err();
        assert_eq!(err.to_string(), "set link v0 mtu 10: Invalid argument (mtu less than device minimum)");

        let gone = netlink.execute(del(999, "v9")).unwrap_err();
        assert!(gone.is(Errno::ENODEV) && gone.is_missing(), "{gone}");
        assert!(netlink.link_at(999).unwrap_err().is(Errno::ENODEV));
        assert_eq!(netlink.link("v9").unwrap_err().to_string(), "look up link v9: No such device");

        // A kernel may lack it, but never answers with success and no change.
        let bridge = bridge(&mut netlink, "br0");
        let filtering =
            netlink.execute(set_vlan_filtering(bridge.index, "br0", crate::link::VlanFiltering::On));
        assert_eq!(filtering.is_ok(), netlink.link("br0").unwrap().vlan_filtering);
    });
}

#[test]
fn names_that_no_link_can_have() {
    in_netns("names_that_no_link_can_have", || {
        let pod = other_netns();
        let mut netlink = Netlink::open().unwrap();
        let long = "x".repeat(70_000);
        for name in ["", ".", "..", "a b", "a/b", "a:b", "eth0\0x", "sixteen-bytes-xx", &long] {
            for veth in [plain_veth(name, "ok", &pod), plain_veth("ok", name, &pod)] {
                let err = netlink.create_link(add_veth(&veth)).unwrap_err();
                assert!(err.is(Errno::EINVAL), "{name:.20}: {err:.100}");
            }
            assert!(netlink.find_link(name).unwrap().is_none(), "{name:.20}");
            let rename = Change { name: Some(name), ..Change::default() };
            assert!(netlink.execute(set(1, "lo", &rename)).is_err(), "{name:.20}");
        }
        let lo = netlink.link("lo").unwrap();
        let change = Change { alias: Some(&long), ..Change::default() };
        assert!(netlink.execute(set(lo.index, "lo", &change)).unwrap_err().is(Errno::EINVAL));
        assert_eq!(netlink.links(&Filter::default()).unwrap().len(), 1);
    });
}

#[test]
fn lists_only_what_is_asked_for() {
    in_netns("lists_only_what_is_asked_for", || {
        let pod = other_netns();
        let mut netlink = Netlink::open().unwrap();
        let (one, two) = (bridge(&mut netlink, "br1"), bridge(&mut netlink, "br2"));
        for number in 0..50 {
            let (name, peer) = (format!("v{number}"), format!("e{number}"));
            let master = if number % 10 == 0 { one.index } else { two.index };
            let veth = NewVeth { master: Some(master), ..plain_veth(&name, &peer, &pod) };
            netlink.create_link(add_veth(&veth)).unwrap();
        }
        let names = |netlink: &mut Netlink, filter: Filter<'_>| {
            let mut names: Vec<_> =
                netlink.links(&filter).unwrap().into_iter().map(|link| link.name).collect();
            names.sort();
            names
        };
        let ports = Filter { master: Some(one.index), kind: None };
        assert_eq!(names(&mut netlink, ports), ["v0", "v10", "v20", "v30", "v40"]);
        let bridges = Filter { master: None, kind: Some("bridge") };
        assert_eq!(names(&mut netlink, bridges), ["br1", "br2"]);
        let veths = Filter { master: Some(two.index), kind: Some("veth") };
        assert_eq!(names(&mut netlink, veths).len(), 45);
        let unknown = Filter { master: None, kind: Some("nosuchkind") };
        assert_eq!(names(&mut netlink, unknown), [""; 0]);
        assert_eq!(names(&mut netlink, Filter::default()).len(), 53);
    });
}

#[test]
fn many_links_are_removed_at_once_and_no_others() {
    in_netns("many_links_are_removed_at_once_and_no_others", || {
        let mut netlink = Netlink::open().unwrap();
        let names: Vec<String> = (0..9).map(|n| format!("br{n}")).collect();
        let links: Vec<Link> = names.iter().map(|name| bridge(&mut netlink, name)).collect();
        // Of a group that somebody has given.
        let five = Change { group: Some(5), ..Change::default() };
        netlink.execute(set(links[7].index, "br7", &five)).unwrap();
        // One has gone meanwhile.
        netlink.execute(del(links[2].index, "br2")).unwrap();
        let before = netlink.socket.take_numbers(0);
        netlink.remove_links(&links[..7]).unwrap();
        // Each one's group, the members, one removal.
        assert_eq!(netlink.socket.take_numbers(0) - before, 1 + 7 + 1);
        let left = netlink.links(&Filter { master: None, kind: Some("bridge") }).unwrap();
        assert_eq!(left.iter().map(|link| link.name.as_str()).collect::<Vec<_>>(), ["br7", "br8"]);
        // All have gone; there is none at all.
        netlink.remove_links(&links[..7]).unwrap();
        netlink.remove_links(&[]).unwrap();
        netlink.remove_links(&links[7..8]).unwrap();
        assert!(netlink.find_link("br7").unwrap().is_none() && netlink.find_link("br8").unwrap().is_some());
    });
}

#[test]
fn a_link_with_the_index_of_one_that_is_gone_stays() {
    in_netns("a_link_with_the_index_of_one_that_is_gone_stays", || {
        let mut netlink = Netlink::open().unwrap();
        let links: Vec<Link> = ["br0", "br1", "br2"].map(|name| bridge(&mut netlink, name)).into();
        for link in &links {
            let change = Change { alias: Some("dead"), ..Change::default() };
            netlink.execute(set(link.index, &link.name, &change)).unwrap();
        }
        let listed = netlink.links(&Filter { master: None, kind: Some("bridge") }).unwrap();
        // Between the list and the removal, another takes the place of one.
        let index = listed[1].index;
        netlink.execute(del(index, "br1")).unwrap();
        let mut other = LinkBridge::new("other").build();
        other.header.index = index;
        netlink
            .create_link(Request::new(
                "other".into(),
                crate::request::Mode::CreateEchoed,
                RouteNetlinkMessage::NewLink(other),
            ))
            .unwrap();
        netlink.remove_links(&listed).unwrap();
        let left = netlink.links(&Filter::default()).unwrap();
        let left: Vec<_> = left.iter().map(|link| (link.name.as_str(), link.group)).collect();
        assert_eq!(left, [("lo", 0), ("other", 0)]);
        assert_eq!(netlink.link("other").unwrap().index, index);
        // All of them are others.
        let alone = [listed[1].clone(), listed[1].clone()];
        netlink.remove_links(&alone).unwrap();
        assert!(netlink.find_link("other").unwrap().is_some());
    });
}

#[test]
fn a_link_that_is_gone_cant_be_removed() {
    in_netns("a_link_that_is_gone_cant_be_removed", || {
        let mut netlink = Netlink::open().unwrap();
        let link = bridge(&mut netlink, "br0");
        netlink.remove_link(link.index, "br0").unwrap();
        assert!(netlink.remove_link(link.index, "br0").unwrap_err().is(Errno::ENODEV));
    });
}
