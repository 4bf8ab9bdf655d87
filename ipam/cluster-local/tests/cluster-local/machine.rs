//! A machine of the load test, with verbs and faults of its own, and the checker of the addresses of all machines.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use cnimble_leases::cluster::share::{self, Share};
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use serde_json::{Value, json};

use super::{Node, address, answer};

/// The number of pods that a machine doesn't exceed.
const PODS: usize = 24;

/// A random number generator (splitmix64).
pub(super) struct Chance(pub(super) u64);

impl Chance {
    /// Returns a number below `limit`.
    pub(super) fn below(&mut self, limit: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        usize::try_from((mixed ^ (mixed >> 31)) % limit as u64).unwrap()
    }
}

/// The state that all machines share.
#[derive(Default)]
pub(super) struct World {
    /// The pod with each address, and the directory of its machine's leases.
    given: Mutex<BTreeMap<String, (String, PathBuf)>>,
    /// The names that an API server lists.
    pub(super) names: Mutex<BTreeSet<String>>,
    /// The number of DELs, and of ADDs that returned an address.
    pub(super) calls: AtomicUsize,
    /// The number of refused verbs by their code.
    pub(super) refused: Mutex<BTreeMap<u64, usize>>,
    /// How often a machine that had confirmed nothing for too long lost addresses of running pods.
    pub(super) late: AtomicUsize,
    pub(super) is_over: AtomicBool,
    /// The time after a machine's last confirmation in which no other machine gets its addresses, in milliseconds.
    patience: u64,
    /// The number of addresses. The first is 10.9.0.0, and each eighth belongs to no block.
    addresses: usize,
}

impl World {
    pub(super) fn new(patience: u64, addresses: usize) -> Self {
        World { patience, addresses, ..World::default() }
    }

    fn gave(&self, ip: &str, pod: &str, store: &Path) {
        // Under the lock, no machine goes off.
        let mut given = self.given.lock().unwrap();
        let other = given.insert(ip.to_owned(), (pod.to_owned(), store.to_owned()));
        let Some((other, theirs)) = other else { return };
        let is_late = store != theirs && (self.is_late(store) || self.is_late(&theirs));
        assert!(is_late, "{ip} has two owners: {pod} and {other}");
        self.late.fetch_add(1, Relaxed);
    }

    /// Called before DEL starts, or when the machine is off.
    fn takes_back(&self, ip: &str, pod: &str) {
        let mut given = self.given.lock().unwrap();
        if given.get(ip).is_some_and(|(owner, _)| owner == pod) {
            given.remove(ip);
        }
    }

    /// Whether others may have the machine's addresses. A confirmation fails as long as a lost one has a lease.
    fn is_late(&self, store: &Path) -> bool {
        let share = Share::read(store).unwrap().unwrap();
        share::now().unwrap() - share.confirmed >= self.patience
    }

    pub(super) fn has_no_pods(&self) -> bool {
        self.given.lock().unwrap().is_empty()
    }
}

/// A pod that is to be added, with its CNI_ARGS.
struct Pod {
    name: String,
    args: String,
}

/// A machine, or a copy of one.
pub(super) struct Machine<'h> {
    pub(super) node: Node<'h>,
    number: usize,
    /// The names and addresses of its pods.
    pods: Vec<(String, String)>,
    started: usize,
    chance: Chance,
    pub(super) is_gone: bool,
}

impl<'h> Machine<'h> {
    pub(super) fn new(node: Node<'h>, number: usize, seed: usize) -> Self {
        let chance = Chance((seed + number) as u64);
        Machine { node, number, pods: Vec::new(), started: 0, chance, is_gone: false }
    }

    fn dir(&self) -> PathBuf {
        self.node.store().parent().unwrap().to_owned()
    }

    /// Runs a verb, or the agent. Returns whether it succeeded.
    pub(super) fn step(&mut self, world: &World) -> bool {
        match self.chance.below(100) {
            0..3 => return self.tend(world),
            3 => self.gc(),
            _ if self.chance.below(PODS) >= self.pods.len() => {
                let pod = self.next(world);
                let outcome = self.node.run("ADD", &pod.name, &pod.args, None);
                return self.added(world, pod, outcome);
            }
            _ => {
                let (pod, ip) = self.doomed(world);
                self.del(world, &pod, Some(&ip));
            }
        }
        true
    }

    /// Returns a new pod. Some want an address that belongs to no block.
    fn next(&mut self, world: &World) -> Pod {
        self.started += 1;
        let name = format!("pod{}-{}", self.number, self.started);
        // The last address of the subnet is never given.
        let n = self.chance.below(world.addresses / 8 - 1) * 8 + 7;
        let wanted = format!("IP=10.9.{}.{}", n / 256, n % 256);
        Pod { name, args: if self.chance.below(8) == 0 { wanted } else { String::new() } }
    }

    fn added(&mut self, world: &World, pod: Pod, outcome: Result<Value, Value>) -> bool {
        match outcome {
            Ok(result) => {
                let ip = address(&result);
                world.gave(&ip, &pod.name, &self.node.store());
                world.calls.fetch_add(1, Relaxed);
                self.pods.push((pod.name, ip));
                true
            }
            // Another machine has the address.
            Err(err) if err["code"] == 101 && !pod.args.is_empty() => true,
            err => self.heed(world, err),
        }
    }

    /// Panics unless the outcome is a success, or a failure of etcd's state. Removes all pods if the machine has lost
    /// some of its addresses because it has confirmed nothing for too long.
    fn heed<T>(&mut self, world: &World, outcome: Result<T, Value>) -> bool {
        let Err(err) = outcome else { return true };
        assert!(err["code"] == 11 || err["code"] == 50, "{}: {err}", self.node.name);
        *world.refused.lock().unwrap().entry(err["code"].as_u64().unwrap()).or_default() += 1;
        if err["msg"].as_str().unwrap().contains("has a lease") {
            assert!(world.is_late(&self.node.store()), "{err}");
            world.late.fetch_add(1, Relaxed);
            self.empty(world);
        }
        false
    }

    /// Removes all pods, and leases of earlier boots.
    pub(super) fn empty(&mut self, world: &World) {
        while !self.pods.is_empty() {
            let (pod, ip) = self.doomed(world);
            self.del(world, &pod, Some(&ip));
        }
        self.gc();
    }

    /// Returns a pod whose DEL follows, and its address.
    fn doomed(&mut self, world: &World) -> (String, String) {
        let (pod, ip) = self.pods.swap_remove(self.chance.below(self.pods.len()));
        world.takes_back(&ip, &pod);
        (pod, ip)
    }

    fn del(&self, world: &World, pod: &str, ip: Option<&str>) {
        self.node.run("DEL", pod, "", ip).unwrap();
        world.calls.fetch_add(1, Relaxed);
    }

    fn gc(&self) {
        let pods = self.pods.iter().map(|(pod, _)| json!({"containerID": pod, "ifname": "eth0"}));
        let mut node = self.node.clone();
        node.config["cni.dev/valid-attachments"] = Value::from_iter(pods);
        node.run("GC", "", "", None).unwrap();
    }

    /// Does the agent's work.
    pub(super) fn tend(&mut self, world: &World) -> bool {
        let mut node = self.node.clone();
        node.config["nodes"] = json!(*world.names.lock().unwrap());
        let outcome = node.operate(&format!("tend 192.0.2.{}", self.number));
        self.heed(world, outcome)
    }

    /// Starts the ADD of a pod.
    fn begin(&mut self, world: &World) -> (Pod, Child) {
        let pod = self.next(world);
        let child = self.node.start("ADD", &pod.name, &pod.args, None);
        (pod, child)
    }

    /// Sends a signal to a plugin and to the program that it has started, at any moment. They may have ended.
    fn interrupt(&mut self, child: &Child, signal: Signal) {
        std::thread::sleep(Duration::from_micros(self.chance.below(30_000) as u64));
        let _ = killpg(Pid::from_raw(child.id() as i32), signal);
    }

    /// Kills an ADD or a DEL. Then the runtime removes the pod.
    pub(super) fn kill(&mut self, world: &World) {
        let is_del = !self.pods.is_empty() && self.chance.below(2) == 0;
        let (pod, mut child) = if is_del {
            let (pod, ip) = self.doomed(world);
            let child = self.node.start("DEL", &pod, "", Some(&ip));
            (pod, child)
        } else {
            let (pod, child) = self.begin(world);
            (pod.name, child)
        };
        self.interrupt(&child, Signal::SIGKILL);
        child.wait().unwrap();
        self.del(world, &pod, None);
    }

    /// Copies the disk in the middle of an ADD.
    pub(super) fn copy(&mut self, world: &World, to: &Path) {
        let (pod, child) = self.begin(world);
        self.interrupt(&child, Signal::SIGSTOP);
        copy(&self.dir(), to);
        self.interrupt(&child, Signal::SIGCONT);
        let outcome = answer(&child.wait_with_output().unwrap());
        self.added(world, pod, outcome);
    }

    /// Switches the machine off in the middle of an ADD.
    fn off(&mut self, world: &World) {
        let (_, mut child) = self.begin(world);
        self.interrupt(&child, Signal::SIGKILL);
        child.wait().unwrap();
        for (pod, ip) in self.pods.drain(..) {
            world.takes_back(&ip, &pod);
        }
    }

    /// Boots the machine with its disk, or with an earlier copy of it.
    pub(super) fn reboot(&mut self, world: &World, boot: u32, disk: Option<PathBuf>) {
        self.off(world);
        if let Some(disk) = disk {
            std::fs::remove_dir_all(self.dir()).unwrap();
            copy(&disk, &self.dir());
        }
        self.node = self.node.in_boot(boot);
    }

    pub(super) fn vanish(&mut self, world: &World) {
        self.off(world);
        std::fs::remove_dir_all(self.dir()).unwrap();
        self.is_gone = true;
    }
}

fn copy(from: &Path, to: &Path) {
    assert!(Command::new("cp").arg("-a").arg(from).arg(to).status().unwrap().success());
}
