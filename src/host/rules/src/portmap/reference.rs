//! Finds and removes rules that the Go reference plugins left.
//!
//! With **iptables**, CNI-HOSTPORT-DNAT in the table `nat` jumps to a chain `CNI-DN-<hash>` for each container (in
//! older releases also `CNI-SN-<hash>`) by rules with the comment `dnat name: "<network>" id: "<container>"`. Shared
//! chains stay.
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

pub(super) const DNAT: &str = go_chains::DNAT.parent;
const OWN: [GoChains; 2] = [go_chains::DNAT, OLD_SNAT];

pub(crate) const GO_TABLE: &str = "cni_hostport";
pub(crate) const GO_CHAINS: [&str; 3] = ["hostports", "hostip_hostports", "masquerading"];

/// iptables takes 255 bytes.
pub(super) fn comment(network: &str, container_id: &str) -> String {
    const LIMIT: usize = 255;
    let mut comment = go_chains::DNAT.comment(network, container_id);
    if comment.len() > LIMIT {
        comment.truncate(LIMIT - 1);
        comment.push('"');
    }
    comment
}

/// The holder that a comment names, possibly among other words.
pub(super) fn holder(comment: &str) -> Option<Holder> {
    let (network, container) = names_in(comment)?;
    Some(Holder { network: Some(network.to_owned()), container: container.to_owned(), tag: None })
}

pub(super) fn remove_nf_tables(nft: &mut Nft, owner: &Owner) -> netlink::Result<()> {
    remove_chains(nft, owner)?;
    for family in FAMILIES {
        remove_go_rules(nft, Table::new(family, GO_TABLE), &owner.attachment.container_id)?;
    }
    Ok(())
}

pub(super) fn remove_chains(nft: &mut Nft, owner: &Owner) -> netlink::Result<()> {
    for family in FAMILIES {
        for chains in OWN {
            chains.remove(nft, family, owner)?;
        }
    }
    Ok(())
}

pub(crate) fn remove_go_rules(nft: &mut Nft, table: Table<'_>, container_id: &str) -> netlink::Result<()> {
    remove_rules(nft, table, None, |rule| is_go_rule(rule, container_id)).map(drop)
}

pub(super) fn go_rules(nft: &mut Nft, table: Table<'_>, container_id: &str) -> netlink::Result<Vec<Rule>> {
    let mut rules = nft.rules(table, None)?;
    rules.retain(|rule| is_go_rule(rule, container_id));
    Ok(rules)
}

fn is_go_rule(rule: &Rule, container_id: &str) -> bool {
    rule.comment == container_id && GO_CHAINS.contains(&rule.chain.as_str())
}

pub(super) fn remove_legacy(owner: &Owner) -> Result<(), Error> {
    for chains in OWN {
        xtables::remove_legacy_chain(chains.parent, &chains.of(owner))?;
    }
    Ok(())
}

/// Both hooks must lead to it.
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

/// The chains that `from` leads to, directly or not, and itself.
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

/// Whether a rule sends the host's port to the pod's address and port.
fn leads_to(rule: &Rule, mapping: &Mapping, pod: &IpNetwork) -> bool {
    let compares = |value: &[u8]| rule.constants().any(|constant| constant == value);
    let loads = |value: &[u8]| rule.immediates().any(|immediate| immediate == value);
    rule.has("nat")
        && compares(&[mapping.protocol.number()])
        && compares(&mapping.host_port.to_be_bytes())
        && mapping.address().is_none_or(|host| compares(&octets(host)))
        && loads(&octets(pod.ip()))
        && loads(&mapping.container_port.to_be_bytes())
}

/// The Go plugins or our iptables backend map these ports. Each family has the chain, a jump to it, and all rules.
pub(super) fn is_mapped(nft: &mut Nft, owner: &Owner, forward: &Forward) -> Result<bool, Error> {
    let chain = go_chains::DNAT.of(owner);
    for pod in &forward.addrs {
        let family = if pod.is_ipv4() { Family::Ipv4 } else { Family::Ipv6 };
        let count = forward.targets().filter(|(_, used)| *used == pod).count();
        if count == 0 {
            continue;
        }
        if nft.is_supported()? {
            let rules = nft.rules(nat(family), None)?;
            let leads = |from: &str, to: &str| {
                rules.iter().any(|rule| rule.chain == from && rule.target().as_deref() == Some(to))
            };
            let dnats = rules.iter().filter(|rule| rule.chain == chain && rule.target().is_none()).count();
            if leads("PREROUTING", DNAT) && leads("OUTPUT", DNAT) && leads(DNAT, &chain) && dnats >= count {
                continue;
            }
            if go_maps(nft, Table::new(family, GO_TABLE), owner, forward, pod)? {
                continue;
            }
        }
        let rules = legacy_rules(family)?.unwrap_or_default();
        let leads = |from: &str, to: &str| rules.iter().any(|rule| jumps_to(rule, from, to));
        let dnats = rules.iter().filter(|rule| in_chain(rule, &chain) && rule.contains(" -j DNAT ")).count();
        if !(leads("PREROUTING", DNAT) && leads("OUTPUT", DNAT) && leads(DNAT, &chain) && dnats >= count) {
            return Ok(false);
        }
    }
    Ok(true)
}
