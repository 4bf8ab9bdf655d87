//! Finds the traces that are in the form of the Go plugins, with either of their backends.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use cnimble_cni::{Error, owner};
use cnimble_netlink::nft::{Family, Nft, Rule, Table};

use super::{OwnerHint, Trace};
use crate::forward::{self, published};
use crate::go_chains::{DNAT, GoChains, MASQUERADE, OLD_SNAT, names_in};
use crate::masquerade::reference as masquerade;
use crate::portmap::reference as portmap;
use crate::reference_spoof;
use crate::xtables::{self, FAMILIES, in_chain, legacy_rules, legacy_rules_of, nat};

/// The place of a trace, as far as its removal needs it.
#[derive(Debug, Clone)]
pub(super) enum ReferencePlace {
    /// A container's chain in the table `nat` of iptables, with the jumps of `parent` to it.
    Chain { variant: Variant, family: Family, parent: &'static str, chain: String },
    /// Such a chain without a jump to it, in the nf_tables variant.
    Unused { family: Family, chain: String },
    /// Rules in `inet cni_plugins_masquerade` of the attachment with this tag.
    Masquerade { tag: String },
    /// Rules in the table `cni_hostport` of the container with this ID.
    Hostport { family: Family, id: String },
    /// The chain of the MAC check of one port.
    Spoof { chain: String },
    /// Rules for this address in the chain of the plugin firewall.
    Forward { ip: IpAddr },
    /// Our rules for published ports with this comment in that chain.
    Published { comment: String },
}

impl ReferencePlace {
    /// Removes it. Nothing tells whether it has changed since it was found.
    pub(super) fn remove(&self, nft: &mut Nft) -> Result<(), Error> {
        match self {
            ReferencePlace::Chain { variant: Variant::NfTables, family, parent, chain } => {
                Ok(xtables::remove_chains(nft, nat(*family), parent, &[chain])?)
            }
            ReferencePlace::Chain { variant: Variant::Legacy, parent, chain, .. } => {
                xtables::remove_legacy_chain(parent, chain)
            }
            ReferencePlace::Unused { family, chain } => {
                Ok(xtables::remove_unused_chain(nft, *family, chain)?)
            }
            ReferencePlace::Masquerade { tag } => {
                Ok(masquerade::remove_go_rules(nft, |comment| owner::tag_of(comment) == tag)?)
            }
            ReferencePlace::Hostport { family, id } => {
                Ok(portmap::remove_go_rules(nft, Table::new(*family, portmap::GO_TABLE), id)?)
            }
            ReferencePlace::Spoof { chain } => Ok(reference_spoof::remove_chain(nft, chain)?),
            ReferencePlace::Forward { ip } => forward::hand_over::take_back(nft, &[*ip]),
            ReferencePlace::Published { comment } => {
                let is_its = |other: &str| other == comment;
                published::remove(nft, &is_its).and(published::remove_legacy(&is_its))
            }
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Variant {
    NfTables,
    Legacy,
}

/// All kinds of containers' chains.
const KINDS: [GoChains; 3] = [MASQUERADE, DNAT, OLD_SNAT];

/// Adds all traces. `nft` is `None` on a kernel without nf_tables.
pub(super) fn traces(mut nft: Option<&mut Nft>, traces: &mut Vec<Trace>) -> Result<(), Error> {
    let mut forwarded = Forwarded::default();
    for family in FAMILIES {
        if let Some(nft) = nft.as_deref_mut() {
            let rules = nft.rules(nat(family), None)?;
            let of = rules.iter().map(|rule| (rule.chain.as_str(), rule.target(), rule.comment.as_str()));
            traces.extend(unused(family, &of.collect::<Vec<_>>()));
            let jumps = rules.iter().filter_map(|rule| {
                Some((rule.chain.clone(), rule.target()?, rule.comment.clone(), addresses(rule, family)))
            });
            traces.extend(chains(Variant::NfTables, family, jumps.collect()));
            hostports(nft, family, traces)?;
            let filter = Table::new(family, "filter");
            for rule in nft.rules(filter, Some(forward::table::PODS))? {
                forwarded.add(&rule.comment, addresses(&rule, family));
            }
        }
        traces.extend(legacy_chains(family, &legacy_rules(family)?.unwrap_or_default()));
        let rules = legacy_rules_of(family, "filter")?.unwrap_or_default();
        for rule in rules.iter().filter(|rule| in_chain(rule, forward::table::PODS)) {
            forwarded.add(published::comment(rule).unwrap_or_default(), sources(rule));
        }
    }
    traces.extend(forwarded.traces());
    if let Some(nft) = nft {
        masqueraded(nft, traces)?;
        for (table, chain) in reference_spoof::stale(nft)? {
            // The port is missing, so it doesn't matter whose it was.
            let what = format!("chain {chain} in table {table}");
            let named = OwnerHint::Link(String::new());
            traces.push(Trace {
                what,
                named,
                addrs: Vec::new(),
                place: wrap_place(ReferencePlace::Spoof { chain }),
            });
        }
    }
    Ok(())
}

/// Returns the containers' chains among the saved rules of the legacy table `nat`.
fn legacy_chains(family: Family, rules: &[String]) -> Vec<Trace> {
    let jumps = rules.iter().filter_map(|rule| {
        let (_, target) = rule.rsplit_once(" -j ")?;
        let comment = rule.replace("\\\"", "\"");
        Some((rule.split(' ').nth(1)?.to_owned(), target.to_owned(), comment, sources(rule)))
    });
    chains(Variant::Legacy, family, jumps.collect())
}

/// What the rules in the plugin firewall's chain tell.
#[derive(Default)]
struct Forwarded {
    /// The addresses in rules without a comment of ours.
    addrs: BTreeSet<IpAddr>,
    /// The addresses in our rules for published ports, by the comment, which names the owner.
    published: BTreeMap<String, BTreeSet<IpAddr>>,
}

impl Forwarded {
    /// Adds one rule with its comment and addresses.
    fn add(&mut self, comment: &str, addrs: Vec<IpAddr>) {
        match super::tag(comment) {
            None => self.addrs.extend(addrs),
            Some(_) => self.published.entry(comment.to_owned()).or_default().extend(addrs),
        }
    }

    /// Returns one trace for each address, and one for each comment.
    fn traces(self) -> impl Iterator<Item = Trace> {
        let by_address = self.addrs.into_iter().map(trace_address);
        by_address.chain(self.published.into_iter().map(|(comment, addrs)| trace_ports(comment, addrs)))
    }
}

/// Returns the chains in saved rules, each behind the chain that leads to it. Fuzzers call it.
#[cfg(feature = "fuzzing")]
pub(crate) fn fuzz(rules: &[String]) -> Vec<(&'static str, String)> {
    rules.iter().for_each(|rule| drop((published::comment(rule), sources(rule))));
    let places = legacy_chains(Family::Ipv4, rules).into_iter().map(|trace| trace.place);
    let chains = places.filter_map(|place| match place {
        super::TracePlace::Reference(ReferencePlace::Chain { parent, chain, .. }) => Some((parent, chain)),
        _ => None,
    });
    chains.collect()
}

fn wrap_place(place: ReferencePlace) -> super::TracePlace {
    super::TracePlace::Reference(place)
}

/// Returns the containers' chains among jumps, each with its container. A jump has the chains from and to, the comment
/// and the addresses.
fn chains(variant: Variant, family: Family, jumps: Vec<(String, String, String, Vec<IpAddr>)>) -> Vec<Trace> {
    let mut found: BTreeMap<(&'static str, String), (String, String, Vec<IpAddr>)> = BTreeMap::new();
    for (from, to, comment, addrs) in jumps {
        let Some(kind) = KINDS.iter().find(|kind| kind.parent == from && kind.has(&to)) else { continue };
        let Some((network, id)) = names(&comment) else { continue };
        let of = found.entry((kind.parent, to)).or_insert_with(|| (network, id, Vec::new()));
        of.2.extend(addrs);
    }
    let tables = if variant == Variant::Legacy { "legacy table" } else { "table" };
    let version = if family == Family::Ipv4 { "iptables" } else { "ip6tables" };
    found
        .into_iter()
        .map(|((parent, chain), (network, id, addrs))| Trace {
            what: format!("chain {chain} in {version}' {tables} nat"),
            named: OwnerHint::Container { network: Some(network), id },
            addrs,
            place: wrap_place(ReferencePlace::Chain { variant, family, parent, chain }),
        })
        .collect()
}

/// Returns the trace of an address that the plugin firewall lets pass.
fn trace_address(ip: IpAddr) -> Trace {
    let what = format!("rules for {ip} in iptables' chain {}", forward::table::PODS);
    Trace {
        what,
        named: OwnerHint::Nothing,
        addrs: vec![ip],
        place: wrap_place(ReferencePlace::Forward { ip }),
    }
}

/// Returns the trace of our rules with this comment, which let published ports of the addresses pass.
fn trace_ports(comment: String, addrs: BTreeSet<IpAddr>) -> Trace {
    let addrs: Vec<IpAddr> = addrs.into_iter().collect();
    let texts: Vec<String> = addrs.iter().map(ToString::to_string).collect();
    let to = texts.join(" and ");
    let what = format!("rules for published ports of {to} in iptables' chain {}", forward::table::PODS);
    let named = OwnerHint::Comment(comment.clone());
    Trace { what, named, addrs, place: wrap_place(ReferencePlace::Published { comment }) }
}

/// Returns the masquerading chains that have rules and no jump to them. The plugin first fills such a chain, and may be
/// killed before it adds the jump. A rule has its chain, its target and its comment. The addresses in it are no pod's.
fn unused(family: Family, rules: &[(&str, Option<String>, &str)]) -> Vec<Trace> {
    let used: BTreeSet<&str> = rules.iter().filter_map(|(_, target, _)| target.as_deref()).collect();
    let filled = rules.iter().filter(|(chain, ..)| MASQUERADE.has(chain) && !used.contains(chain));
    let found: BTreeMap<&str, (String, String)> =
        filled.filter_map(|(chain, _, comment)| Some((*chain, names(comment)?))).collect();
    let version = if family == Family::Ipv4 { "iptables" } else { "ip6tables" };
    let traces = found.into_iter().map(|(chain, (network, id))| Trace {
        what: format!("chain {chain} in {version}' table nat, which nothing leads to"),
        named: OwnerHint::Container { network: Some(network), id },
        addrs: Vec::new(),
        place: wrap_place(ReferencePlace::Unused { family, chain: chain.to_owned() }),
    });
    traces.collect()
}

fn names(comment: &str) -> Option<(String, String)> {
    names_in(comment).map(|(network, id)| (network.to_owned(), id.to_owned()))
}

/// Adds a trace for each container in the Go plugins' table for port mappings.
fn hostports(nft: &mut Nft, family: Family, traces: &mut Vec<Trace>) -> Result<(), Error> {
    let table = Table::new(family, portmap::GO_TABLE);
    let rules = nft.rules(table, None)?;
    let mut containers: BTreeMap<String, Vec<IpAddr>> = BTreeMap::new();
    for rule in rules {
        if portmap::GO_CHAINS.contains(&rule.chain.as_str()) && !rule.comment.is_empty() {
            let targets = rule.immediates().filter_map(|bytes| address(bytes, family));
            containers.entry(rule.comment.clone()).or_default().extend(targets);
        }
    }
    for (id, addrs) in containers {
        traces.push(Trace {
            what: format!("port mappings in table {table}"),
            named: OwnerHint::Container { network: None, id: id.clone() },
            addrs,
            place: wrap_place(ReferencePlace::Hostport { family, id }),
        });
    }
    Ok(())
}

/// Adds a trace for each attachment in the Go plugins' table for masquerading.
fn masqueraded(nft: &mut Nft, traces: &mut Vec<Trace>) -> Result<(), Error> {
    let mut found: BTreeMap<String, (String, Vec<IpAddr>)> = BTreeMap::new();
    for rule in masquerade::go_rules(nft)? {
        let Some(tag) = super::tag(&rule.comment) else { continue };
        let addrs = FAMILIES.into_iter().flat_map(|family| addresses(&rule, family));
        found.entry(tag.to_owned()).or_insert_with(|| (rule.comment.clone(), Vec::new())).1.extend(addrs);
    }
    for (tag, (comment, addrs)) in found {
        traces.push(Trace {
            what: "rules in table inet cni_plugins_masquerade".to_owned(),
            named: OwnerHint::Comment(comment),
            addrs,
            place: wrap_place(ReferencePlace::Masquerade { tag }),
        });
    }
    Ok(())
}

/// Returns the constants of a rule that have the length of an address of the family.
fn addresses(rule: &Rule, family: Family) -> Vec<IpAddr> {
    rule.constants().filter_map(|bytes| address(bytes, family)).collect()
}

/// Reads an address of the family, IPv6 for any other than [`Family::Ipv4`]. Returns `None` for another length and for
/// the unspecified address.
fn address(bytes: &[u8], family: Family) -> Option<IpAddr> {
    let ip = match family {
        Family::Ipv4 => <[u8; 4]>::try_from(bytes).ok().map(IpAddr::from),
        _ => <[u8; 16]>::try_from(bytes).ok().map(IpAddr::from),
    };
    ip.filter(|ip| !ip.is_unspecified())
}

/// Returns the addresses after `-s` and `-d` in a saved rule, without the prefix length.
fn sources(rule: &str) -> Vec<IpAddr> {
    let words: Vec<&str> = rule.split(' ').collect();
    let pairs = words.windows(2).filter_map(|pair| match pair {
        ["-s" | "-d", addr] => addr.split('/').next()?.parse().ok(),
        _ => None,
    });
    pairs.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_as_iptables_prints_them() {
        let rule =
            r#"-A POSTROUTING -s 10.0.0.2/32 -m comment --comment "name: \"n\" id: \"c1\"" -j CNI-4f6d"#;
        assert_eq!(names(&rule.replace("\\\"", "\"")), Some(("n".to_owned(), "c1".to_owned())));
        assert_eq!(sources(rule), [IpAddr::from([10, 0, 0, 2])]);
    }

    #[test]
    fn a_chain_that_nothing_leads_to_is_a_trace_of_its_own() {
        let comment = r#"name: "n" id: "c1""#;
        let chain = "CNI-0123456789abcdef01234567";
        let mut rules = vec![(chain, None, comment), (chain, None, comment), ("mine", None, comment)];
        let found = unused(Family::Ipv4, &rules);
        let named = OwnerHint::Container { network: Some("n".to_owned()), id: "c1".to_owned() };
        assert_eq!(found.iter().map(|trace| &trace.named).collect::<Vec<_>>(), [&named]);
        rules.push((MASQUERADE.parent, Some(chain.to_owned()), comment));
        assert!(unused(Family::Ipv4, &rules).is_empty());
    }
}
