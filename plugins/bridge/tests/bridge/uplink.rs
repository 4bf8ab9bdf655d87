//! `uplink`: the pods are on the network of an interface of the host.

use std::net::{Ipv6Addr, SocketAddrV6, UdpSocket};
use std::os::fd::{AsRawFd, OwnedFd};

use nix::libc;
use nix::sys::socket::{AddressFamily, SockFlag, SockType, socket};
use serde_json::{Value, json};

use cnimble_tests::{
    Attachment, Host, Network, Ns, PATIENCE, Pod, Snapshot, configs, need, need_go, wait_until,
};

/// A host with an interface that leads to a machine with 10.1.2.200.
fn site() -> (Host, Ns) {
    let (host, world) = (Host::new(), Ns::new());
    host.cable("up0", &world, "eth0");
    host.ip("link set up0 down");
    world.ip("addr add 10.1.2.200/24 dev eth0");
    (host, world)
}

fn network(host: &Host) -> Network<'_> {
    Network::new(host, configs::v4(host)).with("/uplink", json!("up0"))
}

fn master(host: &Host) -> Value {
    host.link("up0")["master"].clone()
}

#[test]
fn pods_are_on_the_network_of_the_uplink_which_is_freed_with_the_bridge() {
    need!("ip", "ping");
    let (host, world) = site();
    host.set_sysctl("ipv4/ip_forward", "1");
    let before = Snapshot::settled(&host).without("leases");
    let net = network(&host).with("/removeUnusedBridge", json!(true));
    let (first, second) = (Pod::new(), Pod::new());
    let [one, two] = [("one", &first), ("two", &second)].map(|(id, pod)| Attachment::new(id, pod));
    let result = net.added(&one);
    net.added(&two);
    assert!(first.pings("10.1.2.200") && world.pings("10.1.2.3"));
    net.check(&one, &result).success();
    host.ip("link set up0 nomaster");
    let err = net.check(&one, &result).error();
    assert_eq!(err.code, 103);
    assert!(err.all().contains("uplink: up0 is not a port of "), "{}", err.all());
    // The next ADD puts it back.
    net.deleted(&two, None);
    net.added(&two);
    net.check(&one, &result).success();
    net.deleted(&one, Some(&result));
    assert!(first.links().len() == 1 && master(&host).is_string());
    net.deleted(&two, None);
    assert!(master(&host).is_null(), "{:?}", host.links());
    // It was down before.
    before.assert_same(&Snapshot::settled(&host).without("leases"), "after the last DEL");

    // The host may have begun to use it.
    let result = net.added(&one);
    host.ip("addr add 203.0.113.9/32 dev up0");
    net.deleted(&one, Some(&result));
    assert_eq!(host.addrs("up0"), ["203.0.113.9/32"]);
    assert!(host.link("up0")["flags"].to_string().contains("\"UP\""));
}

#[test]
fn a_failed_add_takes_the_uplink_off_again() {
    need!("ip");
    let (host, _world) = site();
    let pod = Pod::new();
    let before = Snapshot::of(&host);
    let err = network(&host).with("/ipam/ranges", json!([])).add(&Attachment::new("one", &pod)).error();
    assert_eq!(err.code, 7, "{}", err.all());
    let full = network(&host).with("/ipam", json!({"type": "missing"}));
    full.add(&Attachment::new("one", &pod)).error();
    before.assert_same(&Snapshot::settled(&host), "after failed ADDs");
    assert!(master(&host).is_null());
}

#[test]
fn an_uplink_that_would_cut_the_host_off_is_refused() {
    need!("ip");
    let (host, _world) = site();
    let pod = Pod::new();
    let attachment = Attachment::new("one", &pod);
    let refusal = |net: Network<'_>| {
        let err = net.add(&attachment).error();
        (err.code, err.msg)
    };
    host.ip("addr add 192.0.2.1/24 dev up0");
    let (code, msg) = refusal(network(&host));
    assert!(code == 102 && msg.ends_with("uplink: up0 has the address 192.0.2.1/24"), "{msg}");
    host.ip("addr flush dev up0");
    host.ip("link add other type bridge");
    host.ip("link set up0 master other");
    let (code, msg) = refusal(network(&host));
    assert!(code == 102 && msg.ends_with("uplink: up0 is a port already"), "{msg}");
    let (code, msg) = refusal(network(&host).with("/uplink", json!("a/b")));
    assert!(code == 7 && msg == "uplink: invalid name \"a/b\"", "{msg}");
    assert_eq!(host.links().len(), 3, "no bridge is left: {:?}", host.links());
}

/// A host on which `up0` is up, without an address.
fn unnumbered() -> (Host, Ns) {
    let (host, world) = site();
    host.ip("link set up0 up");
    (host, world)
}

#[track_caller]
fn assert_refused(host: &Host, why: &str) {
    let pod = Pod::new();
    let before = Snapshot::settled(host);
    let err = network(host).add(&Attachment::new("one", &pod)).error();
    assert!(err.code == 102 && err.msg.contains(&format!("uplink: up0 {why}")), "{err:?}");
    before.assert_same(&Snapshot::settled(host), why);
    assert_eq!(pod.links(), ["lo"]);
}

/// The host's address is on lo, and a router is known by its link-local address alone (RFC 5549).
#[test]
fn an_uplink_with_routes_of_the_host_is_refused() {
    need!("ip", "ping");
    let (host, world) = unnumbered();
    world.set_sysctl("ipv4/ip_forward", "1");
    world.ip("addr add 198.51.100.10/32 dev lo");
    host.ip("addr add 203.0.113.5/32 dev lo");
    world.ip("route add 203.0.113.5/32 dev eth0");
    let router = world.ip_json("addr show dev eth0")[0]["addr_info"][0].clone();
    assert_eq!(router["local"], "10.1.2.200");
    host.ip("route add default via 10.1.2.200 dev up0 onlink src 203.0.113.5");
    assert!(host.pings("198.51.100.10"));
    assert_refused(&host, "has the host's route to 0.0.0.0/0 via 10.1.2.200");
    assert!(host.pings("198.51.100.10"));
    for (make, undo, why) in [
        (
            "route add 10.9.0.0/16 dev up0 table 70",
            "route flush table 70",
            "has the host's route to 10.9.0.0/16 in table 70",
        ),
        (
            "-6 route add 2001:db8::/32 via fe80::1 dev up0",
            "-6 route del 2001:db8::/32",
            "has the host's route to 2001:db8::/32 via fe80::1",
        ),
        ("nexthop add id 9 dev up0", "nexthop del id 9", "has a nexthop object of the host"),
        (
            "rule add iif up0 table 70 pref 700",
            "rule del pref 700",
            "is named by the host's rule of priority 700",
        ),
        (
            "-6 rule add oif up0 table 70 pref 701",
            "-6 rule del pref 701",
            "is named by the host's rule of priority 701",
        ),
        (
            "neigh add 10.1.2.9 lladdr 02:00:00:00:00:09 dev up0 nud permanent",
            "neigh del 10.1.2.9 dev up0",
            "leads to 10.1.2.9, which the host knows there",
        ),
        (
            "neigh add fe80::9 lladdr 02:00:00:00:00:09 dev up0 nud stale",
            "neigh del fe80::9 dev up0",
            "leads to fe80::9",
        ),
    ] {
        let (host, _world) = unnumbered();
        host.ip(make);
        assert_refused(&host, why);
        host.ip(undo);
        network(&host).added(&Attachment::new("one", &Pod::new()));
    }
}

/// A packet socket of one interface, in the namespace of this thread.
fn packet_socket(protocol: i32, index: i32) -> OwnedFd {
    let socket = socket(AddressFamily::Packet, SockType::Datagram, SockFlag::SOCK_CLOEXEC, None).unwrap();
    let address = libc::sockaddr_ll {
        sll_family: u16::try_from(libc::AF_PACKET).unwrap(),
        sll_protocol: u16::try_from(protocol).unwrap().to_be(),
        sll_ifindex: index,
        sll_hatype: 0,
        sll_pkttype: 0,
        sll_halen: 0,
        sll_addr: [0; 8],
    };
    let length = libc::socklen_t::try_from(size_of::<libc::sockaddr_ll>()).unwrap();
    // SAFETY: the address is a live sockaddr_ll, of the length that is said.
    let done = unsafe { libc::bind(socket.as_raw_fd(), (&raw const address).cast(), length) };
    assert_eq!(done, 0, "{}", std::io::Error::last_os_error());
    socket
}

/// Without an address yet.
#[test]
fn an_uplink_that_waits_for_dhcp_is_refused() {
    need!("ip");
    let (host, _world) = unnumbered();
    let index = host.link("up0")["ifindex"].to_string();
    let bound = |protocol: i32| host.within(|| packet_socket(protocol, index.parse().unwrap()));
    let client = bound(libc::ETH_P_IP);
    assert_refused(&host, "has a DHCP client");
    drop(client);
    // As of DHCPv6.
    let own = host.ip("-6 -brief addr show dev up0 scope link");
    let own: Ipv6Addr = own.split_whitespace().nth(2).unwrap().split('/').next().unwrap().parse().unwrap();
    let address = SocketAddrV6::new(own, 546, 0, index.parse().unwrap());
    let mut client = None;
    // It can't be bound while it is tentative.
    let is_bound = || {
        client = host.within(|| UdpSocket::bind(address).ok());
        client.is_some()
    };
    assert!(wait_until(PATIENCE, is_bound));
    assert_refused(&host, "has a program at its address fe80:");
    drop(client);
    let all = bound(libc::ETH_P_ALL);
    let port = host.within(|| UdpSocket::bind("0.0.0.0:68").unwrap());
    assert_refused(&host, "has a DHCP client");
    drop(port);
    let pod = Pod::new();
    // A program that records packets.
    network(&host).added(&Attachment::new("one", &pod));
    drop(all);

    // Without a carrier a client has no socket.
    let net = network(&host);
    for (file, text, why) in [
        (
            "/run/systemd/netif/links",
            "ADMIN_STATE=configuring",
            Some("is being configured by systemd-networkd"),
        ),
        ("/run/systemd/netif/leases", "ADDRESS=10.1.2.7", Some("is being configured by systemd-networkd")),
        ("/run/NetworkManager/devices", "connection-uuid=1-2", Some("has a connection of NetworkManager")),
        ("/run/systemd/netif/links", "ADMIN_STATE=unmanaged", None),
        ("/run/NetworkManager/devices", "managed=false", None),
    ] {
        let (host, _world) = unnumbered();
        let net = Network::new(&host, net.config.clone()).with("/ipam/dataDir", json!(host.data_dir()));
        // In a mount namespace of its own.
        let script = format!(
            "mount -t tmpfs none /run; mkdir -p {file}; printf '[x]\\n{text}\\n' >{file}/{}; exec \"$@\"",
            host.link("up0")["ifindex"]
        );
        let pod = Pod::new();
        let attachment = Attachment::new("one", &pod);
        let call = net.call("ADD", &attachment, None);
        let outcome = call.under(&["unshare", "--mount", "sh", "-ec", &script, "sh"]).run();
        match why {
            None => drop(outcome.success()),
            Some(why) => {
                let err = outcome.error();
                assert!(err.code == 102 && err.msg.contains(&format!("uplink: up0 {why}")), "{err:?}");
            }
        }
    }
}

/// A bridge that exists keeps its ports.
#[test]
fn a_bridge_of_others_gets_no_uplink() {
    need!("ip");
    let (host, _world) = site();
    let net = network(&host);
    host.ip(&format!("link add {} type bridge", net.config["bridge"].as_str().unwrap()));
    let pod = Pod::new();
    let attachment = Attachment::new("one", &pod);
    let result = net.added(&attachment);
    assert!(master(&host).is_null());
    net.check(&attachment, &result).success();
}

#[test]
fn the_go_plugin_ignores_the_key() {
    need_go!(go, "ip", "ping");
    for ours in [false, true] {
        let (host, _world) = site();
        let net = network(&host).with("/cniVersion", json!("1.0.0"));
        let net = if ours { net } else { net.served_by(go) };
        let pod = Pod::new();
        net.added(&Attachment::new("one", &pod));
        assert_eq!(pod.pings_once("10.1.2.200"), ours);
    }
}
