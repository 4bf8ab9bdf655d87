//! A node with an uplink to the world, a pod, and their connections.

use std::io::Read;
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use cnimble_tests::traffic::Server;
use cnimble_tests::{Host, Ns, Pod, silence};

pub(super) struct Site {
    pub(super) host: Host,
    pub(super) pod: Pod,
    pub(super) neighbour: Pod,
    world: Ns,
}

impl Site {
    pub(super) fn new() -> Self {
        let (host, pod, neighbour, world) = (Host::hasty(), Pod::new(), Pod::new(), Ns::new());
        host.cable("uplink", &world, "eth0");
        for (ns, link, number) in [(&*host, "uplink", 1), (&world, "eth0", 9)] {
            ns.ip(&format!("addr add 192.0.2.{number}/24 dev {link}"));
            ns.ip(&format!("-6 addr add 2001:db8::{number}/64 dev {link} nodad"));
        }
        // Without masquerading, the world has a route back to the pods' addresses.
        host.ip("route add default via 192.0.2.9");
        world.ip("route add default via 192.0.2.1");
        world.ip("-6 route add default via 2001:db8::1");
        Site { host, pod, neighbour, world }
    }

    /// Returns which connections are answered, and the client that the server sees, one a line. `addrs` are those of
    /// the pod, `others` those of the neighbour. `patience` is the timeout of an answer.
    pub(super) fn ways(&self, addrs: &[String], others: &[String], patience: Duration) -> String {
        let _servers = [
            Server::start(&self.world, 80, "world"),
            Server::start(&self.pod, 80, "pod"),
            Server::start(&self.neighbour, 80, "neighbour"),
            Server::start(&self.host, 9090, "host"),
        ];
        let mut ways: Vec<(String, &Ns, String)> = vec![
            ("pod to world".into(), &self.pod, "192.0.2.9:80".into()),
            ("pod to world, IPv6".into(), &self.pod, "[2001:db8::9]:80".into()),
            ("pod to host".into(), &self.pod, "192.0.2.1:9090".into()),
            ("world to port".into(), &self.world, "192.0.2.1:8080".into()),
            ("world to port, IPv6".into(), &self.world, "[2001:db8::1]:8080".into()),
            ("host to port".into(), &self.host, "127.0.0.1:8080".into()),
            ("host to port of its address".into(), &self.host, "192.0.2.1:8080".into()),
            ("pod to its own port".into(), &self.pod, "192.0.2.1:8080".into()),
        ];
        for (number, addr) in addrs.iter().map(|addr| at(addr, 80)).enumerate() {
            ways.push((format!("host to pod's address {number}"), &self.host, addr.clone()));
            ways.push((format!("world to pod's address {number}"), &self.world, addr));
        }
        for (number, addr) in others.iter().map(|addr| at(addr, 80)).enumerate() {
            ways.push((format!("pod to neighbour's address {number}"), &self.pod, addr));
        }
        std::thread::scope(|scope| {
            let asked: Vec<_> = ways
                .iter()
                .map(|(name, from, to)| (name, scope.spawn(move || answer(from, to, patience))))
                .collect();
            asked.into_iter().map(|(name, way)| format!("{name}: {}\n", way.join().unwrap())).collect()
        })
    }
}

fn at(addr: &str, port: u16) -> String {
    if addr.contains(':') { format!("[{addr}]:{port}") } else { format!("{addr}:{port}") }
}

fn answer(from: &Ns, to: &str, patience: Duration) -> String {
    let to: SocketAddr = to.parse().unwrap();
    from.within(|| {
        let mut text = String::new();
        let Ok(mut stream) = TcpStream::connect_timeout(&to, patience) else {
            silence(patience);
            return "no answer".into();
        };
        stream.set_read_timeout(Some(patience)).unwrap();
        match stream.read_to_string(&mut text) {
            Ok(_) if !text.is_empty() => text,
            _ => "no answer".into(),
        }
    })
}
