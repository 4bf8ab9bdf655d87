//! Finds the rules that dropped a probe, from its steps through nf_tables.

use std::collections::BTreeSet;

use cnimble_netlink::nft::{Family, HookPoint, HookedChain, TraceStep};

use super::neighbours;
use super::packet::{Probe, Sighting};

/// What was dropped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Dropped {
    Probe,
    /// The answer to the probe.
    Answer,
    /// A question for the MAC of a neighbour, without which the probe or its answer is not sent.
    NeighbourQuestion,
    NeighbourAnswer,
}

/// A rule, or the policy of a chain, that dropped the probe or its answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Drop {
    pub(crate) family: Family,
    pub(crate) table: String,
    pub(crate) chain: String,
    /// The handle of the rule. It is `None` for the chain's policy.
    pub(crate) rule: Option<u64>,
    /// The chains of this packet, in their order. The last base chain among them has the hook.
    pub(crate) chains: Vec<(Family, String, String)>,
    pub(crate) what: Dropped,
}

impl Drop {
    /// Returns the hook at which the packet was dropped. It returns `None` if none of its chains is in `hooked`.
    pub(crate) fn hook(&self, hooked: &[HookedChain]) -> Option<HookPoint> {
        self.chains.iter().rev().find_map(|(family, table, chain)| {
            let mut of_table =
                hooked.iter().filter(|of| of.chain.family == *family && of.chain.table == *table);
            of_table.find(|of| of.chain.name == *chain).map(|of| of.hook)
        })
    }
}

/// Returns the drops of the probe and its answer. Others may trace their own packets, so a packet counts only if its
/// header is known.
pub(super) fn find(steps: &[TraceStep], probe: &Probe) -> Vec<Drop> {
    drops_of(steps, |step| match probe.recognize_transport(&step.transport)? {
        Sighting::Probe => Some(Dropped::Probe),
        Sighting::Answer(_) => Some(Dropped::Answer),
        Sighting::Error { .. } => None,
    })
}

/// Returns the rules that matched the probe itself, each with its handle.
pub(super) fn matched(steps: &[TraceStep], probe: &Probe) -> BTreeSet<(Family, String, String, u64)> {
    let own = super::table_name();
    let is_probe = |step: &&TraceStep| probe.recognize_transport(&step.transport) == Some(Sighting::Probe);
    let packets: BTreeSet<u32> = steps.iter().filter(is_probe).map(|step| step.id).collect();
    let of_probe = steps.iter().filter(|step| packets.contains(&step.id) && step.table != own);
    of_probe
        .filter_map(|step| Some((step.family, step.table.clone(), step.chain.clone(), step.rule?)))
        .collect()
}

/// Returns the drops of packets by which the sender and its neighbours find each other.
pub(super) fn of_neighbours(steps: &[TraceStep], probe: &Probe) -> Vec<Drop> {
    drops_of(steps, |step| neighbours::recognize(probe.from, step))
}

/// Returns the drops of packets that `recognize` knows by one of their steps. The table that traces them drops only what
/// it holds back.
fn drops_of(steps: &[TraceStep], recognize: impl Fn(&TraceStep) -> Option<Dropped>) -> Vec<Drop> {
    let mut drops = Vec::new();
    let own = super::table_name();
    for step in steps.iter().filter(|step| step.dropped && step.table != own) {
        let before: Vec<&TraceStep> = steps.iter().filter(|other| other.id == step.id).collect();
        let Some(what) = before.iter().find_map(|other| recognize(other)) else { continue };
        let end = before.iter().position(|other| *other == step).unwrap_or(before.len());
        let chains = before
            .iter()
            .take(end + 1)
            .map(|other| (other.family, other.table.clone(), other.chain.clone()))
            .collect();
        drops.push(Drop {
            family: step.family,
            table: step.table.clone(),
            chain: step.chain.clone(),
            rule: step.rule,
            chains,
            what,
        });
    }
    drops
}
