//! Clones, restored backups and rollbacks under load. Nodes run ADDs and DELs while etcd, our processes and machines have
//! faults in a random order. No address has two owners, and no block is lost.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::Scope;
use std::time::{Duration, Instant};

use cnimble_leases::cluster::share::{Owned, Share};
use cnimble_leases::store::Directory;
use cnimble_tests::{Host, PATIENCE, unique, wait_until};
use nix::sys::signal::Signal;
use serde_json::{Value, json};

use super::etcd::{self, Backup};
use super::machine::{Chance, Machine, World};
use super::{Etcd, Node, answer};

const MEMBERS: usize = 3;

#[derive(Debug, Clone, Copy)]
enum Fault {
    /// A member of etcd is killed, cut off from all others, or paused.
    Killed,
    CutOff,
    Paused,
    /// A plugin and the program that it has started are killed.
    Plugin,
    /// A machine boots.
    Boot,
    /// A machine boots with an earlier state of its disk.
    Disk,
    /// A copy of a machine's disk boots. Both machines go on.
    Clone,
    /// A machine is gone for good, and another takes its place.
    Vanished,
    /// etcd is restored from a backup of some calls before, or from any earlier one.
    Restored,
    RolledBack,
}

const FAULTS: [Fault; 10] = [
    Fault::Killed,
    Fault::CutOff,
    Fault::Paused,
    Fault::Plugin,
    Fault::Boot,
    Fault::Disk,
    Fault::Clone,
    Fault::Vanished,
    Fault::Restored,
    Fault::RolledBack,
];

/// Returns a number from the environment, or else the default.
fn number(variable: &str, default: usize) -> usize {
    let text = std::env::var(variable).ok().filter(|text| !text.is_empty());
    text.map_or(default, |text| text.parse().unwrap_or_else(|err| panic!("{variable}={text}: {err}")))
}

/// The size of a trial. `scripts/stress cluster` has a larger one.
struct Size {
    nodes: usize,
    calls: usize,
    faults: usize,
    /// The time `offline` in seconds.
    offline: usize,
    seed: usize,
}

/// A machine, and the turn to lock it: its own thread would lock it again before a fault that waits wakes up.
type Shared<'h> = (Mutex<()>, Mutex<Machine<'h>>);

/// A panic in one thread stops all others.
struct Alarm<'w>(&'w World);

impl Drop for Alarm<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.is_over.store(true, Relaxed);
        }
    }
}

/// Runs a machine's verbs until the trial is over.
fn live(world: &World, machine: &Shared<'_>) {
    let _alarm = Alarm(world);
    loop {
        let mut locked = lock(machine);
        if locked.is_gone || world.is_over.load(Relaxed) {
            return;
        }
        let is_well = locked.step(world);
        drop(locked);
        if !is_well {
            std::thread::sleep(Duration::from_millis(100));
        }
    }
}

struct Trial<'s, 'e, 'h> {
    scope: &'s Scope<'s, 'e>,
    world: &'s World,
    etcd: Etcd<'h>,
    machines: Vec<Arc<Shared<'h>>>,
    /// The configuration of all nodes.
    node: Node<'h>,
    /// The names of nodes that are gone for good.
    gone: Vec<String>,
    backups: Vec<Backup>,
    chance: Chance,
    /// The number of machines that there have been.
    number: usize,
    /// The number of boots.
    boots: u32,
    size: Size,
}

impl<'s, 'h: 's> Trial<'s, '_, 'h> {
    /// Starts a machine with this name, and with this directory.
    fn start(&mut self, name: &str, dir: &Path) {
        self.number += 1;
        std::fs::create_dir_all(dir.join("net")).unwrap();
        let node = self.node.clone().with("nodeName", name.into()).with("dataDir", json!(dir));
        let node = Node { name: name.to_owned(), ..node.in_boot(self.boot()) };
        self.world.names.lock().unwrap().insert(name.to_owned());
        let machine = Machine::new(node, self.number, self.size.seed);
        let machine = Arc::new((Mutex::new(()), Mutex::new(machine)));
        self.machines.push(Arc::clone(&machine));
        let world = self.world;
        self.scope.spawn(move || live(world, &machine));
    }

    /// Starts a node that is new.
    fn start_new(&mut self) {
        let name = format!("n{}", self.number + 1);
        self.start(&name, &self.place());
    }

    fn place(&self) -> PathBuf {
        self.node.host.dir().join(unique("disk"))
    }

    fn boot(&mut self) -> u32 {
        self.boots += 1;
        self.boots
    }

    fn pick(&mut self) -> Arc<Shared<'h>> {
        let n = self.chance.below(self.machines.len());
        Arc::clone(&self.machines[n])
    }

    /// Waits for this number of calls since the beginning.
    fn wait(&self, calls: usize) {
        let is_reached = || self.world.calls.load(Relaxed) >= calls || self.world.is_over.load(Relaxed);
        assert!(wait_until(10.0 * PATIENCE, is_reached), "no progress");
        assert!(!self.world.is_over.load(Relaxed), "a machine has failed");
    }

    /// Lets the machines go on for a part of the calls between two faults.
    fn go_on(&mut self, part: usize) {
        let pause = self.size.calls / self.size.faults / part;
        self.wait(self.world.calls.load(Relaxed) + pause);
    }

    fn cause(&mut self, fault: Fault) {
        let member = self.chance.below(MEMBERS);
        let pause = Duration::from_millis(100 + self.chance.below(900) as u64);
        let machine = self.pick();
        match fault {
            Fault::Killed => {
                self.etcd.kill(member);
                std::thread::sleep(pause);
                self.etcd.member(member);
            }
            Fault::CutOff => {
                self.etcd.cut(member);
                std::thread::sleep(pause);
                self.etcd.heal();
            }
            Fault::Paused => {
                self.etcd.signal(member, Signal::SIGSTOP);
                std::thread::sleep(pause);
                self.etcd.signal(member, Signal::SIGCONT);
            }
            Fault::Plugin => lock(&machine).kill(self.world),
            Fault::Boot => {
                let boot = self.boot();
                lock(&machine).reboot(self.world, boot, None);
            }
            Fault::Disk => self.roll_a_disk_back(&machine),
            Fault::Clone => {
                let copy = self.place();
                let mut original = lock(&machine);
                original.copy(self.world, &copy);
                self.start(&original.node.name, &copy);
            }
            Fault::Vanished => self.replace(&machine),
            Fault::Restored => {
                let backup = self.etcd.backup();
                self.go_on(2);
                self.restore(&backup);
                self.backups.push(backup);
            }
            Fault::RolledBack => {
                let n = self.chance.below(self.backups.len());
                let backup = self.backups[n].clone();
                self.restore(&backup);
            }
        }
        self.etcd.settle();
    }

    /// Restores a backup. If a node without an agent can't know of it, the agents know the latest revision, and one of
    /// them is the first to see the earlier one.
    fn restore(&mut self, backup: &Backup) {
        let hear = |machine: &Shared<'_>| lock(machine).node.operate("confirm");
        if etcd::NEEDS_AGENTS {
            std::thread::scope(|scope| {
                for machine in &self.machines {
                    scope.spawn(|| drop(hear(machine)));
                }
            });
        }
        self.etcd.restore(backup);
        if etcd::NEEDS_AGENTS {
            let _ = hear(&self.machines[0]);
        }
    }

    fn roll_a_disk_back(&mut self, machine: &Shared<'h>) {
        let disk = self.place();
        lock(machine).copy(self.world, &disk);
        self.go_on(2);
        let boot = self.boot();
        lock(machine).reboot(self.world, boot, Some(disk));
    }

    /// Removes a machine. The next has its name, or another, and then an operator or the API server may know that the
    /// name is gone.
    fn replace(&mut self, machine: &Arc<Shared<'h>>) {
        let mut locked = lock(machine);
        locked.vanish(self.world);
        let name = locked.node.name.clone();
        drop(locked);
        self.machines.retain(|other| !Arc::ptr_eq(other, machine));
        if self.chance.below(2) == 0 {
            return self.start(&name, &self.place());
        }
        self.start_new();
        // A release is about all machines of a name.
        if self.machines.iter().any(|other| lock(other).node.name == name) {
            return;
        }
        self.world.names.lock().unwrap().remove(&name);
        if self.chance.below(2) == 0 {
            let _ = self.release(&name);
        }
        self.gone.push(name);
    }

    fn release(&self, name: &str) -> Result<Value, Value> {
        lock(&self.machines[0]).node.operate(&format!("release {name}"))
    }

    /// Causes all faults, at equal distances.
    fn run(&mut self) {
        let mut faults = Vec::new();
        for n in 0..self.size.faults {
            if faults.is_empty() {
                faults.extend(FAULTS);
            }
            let fault = faults.swap_remove(self.chance.below(faults.len()));
            self.wait(self.size.calls * n / self.size.faults);
            self.cause(fault);
        }
        self.wait(self.size.calls);
    }

    /// Removes all pods, and waits until no block is lost.
    fn end(&self) {
        for machine in &self.machines {
            let mut machine = lock(machine);
            machine.empty(self.world);
            let store = Directory::open(&machine.node.store()).unwrap().unwrap();
            assert_eq!(store.addresses().unwrap(), Vec::<IpAddr>::new());
        }
        assert!(self.world.has_no_pods());
        assert!(wait_until(10.0 * PATIENCE, || self.lost().is_none()), "{}", self.lost().unwrap());
    }

    /// Releases nodes that are gone, also those that a backup has revived. Returns an error.
    fn release_all(&self) -> Option<String> {
        let outcomes = self.gone.iter().filter_map(|name| self.release(name).err());
        let mut texts = outcomes.map(|err| err["msg"].as_str().unwrap().to_owned());
        texts.find(|text| !text.contains("has nothing of it"))
    }

    /// Returns the difference between the nodes' files and a cluster in which each machine has a spare block at most, and
    /// no other block has an owner.
    fn lost(&self) -> Option<String> {
        let tidying: Vec<_> = self.machines.iter().map(|machine| lock(machine).node.begin("tidy")).collect();
        let outcomes = tidying.into_iter().map(|child| answer(&child.wait_with_output().unwrap()));
        let outcomes: Vec<_> = outcomes.collect();
        if let Some(err) = outcomes.into_iter().find_map(Result::err) {
            return Some(err.to_string());
        }
        if let Some(err) = self.release_all() {
            return Some(err);
        }
        let nodes: Vec<Node<'_>> = self.machines.iter().map(|machine| lock(machine).node.clone()).collect();
        let mut shares = BTreeSet::new();
        for node in &nodes {
            let Share { owned, others, .. } = Share::read(&node.store()).unwrap().unwrap();
            if owned.len() > 1 || owned.iter().any(Owned::is_single) {
                return Some(format!("{} has {owned:?}", node.name));
            }
            let namesakes = nodes.iter().filter(|other| other.name == node.name).count() - 1;
            if others.len() != namesakes {
                return Some(format!("{} has {namesakes} copies, and sees {others:?}", node.name));
            }
            for Owned { first, .. } in owned {
                assert!(shares.insert((first.to_string(), node.name.clone())), "{first} has two owners");
            }
        }
        let claims = nodes[0].operate("blocks").unwrap();
        let claims = claims.as_array().unwrap().iter().filter(|claim| !is_free(claim));
        let text = |value: &Value| value.as_str().unwrap().to_owned();
        let claims: BTreeSet<_> = claims.map(|claim| (text(&claim["first"]), text(&claim["node"]))).collect();
        (claims != shares).then(|| format!("etcd: {claims:?}; nodes: {shares:?}"))
    }
}

fn lock<'m, 'h>((turn, machine): &'m Shared<'h>) -> MutexGuard<'m, Machine<'h>> {
    let _turn = turn.lock().unwrap();
    machine.lock().unwrap()
}

/// Whether any node may claim a released block.
fn is_free(claim: &Value) -> bool {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    claim["freeAt"].as_u64().is_some_and(|free| u128::from(free) <= now.as_millis())
}

#[test]
fn no_address_has_two_owners_and_none_is_lost_under_load() {
    let size = Size {
        nodes: number("CNIMBLE_CLUSTER_NODES", 4),
        calls: number("CNIMBLE_CLUSTER_CALLS", 500),
        faults: number("CNIMBLE_CLUSTER_FAULTS", FAULTS.len()),
        offline: number("CNIMBLE_CLUSTER_OFFLINE", 4),
        seed: number("CNIMBLE_SEED", 1),
    };
    let host = Host::new();
    // Of blocks with 8 addresses every seventh ADD claims one. In a small subnet nodes claim the same ones.
    let bits = (size.nodes * 16).next_power_of_two().ilog2() + 3;
    let node = Node::new(&host, MEMBERS, "n", &format!("10.9.0.0/{}", 32 - bits));
    let node = node.with("blockSize", 29.into()).offline(size.offline as u32);
    let etcd = Etcd::start(&host, MEMBERS);
    node.operate("init new").unwrap();
    let world = World::new(1100 * size.offline as u64, 1 << bits);
    let begun = Instant::now();
    std::thread::scope(|scope| {
        let _alarm = Alarm(&world);
        let (chance, backups) = (Chance(size.seed as u64), vec![etcd.backup()]);
        let (machines, gone, world) = (Vec::new(), Vec::new(), &world);
        let mut trial =
            Trial { scope, world, etcd, machines, node, gone, backups, chance, number: 0, boots: 0, size };
        for _ in 0..trial.size.nodes {
            trial.start_new();
        }
        trial.run();
        world.is_over.store(true, Relaxed);
        let (calls, took) = (world.calls.load(Relaxed), begun.elapsed().as_secs_f32());
        trial.end();
        let Size { nodes, faults, seed, .. } = trial.size;
        eprintln!(
            "{nodes} nodes, {calls} ADDs and DELs in {took:.0} s, {faults} faults, seed {seed}: no address had two \
             owners, and none was lost. Refused by code: {:?}. Machines that confirmed nothing in time: {}",
            world.refused.lock().unwrap(),
            world.late.load(Relaxed)
        );
    });
}
