use std::time::Duration;

use nix::errno::Errno;

use super::{other_netns, veth};
use crate::link::{Change, set};
use crate::testing::in_netns;
use crate::{NetNs, Netlink, addr, sysctl};

const LONG: Duration = Duration::from_secs(60);

/// A pair that is up, without link-local addresses, which would be tested as well.
fn pair(pod: &NetNs) -> (Netlink, u32, Netlink, u32) {
    let mut here = Netlink::open().unwrap();
    let link = veth(&mut here, "v0", "eth0", pod);
    let mut inside = Netlink::open_in(pod).unwrap();
    sysctl::write("net/ipv6/conf/v0/addr_gen_mode", "1").unwrap();
    pod.enter(|| sysctl::write("net/ipv6/conf/eth0/addr_gen_mode", "1")).unwrap().unwrap();
    let up = Change { up: Some(true), ..Change::default() };
    here.execute(set(link.index, "v0", &up)).unwrap();
    inside.execute(set(link.peer.unwrap(), "eth0", &up)).unwrap();
    inside.wait_oper_up(link.peer.unwrap(), LONG).unwrap();
    (here, link.index, inside, link.peer.unwrap())
}

/// The number of probes that the kernel sends before it takes an address.
fn probes(pod: &NetNs, count: u32) {
    let write = || sysctl::write("net/ipv6/conf/eth0/dad_transmits", &count.to_string());
    pod.enter(write).unwrap().unwrap();
}

#[test]
fn waits_for_the_probe() {
    in_netns("waits_for_the_probe", || {
        let pod = other_netns();
        let (_here, _, mut inside, index) = pair(&pod);
        inside.execute(addr::add(index, "eth0", "10.0.0.2/24".parse().unwrap())).unwrap();
        // Nothing to wait for.
        inside.wait_addrs_settled(index, Duration::ZERO).unwrap();

        // So many probes, one each second, that none of us is late.
        probes(&pod, 100);
        let net = "fd00::2/64".parse().unwrap();
        inside.execute(addr::add_probed(index, "eth0", net)).unwrap();
        let err = inside.wait_addrs_settled(index, Duration::from_millis(50)).unwrap_err();
        assert!(err.is(Errno::ETIMEDOUT), "{err}");
        inside.execute(addr::del(index, "eth0", net)).unwrap();
        probes(&pod, 1);
        inside.execute(addr::add_probed(index, "eth0", net)).unwrap();
        inside.wait_addrs_settled(index, LONG).unwrap();
        assert!(inside.addrs(index).unwrap().iter().all(|addr| !addr.tentative && !addr.duplicate));
    });
}

#[test]
fn tells_of_a_duplicate() {
    in_netns("tells_of_a_duplicate", || {
        let pod = other_netns();
        let (mut here, outer, mut inside, inner) = pair(&pod);
        let net = "fd00::2/64".parse().unwrap();
        here.execute(addr::add(outer, "v0", net)).unwrap();
        // The answer to one of these is in time.
        probes(&pod, 50);
        inside.execute(addr::add_probed(inner, "eth0", net)).unwrap();
        let err = inside.wait_addrs_settled(inner, LONG).unwrap_err();
        assert!(err.is(Errno::EADDRINUSE), "{err}");
        assert!(err.reason.contains("fd00::2"), "{err}");
        assert!(inside.link("eth0").is_ok(), "the socket goes on working");
    });
}
