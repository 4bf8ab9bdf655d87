//! Tests an agent in a large cluster: each change of a node causes only the necessary writes.
//!
//! `CNIMBLE_NODES` is the number of nodes. `scripts/stress node` uses 500 and prints the measurements.

use std::fs::File;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use cnimble_tests::http::ApiServer;
use cnimble_tests::{Background, Host, Ns, PATIENCE, need, wait_until};

use super::members::{Member, PROTOCOL};

/// The default number of nodes.
const FEW: usize = 60;

/// The number of the node under test.
const HERE: usize = 1;

/// Returns the IPv4 address of a node.
fn ip4(number: usize) -> String {
    format!("172.16.{}.{}", number / 256, number % 256)
}

/// Returns a node of realistic size. Most of it is the list of images.
fn object(number: usize) -> Value {
    let images: Vec<Value> = (0..30)
        .map(|image| {
            let name = format!("registry.example/some/where/image-{image}");
            json!({"names": [format!("{name}@sha256:{image:064x}"), format!("{name}:v1.{image}")], "sizeBytes": 12_345_678})
        })
        .collect();
    json!({
        "metadata": {"name": format!("node{number}"), "creationTimestamp": "2026-01-01T00:00:00Z"},
        "spec": {"podCIDRs": [format!("10.{}.{}.0/24", number / 256, number % 256), format!("fd00:1:{number:x}::/64")]},
        "status": {
            "addresses": [
                {"type": "InternalIP", "address": ip4(number)},
                {"type": "InternalIP", "address": format!("2001:db8::{number:x}")},
            ],
            "conditions": [{"type": "Ready", "status": "True", "lastHeartbeatTime": "2026-01-01T00:00:00Z"}],
            "images": images,
        },
    })
}

/// The agent under test, and the kernel's route notifications.
struct Large {
    node: Member,
    api: ApiServer,
    _world: Ns,
    _monitor: Background,
    told: PathBuf,
    /// The number of lines that are already counted.
    counted: usize,
    /// The sentinel node and whether it exists. It shows that all earlier changes were processed.
    sentinel: (usize, bool),
    nodes: usize,
    /// Whether measurements are printed.
    tells: bool,
}

impl Large {
    fn new(nodes: usize, tells: bool) -> Self {
        let (world, host) = (Ns::new(), Host::hasty());
        host.cable("uplink", &world, "eth0");
        world.ip("addr add 172.31.255.254/12 dev eth0");
        host.ip(&format!("addr add {}/12 dev uplink", ip4(HERE)));
        host.ip("-6 addr add 2001:db8::1/64 dev uplink nodad");
        let api = ApiServer::of_nodes(&world, "172.31.255.254:6443");
        api.page(500);
        api.put_all((1..=nodes).map(object));
        api.kubeconfig(host.dir(), None);
        let told = host.dir().join("told");
        let mut monitor = host.command("ip");
        monitor.args(["-rcvbuf", "16777216", "monitor", "route"]).stdout(File::create(&told).unwrap());
        let monitor = Background::start(&mut monitor);
        let node = Member { number: HERE, host, agent: None, pod: Ns::new(), ips: Vec::new() };
        let sentinel = (nodes + 1, false);
        let (_world, _monitor, counted) = (world, monitor, 0);
        let large = Large { node, api, _world, _monitor, told, counted, sentinel, nodes, tells };
        // The monitor works from here on.
        large.heard("198.51.100.1");
        large
    }

    /// Waits until the monitor has printed all earlier changes. Returns its output.
    fn heard(&self, mark: &str) -> String {
        let told = || std::fs::read_to_string(&self.told).unwrap();
        let marked = || {
            self.node.host.ip(&format!("route replace blackhole {mark}"));
            self.node.host.ip(&format!("route del blackhole {mark}"));
            told().contains(&format!("Deleted blackhole {mark}"))
        };
        assert!(wait_until(PATIENCE, marked), "{}", told());
        told()
    }

    fn tell(&self, line: &str) {
        if self.tells {
            eprintln!("{line}");
        }
    }

    fn routes(&self) -> usize {
        self.node.routes().len()
    }

    fn settled(&self, routes: usize) {
        let there = || self.routes() == routes;
        assert!(wait_until(PATIENCE, there), "{} of {routes}: {}", self.routes(), self.node.log());
    }

    /// Returns the current and the peak memory in KiB, and the processor time in ticks of 10 ms.
    fn usage(&self) -> (u64, u64, u64) {
        let pid = self.node.agent.as_ref().unwrap().pid();
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
        let of = |key: &str| {
            let line = status.lines().find(|line| line.starts_with(key)).unwrap();
            line.split_whitespace().nth(1).unwrap().parse().unwrap()
        };
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
        let fields: Vec<&str> = stat.rsplit(')').next().unwrap().split_whitespace().collect();
        let ticks = |field: usize| fields[field].parse::<u64>().unwrap();
        (of("VmRSS:"), of("VmHWM:"), ticks(11) + ticks(12))
    }

    /// Makes a change and waits until the agent has processed it. Returns the numbers of added and deleted routes.
    fn writes(&mut self, what: &str, change: impl FnOnce(&mut Self)) -> (usize, usize) {
        let (before, begun) = (self.usage(), Instant::now());
        change(self);
        let (number, there) = self.sentinel;
        // The agent knows the earlier changes once it knows the sentinel.
        let name = format!("node{number}");
        if there {
            self.api.delete(&format!("default/{name}"));
        } else {
            self.api.put(object(number));
        }
        self.sentinel.1 = !there;
        // The kernel adds the routes of both families one after the other.
        let ways = [format!("via {} ", ip4(number)), format!("via 2001:db8::{number:x} ")];
        let is_sentinels = |route: &&String| ways.iter().any(|way| route.contains(way));
        let is_done = || self.node.routes().iter().filter(is_sentinels).count() == if there { 0 } else { 2 };
        assert!(wait_until(PATIENCE, is_done), "{what}: {}", self.node.log());
        let (mut made, mut deleted) = self.since(&format!("198.51.100.{}", number % 250 + 2));
        if there {
            deleted -= 2;
        } else {
            made -= 2;
        }
        let after = self.usage();
        self.tell(&format!(
            "{what}: {made} routes made, {deleted} deleted; {} ms of processor time, {:.1} s; RSS {} KiB, peak {} KiB",
            (after.2 - before.2) * 10,
            begun.elapsed().as_secs_f32(),
            after.0,
            after.1
        ));
        (made, deleted)
    }

    /// Returns the numbers of the agent's routes that were added and deleted since the last call.
    fn since(&mut self, mark: &str) -> (usize, usize) {
        let told = self.heard(mark);
        let lines: Vec<&str> = told.lines().collect();
        let ours = lines[self.counted..].iter().filter(|line| line.contains(PROTOCOL));
        let (deleted, made): (Vec<&str>, Vec<&str>) =
            ours.copied().partition(|line| line.starts_with("Deleted"));
        self.counted = lines.len();
        (made.len(), deleted.len())
    }

    fn change(&self, number: usize, change: impl FnOnce(&mut Value)) {
        let mut node = object(number);
        change(&mut node);
        self.api.put(node);
    }
}

#[test]
fn each_change_of_a_large_cluster_is_as_many_writes_as_it_takes() {
    need!("ip", "nft");
    let said = std::env::var("CNIMBLE_NODES").ok();
    let nodes = said.as_ref().map_or(FEW, |text| text.parse().unwrap());
    let mut large = Large::new(nodes, said.is_some());
    let begun = Instant::now();
    large.node.start("");
    large.settled(2 * (nodes - 1));
    let (now, peak, ticks) = large.usage();
    large.tell(&format!(
        "{nodes} nodes: all routes after {:.2} s, {} ms of processor time; RSS {now} KiB, peak {peak} KiB",
        begun.elapsed().as_secs_f32(),
        ticks * 10
    ));
    assert_eq!(large.since("198.51.100.250"), (2 * (nodes - 1), 0), "from the start");
    assert_eq!(large.writes("a node comes", |all| all.api.put(object(nodes + 2))), (2, 0));
    let gone = |all: &mut Large| all.api.delete(&format!("default/node{}", nodes + 2));
    assert_eq!(large.writes("a node goes", gone), (0, 2));
    let moved = |all: &mut Large| {
        all.change(2, |node| node["spec"]["podCIDRs"] = json!(["10.200.0.0/24", "fd00:1:2::/64"]));
    };
    assert_eq!(large.writes("a podCIDR changes", moved), (1, 1));
    let other = |all: &mut Large| {
        all.change(3, |node| node["status"]["addresses"][0]["address"] = json!("172.17.0.3"));
    };
    assert_eq!(large.writes("an InternalIP changes", other), (1, 1));
    let both = |all: &mut Large| {
        all.change(2, |_| ());
        all.change(3, |_| ());
    };
    assert_eq!(large.writes("both change back", both), (2, 2));
    // The heartbeat that a kubelet sends every few minutes.
    let alive = |all: &mut Large| {
        for number in 1..=all.nodes {
            all.change(number, |node| {
                node["status"]["conditions"][0]["lastHeartbeatTime"] = json!("2026-01-01T00:05:00Z");
            });
        }
    };
    assert_eq!(large.writes("every node says that it lives", alive), (0, 0));
    assert_eq!(large.writes("410 Gone in a watch, and a list", |all| all.api.forget()), (0, 0));
    assert_eq!(large.writes("410 Gone for an old version, and a list", |all| all.api.compact()), (0, 0));
    assert_eq!(large.writes("the watch breaks", |all| all.api.disconnect()), (0, 0));
    // For measurements it waits a whole minute.
    let minute = if large.tells { 60 } else { 1 };
    let away = |all: &mut Large| {
        all.api.fail(Some(503));
        all.api.disconnect();
        all.node.says("nodes are as they were told of last");
        std::thread::sleep(Duration::from_secs(minute));
        all.api.fail(None);
    };
    assert_eq!(large.writes(&format!("the API server is away for {minute} s"), away), (0, 0));
    let restart = |all: &mut Large| {
        all.node.agent = None;
        all.node.start("");
    };
    let before = large.routes();
    restart(&mut large);
    assert_eq!(large.writes("the agent was killed and started", |_| ()), (0, 0));
    assert!(large.routes().abs_diff(before) == 2);
    // Repeated lists and watches must not leak memory.
    let rss = large.usage().0;
    for _ in 0..5 {
        assert_eq!(large.writes("another list", |all| all.api.forget()), (0, 0));
    }
    let grown = large.usage().0.saturating_sub(rss);
    assert!(grown < 8 << 10, "{grown} KiB more after five lists");
}
