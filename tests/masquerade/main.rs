//! Masquerading in nf_tables and with iptables: packets, rulesets, owners, leftovers.
// Test code throughout: it stops at the first surprise.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

mod backends;
mod crowds;
mod owners;
mod packets;
mod ruleset;

use cnimble::net::nft::Nft;
use cnimble::rules::Owner;
use cnimble::rules::masquerade::{self, Backend, Undo};
use cnimble::spec::{Attachment, Error};
use cnimble_tests::Ns;
use ipnetwork::IpNetwork;

fn owner(network: &str, id: &str) -> Owner {
    Owner {
        network: network.into(),
        attachment: Attachment { container_id: id.into(), ifname: "eth0".into() },
    }
}

fn nets(addrs: &[&str]) -> Vec<IpNetwork> {
    addrs.iter().map(|addr| addr.parse().unwrap()).collect()
}

fn add(ns: &Ns, owner: &Owner, addrs: &[&str]) -> Undo {
    let addrs = nets(addrs);
    ns.within(|| masquerade::add(Backend::Nftables, &mut Nft::new(), owner, &addrs).unwrap())
}

fn remove(ns: &Ns, owner: &Owner, addrs: &[&str]) {
    let addrs = nets(addrs);
    ns.within(|| masquerade::remove(&mut Nft::new(), owner, &addrs).unwrap());
}

fn check(ns: &Ns, owner: &Owner, addrs: &[&str]) -> Result<(), Error> {
    let addrs = nets(addrs);
    ns.within(|| masquerade::check(&mut Nft::new(), owner, &addrs))
}

fn undo(ns: &Ns, undo: Undo) {
    ns.within(|| undo.run().unwrap());
}

fn ruleset(ns: &Ns) -> String {
    ns.nft("-s list ruleset")
}

/// A pod, a node and the world behind it, joined by veth pairs.
struct Path {
    pod: Ns,
    node: Ns,
    world: Ns,
}

impl Path {
    fn new() -> Self {
        let path = Path { pod: Ns::new(), node: Ns::new(), world: Ns::new() };
        path.node.cable("toworld", &path.world, "uplink");
        path.node.cable("topod", &path.pod, "eth0");
        path.node.set_sysctl("ipv4/ip_forward", "1");
        path.node.set_sysctl("ipv6/conf/all/forwarding", "1");
        for (ns, link, addrs) in [
            (&path.pod, "eth0", ["10.1.0.5/16", "fd01::5/64"]),
            (&path.node, "topod", ["10.1.0.1/16", "fd01::1/64"]),
            (&path.node, "toworld", ["192.0.2.1/24", "2001:db8::1/64"]),
            (&path.world, "uplink", ["192.0.2.9/24", "2001:db8::9/64"]),
        ] {
            ns.ip(&format!("addr add {} dev {link}", addrs[0]));
            ns.ip(&format!("-6 addr add {} dev {link} nodad", addrs[1]));
        }
        path.pod.ip("route add default via 10.1.0.1");
        path.pod.ip("-6 route add default via fd01::1");
        path
    }

    /// Whom the world sees when the pod sends a datagram.
    fn seen(&self, to: &str) -> String {
        use std::net::UdpSocket;
        let (to, any) = if to.contains(':') {
            (format!("[{to}]:7000"), "[::]:7000")
        } else {
            (format!("{to}:7000"), "0.0.0.0:7000")
        };
        let listener = self.world.within(|| UdpSocket::bind(any).unwrap());
        listener.set_read_timeout(Some(std::time::Duration::from_secs(10))).unwrap();
        let bind = if to.starts_with('[') { "[::]:0" } else { "0.0.0.0:0" };
        let sender = self.pod.within(|| UdpSocket::bind(bind).unwrap());
        let mut buffer = [0; 16];
        for _ in 0..3 {
            sender.send_to(b"hello", &to).unwrap();
            if let Ok((_, from)) = listener.recv_from(&mut buffer) {
                return from.ip().to_string();
            }
        }
        panic!("nothing arrived at {to}");
    }
}
