use nix::errno::Errno;
use serde_json::json as value;

use super::{other_netns, veth};
use crate::addr;
use crate::link::{Change, set};
use crate::route::{NewRoute, add, del};
use crate::testing::{in_netns, json};
use crate::{NetNs, Netlink};

/// A link that is up and has addresses in both families.
fn host(netlink: &mut Netlink) -> u32 {
    let here = NetNs::current().unwrap();
    let link = veth(netlink, "v0", "v1", &here);
    let up = Change { up: Some(true), ..Change::default() };
    netlink
        .execute_all(vec![
            set(link.index, "v0", &up),
            set(link.peer.unwrap(), "v1", &up),
            addr::add(link.index, "v0", "10.0.0.2/24".parse().unwrap()),
            addr::add(link.index, "v0", "fd00::2/64".parse().unwrap()),
        ])
        .unwrap();
    link.index
}

fn route(index: u32, dst: &str) -> NewRoute {
    NewRoute::to(dst.parse().unwrap(), index)
}

#[test]
fn every_attribute_reads_back() {
    in_netns("every_attribute_reads_back", || {
        let mut netlink = Netlink::open().unwrap();
        let index = host(&mut netlink);
        let four = NewRoute {
            via: Some("10.0.0.1".parse().unwrap()),
            src: Some("10.0.0.2".parse().unwrap()),
            mtu: Some(1400),
            advmss: Some(1360),
            priority: Some(50),
            table: Some(1000),
            scope: Some(0),
            ..route(index, "192.0.2.0/24")
        };
        let six = NewRoute {
            dst: "2001:db8::/32".parse().unwrap(),
            via: Some("fd00::1".parse().unwrap()),
            src: Some("fd00::2".parse().unwrap()),
            ..four.clone()
        };
        netlink.execute_all(vec![add(&four, "v0"), add(&six, "v0")]).unwrap();
        assert_eq!(netlink.routes(index, Some(1000)).unwrap(), [four.clone(), six.clone()]);
        let main = netlink.routes(index, None).unwrap();
        assert!(!main.contains(&four) && !main.contains(&six), "{main:?}");

        for (family, dst, via) in [("-4", "192.0.2.0/24", "10.0.0.1"), ("-6", "2001:db8::/32", "fd00::1")] {
            let shown = json("every_attribute", &format!("ip -j {family} -d route show table 1000"));
            let Some(shown) = shown else { continue };
            assert_eq!(shown[0]["dst"], dst);
            assert_eq!(shown[0]["gateway"], via);
            assert_eq!(shown[0]["metric"], 50);
            assert_eq!(shown[0]["protocol"], "boot");
            assert_eq!(shown[0]["metrics"], value!([{"mtu": 1400, "advmss": 1360}]));
        }

        netlink.execute_all(vec![del(&four, "v0"), del(&six, "v0")]).unwrap();
        assert_eq!(netlink.routes(index, Some(1000)).unwrap(), []);
        let err = netlink.execute(del(&four, "v0")).unwrap_err();
        assert!(err.is(Errno::ESRCH) && err.is_missing(), "{err}");
    });
}

#[test]
fn scopes_are_those_of_the_ip_command() {
    in_netns("scopes_are_those_of_the_ip_command", || {
        let mut netlink = Netlink::open().unwrap();
        let index = host(&mut netlink);
        let direct = route(index, "198.51.100.0/24");
        let host_scope = NewRoute { scope: Some(253), ..route(index, "203.0.113.7/32") };
        let default = NewRoute { via: Some("10.0.0.1".parse().unwrap()), ..route(index, "0.0.0.0/0") };
        let default6 = NewRoute { via: Some("fd00::1".parse().unwrap()), ..route(index, "::/0") };
        for route in [&direct, &host_scope, &default, &default6] {
            netlink.execute(add(route, "v0")).unwrap();
        }
        let found = netlink.routes(index, None).unwrap();
        let scope = |dst| found.iter().find(|route| route.dst == dst).map(|route| route.scope);
        assert_eq!(scope(direct.dst), Some(Some(253)));
        assert_eq!(scope(host_scope.dst), Some(Some(253)));
        assert_eq!(scope(default.dst), Some(Some(0)));
        assert_eq!(scope(default6.dst), Some(Some(0)));
        // Those of the addresses are there as well, the local ones aren't.
        assert_eq!(scope("10.0.0.0/24".parse().unwrap()), Some(Some(253)));
        assert!(scope("fd00::/64".parse().unwrap()).is_some());
        assert_eq!(scope("10.0.0.2/32".parse().unwrap()), None);
        let local = netlink.routes(index, Some(255)).unwrap();
        assert!(local.iter().any(|route| route.dst == "10.0.0.2/32".parse().unwrap()));
    });
}

#[test]
fn onlink_and_next_hops_of_the_other_family() {
    in_netns("onlink_and_next_hops_of_the_other_family", || {
        let mut netlink = Netlink::open().unwrap();
        let index = host(&mut netlink);
        let far = NewRoute { via: Some("169.254.1.1".parse().unwrap()), ..route(index, "0.0.0.0/0") };
        let err = netlink.execute(add(&far, "v0")).unwrap_err();
        assert_eq!(
            err.to_string(),
            "add route default via 169.254.1.1 dev v0: Network is unreachable (Nexthop has invalid gateway)"
        );
        let far = NewRoute { onlink: true, ..far };
        netlink.execute(add(&far, "v0")).unwrap();
        let err = netlink.execute(add(&far, "v0")).unwrap_err();
        assert!(err.is(Errno::EEXIST), "{err}");
        let mixed = NewRoute { via: Some("fd00::1".parse().unwrap()), ..route(index, "192.0.2.0/24") };
        netlink.execute(add(&mixed, "v0")).unwrap();
        let found = netlink.routes(index, None).unwrap();
        assert!(found.iter().any(|route| route.onlink && route.via == far.via), "{found:?}");
        assert!(found.iter().any(|route| route.dst == mixed.dst && route.via == mixed.via), "{found:?}");

        let wrong = NewRoute { via: Some("10.0.0.1".parse().unwrap()), ..route(index, "2001:db8::/32") };
        assert!(netlink.execute(add(&wrong, "v0")).unwrap_err().is(Errno::EINVAL));
        let wrong = NewRoute { src: Some("fd00::2".parse().unwrap()), ..route(index, "192.0.2.0/24") };
        assert!(netlink.execute(add(&wrong, "v0")).unwrap_err().is(Errno::EINVAL));
    });
}

#[test]
fn lists_one_link_of_many() {
    in_netns("routes lists_one_link_of_many", || {
        let pod = other_netns();
        let mut netlink = Netlink::open().unwrap();
        let up = Change { up: Some(true), ..Change::default() };
        let mut links = Vec::new();
        for number in 0..20 {
            let name = format!("v{number}");
            let link = veth(&mut netlink, &name, &format!("e{number}"), &pod);
            let route = route(link.index, &format!("10.0.{number}.0/24"));
            netlink.execute_all(vec![set(link.index, &name, &up), add(&route, &name)]).unwrap();
            links.push(route);
        }
        for route in links {
            let found = netlink.routes(route.index, None).unwrap();
            let four: Vec<_> = found.iter().filter(|found| found.dst.is_ipv4()).collect();
            assert_eq!(four.len(), 1, "{four:?}");
            assert_eq!(four[0].dst, route.dst);
        }
    });
}

#[test]
fn several_next_hops() {
    in_netns("several_next_hops", || {
        let mut netlink = Netlink::open().unwrap();
        let index = host(&mut netlink);
        let output = std::process::Command::new("ip")
            .args("route add 192.0.2.0/24 nexthop via 10.0.0.1 dev v0 nexthop via 10.0.0.3 dev v0".split(' '))
            .output();
        let Ok(output) = output else {
            eprintln!("SKIP several_next_hops: no ip command");
            return;
        };
        assert!(output.status.success(), "{output:?}");
        let found = netlink.routes(index, None).unwrap();
        let hops: Vec<_> = found
            .iter()
            .filter(|route| route.dst == "192.0.2.0/24".parse().unwrap())
            .map(|route| route.via.unwrap().to_string())
            .collect();
        assert_eq!(hops, ["10.0.0.1", "10.0.0.3"]);
    });
}
