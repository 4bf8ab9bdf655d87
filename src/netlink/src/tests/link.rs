use nix::errno::Errno;

use super::{bridge, other_netns, plain_veth, veth};
use crate::link::{Change, Filter, Mac, NewBridge, NewVeth, add_bridge, add_veth};
use crate::link::{del, set, set_vlan_filtering};
use crate::testing::{in_netns, json};
use crate::{Netlink, link::Link};

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
                master: Some(bridge.index),
                peer: link.peer,
                far: Some(0),
                alias: String::new(),
                port: None,
                vlan_filtering: false,
                allmulti: false,
                txqlen: 1000,
                accept_ra: Some(1),
            }
        );

        let mut inside = Netlink::open_in(&pod).unwrap();
        let peer = inside.link("eth0").unwrap();
        assert_eq!(link.peer, Some(peer.index));
        assert_eq!(peer.peer, Some(link.index));
        assert_eq!((peer.mac, peer.mtu, peer.up), (Some(peer_mac), 1400, false));
        assert!(netlink.find_link("eth0").unwrap().is_none());

        // The look-up agrees with the echo, and knows the port.
        let looked_up = netlink.link_at(link.index).unwrap();
        assert_eq!(looked_up, netlink.link("veth0123abcd").unwrap());
        assert_eq!(looked_up.port, Some(crate::port::Port::default()));
        assert_eq!(Link { port: None, ..looked_up }, link);
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
        let new = NewBridge { name: "br0", mtu: Some(1450), mac, vlan_filtering: false };
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
            promisc: Some(true),
            allmulti: Some(true),
            txqlen: Some(7),
            addrgenmode_none: true,
        };
        netlink.execute(set(link.index, "v0", &change)).unwrap();
        let changed = netlink.link("v1").unwrap();
        assert_eq!((changed.index, changed.mtu, changed.mac), (link.index, 1300, Some(mac)));
        assert_eq!((changed.up, changed.promisc, changed.master), (true, true, Some(bridge.index)));
        assert_eq!(changed.alias, "pod web-0");
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
        let filtering = netlink.execute(set_vlan_filtering(bridge.index, "br0", true));
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
