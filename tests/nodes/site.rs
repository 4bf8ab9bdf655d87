//! A node with two pods and a world behind it, and the paths between them.

use std::io::Read;
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::{Value, json};

use cnimble_tests::traffic::Server;
use cnimble_tests::{Attachment, Host, Network, Ns, silence};

/// The first time limit for an answer.
pub(crate) const SOON: Duration = Duration::from_millis(1500);
/// The time limit after a difference.
pub(crate) const LATER: Duration = Duration::from_secs(8);

/// The name of a path, and whether there is an answer.
pub(crate) type Reach = (&'static str, bool);

pub(crate) struct Site {
    _servers: Vec<Server>,
    world: Ns,
    pods: [Ns; 2],
    addrs: [Vec<String>; 2],
    host: Host,
}

impl Site {
    /// Creates two pods with the plugins of a directory, on a node with the rules of a file.
    pub(crate) fn new(plugins: &Path, rules: &str, chain: &[&str]) -> Self {
        let (host, pods, world) = (Host::hasty(), [Ns::new(), Ns::new()], Ns::new());
        host.cable("uplink", &world, "eth0");
        for (ns, link, addrs) in [
            (&*host, "uplink", ["192.0.2.1/24", "2001:db8::1/64"]),
            (&world, "eth0", ["192.0.2.9/24", "2001:db8::9/64"]),
        ] {
            ns.ip(&format!("addr add {} dev {link}", addrs[0]));
            ns.ip(&format!("-6 addr add {} dev {link} nodad", addrs[1]));
        }
        // Answers to the addresses of services and pods have a route.
        host.ip("route add default via 192.0.2.9");
        world.ip("route add default via 192.0.2.1");
        world.ip("-6 route add default via 2001:db8::1");
        load(&host, rules);
        let addrs = [0, 1].map(|n| add(&host, plugins, chain, n, &pods[n]));
        let servers = vec![
            Server::start(&world, 80, "world"),
            Server::start(&pods[0], 80, "pod0"),
            Server::start(&pods[1], 80, "pod1"),
            Server::start(&host, 9090, "host"),
        ];
        Site { _servers: servers, world, pods, addrs, host }
    }

    /// Tries all paths concurrently, because most of the time is spent waiting.
    pub(crate) fn reach(&self, patience: Duration) -> Vec<Reach> {
        let [pod, _] = &self.pods;
        let [first, second] = &self.addrs;
        let ways: [(&'static str, &Ns, String); 11] = [
            ("pod to world", pod, "192.0.2.9:80".into()),
            ("pod to world, IPv6", pod, "[2001:db8::9]:80".into()),
            ("pod to pod", pod, format!("{}:80", second[0])),
            ("pod to pod, IPv6", pod, format!("[{}]:80", second[1])),
            ("pod to host", pod, "10.1.2.1:9090".into()),
            ("pod to a service", pod, "10.96.0.10:80".into()),
            ("pod to a service without endpoints", pod, "10.96.0.20:80".into()),
            ("host to pod", &self.host, format!("{}:80", first[0])),
            ("world to pod", &self.world, format!("{}:80", first[0])),
            ("world to pod, IPv6", &self.world, format!("[{}]:80", first[1])),
            ("world to port", &self.world, "192.0.2.1:8080".into()),
        ];
        std::thread::scope(|scope| {
            let asked: Vec<_> = ways
                .iter()
                .map(|(name, from, to)| (*name, scope.spawn(move || is_answered(from, to, patience))))
                .collect();
            asked.into_iter().map(|(name, way)| (name, way.join().unwrap())).collect()
        })
    }

    pub(crate) fn ruleset(&self) -> String {
        self.host.nft("list ruleset")
    }
}

fn load(host: &Host, rules: &str) {
    let file = |name: &str| PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/nodes/rules")).join(name);
    if rules.ends_with(".nft") {
        host.nft(&format!("-f {}", file(rules).display()));
    } else if !rules.is_empty() {
        host.shell(&format!("iptables-nft-restore {}", file(rules).display()));
        let ipv6 = file(&format!("{rules}6"));
        if ipv6.exists() {
            host.shell(&format!("ip6tables-nft-restore {}", ipv6.display()));
        }
    }
}

/// Calls ADD of a chain and returns the pod's addresses. The first pod has a port of the host.
fn add(host: &Host, plugins: &Path, chain: &[&str], number: usize, pod: &Ns) -> Vec<String> {
    let att = Attachment::new(&format!("pod{number}"), pod);
    let mut prev: Option<Value> = None;
    for plugin in chain {
        let mut config = match *plugin {
            "bridge" => json!({
                "bridge": "br0", "isGateway": true, "ipMasq": true,
                "ipam": {
                    "type": "host-local", "dataDir": host.data_dir(),
                    "ranges": [[{"subnet": "10.1.2.0/24"}], [{"subnet": "fd00:1:2::/64"}]],
                    "routes": [{"dst": "0.0.0.0/0"}, {"dst": "::/0"}],
                },
            }),
            "portmap" if number == 0 => json!({
                "runtimeConfig": {"portMappings": [{"hostPort": 8080, "containerPort": 80, "protocol": "tcp"}]},
            }),
            "tuning" => {
                json!({"sysctl": {"net.core.somaxconn": "500"}, "dataDir": host.dir().join("tuning")})
            }
            _ => json!({}),
        };
        // Debian's Go plugins support no newer version.
        for (key, value) in [("type", *plugin), ("name", "net64"), ("cniVersion", "1.0.0")] {
            config[key] = value.into();
        }
        let net = Network::by(plugins, host, config);
        prev = Some(net.call("ADD", &att, prev.as_ref()).run().result());
    }
    let ips = prev.unwrap()["ips"].as_array().unwrap().clone();
    ips.iter().map(|ip| ip["address"].as_str().unwrap().split('/').next().unwrap().to_owned()).collect()
}

fn is_answered(from: &Ns, to: &str, patience: Duration) -> bool {
    let to: SocketAddr = to.parse().unwrap();
    from.within(|| {
        let Ok(mut stream) = TcpStream::connect_timeout(&to, patience) else {
            silence(patience);
            return false;
        };
        stream.set_read_timeout(Some(patience)).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).is_ok() && !answer.is_empty()
    })
}
