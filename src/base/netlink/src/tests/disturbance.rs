//! Changes of the host that can take something from pods, and those that can not.

use std::time::{Duration, Instant};

use super::{bridge, other_netns, plain_veth};
use crate::disturbance::Disturbances;
use crate::link::{Change, Mac, NewVeth, add_veth, set};
use crate::nft::{Batch, Element, Family, Key, KeyType, Nft, Table};
use crate::port::{self, Port};
use crate::tc::{qdisc, tbf};
use crate::testing::in_netns;
use crate::{Errno, Netlink, addr, sysctl};

const TABLE: Table<'static> = Table::new(Family::Inet, "cnimble");
const OWNER: &str = "0123456789abcdef-0123456789abcdef, net: n, if: eth0, id: one";

fn open() -> Disturbances {
    Disturbances::open(&["cnimble", "filter"], "cnimble").unwrap()
}

/// Reads until there is a disturbance, for a time.
fn disturbed(followed: &mut Disturbances) -> Option<String> {
    let end = Instant::now() + Duration::from_secs(60);
    while !followed.read().unwrap() {
        assert!(Instant::now() < end, "nothing was told");
        std::thread::sleep(Duration::from_millis(5));
    }
    followed.take_changes()
}

#[test]
fn a_port_that_loses_a_flag_is_a_disturbance_and_a_new_one_is_none() {
    in_netns("a_port_that_loses_a_flag_is_a_disturbance_and_a_new_one_is_none", || {
        let (mut netlink, pod) = (Netlink::open().unwrap(), other_netns());
        // As on a host with pods. A link that doesn't forward is a disturbance.
        for family in ["ipv4", "ipv6"] {
            sysctl::write(&format!("net/{family}/conf/default/forwarding"), "1").unwrap();
        }
        let master = bridge(&mut netlink, "br0");
        let mut followed = open();
        let link = netlink
            .create_link(add_veth(&NewVeth {
                master: Some(master.index),
                up: true,
                ..plain_veth("v0", "eth0", &pod)
            }))
            .unwrap();
        let flags = Port { hairpin: true, isolated: true, closed: true };
        netlink.execute(port::claim(link.index, "v0", flags, &Change::default())).unwrap();
        assert!(!followed.read().unwrap(), "{:?}", followed.take_changes());
        for less in [Port { hairpin: false, ..flags }, Port { isolated: false, ..flags }] {
            netlink.execute(port::set(link.index, "v0", less)).unwrap();
            assert!(disturbed(&mut followed).is_some(), "{less:?}");
            netlink.execute(port::set(link.index, "v0", flags)).unwrap();
            assert!(!followed.read().unwrap(), "{:?}", followed.take_changes());
        }
        netlink.execute(port::pass_frames(link.index, "v0")).unwrap();
        assert!(!followed.read().unwrap(), "{:?}", followed.take_changes());
        let frames = netlink.link("v0").unwrap().frames.unwrap();
        assert!(frames.learning && frames.flood, "{frames:?}");
    });
}

#[test]
fn another_mac_of_a_bridge_is_a_disturbance() {
    in_netns("another_mac_of_a_bridge_is_a_disturbance", || {
        let mut netlink = Netlink::open().unwrap();
        let link = bridge(&mut netlink, "br0");
        let mut followed = open();
        let mac = Some(Mac([2, 0, 0, 0, 0, 1]));
        netlink.execute(set(link.index, "br0", &Change { mac, ..Change::default() })).unwrap();
        assert!(disturbed(&mut followed).is_some());
        netlink.execute(set(link.index, "br0", &Change { mac, ..Change::default() })).unwrap();
        assert!(!followed.read().unwrap(), "{:?}", followed.take_changes());
    });
}

#[test]
fn a_limit_that_goes_with_its_link_is_no_disturbance() {
    in_netns("a_limit_that_goes_with_its_link_is_no_disturbance", || {
        let (mut netlink, pod) = (Netlink::open().unwrap(), other_netns());
        let link = netlink.create_link(add_veth(&plain_veth("v0", "eth0", &pod))).unwrap();
        let mut followed = open();
        let limit = tbf::Tbf::new(1_000_000, 100_000, 25);
        netlink.execute(tbf::add(link.index, "v0", &limit)).unwrap();
        assert!(!followed.read().unwrap(), "{:?}", followed.take_changes());
        netlink.execute(qdisc::del_root(link.index, "v0")).unwrap();
        assert!(disturbed(&mut followed).is_some());
        netlink.execute(tbf::add(link.index, "v0", &limit)).unwrap();
        netlink.execute(qdisc::del_root(link.index, "v0")).unwrap();
        netlink.remove_link(link.index, "v0").unwrap();
        assert!(!followed.read().unwrap(), "{:?}", followed.take_changes());
    });
}

#[test]
fn elements_that_go_with_their_link_are_no_disturbance() {
    const NAME: &str = "elements_that_go_with_their_link_are_no_disturbance";
    in_netns(NAME, || {
        let (mut netlink, mut nft, pod) = (Netlink::open().unwrap(), Nft::new(), other_netns());
        if !nft.is_supported().unwrap() {
            eprintln!("SKIP {NAME}: no nf_tables");
            return;
        }
        let link = netlink.create_link(add_veth(&plain_veth("v0", "eth0", &pod))).unwrap();
        let alias = Change { alias: Some(OWNER), ..Change::default() };
        netlink.execute(set(link.index, "v0", &alias)).unwrap();
        // The transactions of this very process are its own. Here they are those of another.
        let mut followed = open();
        let key = Key::ip([10, 0, 0, 1].into());
        let own = followed.take_changes();
        assert_eq!(own, None);
        let mut batch = Batch::new();
        batch.create_table(TABLE);
        batch.create_set(TABLE.set("s"), &[KeyType::Ipv4Addr]);
        batch.add_element(TABLE.set("s"), &Element::new(key.clone(), OWNER));
        nft.commit(&batch).unwrap();
        assert!(!followed.read().unwrap(), "an addition is none: {:?}", followed.take_changes());
        let by_another = |line: &str| {
            let mut words = line.split(' ');
            let status = std::process::Command::new(words.next().unwrap()).args(words).status();
            status.is_ok_and(|status| status.success())
        };
        if !by_another("nft delete element inet cnimble s { 10.0.0.1 }") {
            eprintln!("SKIP {NAME}: no nft");
            return;
        }
        assert!(followed.read().unwrap() && followed.may_be_a_removal());
        assert!(followed.take_changes().unwrap().contains("of packet rules by process nft ("));
        let mut again = Batch::new();
        again.add_element(TABLE.set("s"), &Element::new(key, OWNER));
        nft.commit(&again).unwrap();
        assert!(by_another("nft delete element inet cnimble s { 10.0.0.1 }"));
        assert!(followed.read().unwrap() && followed.may_be_a_removal());
        netlink.remove_link(link.index, "v0").unwrap();
        assert!(!followed.read().unwrap(), "{:?}", followed.take_changes());
        assert!(by_another("nft flush ruleset"));
        assert!(followed.read().unwrap() && !followed.may_be_a_removal());
    });
}

#[test]
fn a_bounded_socket_refuses_a_list_that_is_too_long() {
    in_netns("a_bounded_socket_refuses_a_list_that_is_too_long", || {
        let pod = other_netns();
        let mut inside = Netlink::open_in(&pod).unwrap();
        let lo = inside.link("lo").unwrap().index;
        let address = |number: u32| {
            let ip = std::net::Ipv6Addr::from(0xfd66_u128 << 112 | u128::from(number));
            addr::add(lo, "lo", ipnetwork::IpNetwork::new(ip.into(), 128).unwrap())
        };
        // Several datagrams of the kernel.
        inside.execute_all((1..=1000).map(address).collect()).unwrap();
        let mut bounded = Netlink::open_bounded(&pod).unwrap();
        bounded.longest = 1000;
        assert_eq!(bounded.addrs(lo).unwrap().len(), 1000);
        inside.execute(address(1001)).unwrap();
        let err = bounded.addrs(lo).unwrap_err();
        assert!(
            err.is(Errno::E2BIG) && err.to_string().ends_with("there are more than 1000 of them"),
            "{err}"
        );
        // The list is not read to its end, and so the socket has no other. A look-up has an answer.
        assert!(bounded.all_addrs().unwrap_err().is(Errno::E2BIG));
        for _ in 0..3 {
            assert_eq!(bounded.link("lo").unwrap().index, lo);
        }
        assert_eq!(inside.addrs(lo).unwrap().len(), 1001);
    });
}
