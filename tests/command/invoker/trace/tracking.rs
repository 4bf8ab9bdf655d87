//! Faults of connection tracking: old connections of a published port, and a full table.

use std::fmt::Write as _;
use std::net::UdpSocket;
use std::time::Duration;

use cnimble_tests::traffic::{self, Server};
use cnimble_tests::{Ns, need, skip};
use serde_json::json;

use super::{FAR, Site, document, stations};

/// Returns whether a datagram from this port of the far address is answered.
fn answers_port(router: &Ns, port: u16) -> bool {
    router.within(|| {
        let socket = UdpSocket::bind((FAR, port)).unwrap();
        socket.set_read_timeout(Some(Duration::from_secs(1))).unwrap();
        socket.send_to(b"question", "10.7.0.2:8080").unwrap();
        socket.recv(&mut [0; 64]).is_ok()
    })
}

/// A client that keeps its port does not reach the pod, and all others do.
#[test]
fn an_old_connection_of_a_published_port_is_named() {
    need!("ip", "nft", "conntrack");
    let site = Site::new();
    let pod = site.publish("nftables");
    let _server = Server::start(&pod, 80, "pod");
    assert!(traffic::udp(&site.router, "10.7.0.2:8080").is_some());
    let tracking = || {
        let stations = document(&site.trace(&["--from", FAR, "10.7.0.2:8080/udp"]))["stations"].clone();
        stations.as_array().unwrap().iter().find(|of| of["station"] == "tracking").cloned()
    };
    assert_eq!(tracking(), None);
    site.node.host.sh(&format!(
        "conntrack -I -p udp -s {FAR} -d 10.7.0.2 --sport 5555 --dport 8080 -r 10.7.0.2 -q {FAR} \
         --reply-port-src 8080 --reply-port-dst 5555 -t 300"
    ));
    assert!(!answers_port(&site.router, 5555), "the old connection leads to the pod");
    let station = tracking().unwrap();
    let text = station["text"].as_str().unwrap();
    let says = "connection tracking leads 1 older connections to port 8080 elsewhere, such as to 10.7.0.2";
    assert!(text.contains(says), "{station}");
    site.node.host.sh(station["try"].as_str().unwrap());
    assert!(answers_port(&site.router, 5555), "{station}");
    assert_eq!(tracking(), None);
}

/// The limit counts for each namespace, and only the machine can change it.
#[test]
fn a_full_table_is_named() {
    need!("ip", "nft", "ping", "conntrack");
    let limit: u32 = match std::fs::read_to_string("/proc/sys/net/netfilter/nf_conntrack_max") {
        Ok(text) => text.trim().parse().unwrap(),
        Err(err) => skip!("the limit of connection tracking can't be read: {err}"),
    };
    if limit > 300_000 {
        skip!("a table of {limit} connections is too large for a test");
    }
    let site = Site::new();
    site.network("net", "br0", 1, &json!({}));
    let web = site.add("net", "web");
    assert!(web.pings(FAR));
    let mut entries = String::new();
    for number in 0..limit {
        let [_, b, c, d] = number.to_be_bytes();
        writeln!(
            entries,
            "-A -p udp -s 203.{b}.{c}.{d} -d 198.51.100.1 --sport 9 --dport 9 -r 198.51.100.1 -q 203.{b}.{c}.{d} \
             --reply-port-src 9 --reply-port-dst 9 -t 600 -u SEEN_REPLY,ASSURED"
        )
        .unwrap();
    }
    let file = site.node.host.dir().join("connections");
    std::fs::write(&file, entries).unwrap();
    // It fails as soon as the table is full.
    site.node.host.run(&format!("conntrack -R {}", file.display()));
    assert!(web.misses(FAR), "the table is not full");
    let traced = site.trace(&["web", FAR]);
    assert_eq!(traced.status, 6, "{}", traced.describe());
    let stops = stations(&traced, "stops");
    let is_it = stops.len() == 1 && stops[0].starts_with("out host lost:");
    assert!(is_it && stops[0].contains("Connection tracking is full"), "{stops:?}");
}
