//! Finds the rules that dropped a probe, from its steps through nf_tables.

use cnimble_netlink::nft::{Family, HookPoint, HookedChain, TraceStep};

use super::packet::{Probe, Sighting};

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
    /// Whether it was the answer that was dropped.
    pub(crate) answer: bool,
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

/// Returns the drops of the probe and its answer, without those by the table that traces it. Others may trace their own
/// packets, so a packet counts only if its header is known.
pub(super) fn find(steps: &[TraceStep], probe: &Probe) -> Vec<Drop> {
    let mut drops = Vec::new();
    let own = super::table_name();
    for step in steps.iter().filter(|step| step.dropped && step.table != own) {
        let before: Vec<&TraceStep> = steps.iter().filter(|other| other.id == step.id).collect();
        let sighting = before.iter().find_map(|other| probe.recognize_transport(&other.transport));
        let answer = match sighting {
            Some(Sighting::Probe) => false,
            Some(Sighting::Answer(_)) => true,
            _ => continue,
        };
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
            answer,
        });
    }
    drops
}
