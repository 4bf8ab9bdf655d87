//! Router advertisements on a pod's network, with and without `acceptRA`.

use std::os::fd::AsRawFd;
use std::path::Path;

use nix::sys::socket::sockopt::Ipv6MulticastHops;
use nix::sys::socket::{
    AddressFamily, MsgFlags, SockFlag, SockProtocol, SockType, SockaddrIn6, sendto, setsockopt, socket,
};
use serde_json::{Value, json};

use cnimble_tests::{
    Attachment, Host, Lan, Network, Ns, PATIENCE, Pod, need, need_go, plugin_dir, wait_until, with_kind,
};

/// The prefix that the router announces, for addresses.
const PREFIX: &str = "2001:db8:1:";

/// Sends a router advertisement (RFC 4861, section 4.2) with a default route and a prefix. A link that is not ready yet
/// is no error.
fn advertise(router: &Ns, link: &str) {
    let mut message = vec![134, 0, 0, 0, 64, 0, 0x07, 0x08, 0, 0, 0, 0, 0, 0, 0, 0];
    message.extend([3, 4, 64, 0xc0, 0, 0, 0x0e, 0x10, 0, 0, 0x0e, 0x10, 0, 0, 0, 0]);
    message.extend([0x20, 0x01, 0x0d, 0xb8, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    router.within(|| {
        let icmp = socket(AddressFamily::Inet6, SockType::Raw, SockFlag::SOCK_CLOEXEC, SockProtocol::IcmpV6)
            .unwrap();
        setsockopt(&icmp, Ipv6MulticastHops, &255).unwrap();
        let scope = nix::net::if_::if_nametoindex(link).unwrap();
        let all = std::net::SocketAddrV6::new("ff02::1".parse().unwrap(), 0, 0, scope);
        let _ = sendto(icmp.as_raw_fd(), &message, &SockaddrIn6::from(all), MsgFlags::empty());
    });
}

/// The router advertisements that the pod has heard.
fn heard(pod: &Pod) -> u64 {
    let all = pod.shell("cat /proc/net/snmp6");
    let line = all.lines().find(|line| line.starts_with("Icmp6InRouterAdvertisements")).unwrap();
    line.split_whitespace().last().unwrap().parse().unwrap()
}

struct Scene {
    host: Host,
    lan: Lan,
    pod: Pod,
    config: Value,
}

impl Scene {
    /// A pod with only IPv4, on a network with a router.
    fn new(kind: &str) -> Self {
        let (host, pod) = (Host::hasty(), Pod::new());
        let lan = Lan::behind(&host, "uplink");
        let ipam = json!({
            "type": "host-local", "dataDir": host.data_dir(),
            "ranges": [[{"subnet": "10.7.0.0/24", "rangeStart": "10.7.0.10"}]],
        });
        let mut config = json!({"cniVersion": "1.0.0", "name": "outside", "type": kind, "ipam": ipam});
        match kind {
            "bridge" => {
                host.ip("link add br0 type bridge");
                host.ip("link set uplink master br0");
                host.ip("link set br0 up");
                config["bridge"] = "br0".into();
            }
            "ptp" => {}
            _ => config["master"] = "uplink".into(),
        }
        if kind == "vlan" {
            config["vlanId"] = 7.into();
            lan.ip("link add link lan0 name lan0.7 type vlan id 7");
            lan.ip("link set lan0.7 up");
        }
        Scene { host, lan, pod, config }
    }

    /// The addresses and default routes that a router has given a pod of `plugins`, once there are as many as expected.
    fn given(&self, plugins: &Path, accept: &Value, expected: usize) -> Vec<String> {
        let (host, pod) = (&self.host, &self.pod);
        let net = Network::by(plugins, host, self.config.clone()).with("/acceptRA", accept.clone());
        let attachment = Attachment::new("c1", pod);
        let result = net.added(&attachment);
        let (router, link): (&Ns, &str) = match self.config["type"].as_str().unwrap() {
            "ptp" => (host, result["interfaces"][0]["name"].as_str().unwrap()),
            "vlan" => (&self.lan, "lan0.7"),
            _ => (&self.lan, "lan0"),
        };
        // The kernel counts an advertisement before it believes it, and two at a time on two processors.
        let arrived = wait_until(PATIENCE, || {
            advertise(router, link);
            heard(pod) >= 2
        });
        assert!(arrived, "{}", self.config);
        net.check(&attachment, &result).success();
        let read = || {
            let addresses = pod.addrs("eth0").into_iter().filter(|address| address.starts_with(PREFIX));
            let routes = pod.ip("-6 route show default");
            addresses.chain(routes.lines().map(str::to_owned)).collect::<Vec<_>>()
        };
        wait_until(PATIENCE, || read().len() >= expected);
        let given = read();
        net.deleted(&attachment, Some(&result));
        given
    }
}

#[track_caller]
fn assert_ignored(kind: &str) {
    for accept in [json!(null), json!(true)] {
        assert_accepted(kind, plugin_dir(), &accept);
    }
    let given = Scene::new(kind).given(plugin_dir(), &json!(false), 0);
    assert_eq!(given, Vec::<String>::new(), "{kind}");
}

/// The router has given the pod one address and one default route.
#[track_caller]
fn assert_accepted(kind: &str, plugins: &Path, accept: &Value) {
    let given = Scene::new(kind).given(plugins, accept, 2);
    let is_whole =
        given.len() == 2 && given[0].starts_with(PREFIX) && given[1].starts_with("default via fe80::");
    assert!(is_whole, "{kind}: {given:?}");
}

/// The Go plugins do not know the key.
#[test]
fn the_go_plugins_ignore_accept_ra() {
    need_go!(go, "ip");
    for kind in ["bridge", "ptp"] {
        assert_accepted(kind, go, &json!(false));
    }
}

#[test]
fn the_go_plugin_macvlan_ignores_accept_ra() {
    with_kind!("macvlan");
    need_go!(go, "ip");
    assert_accepted("macvlan", go, &json!(false));
}

#[test]
fn the_go_plugin_ipvlan_ignores_accept_ra() {
    with_kind!("ipvlan");
    need_go!(go, "ip");
    assert_accepted("ipvlan", go, &json!(false));
}

#[test]
fn the_go_plugin_vlan_ignores_accept_ra() {
    with_kind!("vlan");
    need_go!(go, "ip");
    assert_accepted("vlan", go, &json!(false));
}

#[test]
fn a_pod_behind_a_bridge_ignores_routers_if_it_should() {
    need!("ip");
    assert_ignored("bridge");
}

#[test]
fn a_pod_of_ptp_ignores_routers_if_it_should() {
    need!("ip");
    assert_ignored("ptp");
}

#[test]
fn a_pod_of_macvlan_ignores_routers_if_it_should() {
    with_kind!("macvlan");
    assert_ignored("macvlan");
}

#[test]
fn a_pod_of_ipvlan_ignores_routers_if_it_should() {
    with_kind!("ipvlan");
    assert_ignored("ipvlan");
}

#[test]
fn a_pod_of_vlan_ignores_routers_if_it_should() {
    with_kind!("vlan");
    assert_ignored("vlan");
}

/// Without addresses, without IPv6 on the interface, and with a wrong value.
#[test]
fn the_key_is_a_boolean_and_check_verifies_it() {
    need!("ip");
    let Scene { host, pod, config, .. } = Scene::new("bridge");
    let net = Network::new(&host, config).with("/acceptRA", json!(false));
    let attachment = Attachment::new("c1", &pod);
    let err = net.with("/acceptRA", json!("no")).add(&attachment).error();
    assert!(err.code == 7 && err.all().contains("acceptRA: invalid type: \"no\""), "{err:?}");
    assert_eq!(pod.links(), ["lo"]);
    let small = net.with("/mtu", json!(1200));
    let result = small.added(&attachment);
    assert_eq!(pod.sh("ls /proc/sys/net/ipv6/conf").lines().filter(|link| *link == "eth0").count(), 0);
    small.check(&attachment, &result).success();
    small.deleted(&attachment, Some(&result));
    for net in [
        net.with("/ipam", json!({})),
        net.with("/ipam", json!({})).with("/disableContainerInterface", json!(true)),
    ] {
        let result = net.added(&attachment);
        assert_eq!(pod.sysctl("ipv6/conf/eth0/accept_ra"), "0");
        net.check(&attachment, &result).success();
        pod.set_sysctl("ipv6/conf/eth0/accept_ra", "1");
        let err = net.check(&attachment, &result).error();
        assert!(err.code == 103 && err.msg.contains("interface eth0 has accept_ra 1, expected 0"), "{err:?}");
        net.with("/acceptRA", json!(null)).check(&attachment, &result).success();
        net.deleted(&attachment, Some(&result));
    }
}
