//! Kills a plugin (SIGKILL) before each system call in turn.
//!
//! A kill before call n + 1 equals a kill after call n. Between two calls a process changes only its own memory.

use serde_json::Value;

use cnimble_tests::sample_size;
use cnimble_tests::trace::Fate;

use crate::kinds::{Kind, others, picky};
use crate::points::{Chance, FEWEST, at_each_point, verbs_inside};
use crate::site::{Disturbed, Site, Verb};

/// A system call of a verb before which the plugin is killed.
#[derive(Debug, Clone)]
pub struct Point {
    pub verb: Verb,
    /// The index of the plugin in the chain.
    pub at: usize,
    /// The index of the call.
    pub n: usize,
    pub call: String,
    /// Whether only this process is killed, and not its child or parent.
    pub alone: bool,
    pub aftermath: Aftermath,
}

/// The next call of the runtime.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Aftermath {
    /// DEL, while the pod's namespace still exists.
    Del,
    /// DEL with an empty CNI_NETNS, after the namespace is gone.
    DelWithoutNetns,
    /// Against the specification: the same ADD again, and only then DEL.
    AddAgain,
}

const AFTERMATHS: [Aftermath; 3] = [Aftermath::Del, Aftermath::DelWithoutNetns, Aftermath::AddAgain];

/// Returns the points at which this verb of a network can be killed, at most `most`.
fn points(kind: &Kind, verb: Verb, most: usize, alone: bool, seed: u64) -> Vec<Point> {
    let mut points = Vec::new();
    for at in 0..Site::new(kind).length() {
        // If the pod is the first one, only a fresh node makes the same calls.
        let calls = Site::usual_calls(kind, verb, at);
        for (n, call) in calls.iter().enumerate() {
            let aftermaths: &[Aftermath] = match verb {
                Verb::Add if most == usize::MAX => &AFTERMATHS,
                Verb::Add => &AFTERMATHS[n % 3..][..1],
                _ if n % 2 == 0 => &[Aftermath::Del],
                _ => &[Aftermath::DelWithoutNetns],
            };
            for aftermath in aftermaths {
                points.push(Point { verb, at, n, call: call.name(), alone, aftermath: *aftermath });
            }
        }
    }
    Chance::new(seed).some(points, most)
}

/// Kills the plugin once, and checks the state afterwards. Returns whether the call was reached.
pub fn die(site: &mut Site, point: &Point) -> Result<bool, String> {
    let fate = if point.alone { Fate::KilledAloneAt(point.n) } else { Fate::KilledAt(point.n) };
    let run = site.disturbed(point.verb, point.at, &fate)?;
    if run.traced.hung {
        return Err("it hung before".to_owned());
    }
    let met = run.traced.met;
    // A killed ADD has no result.
    let known = (point.verb != Verb::Add).then_some(run.last.as_ref()).flatten();
    bury(site, point, &run, known)?;
    let left = site.diff();
    if !left.is_empty() {
        return Err(format!("left after death and DEL:\n{left}"));
    }
    if !matches!(point.aftermath, Aftermath::DelWithoutNetns) {
        let left = site.pod_diff();
        if !left.is_empty() && point.verb != Verb::Gc {
            return Err(format!("left in the pod after death and DEL:\n{left}"));
        }
    }
    site.neighbour_lives().map_err(|why| format!("the neighbour suffers: {why}"))?;
    // A new ADD, perhaps in another namespace.
    let att = site.attachment();
    let results = site.added(&att).map_err(|why| format!("the next ADD: {why}"))?;
    let last = results.last();
    site.checked(&att, last.unwrap_or(&Value::Null)).map_err(|why| format!("after the next ADD: {why}"))?;
    site.del(&att, last).map_err(|why| format!("after the next ADD: {why}"))?;
    let left = site.diff();
    if !left.is_empty() {
        return Err(format!("left after the next life:\n{left}"));
    }
    Ok(met)
}

/// Calls the verbs that a runtime calls after a failure.
fn bury(site: &mut Site, point: &Point, run: &Disturbed, known: Option<&Value>) -> Result<(), String> {
    let att = site.attachment();
    if point.verb == Verb::Gc {
        // Another GC must finish the work.
        site.gc_from(0)?;
        let left = site.diff();
        if !left.is_empty() {
            return Err(format!("left after death and GC:\n{left}"));
        }
    }
    match point.aftermath {
        Aftermath::Del => site.del(&att, known),
        Aftermath::DelWithoutNetns => {
            site.end_victim();
            site.del(&att.netns(""), known)
        }
        Aftermath::AddAgain => {
            let again = site.link(point.at).call("ADD", &att, run.last.as_ref()).run();
            if again.status == 0 {
                again.try_result()?;
            } else {
                again.try_error()?;
            }
            site.del(&att, known)
        }
    }
}

/// Kills the verbs of a network at each point.
fn deaths(kind: &str, verbs: &[Verb], otherwise: usize) {
    killed(kind, verbs, otherwise, false);
}

/// The same, optionally with only one of several processes killed.
pub fn killed(kind: &str, verbs: &[Verb], otherwise: usize, alone: bool) {
    let points = |kind: &Kind, verb, seed| points(kind, verb, sample_size(otherwise), alone, seed);
    at_each_point("killed", kind, verbs, points, die, |site, point| {
        format!("{} before {} of {point:?}", site.plugin(point.at), point.call)
    });
}

#[test]
fn killed_in_bridge() {
    deaths("bridge", &[Verb::Add, Verb::Del], 60);
    deaths("bridge", &[Verb::Gc], 20);
}

#[test]
fn killed_in_the_first_bridge() {
    deaths("first bridge", &[Verb::Add], 15);
}

#[test]
fn killed_in_the_first_bridge_with_keys() {
    for key in ["uplink", "removeUnusedBridge"] {
        deaths(&format!("first bridge with {key}"), &[Verb::Add, Verb::Del, Verb::Gc], 10);
    }
}

#[test]
fn killed_in_the_first_published_port() {
    for key in ["", " with services"] {
        deaths(&format!("first bridge and portmap{key}"), &[Verb::Add, Verb::Del], 10);
    }
}

#[test]
fn killed_in_bridge_with_keys() {
    for key in ["uplink", "mtuAuto", "keepFor", "ipMasqExclude"] {
        deaths(&format!("bridge with {key}"), &[Verb::Add, Verb::Del, Verb::Gc], FEWEST);
    }
    if std::process::Command::new("iptables").arg("--version").output().is_ok() {
        deaths("bridge and portmap with acceptPublished", &[Verb::Add, Verb::Del, Verb::Gc], FEWEST);
    }
}

/// Needs a kernel whose bridges filter vlans.
pub fn deaths_beside_a_vlan_gateway() {
    let all = [Verb::Add, Verb::Del, Verb::Gc];
    deaths("first bridge with vlan and removeUnusedBridge", verbs_inside(true, &all, &all), 8);
    deaths("bridge with vlan", verbs_inside(false, &all, &[Verb::Add]), FEWEST);
    deaths("first bridge with vlan", verbs_inside(false, &all, &[Verb::Add]), FEWEST);
}

#[test]
fn killed_in_ptp() {
    deaths("ptp", &[Verb::Add, Verb::Del, Verb::Gc], 20);
}

#[test]
fn killed_in_a_chain() {
    deaths("chain", &[Verb::Add, Verb::Del, Verb::Gc], 8);
}

#[test]
fn killed_in_host_local_among_many_leases() {
    deaths("many leases", &[Verb::Add, Verb::Del, Verb::Gc], 12);
}

#[test]
fn killed_in_every_other_plugin() {
    for sample in others().filter(|sample| sample.missing().is_none()) {
        deaths(&sample.plugin, &[Verb::Add, Verb::Del, Verb::Gc], FEWEST);
    }
}

/// For plugins that need kinds of interfaces which many kernels lack.
pub fn deaths_of_the_picky() {
    for (number, network) in picky().enumerate() {
        let all = [Verb::Add, Verb::Del, Verb::Gc];
        deaths(&network, verbs_inside(number == 0, &all, &[Verb::Add]), FEWEST);
    }
}
