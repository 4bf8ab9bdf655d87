//! The reserved addresses 01:80:c2:00:00:00 to 01:80:c2:00:00:0f. The kernel delivers a frame for one of them to the
//! port on which it arrived. It bypasses the bridge and its rules, unless the port is closed.

use std::net::{Ipv4Addr, UdpSocket};
use std::path::Path;
use std::time::Duration;

use nix::sys::socket::{setsockopt, sockopt};
use serde_json::{Value, json};

use cnimble_tests::{Attachment, Host, Network, PATIENCE, Pod, configs, need, plugin_dir, wait_until};

use super::frames::{self, Mac};

const GATEWAY: Ipv4Addr = Ipv4Addr::new(10, 1, 2, 1);
/// The UDP ports for all datagrams to the host, and for those that bypass the bridge.
const HEARD: u16 = 9001;
const PAST: u16 = 9002;

/// A host with a victim and an attacker on one network with only IPv4. The host is therefore no IPv6 router, and
/// accepts router advertisements.
pub(super) struct Scene<'h> {
    host: &'h Host,
    attacker: Pod,
    victim: Pod,
    /// The port of the attacker on the bridge.
    port: String,
    heard: UdpSocket,
    by_port: UdpSocket,
    pub(super) bridged: bool,
    pub(super) guarded: bool,
}

impl<'h> Scene<'h> {
    /// With `bridge` an administrator has created the bridge with these options. Otherwise the plugin creates it.
    pub(super) fn new(host: &'h Host, plugins: &Path, bridge: Option<&str>, keys: &Value) -> Self {
        if let Some(bridge) = bridge {
            host.ip(&format!("link add br0 type bridge {bridge}"));
            host.ip("link set br0 up");
        }
        let mut config = configs::v4(host);
        for (key, value) in keys.as_object().unwrap() {
            config[key] = value.clone();
        }
        let bridged = config["type"] == "bridge";
        let guarded = config["macspoofchk"] == true;
        let net = Network::by(plugins, host, config);
        let (victim, attacker) = (Pod::new(), Pod::new());
        net.added(&Attachment::new("victim", &victim));
        let result = net.added(&Attachment::new("attacker", &attacker));
        let inside: Vec<&Value> = result["interfaces"].as_array().unwrap().iter().collect();
        let port = inside.iter().find(|link| link["name"].as_str().unwrap().starts_with("veth"));
        let port = port.unwrap()["name"].as_str().unwrap().to_owned();
        assert!(victim.pings("10.1.2.1") && attacker.pings("10.1.2.1"));
        let bind = |port| host.within(|| UdpSocket::bind(("0.0.0.0", port)).unwrap());
        let (heard, by_port) = (bind(HEARD), bind(PAST));
        // A rule for traffic from the bridge (`iifname br0 drop`) would miss the same frames.
        host.within(|| setsockopt(&by_port, sockopt::BindToDevice, &port.clone().into()).unwrap());
        heard.set_read_timeout(Some(Duration::from_secs_f32(PATIENCE))).unwrap();
        by_port.set_nonblocking(true).unwrap();
        Scene { host, attacker, victim, port, heard, by_port, bridged, guarded }
    }

    fn address_of(pod: &Pod) -> Mac {
        frames::mac(pod.link("eth0")["address"].as_str().unwrap())
    }

    /// Returns the address that ADD gave to `pod`.
    fn ip_of(pod: &Pod) -> Ipv4Addr {
        pod.addrs("eth0")[0].split('/').next().unwrap().parse().unwrap()
    }

    /// Sends everything that might do harm, and then a datagram that must arrive.
    fn attack(&self) {
        let own = Self::address_of(&self.attacker);
        let ip = Self::ip_of(&self.attacker);
        let victim = Self::address_of(&self.victim);
        let invented = frames::mac("02:00:00:00:be:ef");
        let mut all = Vec::new();
        // The last address is that of advertisements, which every port receives.
        let everybody = frames::mac("33:33:00:00:00:01");
        for to in frames::reserved().chain([everybody]) {
            for from in [own, victim, invented] {
                let advertisement = frames::ethernet(to, from, 0x86dd, &frames::advertisement());
                let says = format!("to {:02x} from {:02x}", to[5], from[5]);
                let datagram = frames::udp(ip, GATEWAY, PAST, &says);
                let of_victim = frames::udp(Self::ip_of(&self.victim), GATEWAY, PAST, &says);
                all.extend([
                    frames::tagged(&advertisement, 5),
                    // A priority tag without a vlan, which is removed.
                    frames::tagged(&advertisement, 0),
                    advertisement,
                    frames::ethernet(
                        to,
                        from,
                        0x86dd,
                        &frames::neighbour(135, "fe80::1".parse().unwrap(), from),
                    ),
                    frames::ethernet(
                        to,
                        from,
                        0x86dd,
                        &frames::neighbour(136, "fe80::1".parse().unwrap(), from),
                    ),
                    frames::ethernet(to, from, 0x0806, &frames::arp(from, ip, GATEWAY)),
                    frames::ethernet(
                        to,
                        from,
                        0x0806,
                        &frames::arp(from, Ipv4Addr::new(10, 1, 2, 66), GATEWAY),
                    ),
                    frames::ethernet(to, from, 0x0800, &datagram),
                    frames::ethernet(to, from, 0x0800, &of_victim),
                ]);
            }
        }
        let gateway = self.attacker.ip_json("neigh show 10.1.2.1");
        let gateway = frames::mac(gateway[0]["lladdr"].as_str().unwrap());
        let last = frames::udp(ip, GATEWAY, HEARD, "that was all");
        all.push(frames::ethernet(gateway, own, 0x0800, &last));
        frames::send(&self.attacker, &all);
        let mut buffer = [0; 64];
        let length = self.heard.recv(&mut buffer).unwrap();
        assert_eq!(&buffer[..length], b"that was all");
    }

    /// Returns the forbidden changes that the attack has made.
    pub(super) fn harm(&self) -> Vec<String> {
        self.attack();
        let mut harm = believed(self.host);
        if !self.bridged {
            return harm;
        }
        let mut buffer = [0; 64];
        while let Ok((length, from)) = self.by_port.recv_from(&mut buffer) {
            let text = String::from_utf8_lossy(&buffer[..length]).into_owned();
            harm.push(format!("past the bridge: {text}, {from}"));
        }
        let port = &self.port;
        for line in self.host.ip(&format!("neigh show dev {port}")).lines() {
            harm.push(format!("a neighbour of the port: {line}"));
        }
        if self.guarded {
            for line in self.host.sh(&format!("bridge fdb show brport {port}")).lines() {
                let own = self.attacker.link("eth0")["address"].as_str().unwrap().to_owned();
                if !line.starts_with(&own) && !line.contains("permanent") {
                    harm.push(format!("learned: {line}"));
                }
            }
        }
        harm
    }
}

/// Returns the routes and addresses that the host has from a router advertisement.
fn believed(host: &Host) -> Vec<String> {
    let text = host.ip("-6 route show table all") + &host.ip("-6 addr show");
    let lines = text.lines().filter(|line| line.contains("proto ra") || line.contains("2001:db8:bad"));
    lines.map(|line| format!("believed: {}", line.trim())).collect()
}

#[test]
fn frames_to_reserved_addresses_do_nothing_that_others_cant() {
    need!("ip", "nft", "ping", "bridge");
    let guarded = json!({"macspoofchk": true});
    // With the spanning tree protocol a bridge consumes 01:80:c2:00:00:00.
    let trees = Some("stp_state 1 forward_delay 200");
    for (bridge, keys) in [
        (None, json!({})),
        (None, guarded.clone()),
        (None, json!({"portIsolation": true})),
        (None, json!({"hairpinMode": true, "macspoofchk": true, "portIsolation": true})),
        (Some(""), json!({})),
        (trees, json!({})),
        (trees, guarded),
        (None, json!({"type": "ptp"})),
    ] {
        let host = Host::hasty();
        let scene = Scene::new(&host, plugin_dir(), bridge, &keys);
        let harm = scene.harm();
        assert!(harm.is_empty(), "{bridge:?} {keys}:\n{}", harm.join("\n"));
    }
}

/// The same frames do harm if there is no protection.
#[test]
fn frames_to_reserved_addresses_do_harm_by_a_port_that_is_open() {
    need!("ip", "nft", "ping", "bridge");
    let host = Host::hasty();
    let scene = Scene::new(&host, plugin_dir(), None, &json!({"macspoofchk": true}));
    host.ip(&format!("link set {} type bridge_slave group_fwd_mask 0", scene.port));
    host.set_sysctl(&format!("ipv6/conf/{}/accept_ra", scene.port), "1");
    let harm = scene.harm().join("\n");
    for part in ["believed: ", "past the bridge: ", "learned: ", "a neighbour of the port: "] {
        assert!(harm.contains(part), "{part}\n{harm}");
    }
}

/// An administrator may remove a port from its bridge while the pod continues to send.
#[test]
fn a_port_that_leaves_its_bridge_believes_no_router() {
    need!("ip", "nft", "ping", "bridge");
    for keys in [json!({}), json!({"isGateway": false, "ipam": {}})] {
        let host = Host::hasty();
        // A careless administrator's setting, which accepts any advertisement.
        host.set_sysctl("ipv6/conf/default/accept_ra", "2");
        let pod = Pod::new();
        let mut config = configs::v4(&host);
        for (key, value) in keys.as_object().unwrap() {
            config[key] = value.clone();
        }
        let result = Network::new(&host, config).added(&Attachment::new("c1", &pod));
        let port = result["interfaces"][1]["name"].as_str().unwrap();
        host.ip(&format!("link set {port} nomaster"));
        host.ip(&format!("link set {port} addrgenmode eui64"));
        host.ip(&format!("link set {port} down"));
        host.ip(&format!("link set {port} up"));
        host.ip(&format!("addr add 10.7.7.1/24 dev {port}"));
        let own = Scene::address_of(&pod);
        let everybody = frames::mac("33:33:00:00:00:01");
        let heard = host.within(|| UdpSocket::bind(("0.0.0.0", HEARD)).unwrap());
        heard.set_read_timeout(Some(Duration::from_millis(500))).unwrap();
        let to = frames::mac(host.link(port)["address"].as_str().unwrap());
        let last = frames::udp("10.7.7.2".parse().unwrap(), "10.7.7.1".parse().unwrap(), HEARD, "all");
        let advertisement = frames::ethernet(everybody, own, 0x86dd, &frames::advertisement());
        let frames = [advertisement, frames::ethernet(to, own, 0x0800, &last)];
        // A link that has just come up may lose the first frames.
        let arrive = || {
            frames::send(&pod, &frames);
            heard.recv(&mut [0; 8]).is_ok()
        };
        assert!(wait_until(PATIENCE, arrive), "{keys}");
        let believed = believed(&host);
        assert!(believed.is_empty(), "{keys}:\n{}", believed.join("\n"));
    }
}

/// CHECK reports a port that has been opened. A port made by the Go plugins or an earlier version was never closed, so
/// it is not reported.
#[test]
fn check_tells_when_a_port_has_been_opened() {
    need!("ip", "nft", "bridge");
    let host = Host::hasty();
    let (net, pod) = (Network::new(&host, configs::v4(&host)), Pod::new());
    let att = Attachment::new("c1", &pod);
    let result = net.added(&att);
    let port = result["interfaces"][1]["name"].as_str().unwrap();
    let mask = |mask: &str| host.ip(&format!("link set {port} type bridge_slave group_fwd_mask {mask}"));
    let accept_ra = |value: &str| host.set_sysctl(&format!("ipv6/conf/{port}/accept_ra"), value);
    net.check(&att, &result).success();
    mask("0x4000");
    let err = net.check(&att, &result).error();
    assert!(err.code == 103 && err.msg.contains("reserved addresses"), "{}", err.all());
    accept_ra("1");
    net.check(&att, &result).success();
    mask("0xfffd");
    let err = net.check(&att, &result).error();
    assert!(err.code == 103 && err.msg.contains("accept_ra 1"), "{}", err.all());
    accept_ra("0");
    net.check(&att, &result).success();
}
