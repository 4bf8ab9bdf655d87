//! ptp: each pod has a separate link to the host, and cannot see the traffic of other pods.

use std::net::{Ipv4Addr, UdpSocket};
use std::time::Duration;

use cnimble_tests::{Attachment, Host, Network, PATIENCE, Pod, configs, need, wait_until};

use super::frames;
use super::places::mac_of;

const PORT: u16 = 9001;

fn hears(socket: &UdpSocket, wanted: &str) -> bool {
    let mut buffer = [0; 64];
    loop {
        let length = socket.recv(&mut buffer).unwrap();
        match &buffer[..length] {
            text if text == wanted.as_bytes() => return true,
            b"that was all" => return false,
            _ => {}
        }
    }
}

/// A pod's claims about its neighbour's address change nothing, as the host has a route to each pod. But source
/// addresses are not checked unless the administrator enables that.
#[test]
fn a_pod_on_ptp_cant_take_what_is_sent_to_another() {
    need!("ip", "nft", "ping");
    let host = Host::hasty();
    let mut config = configs::dual(&host);
    config["type"] = "ptp".into();
    let net = Network::new(&host, config);
    let (victim, attacker) = (Pod::new(), Pod::new());
    net.added(&Attachment::new("victim", &victim));
    let result = net.added(&Attachment::new("attacker", &attacker));
    let end = result["interfaces"][0]["name"].as_str().unwrap();
    let address = |of: &Pod, nth: usize| of.addrs("eth0")[nth].split('/').next().unwrap().to_owned();
    let (victim4, victim6) = (address(&victim, 0), address(&victim, 1));
    for to in [&victim4, &victim6] {
        assert!(host.pings(to) && attacker.pings(to));
    }
    let routes = || host.ip("route show table all") + &host.ip("-6 route show table all");
    // The kernel gives each end a link-local address a moment after the link has a carrier.
    let has_both = |kind: &str| routes().matches(kind).count() >= 2;
    assert!(wait_until(PATIENCE, || has_both("local fe80::") && has_both("anycast fe80::")), "{}", routes());
    let before = routes();

    let own = frames::mac(&mac_of(&attacker));
    let gateway = frames::mac(host.link(end)["address"].as_str().unwrap());
    let socket = host.within(|| UdpSocket::bind(("0.0.0.0", PORT)).unwrap());
    socket.set_read_timeout(Some(Duration::from_secs_f32(PATIENCE))).unwrap();
    let victim_ip: Ipv4Addr = victim4.parse().unwrap();
    let own_ip: Ipv4Addr = address(&attacker, 0).parse().unwrap();
    let to: Ipv4Addr = "10.1.2.1".parse().unwrap();
    let lies = |text: &str| {
        let mut all = Vec::new();
        for to in frames::reserved().chain([[0xff; 6], [0x33, 0x33, 0, 0, 0, 1], gateway]) {
            all.push(frames::ethernet(to, own, 0x0806, &frames::arp(own, victim_ip, victim_ip)));
            for kind in [135, 136] {
                let neighbour = frames::neighbour(kind, victim6.parse().unwrap(), own);
                all.push(frames::ethernet(to, own, 0x86dd, &neighbour));
            }
        }
        all.push(frames::ethernet(gateway, own, 0x0800, &frames::udp(victim_ip, to, PORT, text)));
        all.push(frames::ethernet(gateway, own, 0x0800, &frames::udp(own_ip, to, PORT, "that was all")));
        all
    };
    frames::send(&attacker, &lies("forged"));
    assert!(hears(&socket, "forged"), "docs/SECURITY.md says that this gets through");
    assert_eq!(routes(), before);
    for to in [&victim4, &victim6] {
        assert!(host.pings_once(to), "{to}");
    }
    // The kernel's source check prevents it.
    host.set_sysctl(&format!("ipv4/conf/{end}/rp_filter"), "1");
    // The end of the first round.
    assert!(!hears(&socket, ""));
    frames::send(&attacker, &lies("forged again"));
    assert!(!hears(&socket, "forged again"));
    assert!(attacker.pings("10.1.2.1") && attacker.pings(&victim4));
}
