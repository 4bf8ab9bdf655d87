//! Notifications and counters of the kernel.

use std::os::fd::AsFd;

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use super::{bridge, other_netns, plain_veth};
use crate::link::{Change, add_veth, del, set};
use crate::monitor::{LinkMonitor, LinkNotice, RuleMonitor};
use crate::nft::{Batch, Element, Family, Key, KeyType, Nft, Table};
use crate::testing::in_netns;
use crate::{NetNs, Netlink};

/// Waits until there is something to read.
fn readable(monitor: &impl AsFd) {
    let mut fds = [PollFd::new(monitor.as_fd(), PollFlags::POLLIN)];
    assert_eq!(poll(&mut fds, PollTimeout::from(60_000_u16)).unwrap(), 1, "nothing was told");
}

#[test]
fn links_that_come_change_and_go_are_told() {
    in_netns("links_that_come_change_and_go_are_told", || {
        let mut monitor = LinkMonitor::open().unwrap();
        assert_eq!(monitor.read().unwrap(), []);
        let mut netlink = Netlink::open().unwrap();
        let pod = other_netns();
        let link = netlink.create_link(add_veth(&plain_veth("v0", "eth0", &pod))).unwrap();
        for up in [None, Some(true)] {
            let change = Change { alias: Some("whose it is"), up, ..Change::default() };
            netlink.execute(set(link.index, "v0", &change)).unwrap();
        }
        netlink.execute(del(link.index, "v0")).unwrap();
        let mut told = Vec::new();
        let gone = LinkNotice::Gone { index: link.index, alias: "whose it is".to_owned() };
        while told.last() != Some(&gone) {
            readable(&monitor);
            told.extend(monitor.read().unwrap());
        }
        let seen = |notice: &LinkNotice| matches!(notice, LinkNotice::Seen(seen) if seen.index == link.index);
        assert!(seen(&told[0]), "{told:?}");
        let named =
            |notice: &LinkNotice| matches!(notice, LinkNotice::Seen(seen) if seen.alias == "whose it is");
        assert!(told.iter().any(named), "{told:?}");
    });
}

#[test]
fn lost_notifications_are_told_once() {
    in_netns("lost_notifications_are_told_once", || {
        let mut monitor = LinkMonitor::open().unwrap();
        monitor.socket.shrink_receive_buffer();
        let mut netlink = Netlink::open().unwrap();
        let lo = netlink.link("lo").unwrap();
        netlink.execute(set(lo.index, "lo", &Change { up: Some(true), ..Change::default() })).unwrap();
        for number in 0..2000 {
            let alias = format!("flood {number}");
            let change = Change { alias: Some(&alias), ..Change::default() };
            netlink.execute(set(lo.index, "lo", &change)).unwrap();
        }
        let err = monitor.read().unwrap_err();
        assert!(err.is(Errno::ENOBUFS), "{err}");
        while !monitor.read().unwrap().is_empty() {}
        let change = Change { alias: Some("after it"), ..Change::default() };
        netlink.execute(set(lo.index, "lo", &change)).unwrap();
        readable(&monitor);
        let told = monitor.read().unwrap();
        assert!(matches!(&told[..], [LinkNotice::Seen(link)] if link.alias == "after it"), "{told:?}");
    });
}

#[test]
fn new_elements_are_told_by_their_comments() {
    in_netns("new_elements_are_told_by_their_comments", || {
        let mut nft = Nft::new();
        if !nft.is_supported().unwrap() {
            eprintln!("SKIP new_elements_are_told_by_their_comments: no nf_tables");
            return;
        }
        let mut monitor = RuleMonitor::open().unwrap();
        let table = Table::new(Family::Inet, "t");
        let mut batch = Batch::new();
        batch.create_table(table);
        batch.create_set(table.set("s"), &[KeyType::Ipv4Addr]);
        batch.add_element(table.set("s"), &Element::new(Key::ip([10, 0, 0, 1].into()), "whose it is"));
        nft.commit(&batch).unwrap();
        let mut told = Vec::new();
        while told.is_empty() {
            readable(&monitor);
            told = monitor.read().unwrap();
        }
        assert_eq!(told, ["whose it is"]);
    });
}

#[test]
fn what_one_end_has_sent_the_other_has_received() {
    in_netns("what_one_end_has_sent_the_other_has_received", || {
        let here = NetNs::current().unwrap();
        let mut netlink = Netlink::open().unwrap();
        bridge(&mut netlink, "br0");
        netlink.create_link(add_veth(&plain_veth("v0", "v1", &here))).unwrap();
        let index = |netlink: &mut Netlink, name: &str| netlink.link(name).unwrap().index;
        for name in ["v0", "v1"] {
            let up = Change { up: Some(true), ..Change::default() };
            let link = index(&mut netlink, name);
            netlink.execute(set(link, name, &up)).unwrap();
        }
        let (one, other) = (index(&mut netlink, "v0"), index(&mut netlink, "v1"));
        // IPv6 greets its neighbours as soon as a link is up.
        let end = std::time::Instant::now() + std::time::Duration::from_secs(60);
        loop {
            let all = netlink.counters().unwrap();
            let of = |index: u32| all.iter().find(|(other, _)| *other == index).unwrap().1;
            let (one, other) = (of(one).of_the_other_end(), of(other));
            if one.tx_packets > 0 && one == other {
                assert!(one.tx_bytes > one.tx_packets && one.rx_packets > 0, "{one:?}");
                break;
            }
            assert!(std::time::Instant::now() < end, "{one:?} {other:?}");
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
    });
}
