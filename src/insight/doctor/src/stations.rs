//! Checks whether a pod of each network can reach its gateway and that of the host's default route, by the stations of
//! `cnimble trace`. Nothing is sent. A network with other findings is left out, because these already say what it
//! lacks.

use std::collections::BTreeSet;
use std::net::IpAddr;

use cnimble_liveness::Verdict;
use cnimble_liveness::named::{NamedPod, Records};
use cnimble_liveness::node::Node;
use cnimble_netlink::Error;
use cnimble_rules::objects::configured;
use cnimble_runtime::Entry;
use cnimble_trace::{Flow, Outcome, Protocol, Sender, Way};

use super::attachments::is_as_recorded;
use super::{Finding, FindingKind};

/// A pod whose packets are stopped on the node. The other pods of its network have the same way.
#[derive(Debug, Clone)]
pub struct Stopped {
    pub network: String,
    pub container_id: String,
    /// The text about the receiver, the station and its reason.
    pub text: String,
}

/// The kinds of findings that say already what a network's pods lack on the way.
const SAME_FAULTS: [FindingKind; 3] =
    [FindingKind::HostState, FindingKind::PodState, FindingKind::MissingRules];

/// The stations that the warnings about packet rules name already.
const OTHER_WARNINGS: [&str; 2] = ["forward", "forwarding"];

/// Follows packets of one living pod of each network without such findings. Returns the pods that are stopped. A text
/// about each way that can't be followed goes to `unchecked`.
pub(super) fn follow_packets(node: &Node, findings: &[Finding], unchecked: &mut Vec<String>) -> Vec<Stopped> {
    let living =
        node.entries.iter().filter(|known| known.verdict == Verdict::Lives && known.entry.ifname != "lo");
    let entries: Vec<Entry> = living.map(|known| known.entry.clone()).collect();
    let records = Records::new(entries);
    let mut seen: BTreeSet<&str> =
        findings.iter().filter(|of| SAME_FAULTS.contains(&of.kind)).filter_map(Finding::network).collect();
    let mut stopped = Vec::new();
    for entry in records.entries() {
        let meets_rules = entry.network_list().is_ok_and(|list| configured::meet_rules(&list));
        if !meets_rules || !seen.insert(&entry.network) {
            continue;
        }
        let Ok(pod) = records.find(&entry.container_id) else { continue };
        for to in receivers(&pod, unchecked) {
            match stop(&pod, to, &records) {
                Ok(None) => {}
                // A pod that is being deleted loses its routes and its address, too.
                Ok(Some(_))
                    if !node.entries.iter().any(|known| known.entry == *entry && is_as_recorded(known)) =>
                {
                    break;
                }
                Ok(Some(text)) => {
                    let (network, container_id) = (entry.network.clone(), entry.container_id.clone());
                    stopped.push(Stopped { network, container_id, text });
                    break;
                }
                Err(err) => unchecked.push(format!("the way of {} to {to}: {err}", pod.name)),
            }
        }
    }
    stopped
}

/// Returns the pod's gateway and the host's, for each family that the pod has. A text about a gateway that can't be read
/// goes to `unchecked`.
fn receivers(pod: &NamedPod, unchecked: &mut Vec<String>) -> Vec<IpAddr> {
    let addresses = pod.addresses();
    let mut found = Vec::new();
    for v4 in [true, false] {
        if addresses.iter().any(|ip| ip.is_ipv4() == v4) {
            for gateway in [cnimble_trace::gateway(pod, v4), cnimble_trace::internet(v4)] {
                match gateway {
                    Ok(gateway) => found.extend(gateway),
                    Err(err) => unchecked.push(format!("the way of {} to its gateway: {err}", pod.name)),
                }
            }
        }
    }
    found
}

/// Returns the text about the station that stops a packet, or `None` if none does.
///
/// # Errors
/// Fails if the kernel can't be asked.
fn stop(pod: &NamedPod, to: IpAddr, records: &Records<'_>) -> Result<Option<String>, Error> {
    let flow = Flow { from: None, to, protocol: Protocol::Icmp, from_port: 0, to_port: 0, size: None };
    let trace = cnimble_trace::look(Sender::Pod(pod), flow, records)?;
    if trace.outcome != Outcome::Stopped {
        return Ok(None);
    }
    let last = trace.stations.last().filter(|station| !OTHER_WARNINGS.contains(&station.name));
    let Some(station) = last else { return Ok(None) };
    let remedy = station.remedy.as_deref().map(|remedy| format!(" (try {remedy})")).unwrap_or_default();
    let who = match station.way {
        Way::Out => format!("no echo request from {} reaches {to}", pod.name),
        Way::Back => format!("no echo reply from {to} reaches {}", pod.name),
    };
    Ok(Some(format!("{who}: {}: {}{remedy}", station.name, station.text)))
}
