//! Nodes on one link, each with `cnimble node --cluster-local` and pods, and etcd on the same link.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::process::Command;

use serde_json::Value;

use cnimble_tests::stream::socket;
use cnimble_tests::traffic::{self, Server};
use cnimble_tests::{
    Background, Host, LIMIT, Ns, Outcome, PATIENCE, command, plugin_dir, run_limited, wait_until,
};

use super::agent::{get, metric};
use super::etcd::Etcd;

/// The address of etcd, which is also the network outside.
const WORLD: &str = "192.0.2.254";

/// A pod and its addresses.
pub(super) struct Pod {
    pub(super) ns: Ns,
    pub(super) ips: Vec<String>,
}

/// A node: the host, its agent, and its pods.
pub(super) struct Member {
    number: usize,
    pub(super) host: Host,
    pub(super) agent: Option<Background>,
    pub(super) pods: Vec<Pod>,
    /// The options of the agent.
    pub(super) options: String,
    /// Further options of verbs.
    pub(super) verb_options: String,
}

pub(super) struct Site<'w> {
    pub(super) members: Vec<Member>,
    pub(super) etcd: Etcd<'w>,
    world: &'w Host,
    /// Further keys of the IPAM plugin.
    keys: String,
    /// The options of each agent.
    options: String,
    /// The time `offline` in seconds.
    pub(super) offline: u32,
}

impl<'w> Site<'w> {
    /// Makes the link between the nodes.
    pub(super) fn world() -> Host {
        let world = Host::hasty();
        // A MAC that follows the ports would change when a node joins, and others would use the old one.
        world.ip("link add br0 address 02:00:00:00:00:fe type bridge");
        world.ip("link set br0 up");
        world.ip(&format!("addr add {WORLD}/24 dev br0"));
        world.ip("-6 addr add 2001:db8::fe/64 dev br0 nodad");
        world
    }

    /// Starts etcd without nodes.
    pub(super) fn new(world: &'w Host, keys: &str) -> Self {
        Self::with(world, keys, "")
    }

    /// Starts two nodes with a pod each, and waits until they are ready.
    pub(super) fn of_two(world: &'w Host, keys: &str) -> Self {
        let mut site = Self::new(world, keys);
        site.join(1);
        site.init();
        site.join(2);
        site.add_pods();
        site.settled();
        site
    }

    /// Same as [`new`](Self::new), with these options for each agent.
    pub(super) fn with(world: &'w Host, keys: &str, options: &str) -> Self {
        let etcd = Etcd::start_at(world, WORLD);
        let (keys, options) = (keys.to_owned(), options.to_owned());
        Site { members: Vec::new(), etcd, world, keys, options, offline: 3600 }
    }

    /// Adds a machine with its agent.
    pub(super) fn join(&mut self, number: usize) {
        let host = Host::hasty();
        let port = format!("port{number}");
        host.cable("uplink", self.world, &port);
        self.world.ip(&format!("link set {port} master br0"));
        host.ip(&format!("addr add 192.0.2.{number}/24 dev uplink"));
        host.ip(&format!("-6 addr add 2001:db8::{number}/64 dev uplink nodad"));
        host.ip(&format!("route add default via {WORLD}"));
        host.ip("-6 route add default via 2001:db8::fe");
        let (keys, offline) = (&self.keys, self.offline);
        let etcd = format!(r#"{{"endpoints": ["http://{WORLD}:2379"], "offline": {offline}}}"#);
        let ipam = format!(r#"{{{keys}, "etcd": {etcd}}}"#);
        std::fs::write(host.dir().join("pods.json"), ipam).unwrap();
        let mut member = Member { options: self.options.clone(), ..Member::alone(host, number) };
        member.start();
        self.members.push(member);
    }

    /// Initializes the network.
    pub(super) fn init(&self) {
        let first = &self.members[0];
        assert!(wait_until(PATIENCE, || first.conflist().exists()), "{}", first.log());
        first.command("ipam init cnimble --new").success();
    }

    /// Releases the blocks of a removed node.
    pub(super) fn release(&self, name: &str) {
        let line = format!("ipam release cnimble {name}");
        // A process of the node may still run.
        let is_released = || self.members[0].command(&line).status == 0;
        assert!(wait_until(PATIENCE, is_released), "{name}");
    }

    pub(super) fn add_pods(&mut self) {
        self.members.iter_mut().for_each(Member::add_pod);
    }

    /// Waits until each node has routes to the blocks of the others, and no other routes.
    pub(super) fn settled(&self) {
        for member in &self.members {
            let wanted = || -> BTreeSet<String> {
                let others = self.members.iter().filter(|other| other.number != member.number);
                let each = |other: &Member| {
                    let number = other.number;
                    let via = move |cidr: &str| {
                        if cidr.contains(':') {
                            format!("2001:db8::{number}")
                        } else {
                            format!("192.0.2.{number}")
                        }
                    };
                    let ways =
                        other.owned().into_iter().map(move |cidr| format!("{cidr} via {}", via(&cidr)));
                    ways.collect::<Vec<_>>()
                };
                others.flat_map(each).collect()
            };
            let there = || -> BTreeSet<String> {
                let short = |route: &String| route.split(" dev ").next().unwrap().to_owned();
                member.routes().iter().map(short).collect()
            };
            let fits = || member.conflist().exists() && there() == wanted();
            assert!(
                wait_until(PATIENCE, fits),
                "node{}: {:#?}\nwanted {:#?}\n{}",
                member.number,
                there(),
                wanted(),
                member.log()
            );
        }
    }

    /// Asserts that each pod reaches the first and the last pod of each node by their own addresses. The
    /// network outside sees the node's address.
    pub(super) fn all_reach_all(&self) {
        let ends = |member: &'_ Member| -> BTreeSet<usize> { [0, member.pods.len() - 1].into() };
        let pods: Vec<(usize, &Pod)> = self
            .members
            .iter()
            .flat_map(|member| ends(member).into_iter().map(|n| (member.number, &member.pods[n])))
            .collect();
        let _world = Server::start(self.world, 80, "world");
        let _servers: Vec<Server> = pods.iter().map(|(_, pod)| Server::start(&pod.ns, 80, "pod")).collect();
        for (number, from) in &pods {
            // The kernel gives up a neighbour that does not answer within three seconds, as on a busy machine.
            let seen = |to: &str| {
                let mut outcome = Err(std::io::ErrorKind::TimedOut.into());
                wait_until(PATIENCE, || {
                    outcome = traffic::tcp(&from.ns, &socket(to, 80));
                    outcome.is_ok()
                });
                outcome.unwrap_or_else(|err| panic!("{:?} to {to}: {err}", from.ips))
            };
            for (_, to) in &pods {
                for (own, ip) in from.ips.iter().zip(&to.ips) {
                    assert_eq!(seen(ip), format!("pod {own}"), "to {ip}");
                }
            }
            assert_eq!(seen(WORLD), format!("world 192.0.2.{number}"));
            if from.ips.len() > 1 {
                assert_eq!(seen("2001:db8::fe"), format!("world 2001:db8::{number}"));
            }
        }
    }
}

impl Member {
    /// Returns a node without an agent.
    pub(super) fn alone(host: Host, number: usize) -> Self {
        Member {
            number,
            host,
            agent: None,
            pods: Vec::new(),
            options: String::new(),
            verb_options: String::new(),
        }
    }

    /// Returns the command `cnimble node` with these options.
    fn node(&self, options: &str) -> Command {
        let dir = self.host.dir().display();
        let log = std::fs::File::options().create(true).append(true).open(self.log_file()).unwrap();
        let args = format!(
            "--cni-path {} --conf-dir {dir}/net.d node --cluster-local {dir}/pods.json --node-name node{} \
             --data-dir {} --listen {dir}/sock --resync 600 {options}",
            plugin_dir().display(),
            self.number,
            self.host.data_dir().display()
        );
        let mut process = self.host.command(command());
        process.args(args.split_whitespace()).stderr(log);
        process
    }

    /// Starts the agent on this node.
    pub(super) fn start(&mut self) {
        self.agent = Some(Background::start(&mut self.node(&self.options)));
    }

    /// Runs `cnimble node --once` and returns its report.
    pub(super) fn once(&self) -> Value {
        let output = run_limited(&mut self.node("--once --json"), b"", LIMIT);
        assert_eq!(output.status.code(), Some(0), "{}", self.log());
        serde_json::from_slice(&output.stdout).unwrap()
    }

    /// Runs another verb of the command on this node.
    pub(super) fn command(&self, line: &str) -> Outcome {
        let dir = self.host.dir().display();
        self.host.run(&format!(
            "{} --cni-path {} --conf-dir {dir}/net.d {line}",
            command().display(),
            plugin_dir().display()
        ))
    }

    /// Runs a verb with the usual options of `node`.
    pub(super) fn command_of(&self, line: &str) -> Outcome {
        self.command(&format!("{line} --cluster-local {}/pods.json", self.host.dir().display()))
    }

    pub(super) fn conflist(&self) -> PathBuf {
        self.host.dir().join("net.d/10-cnimble.conflist")
    }

    fn log_file(&self) -> PathBuf {
        self.host.dir().join("log")
    }

    pub(super) fn log(&self) -> String {
        std::fs::read_to_string(self.log_file()).unwrap_or_default()
    }

    pub(super) fn says(&self, words: &str) {
        assert!(wait_until(PATIENCE, || self.log().contains(words)), "{words}: {}", self.log());
    }

    /// Waits until the agent's log has these words twice.
    pub(super) fn says_again(&self, words: &str) {
        let twice = || self.log().matches(words).count() > 1;
        assert!(wait_until(PATIENCE, twice), "{words}: {}", self.log());
    }

    /// Waits until `/healthz` reports success with these words.
    pub(super) fn healthy(&self, words: &str) {
        let now = || self.get("/healthz").unwrap_or_default();
        let fits = || now().starts_with("HTTP/1.1 200 ") && now().contains(words);
        assert!(wait_until(PATIENCE, fits), "{words}: {}\n{}", now(), self.log());
    }

    /// Waits until `/readyz` reports a failure with these words. A new process would meet the same, so the agent lives.
    pub(super) fn unready(&self, words: &str) {
        let now = || self.get("/readyz").unwrap_or_default();
        let fits = || now().starts_with("HTTP/1.1 503 ") && now().contains(words);
        assert!(wait_until(PATIENCE, fits), "{words}: {}\n{}", now(), self.log());
        let life = self.get("/livez").unwrap_or_default();
        assert!(life.starts_with("HTTP/1.1 200 ") && life.ends_with("ok\n"), "{life}");
    }

    fn get(&self, path: &str) -> Option<String> {
        get(&self.host.dir().join("sock"), path)
    }

    /// Returns the counter of this name in `/metrics`.
    pub(super) fn metric(&self, name: &str) -> Option<u64> {
        metric(&self.host.dir().join("sock"), name)
    }

    /// Returns the agent's routes to other nodes, as `ip route` shows them.
    pub(super) fn routes(&self) -> Vec<String> {
        let of = |family: &str| self.host.ip(&format!("{family} route show proto 203"));
        let text = of("-4") + "\n" + &of("-6");
        let whole = |line: &str| {
            let (dst, rest) = line.split_once(' ')?;
            // `ip` shows no length for a single address.
            let length = if dst.contains(':') { 128 } else { 32 };
            Some(if dst.contains('/') { line.trim().to_owned() } else { format!("{dst}/{length} {rest}") })
        };
        text.lines().filter_map(whole).filter(|route| !route.contains("dev cni0")).collect()
    }

    /// Returns the node's blocks and addresses from its own file.
    pub(super) fn owned(&self) -> Vec<String> {
        let file = self.host.data_dir().join("cnimble/.cnimble-share");
        let share: Value =
            std::fs::read(file).ok().and_then(|text| serde_json::from_slice(&text).ok()).unwrap_or_default();
        let owned = share["owned"].as_array().cloned().unwrap_or_default();
        let cidr = |owned: &Value| {
            let (first, last) = (owned["first"].as_str().unwrap(), owned["last"].as_str().unwrap());
            let bits = if first.contains(':') { 128 } else { 32 };
            format!("{first}/{}", if first == last { bits } else { bits - 4 })
        };
        owned.iter().map(cidr).collect()
    }

    pub(super) fn add_pod(&mut self) {
        let ns = Ns::new();
        assert!(wait_until(PATIENCE, || self.conflist().exists()), "{}", self.log());
        let result: Value = serde_json::from_str(&self.verb("add", &ns)).unwrap();
        let address = |ip: &Value| ip["address"].as_str().unwrap().split('/').next().unwrap().to_owned();
        let ips = result["ips"].as_array().unwrap().iter().map(address).collect();
        self.pods.push(Pod { ns, ips });
    }

    /// Runs CHECK of each pod.
    pub(super) fn check_pods(&self) {
        self.pods.iter().for_each(|pod| drop(self.verb("check", &pod.ns)));
    }

    /// Removes the last pod.
    pub(super) fn del_pod(&mut self) {
        let pod = self.pods.pop().unwrap();
        self.verb("del", &pod.ns);
    }

    fn verb(&self, verb: &str, pod: &Ns) -> String {
        let dir = self.host.dir().display();
        let locks = self.host.lock_dir();
        let line = format!(
            "{verb} cnimble {} --cache-dir {dir}/cache --lock-dir {} --json {}",
            pod.path(),
            locks.display(),
            self.verb_options
        );
        // The test retries as a kubelet does. On a busy machine etcd may not answer in time (code 11).
        let mut outcome = self.command(&line);
        let is_late = |outcome: &Outcome| outcome.status != 0 && outcome.text().contains("\"code\": 11,");
        wait_until(PATIENCE, || {
            if is_late(&outcome) {
                outcome = self.command(&line);
            }
            !is_late(&outcome)
        });
        outcome.success().text()
    }
}
