//! Checks whether a packet that leaves the node gets the node's address, if the pod's network has `ipMasq`.

use std::net::IpAddr;

use cnimble_cni::{Owner, json};
use cnimble_liveness::cache_entries::owner_of;
use cnimble_rules::listing::{self, Effect};
use cnimble_runtime::Entry;
use serde_json::Value;

use super::flow::Flow;
use super::pod::PodEnd;
use super::station::{Station, Verdict};
use super::walk::{HOST, Walk};

impl Walk<'_> {
    /// Reports whether the pod has the rule for masquerading, if its network has `ipMasq`. Without the rule an answer
    /// needs a route to the pod outside.
    pub(crate) fn check_masquerading(&mut self, end: &PodEnd, flow: &Flow) {
        let (Some(entry), Some(from)) = (&end.entry, flow.from) else { return };
        if !asks_for_masquerading(entry) {
            return;
        }
        let owner = owner_of(entry);
        let tag = owner.tag();
        let Ok(rules) = listing::list(&mut self.nft) else { return };
        if rules.iter().any(|rule| rule.owner.is(&owner, &tag) && masquerades(&rule.effect, from)) {
            if let Some((rule, text)) = self.exemption(flow) {
                let text = format!(
                    "{text}: it then leaves as {from}, and only a host with a route there can answer"
                );
                let mut station =
                    Station::new(self.way, HOST, "masquerade", Verdict::Unknown, text).remedy(rule.command());
                station.explains_silence = true;
                self.stations.push(station);
                return;
            }
            self.passes(HOST, "masquerade", format!("{from} gets an address of the host"));
            return;
        }
        let Owner { network, .. } = owner;
        let text = format!(
            "the masquerading that network {network} asks for is missing: it leaves as {from}, and only a host with a \
             route there can answer"
        );
        let mut station = Station::new(self.way, HOST, "masquerade", Verdict::Unknown, text)
            .remedy("cnimble doctor --repair");
        station.explains_silence = true;
        self.stations.push(station);
    }
}

/// Returns whether a plugin of the network has `ipMasq`.
fn asks_for_masquerading(entry: &Entry) -> bool {
    let Ok(list) = entry.network_list() else { return false };
    list.plugins
        .iter()
        .any(|plugin| json::get(&plugin.document, "ipMasq").and_then(Value::as_bool) == Some(true))
}

/// Returns whether a rule with this effect masquerades the address.
fn masquerades(effect: &Effect, from: IpAddr) -> bool {
    match effect {
        Effect::Masquerade { address, .. } => *address == from,
        Effect::Iptables { purpose, .. } => purpose == "masquerade",
        _ => false,
    }
}
