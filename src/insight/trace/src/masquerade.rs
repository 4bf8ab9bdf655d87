//! Checks whether a packet gets an address of the node, if the pod's network has `ipMasq`.

use std::net::IpAddr;

use cnimble_cni::Owner;
use cnimble_liveness::cache_entries::owner_of;
use cnimble_netlink::link::Link;
use cnimble_netlink::lookup::Packet;
use cnimble_rules::listing::{self, Effect};
use cnimble_rules::masquerade::Settings;
use cnimble_runtime::Entry;

use super::flow::Flow;
use super::pod::PodEnd;
use super::station::{Station, Verdict};
use super::walk::{HOST, Walk};

impl Walk<'_> {
    /// Reports whether the pod has the rule for masquerading, if its network has `ipMasq`. Without the rule an answer
    /// needs a route to the pod outside.
    pub(crate) fn check_masquerading(&mut self, end: &PodEnd, flow: &Flow) {
        let (Some(entry), Some(from)) = (&end.entry, flow.from) else { return };
        if masquerading_of(entry).is_none() {
            return;
        }
        let Some(has_rule) = self.has_masquerading(entry, from) else { return };
        if has_rule {
            if let Some(untracked) = self.untracked.clone() {
                let text = format!(
                    "{untracked} keeps it from connection tracking, so it is not masqueraded: it leaves as {from}, and only \
                     a host with a route there can answer"
                );
                let mut station = Station::new(self.way, HOST, "masquerade", Verdict::Unknown, text);
                station.explains_silence = true;
                self.stations.push(station);
                return;
            }
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
        let Owner { network, .. } = owner_of(entry);
        let text = format!(
            "the masquerading that network {network} asks for is missing: it leaves as {from}, and only a host with a \
             route there can answer"
        );
        let mut station = Station::new(self.way, HOST, "masquerade", Verdict::Unknown, text)
            .remedy("cnimble doctor --repair");
        station.explains_silence = true;
        self.stations.push(station);
    }

    /// Returns the address of the host that the receiver of a forwarded packet sees as its source. It returns `None` if
    /// the packet is not masqueraded. The answer goes to that address, and the host translates it back. `vrf` is the VRF
    /// by whose routes the packet leaves, if there is one.
    pub(crate) fn masqueraded_source(
        &mut self,
        end: &PodEnd,
        flow: &Flow,
        vrf: Option<&Link>,
    ) -> Option<IpAddr> {
        let (entry, from) = (end.entry.as_ref()?, flow.from?);
        let translation = masquerading_of(entry)?.translation;
        let result = entry.cni_result().ok().flatten()?;
        let own = result.ips.iter().map(|ip| ip.address).find(|net| net.ip() == from)?;
        // These are the exceptions of the rule for masquerading.
        if own.contains(flow.to) || flow.to.is_multicast() || translation.excludes(flow.to) {
            return None;
        }
        if self.has_masquerading(entry, from) != Some(true) || self.exemption(flow).is_some() {
            return None;
        }
        if let Some(address) = translation.address(flow.to.is_ipv4()) {
            return Some(address);
        }
        let output = vrf.map(|link| link.index);
        let packet = Packet { to: flow.to, from: None, input: None, output, transport: None };
        self.host.choose_route(&packet).ok()?.source
    }

    /// Returns whether the pod has the rule that masquerades this address. It returns `None` if the rules can't be read.
    fn has_masquerading(&mut self, entry: &Entry, from: IpAddr) -> Option<bool> {
        let owner = owner_of(entry);
        let tag = owner.tag();
        let rules = listing::list(&mut self.nft).ok()?;
        Some(rules.iter().any(|rule| rule.owner.is(&owner, &tag) && masquerades(&rule.effect, from)))
    }
}

/// Returns the masquerading that a plugin of the network asks for, or `None` without one.
fn masquerading_of(entry: &Entry) -> Option<Settings> {
    let list = entry.network_list().ok()?;
    let mut settings = list.plugins.iter().filter_map(|plugin| Settings::of_document(&plugin.document).ok());
    settings.find(|of| of.wanted)
}

/// Returns whether a rule with this effect masquerades the address.
fn masquerades(effect: &Effect, from: IpAddr) -> bool {
    match effect {
        Effect::Masquerade { address, .. } => *address == from,
        Effect::Iptables { purpose, .. } => purpose == "masquerade",
        _ => false,
    }
}
