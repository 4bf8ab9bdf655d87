//! Many concurrent processes: random verbs for random attachments, by our plugins and by the Go plugins. The networks
//! share stores, bridges and rules. In the end, leases, veths and rules are exactly those of the remaining attachments.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::net::IpAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, RwLock};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use cnimble_cni::{Attachment as Id, Owner};
use cnimble_netlink::nft::Nft;
use cnimble_rules::survey::{self, OwnerHint};
use cnimble_tests::{Attachment, Host, PATIENCE, Pod, announce, go_plugins, need, plugin_dir, wait_until};

use super::chain::{Chain, Part, Set};
use super::{Chance, number};

const WORKERS: usize = 6;
/// The number of attachments of a worker, each in a separate pod.
const SLOTS: usize = 4;

/// Returns the networks. Two share one bridge and one subnet. Two others share another bridge, one of them with a chain
/// and a MAC check. One uses ptp.
fn networks(host: &Host) -> Vec<Chain<'_>> {
    let ipam = |range: Value| json!({"type": "host-local", "dataDir": host.data_dir(), "ranges": [[range]]});
    let bridge = |name: &str, range: Value| json!({"type": "bridge", "bridge": name, "isGateway": true, "ipMasq": true, "ipam": ipam(range)});
    let part = |net: &str, from: u8, to: u8| {
        json!({
            "subnet": format!("{net}.0/24"), "gateway": format!("{net}.1"),
            "rangeStart": format!("{net}.{from}"), "rangeEnd": format!("{net}.{to}"),
        })
    };
    let mut checked = bridge("br1", part("10.215.3", 2, 99));
    checked["macspoofchk"] = json!(true);
    let of = |name, plugins: Vec<Value>| Chain {
        host,
        name,
        plugins: plugins.into_iter().map(Part::Fixed).collect(),
    };
    vec![
        of("one", vec![bridge("br0", part("10.215.1", 2, 99))]),
        of("two", vec![bridge("br0", part("10.215.1", 100, 254))]),
        of("three", vec![checked, json!({"type": "portmap"}), json!({"type": "firewall"})]),
        of(
            "four",
            vec![json!({"type": "ptp", "ipMasq": true, "ipam": ipam(json!({"subnet": "10.215.4.0/24"}))})],
        ),
        of("five", vec![bridge("br1", part("10.215.3", 100, 254))]),
    ]
}

/// The networks that the Go plugins also serve.
const MIXED: [usize; 3] = [0, 1, 3];

/// An attachment that was added.
#[derive(Debug, Clone)]
struct Live {
    net: usize,
    set: Set,
    attachment: Attachment,
    port: u16,
    result: Value,
}

impl Live {
    fn addrs(&self) -> Vec<IpAddr> {
        let ips = self.result["ips"].as_array().unwrap().iter();
        ips.map(|ip| ip["address"].as_str().unwrap().split('/').next().unwrap().parse().unwrap()).collect()
    }

    fn veths(&self) -> Vec<String> {
        let links = self.result["interfaces"].as_array().unwrap().iter();
        let here = links.filter(|link| link["sandbox"].as_str().unwrap_or("").is_empty());
        let names = here.map(|link| link["name"].as_str().unwrap().to_owned());
        names.filter(|name| name.starts_with("veth")).collect()
    }
}

/// The state that all workers share.
struct Board<'h> {
    chains: Vec<Chain<'h>>,
    go: bool,
    /// A lock for each network. GC takes it for writing, as it must not run during an ADD of its network.
    gates: Vec<RwLock<()>>,
    /// The attachments by network and container.
    live: Mutex<BTreeMap<(usize, String), Live>>,
    counts: [AtomicUsize; 6],
    wrong: Mutex<Vec<String>>,
}

const NAMES: [&str; 6] = ["ADD", "ADD by Go", "CHECK", "DEL", "GC", "failures of Go"];

impl Board<'_> {
    fn count(&self, what: usize) {
        self.counts[what].fetch_add(1, Ordering::Relaxed);
    }

    fn wrong(&self, what: String) {
        self.wrong.lock().unwrap().push(what);
    }

    /// Records a new attachment. No other attachment may have its addresses.
    fn enter(&self, live: &Live) {
        let mut all = self.live.lock().unwrap();
        for ip in live.addrs() {
            if let Some(other) = all.values().find(|other| other.addrs().contains(&ip)) {
                self.wrong(format!("{ip} was given to {} and {}", other.attachment.id, live.attachment.id));
            }
        }
        all.insert((live.net, live.attachment.id.clone()), live.clone());
    }

    fn leave(&self, live: &Live) {
        self.live.lock().unwrap().remove(&(live.net, live.attachment.id.clone()));
    }
}

struct Worker<'b, 'h> {
    board: &'b Board<'h>,
    number: usize,
    chance: Chance,
    lives: usize,
}

impl Worker<'_, '_> {
    fn run(&mut self, end: Instant) {
        let mut slots: Vec<(Pod, Option<Live>)> = (0..SLOTS).map(|_| (Pod::new(), None)).collect();
        // Even on a slow machine, something has to happen.
        let idle = || self.board.counts[0].load(Ordering::Relaxed) <= WORKERS;
        while (Instant::now() < end || idle()) && self.board.wrong.lock().unwrap().is_empty() {
            let at = self.chance.below(SLOTS);
            let (pod, live) = &mut slots[at];
            *live = match live.take() {
                None => self.add(pod, at),
                Some(live) => match self.chance.below(8) {
                    0..3 => {
                        self.check(&live);
                        Some(live)
                    }
                    3 => self.gc(live),
                    4 => {
                        self.die(live, std::mem::replace(pod, Pod::new()));
                        None
                    }
                    _ => {
                        self.del(&live);
                        None
                    }
                },
            };
        }
        // The remaining attachments are on the board, and their pods have to stay as long.
        PODS.lock().unwrap().extend(slots.into_iter().map(|(pod, _)| pod));
    }

    fn add(&mut self, pod: &Pod, slot: usize) -> Option<Live> {
        let board = self.board;
        let net = self.chance.below(board.chains.len());
        let go = board.go && MIXED.contains(&net) && self.chance.below(3) == 0;
        let set = if go { Set::Go } else { Set::Ours };
        self.lives += 1;
        let attachment = Attachment::new(&format!("w{}s{slot}n{}", self.number, self.lives), pod);
        let port = u16::try_from(20_000 + self.number * 100 + slot).unwrap();
        let _in = board.gates[net].read().unwrap();
        match board.chains[net].add(set, &attachment, port) {
            Ok(result) => {
                board.count(usize::from(go));
                let live = Live { net, set, attachment, port, result };
                board.enter(&live);
                Some(live)
            }
            Err(_) if go => {
                board.count(5);
                // Our plugins remove its remains.
                if let Err(err) = board.chains[net].del(Set::Ours, &attachment, port, None) {
                    board.wrong(err);
                }
                None
            }
            Err(err) => {
                board.wrong(err);
                None
            }
        }
    }

    fn check(&mut self, live: &Live) {
        let board = self.board;
        // Our plugins know what the Go plugins made, but not the other way round.
        if let Err(err) = board.chains[live.net].check(Set::Ours, &live.attachment, live.port, &live.result) {
            board.wrong(err);
        }
        board.count(2);
    }

    fn del(&mut self, live: &Live) {
        let board = self.board;
        let _in = board.gates[live.net].read().unwrap();
        board.leave(live);
        let by_go = board.go && MIXED.contains(&live.net) && self.chance.below(3) == 0 && live.set == Set::Go;
        // Also without the result of ADD, as after a crash of the runtime.
        let result = Some(&live.result).filter(|_| by_go || self.chance.below(3) > 0);
        let set = if by_go { Set::Go } else { Set::Ours };
        let mut done = board.chains[live.net].del(set, &live.attachment, live.port, result);
        if done.is_err() && by_go {
            board.count(5);
            done = board.chains[live.net].del(Set::Ours, &live.attachment, live.port, result);
        }
        if let Err(err) = done {
            board.wrong(err);
        }
        board.count(3);
    }

    /// Removes the namespace first.
    fn die(&mut self, live: Live, pod: Pod) {
        drop(pod);
        self.del(&Live { set: Set::Ours, ..live });
    }

    /// Runs GC of a network. The attachment is removed from the list if GC can find it.
    fn gc(&mut self, live: Live) -> Option<Live> {
        let board = self.board;
        let _alone = board.gates[live.net].write().unwrap();
        let is_victim = live.set == Set::Ours;
        if is_victim {
            board.leave(&live);
        }
        let all = board.live.lock().unwrap().clone();
        let valid: Vec<Value> = all
            .values()
            .filter(|other| other.net == live.net)
            .map(|other| other.attachment.listed())
            .collect();
        if let Err(err) = board.chains[live.net].gc(&valid) {
            board.wrong(err);
        }
        board.count(4);
        Some(live).filter(|_| !is_victim)
    }
}

/// The pods of workers that are done.
static PODS: Mutex<Vec<Pod>> = Mutex::new(Vec::new());

fn leases(host: &Host, chains: &[Chain<'_>]) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for chain in chains {
        for entry in fs::read_dir(host.data_dir().join(chain.name)).into_iter().flatten() {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_str().unwrap().to_owned();
            if name.parse::<IpAddr>().is_ok() {
                let content = fs::read_to_string(&path).unwrap();
                found.insert(format!("{} {name} {}", chain.name, content.replace("\r\n", " ")));
            }
        }
    }
    found
}

/// Returns everything that belongs to none of these attachments, and everything that one of them lacks.
fn differences(host: &Host, chains: &[Chain<'_>], all: &[Live]) -> Vec<String> {
    let mut wrong = Vec::new();
    let lease = |live: &Live, ip| format!("{} {ip} {} eth0", chains[live.net].name, live.attachment.id);
    let expected: BTreeSet<String> = all
        .iter()
        .flat_map(|live| live.addrs().into_iter().map(|ip| lease(live, ip)).collect::<Vec<_>>())
        .collect();
    let found = leases(host, chains);
    wrong.extend(found.difference(&expected).map(|lease| format!("lease of nobody: {lease}")));
    wrong.extend(expected.difference(&found).map(|lease| format!("no lease: {lease}")));

    let expected: BTreeSet<String> = all.iter().flat_map(Live::veths).collect();
    let links = host.links().into_iter().filter(|link| link.starts_with("veth")).collect();
    wrong.extend(
        expected.symmetric_difference(&links).map(|link| format!("veth of nobody, or missing: {link}")),
    );

    let owners: Vec<Owner> = all
        .iter()
        .map(|live| Owner {
            network: chains[live.net].name.to_owned(),
            attachment: Id { container_id: live.attachment.id.clone(), ifname: "eth0".into() },
        })
        .collect();
    let traces = host.within(|| survey::traces(&mut Nft::new()).unwrap());
    for trace in traces {
        let owned = match &trace.named {
            OwnerHint::Comment(comment) => owners.iter().any(|owner| owner.owns(comment)),
            OwnerHint::Container { id, .. } => all.iter().any(|live| live.attachment.id == *id),
            OwnerHint::Link(name) => links.contains(name),
            OwnerHint::Nothing => {
                all.iter().any(|live| live.addrs().iter().any(|ip| trace.addrs.contains(ip)))
            }
        };
        if !owned {
            wrong.push(format!("rules of nobody: {} {:?}", trace.what, trace.named));
        }
    }
    wrong
}

#[test]
fn mix_of_attachments_leaves_exactly_those_that_live() {
    need!("ip", "nft", "iptables");
    let seconds = number("CNIMBLE_MIX_SECONDS", 12);
    let seed = number("CNIMBLE_SEED", 1);
    let host = Host::new();
    let go = go_plugins().filter(|dir| *dir != plugin_dir()).is_some();
    announce("NOTE", &format!("seed {seed}, {seconds} s, {WORKERS} workers, Go plugins: {go}"));
    let chains = networks(&host);
    let board = Board {
        go,
        gates: chains.iter().map(|_| RwLock::new(())).collect(),
        chains,
        live: Mutex::default(),
        counts: Default::default(),
        wrong: Mutex::default(),
    };
    let end = Instant::now() + Duration::from_secs(seconds);
    std::thread::scope(|scope| {
        for number in 0..WORKERS {
            let chance = Chance(seed.wrapping_mul(31).wrapping_add(number as u64));
            let mut worker = Worker { board: &board, number, chance, lives: 0 };
            scope.spawn(move || worker.run(end));
        }
    });
    let counts: Vec<String> = NAMES
        .iter()
        .zip(&board.counts)
        .map(|(name, count)| format!("{} {name}", count.load(Ordering::Relaxed)))
        .collect();
    let all: Vec<Live> = board.live.lock().unwrap().values().cloned().collect();
    announce("NOTE", &format!("seed {seed}: {}; {} live", counts.join(", "), all.len()));
    let wrong = std::mem::take(&mut *board.wrong.lock().unwrap());
    assert_eq!(wrong, [""; 0], "seed {seed}");

    // The kernel takes a moment to remove links of removed namespaces.
    wait_until(PATIENCE, || differences(&host, &board.chains, &all).is_empty());
    assert_eq!(differences(&host, &board.chains, &all), [""; 0], "seed {seed}");
    for live in &all {
        board.chains[live.net].check(Set::Ours, &live.attachment, live.port, &live.result).unwrap();
    }
    for live in &all {
        board.chains[live.net].del(Set::Ours, &live.attachment, live.port, Some(&live.result)).unwrap();
    }
    wait_until(PATIENCE, || differences(&host, &board.chains, &[]).is_empty());
    assert_eq!(differences(&host, &board.chains, &[]), [""; 0], "seed {seed}: the end");
    let tables = host.nft("list tables");
    assert!(!tables.contains("cnimble"), "seed {seed}: {tables}");
}
