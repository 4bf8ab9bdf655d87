//! `cnimble node` on three nodes of a cluster: pods reach each other without NAT and the world with it, and nothing
//! that happens to the cluster ends a stream between pods that live.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use serde_json::{Value, json};

use cnimble_tests::http::ApiServer;
use cnimble_tests::traffic::{self, Server};
use cnimble_tests::{Background, Host, Ns, PATIENCE, command, need, plugin_dir, wait_until};

/// The protocol of the agent's routes.
const PROTOCOL: &str = "proto 203";

/// A node: the host, its agent, and a pod, from which addresses are known.
struct Member {
    number: usize,
    host: Host,
    agent: Option<Background>,
    pod: Ns,
    ips: Vec<String>,
}

struct Site {
    members: Vec<Member>,
    api: ApiServer,
    /// The link between the nodes, the API server, and the world behind it.
    world: Ns,
}

fn object(number: usize) -> Value {
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
    fn new(nodes: usize) -> Self {
        let world = Ns::new();
        world.ip("link add br0 type bridge");
        world.ip("link set br0 up");
        world.ip("addr add 192.0.2.254/24 dev br0");
        world.ip("-6 addr add 2001:db8::fe/64 dev br0 nodad");
        let api = ApiServer::of_nodes(&world, "192.0.2.254:6443");
        let mut site = Site { members: Vec::new(), api, world };
        for number in 1..=nodes {
            site.join(number);
        }
        site
    }

    /// A machine more, with its agent; the API server gets to know it.
    fn join(&mut self, number: usize) {
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
        member.start("");
        self.members.push(member);
    }

    /// Waits until each node has its file and a route of each family to each other one.
    fn settled(&self) {
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

    fn add_pods(&mut self) {
        self.members.iter_mut().for_each(Member::add_pod);
    }
}

impl Member {
    fn start(&mut self, options: &str) {
        let dir = self.host.dir().display();
        let log =
            std::fs::File::options().create(true).append(true).open(self.host.dir().join("log")).unwrap();
        let args = format!(
            "node --kubeconfig {dir}/kubeconfig --node-name node{} --conf-dir {dir}/net.d --data-dir {} --listen {dir}/sock \
             --resync 600 {options}",
            self.number,
            self.host.data_dir().display()
        );
        let mut command = self.host.command(command());
        command.args(args.split_whitespace()).stderr(log);
        self.agent = Some(Background::start(&mut command));
    }

    fn run(&self, line: &str) -> cnimble_tests::Outcome {
        self.host.run(&format!("{} {line}", command().display()))
    }

    fn conflist(&self) -> PathBuf {
        self.host.dir().join("net.d/10-cnimble.conflist")
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.host.dir().join("log")).unwrap_or_default()
    }

    fn says(&self, words: &str) {
        assert!(wait_until(PATIENCE, || self.log().contains(words)), "{words}: {}", self.log());
    }

    /// The agent's routes, as `ip route` shows them.
    fn routes(&self) -> Vec<String> {
        let of = |family: &str| self.host.ip(&format!("{family} route show {PROTOCOL}"));
        let text = of("-4") + "\n" + &of("-6");
        text.lines().map(|line| line.trim().to_owned()).filter(|line| !line.is_empty()).collect()
    }

    fn add_pod(&mut self) {
        let dir = self.host.dir().display();
        let line = format!(
            "add cnimble {} --cni-path {} --conf-dir {dir}/net.d --cache-dir {dir}/cache --lock-dir {} --json",
            self.pod.path(),
            plugin_dir().display(),
            self.host.lock_dir().display()
        );
        let result: Value = serde_json::from_str(&self.run(&line).success().text()).unwrap();
        let ips = result["ips"].as_array().unwrap();
        let address = |ip: &Value| ip["address"].as_str().unwrap().split('/').next().unwrap().to_owned();
        self.ips = ips.iter().map(address).collect();
    }
}

fn socket(ip: &str, port: u16) -> String {
    if ip.contains(':') { format!("[{ip}]:{port}") } else { format!("{ip}:{port}") }
}

/// A stream between two pods: what goes there comes back.
struct Stream {
    stop: Arc<AtomicBool>,
    count: Arc<AtomicU64>,
    threads: Vec<JoinHandle<()>>,
}

impl Stream {
    fn between(from: &Ns, to: &Ns, ip: &str) -> Self {
        let (stop, count) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let listener = to.within(|| TcpListener::bind("[::]:7777").unwrap());
        let echo = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut byte = [0];
            while stream.read(&mut byte).is_ok_and(|read| read == 1) && stream.write_all(&byte).is_ok() {}
        });
        let mut stream = from.within(|| TcpStream::connect(socket(ip, 7777)).unwrap());
        stream.set_read_timeout(Some(Duration::from_secs_f32(PATIENCE))).unwrap();
        let (stopped, counted) = (Arc::clone(&stop), Arc::clone(&count));
        let ask = std::thread::spawn(move || {
            let mut byte = [0];
            while !stopped.load(Ordering::Relaxed) {
                stream.write_all(&[7]).unwrap();
                stream.read_exact(&mut byte).unwrap();
                counted.fetch_add(1, Ordering::Relaxed);
                std::thread::sleep(Duration::from_millis(2));
            }
        });
        Stream { stop, count, threads: vec![ask, echo] }
    }

    /// It still goes there and back.
    fn flows(&self, when: &str) {
        let before = self.count.load(Ordering::Relaxed);
        let more = || self.count.load(Ordering::Relaxed) > before + 3;
        assert!(wait_until(PATIENCE, more), "the stream stands still: {when}");
    }

    fn end(mut self) {
        self.stop.store(true, Ordering::Relaxed);
        self.threads.drain(..).for_each(|thread| thread.join().unwrap());
    }
}

#[test]
fn pods_of_three_nodes_reach_each_other_without_nat_and_the_world_with_it() {
    need!("ip", "nft");
    let mut site = Site::new(3);
    site.settled();
    site.add_pods();
    let _world = Server::start(&site.world, 80, "world");
    let _servers: Vec<Server> =
        site.members.iter().map(|member| Server::start(&member.pod, 80, "pod")).collect();
    for from in &site.members {
        for to in &site.members {
            for (own, ip) in from.ips.iter().zip(&to.ips) {
                let answer = traffic::tcp(&from.pod, &socket(ip, 80))
                    .unwrap_or_else(|err| panic!("{own} to {ip}: {err}"));
                assert_eq!(answer, format!("pod {own}"), "to {ip}");
            }
        }
        // The world has no way to pods: whom it answers has a node's address.
        let number = from.number;
        for (world, node) in
            [("192.0.2.254", format!("192.0.2.{number}")), ("2001:db8::fe", format!("2001:db8::{number}"))]
        {
            let answer =
                traffic::tcp(&from.pod, &socket(world, 80)).unwrap_or_else(|err| panic!("{node}: {err}"));
            assert_eq!(answer, format!("world {node}"));
        }
        assert!(!std::fs::read_to_string(from.conflist()).unwrap().contains("ipMasq"));
        // One rule of each family, and its guard, however many nodes there are.
        assert_eq!(from.host.nft("list table inet cnimble-node").matches("saddr").count(), 4);
    }
    let first = &mut site.members[0];
    first.agent = None;
    assert_eq!(first.routes().len(), 4, "an agent that ends leaves its routes");
    let dir = first.host.dir().display();
    first.run(&format!("node --remove --conf-dir {dir}/net.d")).success();
    assert!(first.routes().is_empty() && !first.conflist().exists());
    assert!(!first.host.nft("list tables").contains("cnimble-node"));
}

#[test]
fn a_stream_between_pods_goes_on_whatever_happens_to_the_cluster() {
    need!("ip", "nft");
    let mut site = Site::new(3);
    site.settled();
    site.add_pods();
    let stream = Stream::between(&site.members[0].pod, &site.members[1].pod, &site.members[1].ips[0]);
    let six = Stream::between(&site.members[2].pod, &site.members[0].pod, &site.members[0].ips[1]);
    let flows = |when: &str| [&stream, &six].iter().for_each(|stream| stream.flows(when));
    flows("at first");
    site.join(4);
    site.settled();
    flows("a node came");
    let gone = site.members.pop().unwrap();
    site.api.delete("default/node4");
    drop(gone);
    site.settled();
    flows("a node went");
    // Another network for a node without pods in it would be its own business; others follow.
    let mut moved = object(3);
    moved["spec"]["podCIDRs"] = json!(["10.1.33.0/24", "fd00:1:33::/64"]);
    site.api.put(moved);
    let [first, _, third] = &site.members[..] else { panic!() };
    third.says("is still leased");
    assert!(std::fs::read_to_string(third.conflist()).unwrap().contains("10.1.3.0/24"));
    assert!(wait_until(PATIENCE, || first
        .routes()
        .iter()
        .any(|route| route.starts_with("10.1.33.0/24 via 192.0.2.3"))));
    stream.flows("a network changed");
    site.api.put(object(3));
    site.settled();
    flows("a network changed back");
    site.api.fail(Some(503));
    let first = &mut site.members[0];
    first.says("nodes are as they were told of last");
    first.agent = None;
    first.start("");
    flows("the API server is gone, and the agent was killed");
    assert_eq!(first.routes().len(), 4, "an agent that knows no nodes removes no routes");
    site.api.fail(None);
    site.settled();
    let first = &site.members[0];
    first.host.ip("route del 10.1.3.0/24");
    site.settled();
    flows("a route was removed by hand");
    stream.end();
    six.end();
}

#[test]
fn a_route_of_the_administrator_stays_and_hostile_nodes_change_nothing() {
    need!("ip", "nft");
    let mut site = Site::new(1);
    site.settled();
    site.add_pods();
    let first = &site.members[0];
    let file = std::fs::read_to_string(first.conflist()).unwrap();
    first.host.ip("route add 10.1.7.0/24 via 192.0.2.254 proto static");
    let before = first.host.ip("route show");
    let hostile = [
        (5, "0.0.0.0/0", "192.0.2.5", "is too large"),
        (6, "10.1.1.128/25", "192.0.2.6", "overlaps 10.1.1.0/24 of node node1"),
        (7, "10.1.7.0/24", "192.0.2.7", "that cnimble has not made"),
        (8, "192.0.2.128/25", "192.0.2.8", "this host is connected to 192.0.2.0/24"),
        (9, "10.1.9.0/24", "nowhere", "InternalIP \\\"nowhere\\\" is no address"),
        (10, "10.1.10.0/24", "198.51.100.1", "is on no link of this host"),
    ];
    for (number, cidr, ip, _) in hostile {
        let mut node = object(number);
        node["spec"] = json!({"podCIDRs": [cidr]});
        node["status"] = json!({"addresses": [{"type": "InternalIP", "address": ip}]});
        site.api.put(node);
    }
    for (_, _, _, words) in hostile {
        first.says(&words.replace('\\', ""));
    }
    // The last of all comes: those before were looked at.
    site.api.put(object(20));
    let came = || first.routes().len() == 2;
    assert!(wait_until(PATIENCE, came), "{:?}", first.routes());
    site.api.delete("default/node20");
    assert!(wait_until(PATIENCE, || first.routes().is_empty()), "{:?}", first.routes());
    assert_eq!(first.host.ip("route show"), before);
    assert_eq!(std::fs::read_to_string(first.conflist()).unwrap(), file);
    // The administrator's route goes, and ours comes.
    first.host.ip("route del 10.1.7.0/24");
    assert!(wait_until(PATIENCE, || first.routes().iter().any(|route| route.starts_with("10.1.7.0/24"))));
    // The node is deleted: the configuration stays.
    site.api.delete("default/node1");
    first.says("the API server has no node node1");
    assert_eq!(std::fs::read_to_string(first.conflist()).unwrap(), file);
}
