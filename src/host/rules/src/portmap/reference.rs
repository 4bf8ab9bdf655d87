//! Finds and removes the rules of the Go plugins for published ports.
//!
//! With **iptables**, CNI-HOSTPORT-DNAT in the table `nat` jumps to a chain `CNI-DN-<hash>` for each container (in
//! older releases also `CNI-SN-<hash>`) by rules with the comment `dnat name: "<network>" id: "<container>"`. Our
//! iptables backend makes the same. Chains that containers share are never removed.
//!
//! With **nftables** there are rules in the tables `ip cni_hostport` and `ip6 cni_hostport`, with the container ID
//! alone as comment. So GC, which knows one network only, leaves them; a DEL removes them. Releases differ in how they
//! write a mapping, and in the chains between the hooks and `hostports`:
//!
//! | release | a mapping | to one address of the host |
//! |---|---|---|
//! | before 1.6.1 | `ip protocol tcp th dport 8080 dnat ip addr . port to 10.1.0.2 . 80` | in `hostip_hostports` |
//! | 1.6.1 | `tcp dport 8080 dnat to 10.1.0.2:80` | in `hostip_hostports` |
//! | 1.9 | the same | in `hostports`, behind `hostports_all` |

use std::collections::BTreeSet;

use ipnetwork::IpNetwork;

use cnimble_cni::{Error, Owner};
use cnimble_netlink as netlink;
use cnimble_netlink::nft::packet::octets;
use cnimble_netlink::nft::{Family, Nft, Rule, Table};

use super::holder::Holder;
use super::{Forward, Mapping};
use crate::go_chains::{self, GoChains, OLD_SNAT, names_in};
use crate::retry::remove_rules;
use crate::xtables::{self, FAMILIES, in_chain, jumps_to, legacy_rules, nat};

/// The chain whose rules jump to the containers' chains.
pub(super) const DNAT: &str = go_chains::DNAT.parent;
const OWN: [GoChains; 2] = [go_chains::DNAT, OLD_SNAT];

/// The table of the Go plugins' nftables backend, one of each family.
pub(crate) const GO_TABLE: &str = "cni_hostport";
/// The chains in it that have rules of containers.
pub(crate) const GO_CHAINS: [&str; 3] = ["hostports", "hostip_hostports", "masquerading"];

/// Returns the comment of a rule that jumps to a container's chain, cut to the 255 bytes that iptables takes.
pub(super) fn comment(network: &str, container_id: &str) -> String {
    const LIMIT: usize = 255;
    let mut comment = go_chains::DNAT.comment(network, container_id);
    if comment.len() > LIMIT {
        comment.truncate(LIMIT - 1);
        comment.push('"');
    }
    comment
}

/// Returns the container that such a comment names, possibly among other words. `None` for any other comment.
pub(super) fn holder(comment: &str) -> Option<Holder> {
    let (network, container) = names_in(comment)?;
    Some(Holder { network: Some(network.to_owned()), container: container.to_owned(), tag: None })
}

/// Removes the container's rules from nf_tables: those of iptables' nf_tables variant, and those in the Go plugins'
/// table. The latter name no network, so those of the container's other networks go along.
pub(super) fn remove_nf_tables(nft: &mut Nft, owner: &Owner) -> netlink::Result<()> {
    remove_chains(nft, owner)?;
    for family in FAMILIES {
        remove_go_rules(nft, Table::new(family, GO_TABLE), &owner.attachment.container_id)?;
    }
    Ok(())
}

/// Removes the container's chains and the jumps to them from iptables' nf_tables variant.
pub(super) fn remove_chains(nft: &mut Nft, owner: &Owner) -> netlink::Result<()> {
    for family in FAMILIES {
        for chains in OWN {
            chains.remove(nft, family, owner)?;
        }
    }
    Ok(())
}

/// Removes all rules of a container from a table of the Go plugins, whichever network they are for.
pub(crate) fn remove_go_rules(nft: &mut Nft, table: Table<'_>, container_id: &str) -> netlink::Result<()> {
    remove_rules(nft, table, None, |rule| is_go_rule(rule, container_id)).map(drop)
}

/// Returns the rules of a container in a table of the Go plugins; none without the table.
pub(super) fn go_rules(nft: &mut Nft, table: Table<'_>, container_id: &str) -> netlink::Result<Vec<Rule>> {
    let mut rules = nft.rules(table, None)?;
    rules.retain(|rule| is_go_rule(rule, container_id));
    Ok(rules)
}

fn is_go_rule(rule: &Rule, container_id: &str) -> bool {
    rule.comment == container_id && GO_CHAINS.contains(&rule.chain.as_str())
}

/// Removes the container's chains and the jumps to them from the legacy variant.
pub(super) fn remove_legacy(owner: &Owner) -> Result<(), Error> {
    for chains in OWN {
        xtables::remove_legacy_chain(chains.parent, &chains.name_of(owner))?;
    }
    Ok(())
}

/// Returns whether the Go plugins' table has rules for all mappings of a pod's address, in chains that both hooks lead
/// to.
fn go_maps(
    nft: &mut Nft,
    table: Table<'_>,
    owner: &Owner,
    forward: &Forward,
    pod: &IpNetwork,
) -> netlink::Result<bool> {
    let rules = nft.rules(table, None)?;
    let reached = ["prerouting", "output"].map(|hook| reached(&rules, hook));
    let mut mappings = forward.targets().filter(|(_, used)| *used == pod);
    Ok(mappings.all(|(mapping, _)| {
        let mut owners = rules.iter().filter(|rule| rule.comment == owner.attachment.container_id);
        owners.any(|rule| {
            leads_to(rule, mapping, pod) && reached.iter().all(|chains| chains.contains(rule.chain.as_str()))
        })
    }))
}

/// Returns the chains with rules that `from` leads to, directly or by others, and `from` itself.
fn reached<'a>(rules: &'a [Rule], from: &'a str) -> BTreeSet<&'a str> {
    let mut reached = BTreeSet::from([from]);
    loop {
        let jumps = rules.iter().filter(|rule| reached.contains(rule.chain.as_str()));
        let targets: BTreeSet<String> = jumps.filter_map(Rule::target).collect();
        let before = reached.len();
        reached.extend(rules.iter().map(|rule| rule.chain.as_str()).filter(|chain| targets.contains(*chain)));
        if reached.len() == before {
            return reached;
        }
    }
}

/// Returns whether a rule sends the mapping's port of the host to the pod's address and port.
fn leads_to(rule: &Rule, mapping: &Mapping, pod: &IpNetwork) -> bool {
    rule.has("nat")
        && compares(rule, &[mapping.protocol.number()])
        && compares(rule, &mapping.host_port.to_be_bytes())
        && mapping.address().is_none_or(|host| compares(rule, &octets(host)))
        && loads(rule, &octets(pod.ip()))
        && loads(rule, &mapping.container_port.to_be_bytes())
}

/// Returns whether a rule compares something with this value.
fn compares(rule: &Rule, value: &[u8]) -> bool {
    rule.constants().any(|constant| constant == value)
}

/// Returns whether a rule loads this value, as for a new destination.
fn loads(rule: &Rule, value: &[u8]) -> bool {
    rule.immediates().any(|immediate| immediate == value)
}

/// Returns whether a rule of the chain `from` jumps to the chain `to`.
pub(super) fn has_jump(rules: &[Rule], from: &str, to: &str) -> bool {
    rules.iter().any(|rule| rule.chain == from && rule.target().as_deref() == Some(to))
}

/// Returns whether a saved rule of the chain `from` jumps to the chain `to`.
pub(super) fn has_legacy_jump(rules: &[String], from: &str, to: &str) -> bool {
    rules.iter().any(|rule| jumps_to(rule, from, to))
}

/// Returns whether the Go plugins or our iptables backend map these ports. In iptables both hooks must lead to the
/// container's chain, with at least as many DNAT rules as there are mappings. The contents of these rules are not
/// compared.
pub(super) fn is_mapped(nft: &mut Nft, owner: &Owner, forward: &Forward) -> Result<bool, Error> {
    let chain = go_chains::DNAT.name_of(owner);
    for pod in &forward.addrs {
        let family = if pod.is_ipv4() { Family::Ipv4 } else { Family::Ipv6 };
        let count = forward.targets().filter(|(_, used)| *used == pod).count();
        if count == 0 {
            continue;
        }
        if nft.is_supported()? {
            let rules = nft.rules(nat(family), None)?;
            let dnats = rules.iter().filter(|rule| rule.chain == chain && rule.target().is_none()).count();
            if ["PREROUTING", "OUTPUT"].into_iter().all(|hook| has_jump(&rules, hook, DNAT))
                && has_jump(&rules, DNAT, &chain)
                && dnats >= count
            {
                continue;
            }
            if go_maps(nft, Table::new(family, GO_TABLE), owner, forward, pod)? {
                continue;
            }
        }
        let rules = legacy_rules(family)?.unwrap_or_default();
        let dnats = rules.iter().filter(|rule| in_chain(rule, &chain) && rule.contains(" -j DNAT ")).count();
        let is_mapped = ["PREROUTING", "OUTPUT"].into_iter().all(|hook| has_legacy_jump(&rules, hook, DNAT))
            && has_legacy_jump(&rules, DNAT, &chain)
            && dnats >= count;
        if !is_mapped {
            return Ok(false);
        }
    }
    Ok(true)
}
