use nix::errno::Errno;

use super::{other_netns, veth};
use crate::addr::{Addr, add, add_probed, del};
use crate::link::{Change, set};
use crate::testing::{in_netns, json};
use crate::{NetNs, Netlink, sysctl};

#[test]
fn both_families_without_waiting() {
    in_netns("both_families_without_waiting", || {
        let here = NetNs::current().unwrap();
        // One probe each second: still at it when we look.
        sysctl::write("net/ipv6/conf/default/dad_transmits", "100").unwrap();
        let mut netlink = Netlink::open().unwrap();
        let link = veth(&mut netlink, "v0", "v1", &here);
        let up = Change { up: Some(true), ..Change::default() };
        let four = "10.1.2.3/24".parse().unwrap();
        let six = "fd00::2/64".parse().unwrap();
        let checked = "fd00::3/64".parse().unwrap();
        netlink
            .execute_all(vec![
                set(link.index, "v0", &up),
                set(link.peer.unwrap(), "v1", &up),
                add(link.index, "v0", four),
                add(link.index, "v0", six),
                add_probed(link.index, "v0", checked),
            ])
            .unwrap();
        let addrs = netlink.addrs(link.index).unwrap();
        let find = |net| addrs.iter().find(|addr| addr.net == net).unwrap().clone();
        assert_eq!(
            find(four),
            Addr { net: four, tentative: false, duplicate: false, scope: 0, permanent: true }
        );
        assert_eq!(
            find(six),
            Addr { net: six, tentative: false, duplicate: false, scope: 0, permanent: true }
        );
        assert!(find(checked).tentative, "duplicate address detection takes its time");

        if let Some(shown) = json("both_families", "ip -j -4 address show v0") {
            let info = &shown[0]["addr_info"];
            assert_eq!(info.as_array().unwrap().len(), 1);
            assert_eq!((&info[0]["local"], &info[0]["prefixlen"]), (&"10.1.2.3".into(), &24.into()));
            assert_eq!(info[0]["broadcast"], "10.1.2.255", "{info}");
        }
    });
}

#[test]
fn adding_and_deleting_twice() {
    in_netns("adding_and_deleting_twice", || {
        let pod = other_netns();
        let mut netlink = Netlink::open().unwrap();
        let link = veth(&mut netlink, "v0", "v1", &pod);
        for net in ["10.0.0.2/24", "10.0.0.9/32", "fd00::2/64", "fd00::9/128"] {
            let net = net.parse().unwrap();
            netlink.execute(add(link.index, "v0", net)).unwrap();
            let err = netlink.execute(add(link.index, "v0", net)).unwrap_err();
            assert!(err.is(Errno::EEXIST), "{err}");
            assert!(err.to_string().starts_with(&format!("add address {net} to v0: ")), "{err}");
            netlink.execute(del(link.index, "v0", net)).unwrap();
            let err = netlink.execute(del(link.index, "v0", net)).unwrap_err();
            assert!(err.is(Errno::EADDRNOTAVAIL) && err.is_missing(), "{err}");
        }
        assert_eq!(netlink.addrs(link.index).unwrap(), []);
        let err = netlink.execute(add(99, "v9", "10.0.0.2/24".parse().unwrap())).unwrap_err();
        assert!(err.is(Errno::ENODEV), "{err}");
    });
}

#[test]
fn lists_one_link_of_many() {
    in_netns("lists_one_link_of_many", || {
        let pod = other_netns();
        let mut netlink = Netlink::open().unwrap();
        let mut links = Vec::new();
        for number in 0..50 {
            let (name, peer) = (format!("v{number}"), format!("e{number}"));
            let link = veth(&mut netlink, &name, &peer, &pod);
            let net = format!("10.0.{number}.1/24").parse().unwrap();
            netlink.execute(add_probed(link.index, &name, net)).unwrap();
            links.push((link.index, net));
        }
        for (index, net) in links {
            let addrs = netlink.addrs(index).unwrap();
            assert_eq!(addrs, [Addr { net, tentative: false, duplicate: false, scope: 0, permanent: true }]);
        }
        let gone = netlink.addrs(4711).unwrap_err();
        assert!(gone.is(Errno::ENODEV), "{gone}");
    });
}
