//! Verbs, which are called on the real node and then judged by the model. Two concurrent verbs are judged in both
//! orders, and their results must match one of them.

use std::collections::BTreeSet;
use std::net::IpAddr;

use serde_json::Value;

use crate::node::{Att, Edition, Key, Node, State};
use crate::plan::{Backend, Op, Set, port};
use crate::site::{Ended, Site, id, name, prefixes};
use crate::taken::Taken;

/// CNI's code for "no address is left" (host-local's own code).
const FULL: u64 = 101;

/// A completed verb.
pub(crate) enum Done {
    Add { key: Key, pod: usize, port: Option<u16>, by: Set, ended: Ended, undone: Option<Ended> },
    Del { key: Key, by: Set, told: bool, ended: Ended },
}

/// The outcome that the model expects.
enum Should {
    Succeed,
    Fail(&'static str, Option<u64>),
    Either,
}

/// Returns the port that a pod requests. A container has a port in one network only, since the owner would otherwise be
/// undefined.
pub(crate) fn wanted(node: &Node, key: Key, number: u8) -> Option<u16> {
    node.nets[key.0].ports?;
    let taken = |port: &u16| {
        node.atts.iter().any(|(other, att)| other.1 == key.1 && other.0 != key.0 && att.port == Some(*port))
    };
    port(number).filter(|port| !taken(port))
}

/// Returns true if the Go plugins support the configuration.
fn go_knows(node: &Node, net: usize) -> bool {
    !matches!(node.nets[net].firewall, Some((Backend::Nftables, _)))
}

/// Calls ADD or DEL.
pub(crate) fn call(site: &Site, node: &Node, op: &Op) -> Done {
    match *op {
        Op::Add { net, pod, port, by } => {
            let key = node.key(net, pod);
            let (pod, edition) = (usize::from(pod), node.editions[key.0]);
            let port = wanted(node, key, port);
            let by = if go_knows(node, key.0) { by } else { Set::Ours };
            let ended = site.add(by, key, pod, edition, port);
            // As in libcni. A living attachment keeps its state, because the first plugin fails.
            let whole = |att: &Att| att.state == State::Living && !att.meddled;
            let undo = ended.failed > Some(0) && by == Set::Ours && !node.atts.get(&key).is_some_and(whole);
            let undone = undo.then(|| site.del(by, key, Some(pod), edition, (port, None)));
            Done::Add { key, pod, port, by, ended, undone }
        }
        Op::Del { pod, told, by, .. } => {
            let key = target(node, op);
            let att = node.atts.get(&key);
            let by = match att {
                Some(att) if att.state == State::Living && go_knows(node, key.0) => by,
                _ => Set::Ours,
            };
            let place = if att.is_none() { Some(usize::from(pod)) } else { att.and_then(|att| att.pod) };
            let result = att.map(|att| &att.result).filter(|result| told && !result.is_null());
            let port = att.and_then(|att| att.port);
            let ended = site.del(by, key, place, node.editions[key.0], (port, result));
            Done::Del { key, by, told: result.is_some(), ended }
        }
        _ => unreachable!("only ADD and DEL are called at once"),
    }
}

/// Returns the attachment of an ADD or DEL. A DEL with a result gets an existing attachment if there is one.
pub(crate) fn target(node: &Node, op: &Op) -> Key {
    match *op {
        Op::Add { net, pod, .. } => node.key(net, pod),
        Op::Del { net, pod, told, .. } => {
            let key = departed(node, node.key(net, pod));
            let other = node.atts.keys().find(|other| told && other.0 == key.0);
            if node.atts.contains_key(&key) { key } else { other.copied().unwrap_or(key) }
        }
        _ => unreachable!("only ADD and DEL are called at once"),
    }
}

/// Returns the key itself, or that of a dead pod without a DEL if this pod has no attachment.
pub(crate) fn departed(node: &Node, key: Key) -> Key {
    if node.atts.contains_key(&key) {
        return key;
    }
    let gone = |(other, att): &(&Key, &Att)| other.0 == key.0 && att.pod.is_none();
    node.atts.iter().find(gone).map_or(key, |(other, _)| *other)
}

/// Judges a verb, and updates the model.
pub(crate) fn judge(node: &mut Node, taken: &mut Taken, done: &Done) -> Result<(), String> {
    if let Done::Add { key, undone: Some(_), .. } | Done::Del { key, .. } = done {
        share_ports(node, *key);
    }
    match done {
        Done::Add { key, pod, port, by, ended, undone } => {
            if let Some(undone) = undone {
                silent(undone).map_err(|why| format!("DEL after an ADD that failed: {why}"))?;
            }
            let should = should(node, taken, *key, *port, *by);
            let who = format!("ADD of {} to {}", id(key.1), name(key.0));
            node.count(match (by, ended.failed, &should) {
                (Set::Go, ..) => "ADDs of the Go plugins",
                (_, None, _) => "ADDs",
                (_, Some(_), Should::Fail(..)) => "ADDs that had to fail",
                (_, Some(_), _) => "ADDs that failed, as they may",
            });
            // Until it had undone its work, it had an address.
            taken.unsure |= ended.failed.is_some();
            match (ended.failed, should) {
                (None, Should::Fail(why, _)) => Err(format!("{who} succeeded, though {why}")),
                (None, _) => {
                    if *by == Set::Go {
                        let others = node.atts.iter_mut().filter(|(other, _)| other.1 == key.1);
                        // Their chains of the MAC check belong to a container in any network.
                        others
                            .filter(|(_, att)| att.by == Set::Go)
                            .for_each(|(_, att)| att.state = State::Loose);
                    }
                    added(node, taken, *key, *pod, *port, *by, ended)
                }
                (Some(_), Should::Succeed) => Err(format!("{who} failed: {}", ended.last.describe())),
                (Some(_), Should::Fail(why, code)) => {
                    let error = ended.last.try_error()?;
                    match code.filter(|code| *code != error.code && !node.control) {
                        Some(code) => {
                            Err(format!("{who}: {why} has code {code}, not {}: {}", error.code, error.all()))
                        }
                        None => Ok(()),
                    }
                }
                (Some(_), Should::Either) => {
                    match undone {
                        // If the attachment was unplugged or killed, a new ADD may have created a part before it
                        // failed.
                        Some(_) => removed(node, taken, *key, false),
                        None => failed(node, *key, *pod, *port, *by),
                    }
                    Ok(())
                }
            }
        }
        Done::Del { key, by: Set::Go, .. } => {
            node.count("DELs of the Go plugins");
            if let Some(att) = node.atts.get_mut(key) {
                att.state = State::Loose;
                taken.unsure = true;
                // Its addresses may belong to other pods from now on.
                taken.unclear.extend(att.ips.iter().map(|ip| (key.0, *ip)));
            }
            Ok(())
        }
        Done::Del { key, told, ended, .. } => {
            node.count(if node.atts.contains_key(key) { "DELs" } else { "DELs of nobody" });
            silent(ended).map_err(|why| format!("DEL of {} from {}: {why}", id(key.1), name(key.0)))?;
            removed(node, taken, *key, *told);
            Ok(())
        }
    }
}

/// Updates the model after our DEL.
fn removed(node: &mut Node, taken: &mut Taken, key: Key, told: bool) {
    let Some(att) = node.atts.remove(&key) else { return };
    if told {
        if att.inherits {
            node.left_over.insert(key.1);
        }
        share_forwarding(node, &att);
    }
    if let Some(leases) = taken.leases.get_mut(&key.0) {
        leases.retain(|ip| !att.ips.contains(ip));
    }
    taken.ports.retain(|(port, _, container, _)| *container != key.1 || Some(*port) != att.port);
}

/// Rules in iptables' CNI-FORWARD name no owner. A DEL removes the rules of any address in the result of its ADD. Two
/// attachments have the same address only after a reboot.
fn share_forwarding(node: &mut Node, gone: &Att) {
    for att in node.atts.values_mut().filter(|att| att.ips.iter().any(|ip| gone.ips.contains(ip))) {
        let before = att.has.len();
        att.has.retain(|fact| !fact.contains("-A CNI-FORWARD "));
        att.flushed |= att.has.len() < before;
    }
}

/// The ports in the Go plugins' table name a container and no network. Removing the container from one network removes
/// its ports in all others.
pub(crate) fn share_ports(node: &mut Node, key: Key) {
    for (other, att) in &mut node.atts {
        if other.1 == key.1 && other.0 != key.0 && att.by == Set::Go && att.port.is_some() {
            att.state = State::Loose;
        }
    }
}

/// Checks that a DEL or GC that succeeded printed nothing.
pub(crate) fn silent(ended: &Ended) -> Result<(), String> {
    if ended.failed.is_none() && ended.last.stdout.is_empty() { Ok(()) } else { Err(ended.last.describe()) }
}

fn should(node: &Node, taken: &Taken, key: Key, port: Option<u16>, by: Set) -> Should {
    let net = &node.nets[key.0];
    let existing = node.atts.get(&key);
    // Their ADD that fails frees the lease of the existing attachment, and leaves the rest.
    let theirs =
        |(other, att): (&Key, &Att)| other.0 == key.0 && att.state == State::Loose && att.by == Set::Go;
    if by == Set::Go || taken.unsure || (existing.is_none() && node.atts.iter().any(theirs)) {
        return Should::Either;
    }
    match existing.map(|att| (att.state, att.meddled)) {
        Some((State::Living | State::New, false)) => return Should::Fail("it has been added", None),
        Some(_) => return Should::Either,
        None => {}
    }
    let (four, _) = prefixes(key.0, node.editions[key.0]);
    let other = |gateway: &String| *gateway != format!("{four}.1/24");
    if net.gateway
        && net.v4
        && !net.ptp
        && !net.force_address
        && taken.gateways.get(&key.0).is_some_and(other)
    {
        return Should::Fail("the bridge has another address", None);
    }
    let leases = taken.leases.get(&key.0).cloned().unwrap_or_default();
    let in_range: Vec<&IpAddr> = leases.iter().filter(|ip| is_in(node.editions[key.0], key.0, ip)).collect();
    let room = usize::from(net.room);
    let four = in_range.iter().filter(|ip| ip.is_ipv4()).count();
    if (net.v4 && four >= room) || (net.v6 && in_range.len() - four >= room) {
        // After a reboot the owners of leases are unknown if both sets of plugins worked on them.
        let unclear = node
            .atts
            .iter()
            .any(|(other, att)| other.0 == key.0 && att.state == State::Loose && att.pod.is_none());
        return if unclear { Should::Either } else { Should::Fail("no address is left", Some(FULL)) };
    }
    let conflicts = taken.ports.iter().filter(|(other, six, container, _)| {
        Some(*other) == port && *container != key.1 && if *six { net.v6 } else { net.v4 }
    });
    let conflicts: Vec<bool> = conflicts.map(|(.., sure)| *sure).collect();
    match conflicts.iter().any(|sure| *sure) && net.ports == Some(Backend::Nftables) && !node.control {
        true => Should::Fail("another has the port", None),
        false if conflicts.is_empty() => Should::Succeed,
        false => Should::Either,
    }
}

fn is_in(edition: Edition, net: usize, ip: &IpAddr) -> bool {
    let (four, six) = prefixes(net, edition);
    let text = ip.to_string();
    if ip.is_ipv4() { text.starts_with(&format!("{four}.")) } else { text.starts_with(&six) }
}

/// An ADD without guarantees has failed.
fn failed(node: &mut Node, key: Key, pod: usize, port: Option<u16>, by: Set) {
    match (node.atts.get_mut(&key), by) {
        (Some(_), Set::Go) => loosen(node, key, Some(pod), port, by),
        (Some(_), Set::Ours) => {}
        (None, Set::Go) => loosen(node, key, Some(pod), port, by),
        // Its work has been undone.
        (None, Set::Ours) => {}
    }
}

/// Marks an attachment of which some parts may exist.
pub(crate) fn loosen(node: &mut Node, key: Key, pod: Option<usize>, port: Option<u16>, by: Set) {
    let edition = node.editions[key.0];
    let att = node.atts.entry(key).or_insert_with(|| Att {
        by,
        state: State::Loose,
        pod,
        edition,
        port,
        ips: Vec::new(),
        veth: String::new(),
        result: Value::Null,
        has: BTreeSet::new(),
        flushed: false,
        meddled: false,
        void: false,
        again: false,
        inherits: false,
    });
    att.state = State::Loose;
    if by == Set::Go {
        att.by = by;
    }
    att.port = att.port.or(port);
    // A runtime has the result of an ADD only if that ADD succeeded and was the last one.
    att.result = Value::Null;
}

fn added(
    node: &mut Node,
    taken: &mut Taken,
    key: Key,
    pod: usize,
    port: Option<u16>,
    by: Set,
    ended: &Ended,
) -> Result<(), String> {
    let (net, edition) = (&node.nets[key.0], node.editions[key.0]);
    let result = ended.last.try_result()?;
    let who = format!("ADD of {} to {}", id(key.1), name(key.0));
    let told = result["ips"].as_array().into_iter().flatten();
    let address = |ip: &Value| ip["address"].as_str()?.split('/').next()?.parse::<IpAddr>().ok();
    let ips: Vec<IpAddr> = told.filter_map(address).collect();
    if ips.len() != usize::from(net.v4) + usize::from(net.v6) {
        return Err(format!("{who}: other addresses than asked for: {result}"));
    }
    let own = node.atts.contains_key(&key);
    for ip in &ips {
        if !is_in(edition, key.0, ip) {
            return Err(format!("{who}: {ip} is not in the range"));
        }
        let leases = taken.leases.entry(key.0).or_default();
        if !leases.insert(*ip) && !own && !taken.unclear.contains(&(key.0, *ip)) {
            return Err(format!("{who}: {ip} is another's already"));
        }
    }
    let links = result["interfaces"].as_array().into_iter().flatten();
    let ends = links.filter(|link| link["sandbox"].as_str().unwrap_or_default().is_empty());
    let mut names = ends.filter_map(|link| link["name"].as_str()).filter(|name| name.starts_with("veth"));
    let veth = names.next().unwrap_or_default().to_owned();
    if let Some(port) = port {
        taken.ports.extend(ips.iter().map(|ip| (port, ip.is_ipv6(), key.1, by == Set::Ours)));
    }
    let has = BTreeSet::new();
    let att = Att {
        by,
        state: State::New,
        pod: Some(pod),
        edition,
        port,
        ips,
        veth,
        result,
        has,
        flushed: false,
        meddled: false,
        void: false,
        again: own,
        inherits: own || node.left_over.contains(&key.1),
    };
    node.atts.insert(key, att);
    Ok(())
}
