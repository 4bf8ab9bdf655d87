//! Against the real kernel, each test in a network namespace of its own.

use nix::errno::Errno;

use super::htb::{Bucket, Class};
use super::subnet::{End, SubnetFilter};
use super::tbf::Tbf;
use super::{htb, qdisc, redirect, subnet, tbf};
use crate::Netlink;
use crate::kind::{self, Kind, NewLink};
use crate::link::{Change, set};
use crate::testing::in_netns;

#[test]
fn a_token_bucket_is_read_as_it_was_set() {
    in_netns("tbf", || {
        let mut netlink = Netlink::open().unwrap();
        let lo = netlink.link("lo").unwrap();
        netlink.execute(set(lo.index, "lo", &Change { up: Some(true), ..Change::default() })).unwrap();
        assert!(netlink.knows_qdisc("tbf").unwrap() && !netlink.knows_qdisc("no-such").unwrap());
        let before = netlink.root_qdisc(lo.index).unwrap();
        assert!(before.is_none_or(|qdisc| qdisc.kind == "noqueue" && qdisc.tbf.is_none()));
        for limit in [Tbf::new(1_000_000, 100_000, 25), Tbf::new(5 << 32, 1 << 30, 25)] {
            netlink.execute(tbf::add(lo.index, "lo", &limit)).unwrap();
            let now = netlink.root_qdisc(lo.index).unwrap().unwrap();
            assert_eq!((now.kind.as_str(), now.tbf), ("tbf", Some(limit)));
            let again = netlink.execute(tbf::add(lo.index, "lo", &limit)).unwrap_err();
            assert!(again.is(Errno::EEXIST), "{again}");
            assert!(netlink.knows_qdisc("tbf").unwrap());
            netlink.execute(qdisc::del_root(lo.index, "lo")).unwrap();
        }
        assert!(netlink.execute(qdisc::del_root(lo.index, "lo")).is_err());
        assert!(netlink.root_qdisc(12345).unwrap_err().is(Errno::ENODEV));
        assert_eq!(netlink.ingress_qdisc(lo.index).unwrap(), None);
        netlink.execute(qdisc::add_ingress(lo.index, "lo")).unwrap();
        assert_eq!(netlink.ingress_qdisc(lo.index).unwrap().unwrap().kind, "ingress");
        netlink.execute(qdisc::del_ingress(lo.index, "lo")).unwrap();
    });
}

#[test]
fn classes_are_read_as_they_were_set() {
    in_netns("htb", || {
        let mut netlink = Netlink::open().unwrap();
        let lo = netlink.link("lo").unwrap().index;
        assert!(netlink.knows_qdisc("htb").unwrap());
        assert!(netlink.buckets(lo).unwrap().is_empty());
        for rest in [Class::Free, Class::Limited] {
            for limit in [Tbf::new(1000, 100_000, 25), Tbf::new(5 << 32, 1 << 30, 25)] {
                netlink.execute(htb::add(lo, "lo", rest)).unwrap();
                let root = netlink.root_qdisc(lo).unwrap().unwrap();
                assert_eq!((root.kind.as_str(), root.major, root.default_class), ("htb", 1, Some(rest)));
                netlink.execute_all(htb::classes(lo, "lo", &limit)).unwrap();
                let mut found = netlink.buckets(lo).unwrap();
                found.sort_by_key(|bucket| bucket.class.handle().0);
                let limited = Bucket { class: Class::Limited, rate: limit.rate, buffer: limit.buffer };
                let free = Bucket { class: Class::Free, rate: htb::UNCAPPED, buffer: htb::UNCAPPED_BUFFER };
                assert_eq!(found, [free, limited]);
                netlink.execute(qdisc::del_root(lo, "lo")).unwrap();
            }
        }
    });
}

#[test]
fn redirections_are_read_as_they_were_set() {
    in_netns("filter", || {
        let mut netlink = Netlink::open().unwrap();
        let lo = netlink.link("lo").unwrap().index;
        assert!(netlink.knows_kind(Kind::Ifb).unwrap());
        let new = NewLink { mtu: Some(1400), txqlen: Some(7), up: true, ..NewLink::new("b0", Kind::Ifb) };
        let made = netlink.create_link(kind::add(&new)).unwrap();
        assert_eq!((made.kind.as_str(), made.mtu, made.txqlen, made.up), ("ifb", 1400, 7, true));
        assert!(netlink.redirects(lo).unwrap().is_empty());
        assert!(netlink.execute(redirect::add(lo, "lo", made.index)).is_err());
        netlink.execute(qdisc::add_ingress(lo, "lo")).unwrap();
        assert!(netlink.redirects(lo).unwrap().is_empty());
        assert!(netlink.redirects_nowhere(lo).unwrap());
        netlink.execute(redirect::add(lo, "lo", made.index)).unwrap();
        assert_eq!(netlink.redirects(lo).unwrap(), [made.index]);
        assert!(!netlink.redirects_nowhere(lo).unwrap());
        assert!(netlink.redirects(made.index).unwrap().is_empty());
        assert!(netlink.execute(redirect::add(lo, "lo", 12345)).is_err());
        netlink.execute(crate::link::del(made.index, "b0")).unwrap();
        assert!(netlink.redirects_nowhere(lo).unwrap());
    });
}

#[test]
fn subnet_filters_are_read_as_they_were_set() {
    in_netns("subnet", || {
        let mut netlink = Netlink::open().unwrap();
        let lo = netlink.link("lo").unwrap().index;
        assert!(netlink.subnet_filters(lo).unwrap().is_empty());
        netlink.execute(htb::add(lo, "lo", Class::Limited)).unwrap();
        let tbf = Tbf::new(1_000_000, 100_000, 25);
        netlink.execute_all(htb::classes(lo, "lo", &tbf)).unwrap();
        assert!(netlink.subnet_filters(lo).unwrap().is_empty());
        let mut expected = Vec::new();
        for (subnet, end) in [
            ("fd00::/8", End::Source),
            ("fd00:1:2:3::/64", End::Destination),
            ("2001:db8::1/128", End::Source),
            ("2001:db8:8000::/33", End::Source),
            ("::/0", End::Destination),
            ("10.1.2.3/32", End::Source),
            ("10.128.0.0/9", End::Destination),
            ("0.0.0.0/0", End::Destination),
        ] {
            for class in [Class::Free, Class::Limited] {
                let filter = SubnetFilter::new(subnet.parse().unwrap(), end, class);
                netlink.execute(subnet::add(lo, "lo", &filter)).unwrap();
                expected.push(filter);
            }
        }
        assert_eq!(netlink.subnet_filters(lo).unwrap(), expected);
        // Host bits don't count.
        let bits = SubnetFilter::new("10.129.2.3/9".parse().unwrap(), End::Destination, Class::Free);
        assert!(expected.contains(&bits));
    });
}
