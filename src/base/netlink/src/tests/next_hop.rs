use std::collections::BTreeSet;
use std::net::IpAddr;
use std::process::Command;

use super::veth;
use crate::link::{Change, set};
use crate::next_hop::NextHop;
use crate::testing::in_netns;
use crate::{NetNs, Netlink, addr};

/// Runs `ip`; false, with SKIP, where it can't.
fn ip(arguments: &str) -> bool {
    let done = Command::new("ip").args(arguments.split(' ')).output();
    let failed = match done {
        Ok(output) if output.status.success() => return true,
        Ok(output) => String::from_utf8_lossy(&output.stderr).into_owned(),
        Err(err) => err.to_string(),
    };
    eprintln!("SKIP next_hop: ip {arguments}: {failed}");
    false
}

/// A link `v0` that is up and has addresses in both families.
fn host(netlink: &mut Netlink) -> u32 {
    let here = NetNs::current().unwrap();
    let link = veth(netlink, "v0", "v1", &here);
    let up = Change { up: Some(true), ..Change::default() };
    netlink
        .execute_all(vec![
            set(1, "lo", &up),
            set(link.index, "v0", &up),
            set(link.peer.unwrap(), "v1", &up),
            addr::add(link.index, "v0", "10.0.0.2/24".parse().unwrap()),
            addr::add(link.index, "v0", "fd00::2/64".parse().unwrap()),
        ])
        .unwrap();
    link.index
}

fn parsed(all: &[&str]) -> BTreeSet<IpAddr> {
    all.iter().map(|ip| ip.parse().unwrap()).collect()
}

#[test]
fn next_hops_are_those_of_all_tables_hops_and_objects() {
    in_netns("next_hops", || {
        let mut netlink = Netlink::open().unwrap();
        let index = host(&mut netlink);
        assert_eq!(netlink.next_hops().unwrap(), BTreeSet::new());
        let made = ip("route add default via 10.0.0.1 dev v0")
            && ip("route add 10.5.0.0/16 table 77 nexthop via 10.0.0.3 dev v0 nexthop via 10.0.0.4 dev v0")
            && ip("route add 10.6.0.0/16 via inet6 fd00::6 dev v0")
            && ip("-6 route add 2001:db8::/32 via fd00::1 dev v0");
        let mut wanted = parsed(&["10.0.0.1", "10.0.0.3", "10.0.0.4", "fd00::6", "fd00::1"]);
        if !made {
            return;
        }
        assert_eq!(netlink.next_hops().unwrap(), wanted);
        // A route names only the number of its object.
        std::fs::write("/proc/sys/net/ipv4/nexthop_compat_mode", "0").unwrap();
        if !(ip("nexthop add id 7 via 10.0.0.5 dev v0") && ip("route add 10.9.0.0/16 nhid 7")) {
            return;
        }
        wanted.extend(parsed(&["10.0.0.5"]));
        assert_eq!(netlink.next_hops().unwrap(), wanted);
        let object = NextHop { index, via: Some("10.0.0.5".parse().unwrap()) };
        assert_eq!(netlink.next_hop_objects().unwrap(), [object]);
    });
}

#[test]
fn a_look_up_tells_whose_an_address_is() {
    in_netns("a_look_up", || {
        let mut netlink = Netlink::open().unwrap();
        let index = host(&mut netlink);
        let mut towards = |ip: &str| netlink.route_towards(ip.parse().unwrap()).unwrap();
        // A worker of the kernel adds the local route of an IPv6 address.
        for _ in 0..1000 {
            if towards("fd00::2").is_some_and(|found| found.is_own()) {
                break;
            }
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
        for own in ["10.0.0.2", "fd00::2", "127.0.0.1"] {
            let found = towards(own).unwrap();
            assert!(found.is_own() && !found.is_on_link(), "{own}: {found:?}");
        }
        for neighbour in ["10.0.0.9", "fd00::9"] {
            let found = towards(neighbour).unwrap();
            assert!(found.is_on_link() && !found.is_own() && found.index == index, "{neighbour}: {found:?}");
        }
        let all = towards("10.0.0.255").unwrap();
        assert!(!all.is_own() && !all.is_on_link(), "a broadcast: {all:?}");
        assert_eq!((towards("192.0.2.1"), towards("2001:db8::1")), (None, None));
        if !(ip("route add default via 10.0.0.1 dev v0") && ip("route add prohibit 198.51.100.0/24")) {
            return;
        }
        let far = towards("192.0.2.1").unwrap();
        assert_eq!((far.via, far.is_on_link()), (Some("10.0.0.1".parse().unwrap()), false));
        assert_eq!(towards("198.51.100.1"), None);
    });
}

#[test]
fn rules_about_a_link_are_found_by_its_name() {
    in_netns("rules_about_a_link", || {
        let mut netlink = Netlink::open().unwrap();
        assert_eq!(netlink.rule_about("v0").unwrap(), None);
        if !(ip("rule add pref 60 iif v0 table 7") && ip("-6 rule add pref 50 oif v0 table 7")) {
            return;
        }
        assert_eq!(netlink.rule_about("v0").unwrap(), Some(50));
        assert_eq!(netlink.rule_about("v").unwrap(), None);
    });
}

#[test]
fn entries_tell_what_is_known_of_a_neighbour() {
    in_netns("entries", || {
        let mut netlink = Netlink::open().unwrap();
        let index = host(&mut netlink);
        let made = ip("neigh add 10.0.0.5 lladdr 02:00:00:00:00:05 dev v0 nud stale")
            && ip("neigh add 10.0.0.6 lladdr 02:00:00:00:00:06 dev v0 nud reachable")
            && ip("neigh add 10.0.0.7 lladdr 02:00:00:00:00:07 dev v0 nud permanent")
            && ip("neigh add 10.0.0.8 lladdr 02:00:00:00:00:08 dev v0 nud noarp")
            && ip("neigh add fd00::5 lladdr 02:00:00:00:00:05 router dev v0 nud stale");
        if !made {
            return;
        }
        let mut entry = |ip: &str| netlink.neighbour_entry(index, ip.parse().unwrap()).unwrap();
        assert!(entry("10.0.0.5").is_some_and(|one| one.is_stale() && !one.is_known() && !one.is_router));
        assert!(entry("10.0.0.6").is_some_and(|one| one.is_known() && !one.is_failed()));
        assert!(entry("10.0.0.7").is_some_and(|one| one.is_known()));
        assert_eq!((entry("10.0.0.8"), entry("10.0.0.9")), (None, None));
        assert!(entry("fd00::5").is_some_and(|one| one.is_stale() && one.is_router));
        assert_eq!(netlink.neighbour_entries(index).unwrap().len(), 4);
    });
}
