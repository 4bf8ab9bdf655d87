//! Rules of both variants of iptables in one form.

use std::ops::RangeInclusive;

use ipnetwork::IpNetwork;

use cnimble_cni::Error;
use cnimble_netlink::legacy;
use cnimble_netlink::nft::{Destination, End, Ends, Family, Nft, Rule, Verdict};

use super::Traffic;
use crate::xtables::nat;

/// The maximum number of rules of a chain that is read.
pub(super) const LONGEST: usize = 2000;

/// A rule, as far as a walk needs it.
#[derive(Debug, Clone)]
pub(super) struct NatRule {
    /// The handle, or in the legacy variant the number in the chain.
    pub(super) number: u64,
    /// Empty in the legacy variant.
    pub(super) comment: String,
    /// The verdict, or `None` for a rule that translates or decides nothing.
    pub(super) verdict: Option<Verdict>,
    /// The target if the rule translates, such as `DNAT`.
    pub(super) target: Option<String>,
    /// Whether some packets may not match it.
    is_conditional: bool,
    ends: Ends,
    protocol: Option<u8>,
    ports: Vec<RangeInclusive<u16>>,
}

/// The targets that translate.
const TRANSLATIONS: [&str; 5] = ["SNAT", "DNAT", "MASQUERADE", "REDIRECT", "NETMAP"];

impl NatRule {
    pub(super) fn of_nft(family: Family, rule: &Rule) -> Self {
        let Destination { protocol, ports, .. } = rule.destination();
        NatRule {
            number: rule.handle,
            comment: rule.comment.clone(),
            verdict: rule.verdict(),
            target: rule.translation(),
            is_conditional: !rule.matches_all(),
            ends: rule.ends(family),
            protocol,
            ports,
        }
    }

    pub(super) fn of_legacy(rule: legacy::Rule) -> Self {
        NatRule {
            number: rule.number as u64,
            comment: String::new(),
            verdict: rule.verdict,
            target: rule.target.filter(|target| TRANSLATIONS.contains(&target.as_str())),
            is_conditional: rule.is_conditional,
            ends: rule.ends,
            protocol: rule.protocol,
            ports: rule.ports,
        }
    }

    /// Returns whether all packets of the chain match the rule.
    pub(super) fn takes_all(&self) -> bool {
        !self.is_conditional
    }

    /// Returns false if the rule's addresses, protocol or ports show that none of the packets matches. Of other
    /// conditions nothing is known.
    pub(super) fn may_meet(&self, traffic: &Traffic) -> bool {
        match traffic {
            Traffic::Leaving { source, spared } => {
                self.ends.source.iter().all(|end| end.allows(*source))
                    && !self.ends.destination.iter().any(|end| is_spared(end, spared))
            }
            Traffic::Arriving { ports, .. } => ports.iter().any(|port| {
                self.protocol.is_none_or(|protocol| protocol == port.protocol.number())
                    && (self.ports.is_empty() || self.has_port(port.port))
                    && self.ends.destination.iter().all(|end| match port.address {
                        Some(ip) => end.allows(ip),
                        None => may_be_local(end),
                    })
            }),
            Traffic::Packet(packet, _) => {
                packet.from.is_none_or(|from| self.ends.source.iter().all(|end| end.allows(from)))
                    && self.ends.destination.iter().all(|end| end.allows(packet.to))
                    && self.protocol.is_none_or(|protocol| protocol == packet.protocol)
                    && (self.ports.is_empty() || packet.port.is_some_and(|port| self.has_port(port)))
            }
        }
    }

    /// Returns whether the rule names this port of destination.
    fn has_port(&self, port: u16) -> bool {
        self.ports.iter().any(|ports| ports.contains(&port))
    }
}

/// Returns whether our rules translate nothing that goes to the rule's destination: groups, or networks in `spared`.
fn is_spared(end: &End, spared: &[IpNetwork]) -> bool {
    let is_multicast = end.network.ip().is_multicast() && end.network.prefix() >= 4;
    !end.is_excluded
        && (is_multicast
            || spared
                .iter()
                .any(|net| net.contains(end.network.network()) && net.prefix() <= end.network.prefix()))
}

/// Returns whether some address of the host can match the rule's destination. A group can't.
fn may_be_local(end: &End) -> bool {
    end.is_excluded || !end.network.ip().is_multicast()
}

/// Returns the rules of a chain of the nf_tables variant, or `None` if it has more than [`LONGEST`].
pub(super) fn of_chain(nft: &mut Nft, family: Family, chain: &str) -> Result<Option<Vec<NatRule>>, Error> {
    let count = std::cell::Cell::new(0_usize);
    let rules = nft.rules_until(nat(family).chain(chain), |_| {
        count.set(count.get() + 1);
        count.get() > LONGEST
    })?;
    let is_whole = rules.len() <= LONGEST;
    Ok(is_whole.then(|| rules.iter().map(|rule| NatRule::of_nft(family, rule)).collect()))
}
