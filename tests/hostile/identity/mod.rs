//! Pods that imitate links of the host. The root of a pod chooses name, index, MAC and alias of its links, and their
//! peers. No verb, no repair and no guard takes a link of the host for such a pod's.

mod deed;
mod mallory;
mod site;

use cnimble_tests::{PATIENCE, Pod, announce, go_plugins, need, sample_size, skip, wait_until};

use deed::{Chance, Deed, Own, Target};
use mallory::Mallory;
use site::{Guard, Seen, Site};

/// Without `CNIMBLE_STRESS` only a part of the combinations is tried.
const SAMPLE: usize = 8;
const ALL: usize = 300;

/// After so many combinations a new guard begins, because each one repairs the same network.
const GUARDED: usize = 10;

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().and_then(|text| text.parse().ok())
}

/// Plays one deed, with a guard and each repair beside it. The node has to be as `before`.
fn play(
    site: &Site,
    before: &Seen,
    mallory: &Mallory,
    guard: &Guard,
    network: &str,
    deed: impl FnOnce(&Own) -> String,
) {
    let own = site.attach(mallory, network);
    let script = deed(&own);
    mallory.run(&script);
    site.wait_for_a_repair(guard);
    for pods in [false, true] {
        site.doctor_repairs(pods);
    }
    let when = format!("{network}: {script}\nguard: {}", guard.log());
    before.assert_same(&site.seen(&own.port), &when);
    site.assert_connected(&when);
    mallory.clear();
    site.detach(mallory, network);
    before.assert_same(&site.seen(""), &when);
}

macro_rules! mallory {
    () => {
        match Mallory::new() {
            Ok(mallory) => mallory,
            Err(why) => skip!("{why}"),
        }
    };
}

/// The index of the uplink and of its peer are those of the pod's own pair.
#[test]
fn a_pod_that_imitates_the_uplinks_pair_does_not_get_the_uplink() {
    need!("ip", "nft", "ping", "unshare", "nsenter");
    imitates(|site| vec![site.target("up0"); 2]);
}

/// The ports are of a pod with a MAC check, an isolated one, one without an alias (as of the Go plugins), and one of
/// the pod's own network.
#[test]
fn a_pod_that_imitates_anothers_pair_does_not_get_its_port() {
    need!("ip", "nft", "ping", "unshare", "nsenter");
    imitates(Site::ports);
}

fn imitates(targets: impl FnOnce(&Site) -> Vec<Target>) {
    let mallory = mallory!();
    let site = Site::new();
    let guard = site.guard();
    let before = site.seen("");
    let networks = ["evil", "evil-routed"].into_iter().cycle();
    for (target, network) in targets(&site).into_iter().zip(networks) {
        play(&site, &before, &mallory, &guard, network, |own| deed::imitation(own, &target, &mallory));
    }
}

/// Indices, names, aliases, MACs, kinds, peers, addresses, routes and MTUs by chance.
#[test]
fn no_combination_of_a_pods_links_changes_the_node() {
    need!("ip", "nft", "ping", "unshare", "nsenter");
    let mallory = mallory!();
    let site = Site::new();
    let count = match sample_size(SAMPLE) {
        usize::MAX => ALL,
        count => count,
    };
    let seed = number("CNIMBLE_SEED").unwrap_or(1);
    announce("NOTE", &format!("{count} combinations, CNIMBLE_SEED={seed}"));
    let mut chance = Chance::new(seed);
    let targets: Vec<Target> = site.ports().into_iter().chain([site.target("up0")]).collect();
    let mut guard = site.guard();
    let before = site.seen("");
    for turn in 0..count {
        if turn % GUARDED == GUARDED - 1 {
            guard = site.guard();
        }
        let target = chance.pick(&targets);
        let network = chance.pick(&["evil", "evil", "evil-routed"]);
        let deed = Deed::by_chance(&mut chance, target);
        play(&site, &before, &mallory, &guard, network, |own| deed.script(own, target, &mallory));
        if turn % 50 == 49 {
            announce("NOTE", &format!("{} of {count} combinations", turn + 1));
        }
    }
    announce("NOTE", &format!("{count} points tried, {count} reached, 0 wrong"));
}

/// A port of a living pod that lost its bridge comes back: of this build, of the Go plugins, under another name, and of a
/// pod in a user namespace.
#[test]
fn ports_of_honest_pods_are_repaired() {
    need!("ip", "nft", "ping", "unshare", "nsenter");
    let honest = mallory!();
    let site = Site::new();
    let own = site.attach(&honest, "evil");
    site.loses_and_regains(&own.port, "br4");
    site.loses_and_regains(&site.ports()[0].name, "br1");
    site.loses_and_regains(&site.ports()[1].name, "br2");
    site.rename(&site.ports()[4].name, "renamed");
    site.loses_and_regains("renamed", "br6");
    site.check("evil", honest.pod());
    site.detach(&honest, "evil");
    let Some(go) = go_plugins() else { skip!("the Go plugins are not installed") };
    let pod = Pod::new();
    let port = site.attach_by(go, &pod, "zz-canary");
    assert!(site.target(&port).alias.is_empty());
    site.loses_and_regains(&port, "br6");
}

/// The proof of a host's end stands on this: no pod puts a link into the host's namespace, nor changes one there.
#[test]
fn a_pods_root_puts_no_link_into_the_hosts_namespace() {
    need!("ip", "nft", "unshare", "nsenter");
    let mallory = mallory!();
    let site = Site::new();
    let own = site.attach(&mallory, "evil");
    let before = site.seen("");
    // The process is in the host's namespace. The pod may see it, as with a shared PID namespace.
    let in_host = site.process_in_host();
    let pid = in_host.pid();
    for deed in [
        format!("ip link set eth0 netns {pid}"),
        format!("ip link add forged0 type veth peer name forged1 netns {pid}"),
        format!("ip link add forged0 index 777 netns {pid} type veth peer name forged1"),
        format!("ip link add br7 type bridge; ip link set br7 netns {pid}"),
        format!("nsenter --net=/proc/{pid}/ns/net ip link set {} alias mine", own.port),
    ] {
        mallory.run(&deed);
        before.assert_same(&site.seen(""), &deed);
    }
    assert!(wait_until(PATIENCE, || !mallory.run("ip link show eth0").is_empty()));
}
