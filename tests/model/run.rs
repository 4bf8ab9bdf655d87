//! Runs a plan: each operation on the real node and in the model, with a comparison after each.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::time::Instant;

use cnimble_tests::{Outcome, wait_until};
use serde_json::Value;

use crate::look::look;
use crate::node::{Att, Key, LEFT_TO_THE_POD, Node, State};
use crate::plan::{Backend, Op, PODS, Plan, Set, Victim};
use crate::site::{Ended, Site, id, name};
use crate::taken::Taken;
use crate::verbs::{self, Done, call, departed, judge, loosen, silent, target};

/// A difference between model and node.
#[derive(Debug, Clone)]
pub(crate) struct Failure {
    /// The index of the operation.
    pub(crate) at: usize,
    pub(crate) why: String,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "operation {}: {}", self.at, self.why)
    }
}

/// The way in which a plan is run.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Manner {
    /// The seconds that the kernel has for its background work.
    pub(crate) patience: f32,
    /// Whether the Go plugins replace ours.
    pub(crate) control: bool,
    /// The time at which the plan is abandoned without a failure.
    pub(crate) until: Option<Instant>,
}

/// The number of events of each kind.
pub(crate) type Counts = BTreeMap<&'static str, usize>;

/// Runs a plan, up to the first difference.
pub(crate) fn run(plan: &Plan, manner: Manner) -> Result<Counts, Failure> {
    let last = plan.ops.len().saturating_sub(1);
    let surprise = |_| Failure { at: last, why: "a surprise, which is told above".to_owned() };
    std::panic::catch_unwind(|| carried_out(plan, manner)).unwrap_or_else(|panic| Err(surprise(panic)))
}

fn carried_out(plan: &Plan, manner: Manner) -> Result<Counts, Failure> {
    let mut site = Site::new(&plan.nets, manner.control);
    let mut node = Node::new(plan, look(&site.host, &site.pods, |_| true), manner.control);
    for (at, op) in plan.ops.iter().enumerate() {
        if manner.until.is_some_and(|until| Instant::now() > until) {
            return Ok(node.counts);
        }
        step(&mut site, &mut node, op, manner).map_err(|why| Failure { at, why })?;
    }
    end(&site, &mut node, manner)
        .map_err(|why| Failure { at: plan.ops.len(), why: format!("in the end: {why}") })?;
    Ok(node.counts)
}

fn step(site: &mut Site, node: &mut Node, op: &Op, manner: Manner) -> Result<(), String> {
    let mut taken = Taken::of(node, &node.seen);
    let mut touched = node.places();
    node.count(match op {
        Op::Add { .. } | Op::Del { .. } => "verbs alone",
        Op::Both(..) => "verbs in pairs",
        Op::Check { .. } => "CHECKs",
        Op::Gc { .. } => "GCs",
        Op::Status { .. } => "STATUSes",
        Op::Die { .. } => "deaths",
        Op::Reboot => "reboots",
        Op::Flush => "flushes",
        Op::Rename { .. } | Op::Unplug { .. } => "links renamed or removed",
        Op::Edit { .. } => "edits",
        Op::Kill { .. } => "kills",
        Op::Doctor => "doctors",
    });
    match op {
        Op::Add { .. } | Op::Del { .. } => judge(node, &mut taken, &call(site, node, op))?,
        Op::Both(one, two) => both(site, node, &taken, one, two)?,
        Op::Check { net, pod } => check(site, node, node.key(*net, *pod))?,
        Op::Gc { net, without } => gc(site, node, node.net(*net), *without)?,
        Op::Status { net } => {
            let net = node.net(*net);
            silent(&site.status(net, node.editions[net])).map_err(|why| format!("STATUS: {why}"))?;
        }
        Op::Die { pod } => {
            site.die(usize::from(*pod));
            node.die(usize::from(*pod));
        }
        Op::Reboot => {
            site.reboot();
            node.reboot();
        }
        Op::Flush => {
            site.host.nft("flush ruleset");
            node.flush();
        }
        Op::Rename { net, pod } => meddle(site, node, node.key(*net, *pod), true),
        Op::Unplug { net, pod } => meddle(site, node, node.key(*net, *pod), false),
        Op::Edit { net, subnet, masq } => {
            let net = node.net(*net);
            let edition = &mut node.editions[net];
            edition.subnet ^= *subnet;
            edition.masq_switched ^= *masq;
        }
        Op::Kill { verb, net, pod, port, plugin, call } => {
            let key = node.key(*net, *pod);
            kill(site, node, (*verb, key, usize::from(*pod)), *port, (*plugin, *call));
        }
        Op::Doctor if node.control => {}
        Op::Doctor => doctor(site, node)?,
    }
    touched.extend(node.places());
    touched.extend(op.pods());
    compare(site, node, &touched, manner)
}

/// Waits until model and node are equal, and returns the differences.
fn compare(site: &Site, node: &mut Node, pods: &BTreeSet<usize>, manner: Manner) -> Result<(), String> {
    let mut wrong = Vec::new();
    wait_until(manner.patience, || {
        wrong = node.compare(look(&site.host, &site.pods, |pod| pods.contains(&pod)));
        wrong.is_empty()
    });
    if wrong.is_empty() { Ok(()) } else { Err(wrong.join("\n    ")) }
}

/// Runs two concurrent verbs of different pods.
fn both(site: &Site, node: &mut Node, taken: &Taken, one: &Op, two: &Op) -> Result<(), String> {
    let mut two = two.clone();
    if let Op::Add { pod, .. } | Op::Del { pod, .. } = &mut two
        && target(node, one).1 == node.containers[usize::from(*pod)]
    {
        *pod = (*pod + 1) % PODS;
    }
    if target(node, one).1 == target(node, &two).1 {
        // A runtime calls only one verb at a time for a pod.
        return judge(node, &mut taken.clone(), &call(site, node, one));
    }
    let (before, ends) = {
        let node = &*node;
        let ends = std::thread::scope(|scope| {
            let first = scope.spawn(|| call(site, node, one));
            let second = call(site, node, &two);
            [first.join().unwrap(), second]
        });
        (node.clone(), ends)
    };
    let in_order = |order: [&Done; 2]| {
        let (mut node, mut taken) = (before.clone(), taken.clone());
        order.into_iter().try_for_each(|done| judge(&mut node, &mut taken, done)).map(|()| node)
    };
    let [first, second] = &ends;
    *node = in_order([first, second])
        .or_else(|why| in_order([second, first]).map_err(|other| format!("{why}; or else {other}")))?;
    Ok(())
}

fn check(site: &Site, node: &Node, key: Key) -> Result<(), String> {
    let Some(att) = node.atts.get(&key) else { return Ok(()) };
    let Some(pod) = att.pod.filter(|_| att.state == State::Living) else { return Ok(()) };
    let ended = site.check(key, pod, node.editions[key.0], att.port, &att.result);
    // No specification says how CHECK answers if the configuration differs from that of the ADD.
    let unclear = att.meddled || att.by == Set::Go || att.edition != node.editions[key.0];
    match (ended.failed, att.flushed) {
        _ if unclear => Ok(()),
        (None, false) if ended.last.stdout.is_empty() => Ok(()),
        (Some(_), true) => ended.last.try_error().map(drop),
        _ => Err(format!("CHECK of {}: {}", id(key.1), ended.last.describe())),
    }
}

fn gc(site: &Site, node: &mut Node, net: usize, without: Option<u8>) -> Result<(), String> {
    // sbr finds its rules by the interface or the result, and after a GC both may be gone.
    let without = without.filter(|_| !node.nets[net].sbr).map(|pod| node.containers[usize::from(pod)]);
    let valid = node.valid(net, without);
    silent(&site.gc(net, node.editions[net], &valid)).map_err(|why| format!("GC of {}: {why}", name(net)))?;
    let of = &node.nets[net];
    // GC cannot determine the owner of these rules.
    let blind = matches!(of.firewall, Some((Backend::Iptables, _))) || node.control;
    if !of.ptp {
        // The Go plugins' chains of the MAC check name no network. A chain without a port may belong to any network.
        for att in node.atts.values_mut().filter(|att| att.pod.is_none()) {
            att.has.retain(|fact| !fact.contains("cni-br-iface-"));
        }
    }
    let sbr = of.sbr;
    let mut left_to_the_pod = false;
    let nameless = node.pods_with_nameless_pairs(net);
    node.atts.retain(|key, att| {
        if key.0 != net || valid.contains(key) {
            return true;
        }
        // A veth pair from an ADD that was killed at once has no alias. DEL or the end of the pod removes it.
        let is_nameless = att.state == State::Loose && att.pod.is_some_and(|pod| nameless.contains(&pod));
        let stays = att.by == Set::Go || blind || is_nameless || (sbr && att.pod.is_some());
        if stays {
            att.state = State::Loose;
            left_to_the_pod |= sbr && att.pod.is_some();
        }
        stays
    });
    if left_to_the_pod {
        node.count(LEFT_TO_THE_POD);
    }
    Ok(())
}

/// An administrator renames or removes a link.
fn meddle(site: &Site, node: &mut Node, key: Key, rename: bool) {
    let Some(att) = node.atts.get(&key).filter(|att| att.state == State::Living && att.pod.is_some()) else {
        return;
    };
    let old = &att.veth;
    if site.host.run(&format!("ip link show {old}")).status != 0 {
        return;
    }
    if rename {
        let new = format!("adm{}n{}", key.1, key.0);
        if *old != new {
            site.host.shell(&format!(
                "ip link set {old} down; ip link set {old} name {new}; ip link set {new} up"
            ));
        }
        node.meddle(key, Some(new));
    } else {
        site.host.ip(&format!("link del {old}"));
        node.meddle(key, None);
    }
}

fn kill(site: &Site, node: &mut Node, (verb, key, pod): (Victim, Key, usize), port: u8, at: (u8, u16)) {
    let edition = node.editions[key.0];
    match verb {
        Victim::Add => {
            let port = verbs::wanted(node, key, port);
            site.killed("ADD", key, Some(pod), edition, (port, None, &[]), at);
            // A second ADD changes nothing of an existing attachment, however it ends.
            if node.atts.get(&key).is_none_or(|att| att.state == State::Loose || att.meddled) {
                loosen(node, key, Some(pod), port, Set::Ours);
            }
        }
        Victim::Del => {
            let key = departed(node, key);
            let att = node.atts.get(&key);
            let place = if att.is_none() { Some(pod) } else { att.and_then(|att| att.pod) };
            let (port, result) = (att.and_then(|att| att.port), att.map(|att| &att.result));
            let result = result.filter(|result| !result.is_null());
            site.killed("DEL", key, place, edition, (port, result, &[]), at);
            verbs::share_ports(node, key);
            let ips = node.atts.get_mut(&key).map(|att| {
                att.state = State::Loose;
                att.ips.clone()
            });
            // Rules in CNI-FORWARD name no owner. Those of the next pod with the address may have been removed.
            let shares = |other: &Att| other.ips.iter().any(|ip| ips.iter().flatten().any(|of| of == ip));
            node.atts.values_mut().filter(|other| shares(other)).for_each(|other| other.state = State::Loose);
        }
        Victim::Gc => {
            let valid = node.valid(key.0, None);
            site.killed("GC", key, None, edition, (None, None, &valid), at);
            let others = node.atts.iter_mut().filter(|(other, _)| other.0 == key.0 && !valid.contains(other));
            others.for_each(|(_, att)| att.state = State::Loose);
            // As in a GC that isn't killed, but these may still exist.
            if !node.nets[key.0].ptp {
                let is_anybodys = |att: &&mut Att| {
                    att.pod.is_none() && att.has.iter().any(|fact| fact.contains("cni-br-iface-"))
                };
                node.atts.values_mut().filter(is_anybodys).for_each(|att| att.state = State::Loose);
            }
        }
    }
}

/// Checks that the doctor finds nothing of living pods, and something of each that is gone.
fn doctor(site: &Site, node: &Node) -> Result<(), String> {
    let outcome = site.doctor(&node.editions);
    if ![0, 6].contains(&outcome.status) {
        return Err(outcome.describe());
    }
    let document: Value = serde_json::from_slice(&outcome.stdout).map_err(|err| err.to_string())?;
    let findings: Vec<&Value> = document["findings"].as_array().into_iter().flatten().collect();
    let names = |key: &Key| {
        let (network, container) = (name(key.0), id(key.1));
        findings.iter().any(|finding| {
            let of = |what: &str| finding[what].as_str().unwrap_or_default();
            of("containerID") == container && (of("network") == network || of("network").is_empty())
        })
    };
    let whole = |(key, att): (&Key, &Att)| {
        // Parts of the earlier attachment may exist.
        let fine = att.state == State::Living && !att.flushed && !att.meddled && !att.inherits;
        match att.state {
            State::Living if fine && names(key) => {
                Some(format!("the doctor finds {} that lives: {}", id(key.1), describe(&outcome)))
            }
            // The doctor reports nothing in doubtful cases: a pod that was missing in a GC may have its address.
            State::Gone
                if att.by == Set::Ours
                    && !att.has.is_empty()
                    && !att.void
                    && !names(key)
                    && !node.shares_address(att) =>
            {
                Some(format!("the doctor doesn't find {} that is gone: {}", id(key.1), describe(&outcome)))
            }
            _ => None,
        }
    };
    node.atts.iter().find_map(whole).map_or(Ok(()), Err)
}

fn describe(outcome: &Outcome) -> String {
    outcome.describe()
}

/// Deletes all attachments. Then nothing may be left.
fn end(site: &Site, node: &mut Node, manner: Manner) -> Result<(), String> {
    let all: Vec<Key> = node.atts.keys().copied().collect();
    for key in all {
        let att = &node.atts[&key];
        let result = Some(&att.result).filter(|result| !result.is_null());
        let ended: Ended = site.del(Set::Ours, key, att.pod, node.editions[key.0], (att.port, result));
        silent(&ended).map_err(|why| format!("DEL of {}: {why}", id(key.1)))?;
        if result.is_some() && att.inherits {
            node.left_over.insert(key.1);
        }
        node.atts.remove(&key);
    }
    compare(site, node, &(0..site.pods.len()).collect(), manner)
}
