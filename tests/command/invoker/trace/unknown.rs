//! What cannot be known is said, and nothing is guessed.

use cnimble_tests::need;
use serde_json::json;

use super::{FAR, FAR6, Site, stations};

/// No probe of SCTP is sent. A look still finds what stops every packet.
#[test]
fn sctp_is_looked_at_and_not_probed() {
    need!("ip", "nft");
    let site = Site::new();
    site.network("net", "br0", 1, &json!({}));
    let _pods = [site.add("net", "web"), site.add("net", "db")];
    for to in ["192.0.2.1:9/sctp", "[2001:db8::1]:9/sctp", "db:9/sctp", "gateway:9/sctp"] {
        for more in [&[][..], &["--no-probe"]] {
            let traced = site.trace(&[&["web", to][..], more].concat());
            let is_near = more.len() == 1 && !to.contains("2");
            assert_eq!(traced.status, if is_near { 0 } else { 8 }, "{to} {more:?}: {}", traced.describe());
        }
        let unknown = stations(&site.trace(&["web", to]), "unknown");
        let last = unknown.last().unwrap();
        assert!(last.starts_with("out host probe: no probe of sctp is sent"), "{to}: {unknown:?}");
    }
    for (to, far) in [("192.0.2.1:9/sctp", FAR), ("[2001:db8::1]:9/sctp", FAR6)] {
        site.node.host.ip(&format!("route add blackhole {far}"));
        let traced = site.trace(&["web", to]);
        assert_eq!(traced.status, 6, "{}", traced.describe());
        assert!(stations(&traced, "stops")[0].contains("blackhole"), "{}", traced.describe());
    }
}

/// A bridge stands in for the link on which kube-proxy in IPVS mode puts the addresses of Services.
#[test]
fn what_ipvs_does_with_a_packet_is_not_followed() {
    need!("ip", "nft");
    let site = Site::new();
    site.network("net", "br0", 1, &json!({}));
    let _web = site.add("net", "web");
    let host = &site.node.host;
    host.shell("ip link add kube-ipvs0 type bridge; ip address add 10.96.0.1/32 dev kube-ipvs0");
    let looked = site.trace(&["web", "10.96.0.1:80", "--no-probe"]);
    assert_eq!(looked.status, 8, "{}", looked.describe());
    let text = "out host ipvs: 10.96.0.1 is the address of a Service on kube-ipvs0, and where IPVS sends the packet is not \
                followed";
    assert_eq!(stations(&looked, "unknown"), [text]);
    // Nothing listens here, and the refusal comes back.
    let probed = site.trace(&["web", "10.96.0.1:80"]);
    assert_eq!(probed.status, 0, "{}", probed.describe());
    // An address that another link has as well is the node's own.
    host.ip("address add 10.96.0.1/32 dev lo");
    let own = site.trace(&["web", "10.96.0.1:80", "--no-probe"]);
    assert_eq!(stations(&own, "unknown"), [] as [String; 0], "{}", own.describe());
    host.ip("address del 10.96.0.1/32 dev lo");
    host.shell(
        "nft 'table inet own { chain in { type filter hook input priority 0; ip daddr 10.96.0.1 drop; }; }'",
    );
    let dropped = site.trace(&["web", "10.96.0.1:80"]);
    assert_eq!(dropped.status, 6, "{}", dropped.describe());
    assert!(stations(&dropped, "stops")[0].starts_with("out host input:"), "{}", dropped.describe());
}

/// A permanent entry can be right: another host may answer for the address.
#[test]
fn a_wrong_permanent_neighbour_of_the_uplink_cannot_be_known() {
    need!("ip", "nft", "ping");
    let site = Site::new();
    site.network("net", "br0", 1, &json!({}));
    let web = site.add("net", "web");
    assert!(web.pings(FAR));
    site.node.host.ip("neighbour replace 10.7.0.1 lladdr 02:00:00:00:00:99 dev up0 nud permanent");
    assert!(web.misses(FAR));
    let traced = site.trace(&["web", FAR, "--wait", "1"]);
    assert_eq!(traced.status, 8, "{}", traced.describe());
    assert_eq!(stations(&traced, "stops"), [] as [String; 0]);
    let says = "10.7.0.1 is at 02:00:00:00:00:99 on up0, by a permanent entry";
    assert!(stations(&traced, "ok").iter().any(|text| text.ends_with(says)), "{}", traced.describe());
}
