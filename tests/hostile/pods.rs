//! Malicious pods: their traffic must not change the host or reach what belongs to another pod.

use std::io::IoSlice;
use std::net::{Ipv6Addr, SocketAddrV6};
use std::os::fd::AsRawFd;

use nix::sys::socket::{
    AddressFamily, ControlMessage, MsgFlags, SockFlag, SockProtocol, SockType, SockaddrIn6, sendmsg,
    setsockopt, socket, sockopt,
};
use serde_json::json;

use cnimble_tests::{
    Attachment, Host, Network, Ns, PATIENCE, Pod, Snapshot, configs, keep_silent, leases, need, wait_until,
};

/// Returns a router advertisement (RFC 4861, 4.2). It offers a default route, the prefix 2001:db8:bad::/64 and an
/// MTU of 1280 bytes.
fn advertisement() -> Vec<u8> {
    let mut message = vec![134, 0, 0, 0, 64, 0, 0x07, 0x08, 0, 0, 0, 0, 0, 0, 0, 0];
    message.extend([3, 4, 64, 0xc0, 0, 0, 0x0e, 0x10, 0, 0, 0x0e, 0x10, 0, 0, 0, 0]);
    message.extend("2001:db8:bad::".parse::<Ipv6Addr>().unwrap().octets());
    message.extend([5, 1, 0, 0, 0, 0, 0x05, 0x00]);
    message
}

/// Sends the advertisement to all nodes out of `dev`, several times.
fn advertise(pod: &Ns, dev: &str) {
    let index = u32::try_from(pod.link(dev)["ifindex"].as_u64().unwrap()).unwrap();
    // Until the kernel has checked the link-local address, nothing is sent from it.
    assert!(wait_until(PATIENCE, || {
        let text = pod.ip(&format!("-6 addr show dev {dev} scope link"));
        text.contains("fe80") && !text.contains("tentative")
    }));
    pod.within(|| {
        let raw = socket(AddressFamily::Inet6, SockType::Raw, SockFlag::SOCK_CLOEXEC, SockProtocol::IcmpV6);
        let raw = raw.unwrap();
        setsockopt(&raw, sockopt::Ipv6MulticastHops, &255).unwrap();
        let to = SocketAddrV6::new("ff02::1".parse().unwrap(), 0, 0, index);
        let to = SockaddrIn6::from(to);
        for _ in 0..3 {
            let nothing: [ControlMessage<'_>; 0] = [];
            let message = advertisement();
            let sent =
                sendmsg(raw.as_raw_fd(), &[IoSlice::new(&message)], &nothing, MsgFlags::empty(), Some(&to));
            assert_eq!(sent.unwrap(), message.len());
            std::thread::sleep(std::time::Duration::from_millis(100));
        }
    });
}

/// Returns the routes and addresses that a host would have from the advertisement.
fn believes(host: &Ns) -> String {
    let routes = host.ip("-6 route show");
    let addrs = host.ip("-6 addr show");
    let lines = routes.lines().chain(addrs.lines());
    lines
        .filter(|line| line.contains("proto ra") || line.contains("2001:db8:bad"))
        .collect::<Vec<_>>()
        .join("\n")
}

/// Returns a node that accepts advertisements even while it forwards (2), for its uplink. No interface of ours may
/// inherit that setting.
fn believing() -> Host {
    let host = Host::hasty();
    host.set_sysctl("ipv6/conf/all/accept_ra", "2");
    host.set_sysctl("ipv6/conf/default/accept_ra", "2");
    host
}

#[test]
fn router_advertisements_change_no_route_of_the_host() {
    need!("ip", "nft");
    // The advertisement is valid, as this host accepts it.
    let host = believing();
    let pod = Pod::new();
    host.cable("up0", &pod, "eth0");
    let believed = wait_until(PATIENCE, || {
        advertise(&pod, "eth0");
        !believes(&host).is_empty()
    });
    assert!(believed, "the advertisement isn't even believed");

    for (kind, gateway) in [("bridge", true), ("bridge", false), ("ptp", true)] {
        let host = believing();
        let pod = Pod::new();
        let mut config = configs::dual(&host);
        config["type"] = kind.into();
        config["isGateway"] = gateway.into();
        Network::new(&host, config).added(&Attachment::new("c1", &pod));
        advertise(&pod, "eth0");
        keep_silent(std::time::Duration::from_millis(200));
        assert_eq!(believes(&host), "", "{kind}, gateway {gateway}");
    }
}

/// Returns a bridge that checks hardware addresses (macspoofchk), with two pods and the host.
fn guarded<'h>(host: &'h Host, a: &Pod, b: &Pod) -> Network<'h> {
    let net = Network::new(host, configs::dual(host)).with("/macspoofchk", json!(true));
    net.added(&Attachment::new("a", a));
    net.added(&Attachment::new("b", b));
    net
}

fn mac(pod: &Pod) -> String {
    pod.link("eth0")["address"].as_str().unwrap().to_owned()
}

#[test]
fn a_pod_cant_take_the_hardware_address_of_another() {
    need!("ip", "nft", "ping", "bridge");
    let host = Host::hasty();
    let (a, b) = (Pod::new(), Pod::new());
    guarded(&host, &a, &b);
    let (mac_a, mac_b) = (mac(&a), mac(&b));
    assert!(b.pings("10.1.2.1") && a.pings("10.1.2.3"));
    let port_of = |mac: &str| -> String {
        let table = host.sh("bridge fdb show br br0");
        let line = table.lines().find(|line| line.starts_with(mac) && !line.contains("permanent"));
        line.map(|line| line.split(' ').nth(2).unwrap().to_owned()).unwrap_or_default()
    };
    let port_b = port_of(&mac_b);
    assert!(!port_b.is_empty());

    // Pod a claims the address of b, to the bridge and to all others. No table learns it.
    a.ip(&format!("link set eth0 address {mac_b}"));
    assert!(a.misses("10.1.2.1"));
    a.run("ping -n -c 1 -W 1 -b 10.1.2.255");
    a.run("ping -6 -n -c 1 -W 1 ff02::1%eth0");
    assert_eq!(port_of(&mac_b), port_b, "frames for b go to a");
    assert!(b.pings("10.1.2.1"));

    // An unused address is neither learned nor forwarded.
    a.ip("link set eth0 address 02:00:00:00:be:ef");
    assert!(a.misses("10.1.2.3"));
    assert_eq!(port_of("02:00:00:00:be:ef"), "");
    // A bridge inside the pod, with a container behind it, changes nothing.
    a.ip(&format!("link set eth0 address {mac_a}"));
    a.ip("link add inner type bridge");
    a.ip("link set inner address 02:00:00:00:be:ef");
    a.ip("link set eth0 master inner");
    a.ip("link set inner up");
    a.ip("addr add 10.1.2.99/24 dev inner");
    a.run("ping -n -c 1 -W 1 -I inner 10.1.2.1");
    assert_eq!(port_of("02:00:00:00:be:ef"), "");
    a.ip("link del inner");
    a.ip("neigh flush all");
    assert!(a.pings("10.1.2.1"));
}

/// After any change to the pod's interface, DEL finds the host's end, and GC the rest.
#[test]
fn a_pod_that_rearranges_its_interfaces_can_be_deleted() {
    need!("ip", "nft");
    let host = Host::hasty();
    let other = Pod::new();
    let deeds: &[(&str, &[&str])] = &[
        ("renames it", &["link set eth0 down", "link set eth0 name x"]),
        (
            "puts another in its place",
            &["link set eth0 down", "link set eth0 name x", "link add eth0 type veth peer name y"],
        ),
        ("deletes it", &["link del eth0"]),
        ("takes its addresses", &["addr flush dev eth0", "link set eth0 mtu 68"]),
        ("claims to be somebody else's", &["link set eth0 alias 7d24d33e39064c8a-1eeb2d13d47685fc"]),
        ("makes a bridge of it", &["link add br0 type bridge", "link set eth0 master br0"]),
    ];
    let net = Network::new(&host, configs::dual(&host))
        .with("/ipMasq", json!(true))
        .with("/macspoofchk", json!(true));
    let keeper = Pod::new();
    net.added(&Attachment::new("keeper", &keeper));
    let before = Snapshot::settled(&host).without_lines("last_reserved_ip");
    for (what, commands) in deeds {
        let pod = Pod::new();
        let att = Attachment::new("c1", &pod);
        let prev = net.added(&att);
        for command in *commands {
            pod.ip(command);
        }
        net.check(&att, &prev);
        net.deleted(&att, Some(&prev));
        before.assert_same(&Snapshot::settled(&host).without_lines("last_reserved_ip"), what);
    }
    // The pod moves its interface to another namespace.
    let pod = Pod::new();
    let att = Attachment::new("c1", &pod);
    net.added(&att);
    pod.ip(&format!("link set eth0 netns {}", other.path()));
    net.deleted(&att, None);
    before.assert_same(&Snapshot::settled(&host).without_lines("last_reserved_ip"), "moved away");
    assert_eq!(other.links(), ["lo"]);
    assert!(keeper.pings("10.1.2.1"));
}

/// The parts of a call that a pod may choose (arguments, requested addresses) take nothing from another pod.
#[test]
fn a_pod_cant_ask_for_the_address_of_another() {
    need!("ip", "nft");
    let host = Host::hasty();
    let (a, b) = (Pod::new(), Pod::new());
    let net = Network::new(&host, configs::v4(&host));
    net.added(&Attachment::new("a", &a));
    let before = leases(&host.data_dir());
    for args in [
        "IP=10.1.2.2",
        "IP=10.1.2.2/24",
        "IP=10.1.2.2/32",
        "IP=::ffff:10.1.2.2",
        "IP=10.1.2.1",
        "IP=10.1.2.0",
        "IP=10.1.2.255",
        "IP=10.1.3.2",
        "IP=0.0.0.0",
        "IP=255.255.255.255",
        "IP=127.0.0.1",
    ] {
        let err = net.add(&Attachment::new("b", &b).args(args)).error();
        assert!([4, 7, 101].contains(&err.code), "{args}: {}", err.all());
        assert_eq!(leases(&host.data_dir()), before, "{args}");
    }
    for ip in ["10.1.2.2", "10.1.2.2/16", "::ffff:a01:202"] {
        let with = net.with("/args", json!({"cni": {"ips": [ip]}}));
        let err = with.add(&Attachment::new("b", &b)).error();
        assert!([7, 101].contains(&err.code), "{ip}: {}", err.all());
    }
    // A result that names another pod's lease does not transfer it.
    let prev = json!({"cniVersion": configs::newest(), "ips": [{"address": "10.1.2.2/24"}]});
    net.deleted(&Attachment::new("b", &b), Some(&prev));
    assert_eq!(leases(&host.data_dir()), before);
    assert!(a.pings("10.1.2.1"));
}
