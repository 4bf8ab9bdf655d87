//! `cnimble guard` beside pods of which three are hostile, while another program damages the host. The other pods must
//! lose nothing, and the guard stays small.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};

use cnimble_tests::stream::Stream;
use cnimble_tests::{Background, Lan, Ns, PATIENCE, Pod, announce, need, wait_until};

use super::{Node, usage};
use crate::{Chance, number};

/// The most memory of the guard in KiB, as in its unit.
const MOST_MEMORY: u64 = 64 * 1024;

/// What the hostile pods do, as root of their user namespaces. Each waits for its interface.
const ATTACKS: [&str; 3] = [
    // The MTU, with a value that is never the same.
    "n=1500; while :; do n=$((n % 9000 + 1301)); ip link set eth0 mtu $n; sleep 0.05; done",
    // More addresses than anything reads, routes and rules, and a link that goes up and down.
    "ip link set lo up
     i=0; while [ $i -lt $FLOOD ]; do
       printf 'address add fd66:%x::%x/128 dev eth0 nodad\\n' $((i / 65536)) $((i % 65536)); i=$((i + 1))
     done | ip -force -batch - >/dev/null 2>&1
     while :; do
       ip link set eth0 down; ip link set eth0 up; ip link set eth0 address 02:00:00:00:00:0$((i % 9)); i=$((i + 1))
       ip route replace 10.99.$((i % 250)).0/24 dev eth0; ip rule add from 10.98.0.$((i % 250)) table 99; sleep 0.2
     done",
    // Names, aliases and MACs that are another's, and at last another interface of the same name.
    "i=0; while [ $i -lt 200 ]; do
       ip link set eth0 alias veth$i; ip link set eth0 address 02:00:00:00:01:0$((i % 9)); i=$((i + 1)); sleep 0.05
     done
     while :; do
       ip link del eth0; ip link add eth0 address 02:00:00:00:02:02 type veth peer name zz
       ip link set eth0 up; ip address add 10.218.0.2/22 dev eth0; sleep 0.1
     done",
];

/// A pod whose root is a root of its user namespace only.
struct Hostile {
    process: Background,
    pod: Pod,
}

impl Hostile {
    fn start(attack: &str, flood: u64) -> Self {
        let wait = "while ! ip link show eth0 up; do sleep 0.1; done >/dev/null 2>&1";
        let mut command = std::process::Command::new("unshare");
        command.args([
            "--user",
            "--map-root-user",
            "--net",
            "sh",
            "-c",
            &format!("{wait}; sleep 1; {attack}"),
        ]);
        command.env("FLOOD", flood.to_string());
        let process = Background::start(&mut command);
        let ns = format!("/proc/{}/ns/net", process.pid());
        let own = fs::read_link("/proc/self/ns/net").unwrap();
        let has_left = || fs::read_link(&ns).is_ok_and(|now| now != own);
        assert!(wait_until(PATIENCE, has_left), "no namespace of its own");
        Hostile { pod: Ns::at(Path::new(&ns)), process }
    }
}

/// A pod that must lose nothing.
struct Resident {
    pod: Pod,
    id: String,
    port: usize,
    veth: String,
    ip: String,
}

impl Resident {
    fn add(node: &Node, number: usize) -> Self {
        let (pod, id, port) = (Pod::new(), format!("resident-{number}"), 10_000 + number);
        let result = node.verb("add", &pod, &id, port).success().result();
        let interfaces = result["interfaces"].as_array().unwrap();
        let veth = interfaces.iter().find(|of| of["name"].as_str().unwrap().starts_with("veth")).unwrap();
        let ip = result["ips"][0]["address"].as_str().unwrap().split('/').next().unwrap().to_owned();
        Resident { veth: veth["name"].as_str().unwrap().to_owned(), pod, id, port, ip }
    }
}

/// Damages the host, in a way that the guard repairs for all or for this pod.
fn damage(node: &Node, one: &Resident, choice: usize) -> String {
    let Resident { veth, ip, .. } = one;
    let lines = [
        "nft flush ruleset".to_owned(),
        "nft delete table inet cnimble".to_owned(),
        "ip route del 10.218.0.0/22 dev br0".to_owned(),
        format!("ip link set {veth} nomaster"),
        format!("bridge link set dev {veth} learning off flood off isolated off"),
        format!("tc qdisc del dev {veth} root"),
        "ip address flush dev br0".to_owned(),
        format!("rm {}/guarded/{ip}", node.host.data_dir().display()),
    ];
    let line = &lines[choice % lines.len()];
    node.host.shell(line);
    line.clone()
}

/// The parts of pods that the host lacks, without those of the hostile pods.
fn lost_by_residents(node: &Node) -> Vec<String> {
    let data = node.host.data_dir();
    let args = ["doctor", "--json", "--grace", "0", "--data-dir", data.to_str().unwrap()];
    let outcome = super::Outcome::of(&mut node.cnimble(&args));
    let document: Value =
        serde_json::from_slice(&outcome.stdout).unwrap_or_else(|err| panic!("{err}: {}", outcome.describe()));
    let findings = document["findings"].as_array().unwrap().iter();
    let of_resident =
        findings.filter(|of| of["containerID"].as_str().is_none_or(|id| id.starts_with("resident")));
    of_resident.map(ToString::to_string).collect()
}

/// The processor time of a process, from proc_pid_stat(5).
fn processor_time(process: &Background) -> Duration {
    let stat = fs::read_to_string(format!("/proc/{}/stat", process.pid())).unwrap();
    let fields: Vec<&str> = stat.rsplit_once(')').unwrap().1.split_whitespace().collect();
    let ticks: u64 = fields[11..13].iter().map(|ticks| ticks.parse::<u64>().unwrap()).sum();
    Duration::from_millis(ticks * 10)
}

#[test]
fn hostile_pods_cost_the_others_nothing_beside_a_guard() {
    need!("ip", "nft", "tc", "bridge", "unshare");
    let node = Node::with(|plugins| {
        (plugins[0]["mtuAuto"], plugins[0]["mtuOverhead"]) = (json!(true), json!(50));
        let limit = json!({
            "type": "bandwidth", "ingressRate": 800_000_000, "ingressBurst": 80_000_000,
            "egressRate": 800_000_000, "egressBurst": 80_000_000,
        });
        plugins.as_array_mut().unwrap().push(limit);
    });
    let _lan = Lan::behind(&node.host, "up0");
    node.host.ip("address add 10.7.0.2/24 dev up0");
    node.host.ip("route add default via 10.7.0.1 dev up0");
    let (seconds, pods) = (number("CNIMBLE_GUARD_SECONDS", 5), number("CNIMBLE_GUARD_PODS", 7));
    let residents: Vec<Resident> = (0..usize::try_from(pods).unwrap() - ATTACKS.len())
        .map(|number| Resident::add(&node, number))
        .collect();
    let streams: Vec<Stream> = residents
        .chunks(2)
        .take(2)
        .map(|pair| Stream::between(&pair[0].pod, &pair[1].pod, &pair[1].ip))
        .collect();
    let (mut guard, log) = node.guard();
    let flood = number("CNIMBLE_GUARD_FLOOD", 20_000);
    let hostile: Vec<Hostile> = ATTACKS.iter().map(|attack| Hostile::start(attack, flood)).collect();
    for (number, of) in hostile.iter().enumerate() {
        node.verb("add", &of.pod, &format!("hostile-{number}"), 20_000 + number).success();
    }
    let leases = || -> BTreeSet<String> {
        let names = fs::read_dir(node.host.data_dir().join("guarded")).unwrap();
        names.map(|of| of.unwrap().file_name().into_string().unwrap()).collect()
    };
    let told = || fs::read_to_string(&log).unwrap();
    let begun = Instant::now();
    let mut chance = Chance(number("CNIMBLE_SEED", 7));
    let (mut damages, mut slowest) = (0, (Duration::ZERO, String::new()));
    while damages < 8 || begun.elapsed() < Duration::from_secs(seconds) {
        let one = &residents[chance.below(residents.len())];
        let (what, since) = (damage(&node, one, damages), Instant::now());
        let mut lost = Vec::new();
        let is_whole = || {
            // A long run leaves the machine to others.
            std::thread::sleep(Duration::from_millis(if seconds > 60 { 1000 } else { 0 }));
            lost = lost_by_residents(&node);
            lost.is_empty()
        };
        assert!(wait_until(PATIENCE, is_whole), "{what}: {lost:#?}\n{}", told());
        if since.elapsed() > slowest.0 {
            slowest = (since.elapsed(), what.clone());
        }
        assert!(residents.iter().all(|of| leases().contains(&of.ip)), "{what}: {:?}", leases());
        streams.iter().for_each(|stream| stream.flows(&what));
        assert!(one.pod.pings("10.218.0.1"), "{what}: {}", told());
        node.comes_to_be_whole(&one.pod, &one.id, one.port);
        assert!(guard.running(), "{}", told());
        damages += 1;
        // A pause between two damages, which no assertion depends on.
        std::thread::sleep(Duration::from_millis(chance.next() % (1000 * (seconds / 60).max(1))));
    }
    let (elapsed, spent) = (begun.elapsed(), processor_time(&guard));
    let memory = usage(&guard, "VmHWM");
    announce(
        "NOTE",
        &format!(
            "{damages} damages in {} s beside {} residents and {} hostile pods; the slowest was whole again after {} ms \
             ({}); the guard: {memory}, {} ms of processor time",
            elapsed.as_secs(),
            residents.len(),
            hostile.len(),
            slowest.0.as_millis(),
            slowest.1,
            spent.as_millis(),
        ),
    );
    let kibibytes: u64 = memory.split(' ').nth(1).unwrap().parse().unwrap();
    assert!(kibibytes < MOST_MEMORY, "{memory}");
    // A short run has the guard's first looks only.
    if elapsed > Duration::from_secs(600) {
        assert!(spent * 20 <= elapsed, "{spent:?} of {elapsed:?}");
    }
    assert!(!told().contains("panicked"), "{}", told());
    streams.into_iter().for_each(Stream::end);
    drop(hostile.into_iter().map(|of| of.process).collect::<Vec<_>>());
    kill(Pid::from_raw(i32::try_from(guard.pid()).unwrap()), Signal::SIGTERM).unwrap();
    assert!(guard.finish(Duration::from_secs_f32(PATIENCE)).status.success());
}
