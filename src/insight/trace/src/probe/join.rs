//! Joins a look with the evidence of a probe. The capture shows how far the packet came, and the trace of rules and the
//! look show why. Each of them checks the other.

use std::net::IpAddr;

use cnimble_netlink::nft::{Family, HookedChain, Table};
use cnimble_netlink::sysctl;
use cnimble_rules::{drops, whose};

use super::Evidence;
use super::drops::{Drop, Dropped};
use crate::rules::hook_name;
use crate::station::{Outcome, Station, Verdict, Way};
use crate::walk::HOST;

/// Changes the verdicts to what the probe has shown, and returns the outcome. The stations after the place where the
/// packet ended are removed.
pub(crate) fn join(
    stations: &mut Vec<Station>,
    to: IpAddr,
    evidence: &Evidence,
    hooked: &[HookedChain],
) -> Outcome {
    let answered = evidence.answer.is_some() || is_refused_port(evidence, to);
    let reached = if answered { stations.len() } else { reached(stations, evidence) };
    for station in stations.iter_mut().take(reached) {
        confirm(station, evidence);
    }
    if answered {
        return Outcome::Answered;
    }
    if let Some(drop) = evidence.drops.first() {
        let way = if drop.what == Dropped::Answer { Way::Back } else { Way::Out };
        let station = rule_station(way, drop, hooked);
        let at = stations.iter().position(|of| of.way == way && of.name == station.name);
        stations.truncate(at.unwrap_or(reached));
        stations.push(station);
        return Outcome::Stopped;
    }
    if let Some(err) = &evidence.unsent {
        return stop_at_sender(stations, &err.to_string());
    }
    stop_behind(stations, to, reached, evidence, hooked)
}

/// Returns whether the receiver itself refused the datagram, so that it has arrived. A rule can answer with the same
/// error in its place. It is among the drops only if it was traced in the host's namespace.
fn is_refused_port(evidence: &Evidence, to: IpAddr) -> bool {
    evidence.drops.is_empty() && evidence.error == Some((to, "port unreachable"))
}

/// Returns how many stations the packet surely passed, which are those up to the last link on which it was seen.
fn reached(stations: &[Station], evidence: &Evidence) -> usize {
    stations.iter().rposition(|station| is_seen(station, evidence)).map_or(0, |last| last + 1)
}

/// Returns whether the packet was seen on the station's link, on its way.
fn is_seen(station: &Station, evidence: &Evidence) -> bool {
    let Some(tap) = &station.tap else { return false };
    evidence
        .sights
        .iter()
        .any(|(of, probe, answer)| of == tap && if station.way == Way::Out { *probe } else { *answer })
}

/// Records that the packet passed this station.
fn confirm(station: &mut Station, evidence: &Evidence) {
    match station.verdict {
        Verdict::Ok => {}
        Verdict::Unknown => {
            station.verdict = Verdict::Ok;
            station.text = match (station.name, evidence.answer) {
                ("network", Some(answer)) => format!("the answer is {answer}"),
                ("network", None) => "the answer is port unreachable: nothing listens there".to_owned(),
                ("prerouting" | "input" | "output" | "forward" | "postrouting" | "bridge rules", _) => {
                    "no rule stopped the probe".to_owned()
                }
                _ => format!("the probe passed: {}", station.text),
            };
        }
        // The packet proves the look wrong.
        Verdict::Stops => {
            station.verdict = Verdict::Ok;
            station.remedy = None;
            station.text = format!(
                "the probe passed, although a look says otherwise, which is a fault of this program: {}",
                station.text
            );
        }
    }
}

/// Returns the station of the rule that dropped a packet: that of its hook.
fn rule_station(way: Way, drop: &Drop, hooked: &[HookedChain]) -> Station {
    let name = match drop.hook(hooked) {
        _ if drop.family == Family::Bridge => "bridge rules",
        Some(hook) => hook_name(hook),
        None => "rules",
    };
    let what = match drop.what {
        Dropped::Probe | Dropped::Answer => "it",
        Dropped::NeighbourQuestion => "the question for the neighbour",
        Dropped::NeighbourAnswer => "the answer of the neighbour",
    };
    let table = Table::new(drop.family, &drop.table);
    let chain = table.chain(&drop.chain);
    let maker = whose::maker(drop.family, &drop.table, &drop.chain);
    let what = match drop.rule {
        None => format!("the policy of {chain} drops {what}"),
        Some(handle) => match whose::text_of(drop.family, &drop.table, &drop.chain, handle) {
            Some(text) => format!("{chain} drops {what} by rule {handle}: {text}"),
            None => format!("{chain} drops {what} by rule {handle}"),
        },
    };
    let remedy = format!("nft -a list chain {chain}");
    Station::new(way, HOST, name, Verdict::Stops, format!("{what} (made by {maker})")).remedy(remedy)
}

/// Ends the stations at the sender, because the kernel refused to send the probe.
fn stop_at_sender(stations: &mut Vec<Station>, why: &str) -> Outcome {
    if let Some(at) = stations.iter().position(|of| of.verdict == Verdict::Stops) {
        stations.truncate(at + 1);
        return Outcome::Stopped;
    }
    let place = stations.first().map(|of| of.place.clone()).unwrap_or_default();
    let in_pod = stations.iter().take_while(|of| of.place == place).count();
    stations.truncate(in_pod);
    let text = format!("the pod's namespace refuses to send it, by a rule or a route: {why}");
    stations.push(Station::new(Way::Out, &place, "output", Verdict::Stops, text));
    Outcome::Stopped
}

/// Ends the stations where the packet ended: between the last link on which it was seen and the next one.
fn stop_behind(
    stations: &mut Vec<Station>,
    to: IpAddr,
    reached: usize,
    evidence: &Evidence,
    hooked: &[HookedChain],
) -> Outcome {
    let next = stations.iter().skip(reached).position(|of| of.tap.is_some());
    let next = next.map_or(stations.len(), |offset| reached + offset + 1);
    let mut unproven = stations.iter().take(next).skip(reached);
    let symptom = unproven.position(|of| of.explains_silence && of.verdict == Verdict::Unknown);
    let symptom = symptom.map(|at| reached + at);
    // A neighbour that does not answer can be a symptom of a way that is cut further on.
    let end = if symptom.is_some() { stations.len() } else { next };
    let fault = stations.iter().take(end).skip(reached).position(|of| of.verdict == Verdict::Stops);
    if let Some(offset) = fault {
        stations.truncate(reached + offset + 1);
        return Outcome::Stopped;
    }
    if let Some(at) = symptom {
        stations.truncate(at + 1);
        let Some(station) = stations.last_mut() else { return Outcome::Unknown };
        match evidence.neighbour_drops.first().filter(|_| station.name == "neighbour") {
            Some(drop) => {
                let way = station.way;
                stations.push(rule_station(way, drop, hooked));
            }
            None => station.verdict = Verdict::Stops,
        }
        return Outcome::Stopped;
    }
    if let Some(at) = stations.iter().take(next).skip(reached).position(|of| of.name == "network") {
        return end_outside(stations, reached + at, evidence);
    }
    stop_without_reason(stations, to, reached, next, evidence)
}

/// Ends the stations outside, because the packet left the node. Only an error that came back says more.
fn end_outside(stations: &mut Vec<Station>, at: usize, evidence: &Evidence) -> Outcome {
    stations.truncate(at + 1);
    let Some(station) = stations.get_mut(at) else { return Outcome::Unknown };
    if let Some((from, text)) = evidence.error {
        station.verdict = Verdict::Stops;
        station.text = format!("{from} reports: {text}");
        return Outcome::Stopped;
    }
    let seconds = evidence.waited.as_secs_f64();
    station.text =
        format!("it left the node, and no answer came within {seconds:.1} s: what is there cannot be known");
    Outcome::Unknown
}

/// Ends the stations between two links, where the packet vanished without an explanation.
fn stop_without_reason(
    stations: &mut Vec<Station>,
    to: IpAddr,
    reached: usize,
    next: usize,
    evidence: &Evidence,
) -> Outcome {
    let way = stations.get(next.saturating_sub(1)).map_or(Way::Out, |of| of.way);
    let between = stations.get(reached.saturating_sub(1)..next).unwrap_or_default();
    let programs: Vec<String> = between.iter().flat_map(|of| of.programs.clone()).collect();
    stations.truncate(next.saturating_sub(1).max(reached));
    let mut text = match evidence.error {
        Some((from, error)) => format!("it was not seen on the next link, and {from} reports: {error}"),
        None => "it was not seen on the next link, and no rule of nf_tables dropped it".to_owned(),
    };
    text += &unseen_causes(to, &programs);
    let verdict = if evidence.missing.is_empty() { Verdict::Stops } else { Verdict::Unknown };
    for missing in &evidence.missing {
        text += &format!("; {missing}");
    }
    stations.push(Station::new(way, HOST, "lost", verdict, text));
    if verdict == Verdict::Stops { Outcome::Stopped } else { Outcome::Unknown }
}

/// Returns the text about causes that no trace shows: full connection tracking, legacy iptables, and the `programs` of the
/// links.
fn unseen_causes(to: IpAddr, programs: &[String]) -> String {
    if let Some(full) = full_connection_tracking() {
        return format!(". Connection tracking is full ({full}): raise net.netfilter.nf_conntrack_max");
    }
    let family = if to.is_ipv4() { Family::Ipv4 } else { Family::Ipv6 };
    let rules = drops::legacy_drops(family).unwrap_or_default();
    if rules.is_empty() && programs.is_empty() {
        return ". Look at tc, eBPF and XDP programs of these links".to_owned();
    }
    let more = rules.len().saturating_sub(LEGACY_RULES);
    let rules = rules.into_iter().take(LEGACY_RULES);
    let listed = programs.iter().cloned().chain(rules).collect::<Vec<_>>().join("; ");
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    format!(". These can have dropped it: {listed}{more}")
}

/// How many rules of legacy iptables are listed.
const LEGACY_RULES: usize = 5;

/// Returns the text about a full table of connection tracking. It returns `None` if it is not full, or can't be read.
fn full_connection_tracking() -> Option<String> {
    let (count, most) = (conntrack_number("count")?, conntrack_number("max")?);
    (most > 0 && count >= most).then(|| format!("{count} of {most}"))
}

/// Returns the value of a switch of connection tracking, or `None` if it can't be read.
fn conntrack_number(name: &str) -> Option<u64> {
    sysctl::read(&format!("net/netfilter/nf_conntrack_{name}")).ok()?.parse().ok()
}
