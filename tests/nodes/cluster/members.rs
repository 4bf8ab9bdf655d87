//! The nodes of a cluster on one link, each with its agent and a pod, and an API server.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::Command;

use serde_json::{Value, json};

use cnimble_tests::http::ApiServer;
use cnimble_tests::stream::socket;
use cnimble_tests::traffic::{self, Server};
use cnimble_tests::{Background, Host, LIMIT, Ns, PATIENCE, command, plugin_dir, wait_until};

/// The routing protocol number of the agent's routes.
pub(super) const PROTOCOL: &str = "proto 203";

/// A node: the host, its agent, and a pod with its addresses.
pub(super) struct Member {
    pub(super) number: usize,
    pub(super) host: Host,
    pub(super) agent: Option<Background>,
    pub(super) pod: Ns,
    pub(super) ips: Vec<String>,
}

pub(super) struct Site {
    pub(super) members: Vec<Member>,
    pub(super) api: ApiServer,
    /// The link between the nodes, the API server, and the world beyond.
    pub(super) world: Ns,
    /// The options of each agent.
    options: &'static str,
}

pub(super) fn object(number: usize) -> Value {
    json!({
        "metadata": {"name": format!("node{number}"), "creationTimestamp": format!("2026-01-01T00:00:{number:02}Z")},
        "spec": {"podCIDRs": [format!("10.1.{number}.0/24"), format!("fd00:1:{number}::/64")]},
        "status": {"addresses": [
            {"type": "InternalIP", "address": format!("192.0.2.{number}")},
            {"type": "InternalIP", "address": format!("2001:db8::{number}")},
            {"type": "Hostname", "address": "somebody"},
        ]},
    })
}

impl Site {
    pub(super) fn new(nodes: usize) -> Self {
        Self::with(nodes, "")
    }

    /// Creates a site with these options for each agent.
    pub(super) fn with(nodes: usize, options: &'static str) -> Self {
        let world = Ns::new();
        // A MAC that follows the ports would change with a new node, and other hosts would use the world's old one.
        world.ip("link add br0 address 02:00:00:00:00:fe type bridge");
        world.ip("link set br0 up");
        world.ip("addr add 192.0.2.254/24 dev br0");
        world.ip("-6 addr add 2001:db8::fe/64 dev br0 nodad");
        let api = ApiServer::of_nodes(&world, "192.0.2.254:6443");
        let mut site = Site { members: Vec::new(), api, world, options };
        for number in 1..=nodes {
            site.join(number);
        }
        site
    }

    /// Adds a machine with its agent, and its node to the API server.
    pub(super) fn join(&mut self, number: usize) {
        let host = Host::hasty();
        let port = format!("port{number}");
        host.cable("uplink", &self.world, &port);
        self.world.ip(&format!("link set {port} master br0"));
        host.ip(&format!("addr add 192.0.2.{number}/24 dev uplink"));
        host.ip(&format!("-6 addr add 2001:db8::{number}/64 dev uplink nodad"));
        host.ip("route add default via 192.0.2.254");
        host.ip("-6 route add default via 2001:db8::fe");
        std::fs::create_dir(host.dir().join("net.d")).unwrap();
        self.api.kubeconfig(host.dir(), None);
        self.api.put(object(number));
        let mut member = Member { number, host, agent: None, pod: Ns::new(), ips: Vec::new() };
        member.start(self.options);
        self.members.push(member);
    }

    /// Waits until each node has its file, and a route of each family to each other node.
    pub(super) fn settled(&self) {
        for member in &self.members {
            let others =
                self.members.iter().map(|other| other.number).filter(|other| *other != member.number);
            let mut wanted: Vec<String> = others
                .flat_map(|n| {
                    [format!("10.1.{n}.0/24 via 192.0.2.{n}"), format!("fd00:1:{n}::/64 via 2001:db8::{n}")]
                })
                .collect();
            wanted.sort();
            let there = || {
                let mut routes = member.routes();
                routes.sort();
                routes.len() == wanted.len()
                    && routes
                        .iter()
                        .zip(&wanted)
                        .all(|(route, wanted)| route.starts_with(&format!("{wanted} ")))
            };
            assert!(
                wait_until(PATIENCE, || member.conflist().exists() && there()),
                "{:?}\n{}",
                member.routes(),
                member.log()
            );
        }
    }

    /// Asserts that each pod reaches each pod with its own address, and the world with its node's address.
    pub(super) fn all_reach_all(&self) {
        let _world = Server::start(&self.world, 80, "world");
        let _servers: Vec<Server> =
            self.members.iter().map(|member| Server::start(&member.pod, 80, "pod")).collect();
        for from in &self.members {
            let seen = |to: &str| {
                traffic::tcp(&from.pod, &socket(to, 80))
                    .unwrap_or_else(|err| panic!("{:?} to {to}: {err}", from.ips))
            };
            for to in &self.members {
                for (own, ip) in from.ips.iter().zip(&to.ips) {
                    assert_eq!(seen(ip), format!("pod {own}"), "to {ip}");
                }
            }
            // The world has no route to pods, so it only answers a node's address.
            let number = from.number;
            assert_eq!(seen("192.0.2.254"), format!("world 192.0.2.{number}"));
            assert_eq!(seen("2001:db8::fe"), format!("world 2001:db8::{number}"));
        }
    }

    pub(super) fn add_pods(&mut self) {
        self.members.iter_mut().for_each(Member::add_pod);
    }
}

impl Member {
    /// Returns `cnimble node` with these additional options.
    pub(super) fn node(&self, options: &str) -> Command {
        let dir = self.host.dir().display();
        let log =
            std::fs::File::options().create(true).append(true).open(self.host.dir().join("log")).unwrap();
        // The agent reacts only to notifications, unless a test is about the interval.
        let resync = if options.contains("--resync") { "" } else { "--resync 600" };
        let args = format!(
            "node --kubeconfig {dir}/kubeconfig --node-name node{} --conf-dir {dir}/net.d --data-dir {} --listen {dir}/sock \
             {resync} {options}",
            self.number,
            self.host.data_dir().display()
        );
        let mut command = self.host.command(command());
        command.args(args.split_whitespace()).stderr(log);
        command
    }

    pub(super) fn start(&mut self, options: &str) {
        self.agent = Some(Background::start(&mut self.node(options)));
    }

    /// Returns the status and the text of a page of the agent.
    pub(super) fn get(&self, path: &str) -> Option<(u16, String)> {
        let mut stream = UnixStream::connect(self.host.dir().join("sock")).ok()?;
        stream.set_read_timeout(Some(LIMIT)).unwrap();
        write!(stream, "GET {path} HTTP/1.1\r\nHost: node\r\nConnection: close\r\n\r\n").ok()?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).ok()?;
        let (head, body) = answer.split_once("\r\n\r\n")?;
        Some((head.split(' ').nth(1)?.parse().ok()?, body.to_owned()))
    }

    /// Returns the value of a metric in `/metrics`.
    pub(super) fn metric(&self, name: &str) -> Option<u64> {
        let (_, text) = self.get("/metrics")?;
        let line = text.lines().find_map(|line| line.strip_prefix(&format!("cnimble_node_{name} ")))?;
        line.trim().parse().ok()
    }

    pub(super) fn run(&self, line: &str) -> cnimble_tests::Outcome {
        self.host.run(&format!("{} {line}", command().display()))
    }

    pub(super) fn conflist(&self) -> PathBuf {
        self.host.dir().join("net.d/10-cnimble.conflist")
    }

    pub(super) fn log(&self) -> String {
        std::fs::read_to_string(self.host.dir().join("log")).unwrap_or_default()
    }

    pub(super) fn says(&self, words: &str) {
        assert!(wait_until(PATIENCE, || self.log().contains(words)), "{words}: {}", self.log());
    }

    /// Returns the agent's routes, as `ip route` shows them.
    pub(super) fn routes(&self) -> Vec<String> {
        let of = |family: &str| self.host.ip(&format!("{family} route show {PROTOCOL}"));
        let text = of("-4") + "\n" + &of("-6");
        text.lines().map(|line| line.trim().to_owned()).filter(|line| !line.is_empty()).collect()
    }

    /// Runs `cnimble VERB` for the pod in the node's network.
    fn pod_verb(&self, verb: &str) -> String {
        let dir = self.host.dir().display();
        let line = format!(
            "{verb} cnimble {} --cni-path {} --conf-dir {dir}/net.d --cache-dir {dir}/cache --lock-dir {} --json",
            self.pod.path(),
            plugin_dir().display(),
            self.host.lock_dir().display()
        );
        self.run(&line).success().text()
    }

    pub(super) fn add_pod(&mut self) {
        let result: Value = serde_json::from_str(&self.pod_verb("add")).unwrap();
        let ips = result["ips"].as_array().unwrap();
        let address = |ip: &Value| ip["address"].as_str().unwrap().split('/').next().unwrap().to_owned();
        self.ips = ips.iter().map(address).collect();
    }

    pub(super) fn del_pod(&mut self) {
        self.pod_verb("del");
        self.ips.clear();
    }
}
