//! Packets that are too large for a link of their way. A small packet passes there.

use cnimble_tests::{Ns, need};
use serde_json::json;

use super::healthy::assert_answered;
use super::{FAR, FAR6, Site, stations};

/// Returns whether an echo request of 1500 bytes that must not be fragmented is answered.
fn pings_in_full(pod: &Ns, to: &str) -> bool {
    let data = if to.contains(':') { 1500 - 48 } else { 1500 - 28 };
    pod.run(&format!("ping -c 1 -W 1 -M do -s {data} {to}")).status == 0
}

#[test]
fn a_packet_that_is_too_large_is_stopped_at_its_link() {
    need!("ip", "nft", "ping");
    let site = Site::new();
    site.network("net", "br0", 1, &json!({}));
    let (pod, db) = (site.add("net", "web"), site.add("net", "db"));
    let (web_end, db_end) = (site.end(&pod), site.end(&db));
    let db_ip = &db.addrs("eth0").into_iter().find(|addr| addr.starts_with("10.214.1.")).unwrap();
    let db_ip = db_ip.split('/').next().unwrap();
    let host = &site.node.host;
    let by_db = format!("out host mtu: {db_end} drops 1500 bytes silently: its MTU is 1400");
    let by_web = format!("out host mtu: {web_end} drops 1500 bytes silently: its MTU is 1400");
    for (name, make, undo, to, ip, says) in [
        (
            "the uplink has a smaller MTU",
            "link set up0 mtu 1400".to_owned(),
            "link set up0 mtu 1500".to_owned(),
            FAR,
            FAR,
            "out host mtu: 1500 bytes do not fit: the MTU of up0 is 1400",
        ),
        (
            "the uplink has a smaller MTU, with IPv6",
            "link set up0 mtu 1400".to_owned(),
            "link set up0 mtu 1500".to_owned(),
            FAR6,
            FAR6,
            "out host mtu: 1500 bytes do not fit: the MTU of up0 is 1400",
        ),
        (
            "the route has a smaller MTU",
            format!("route add {FAR} via 10.7.0.1 mtu 1400"),
            format!("route del {FAR}"),
            FAR,
            FAR,
            "out host mtu: 1500 bytes do not fit: the MTU of the route to 192.0.2.1 is 1400",
        ),
        (
            "the host's end has a smaller MTU",
            format!("link set {web_end} mtu 1400"),
            format!("link set {web_end} mtu 1500"),
            FAR,
            FAR,
            &by_web,
        ),
        (
            "the port of the other pod has a smaller MTU",
            format!("link set {db_end} mtu 1400"),
            format!("link set {db_end} mtu 1500"),
            "db",
            db_ip,
            &by_db,
        ),
    ] {
        assert!(pings_in_full(&pod, ip), "{name}: before it");
        assert_answered(&site.trace(&["web", to, "--full-size"]));
        host.ip(&make);
        let is_stopped = !pings_in_full(&pod, ip);
        let full = site.trace(&["web", to, "--full-size"]);
        let small = site.trace(&["web", to]);
        host.ip(&undo);
        pod.ip("route flush cache");
        pod.ip("-6 route flush cache");
        assert!(is_stopped, "{name}: a full packet passes in spite of it");
        assert_eq!(full.status, 6, "{name}: {}", full.describe());
        let stops = stations(&full, "stops");
        assert!(stops.len() == 1 && stops[0].starts_with(says), "{name}: {stops:?}\n{}", full.describe());
        assert_eq!(small.status, 0, "{name}: {}", small.describe());
    }
}
