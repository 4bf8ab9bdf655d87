mod backends;
mod beside;
mod crowds;
mod owners;
mod packets;
mod ruleset;

use ipnetwork::IpNetwork;

use cnimble_cni::{Attachment, Error, Owner};
use cnimble_netlink::nft::Nft;
use cnimble_rules::masquerade::{self, Applied, Backend};
use cnimble_tests::{Ns, PATIENCE, wait_until};

fn owner(network: &str, id: &str) -> Owner {
    Owner {
        network: network.into(),
        attachment: Attachment { container_id: id.into(), ifname: "eth0".into() },
    }
}

fn nets(addrs: &[&str]) -> Vec<IpNetwork> {
    addrs.iter().map(|addr| addr.parse().unwrap()).collect()
}

fn add(ns: &Ns, owner: &Owner, addrs: &[&str]) -> Applied {
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

fn undo(ns: &Ns, undo: Applied) {
    ns.within(|| undo.run().unwrap());
}

fn ruleset(ns: &Ns) -> String {
    ns.nft("-s list ruleset")
}

/// A pod, a node and the network outside.
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

    /// The source of the pod's datagrams, seen from outside.
    fn seen(&self, to: &str) -> String {
        use std::net::{IpAddr, SocketAddr, UdpSocket};
        let to: IpAddr = to.parse().unwrap();
        let any = if to.is_ipv6() { "[::]:0" } else { "0.0.0.0:0" };
        // A new port, because the kernel remembers connections.
        let listener = self.world.within(|| UdpSocket::bind(any).unwrap());
        let to = SocketAddr::new(to, listener.local_addr().unwrap().port());
        listener.set_read_timeout(Some(std::time::Duration::from_millis(500))).unwrap();
        let sender = self.pod.within(|| UdpSocket::bind(any).unwrap());
        let mut seen = None;
        wait_until(PATIENCE, || {
            // Fails without a route.
            let _ = sender.send_to(b"hello", to);
            seen = listener.recv_from(&mut [0; 16]).ok().map(|(_, from)| from.ip().to_string());
            seen.is_some()
        });
        seen.unwrap_or_else(|| panic!("nothing arrived at {to}"))
    }
}
