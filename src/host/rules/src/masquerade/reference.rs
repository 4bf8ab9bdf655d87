//! Finds and removes the masquerading rules of the Go plugins.
//!
//! With **iptables** each container has a chain `CNI-<hash>` in the table `nat`, which POSTROUTING jumps to. Each rule
//! has the comment `name: "<network>" id: "<container>"`. Our iptables backend makes the same rules. A command runs
//! only for the legacy variant, if this namespace has such a table `nat`. With **nftables** there are rules in the
//! chain `masq_checks` of the table `inet cni_plugins_masquerade`, with comments that begin with the owner's tag like
//! ours.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::net::IpAddr;

use ipnetwork::IpNetwork;
use nix::errno::Errno;

use cnimble_cni::{Attachment, Error, Owner, owner};
use cnimble_netlink as netlink;
use cnimble_netlink::nft::packet::octets;
use cnimble_netlink::nft::{Batch, Family, Nft, Rule, Table};

use crate::go_chains::MASQUERADE;
use crate::retry::{remove_rules, retry};
use crate::xtables::{self, FAMILIES, in_chain, jumps_to, legacy_rules, nat};

const POSTROUTING: &str = MASQUERADE.parent;
const GO_TABLE: Table<'static> = Table::new(Family::Inet, "cni_plugins_masquerade");
const GO_CHAIN: &str = "masq_checks";

/// Removes the owner's rules from nf_tables: those of the Go plugins' nftables backend, and the container's chain in
/// iptables. If other addresses than `addrs` have jumps to the chain, another interface needs it. Then only the jumps
/// of `addrs` are removed.
pub(super) fn remove_nf_tables(nft: &mut Nft, owner: &Owner, addrs: &[IpNetwork]) -> netlink::Result<()> {
    let chain = MASQUERADE.name_of(owner);
    for family in FAMILIES {
        if nft.has_chain(nat(family).chain(&chain))? && !remove_jumps(nft, family, &chain, addrs)? {
            MASQUERADE.remove(nft, family, owner)?;
        }
    }
    let tag = owner.tag();
    remove_go_rules(nft, |comment| owner::tag_of(comment) == tag)
}

/// Deletes the jumps of `addrs` to a chain, if there are jumps of `addrs` and of others. Returns whether there were.
fn remove_jumps(nft: &mut Nft, family: Family, chain: &str, addrs: &[IpNetwork]) -> netlink::Result<bool> {
    retry(&[Errno::ENOENT], || {
        let mut jumps = nft.rules(nat(family), Some(POSTROUTING))?;
        jumps.retain(|rule| rule.target().as_deref() == Some(chain));
        let all = jumps.len();
        jumps.retain(|rule| addrs.iter().any(|addr| is_of(family, addr) && mentions(rule, addr.ip())));
        if jumps.is_empty() || jumps.len() == all {
            return Ok(false);
        }
        let mut batch = Batch::new();
        for rule in &jumps {
            batch.delete_rule(nat(family).chain(POSTROUTING), rule.handle);
        }
        nft.commit(&batch)?;
        Ok(true)
    })
}

/// Returns whether the address is of this family.
fn is_of(family: Family, addr: &IpNetwork) -> bool {
    addr.is_ipv4() == (family == Family::Ipv4)
}

/// Removes the rules of the Go plugins' nftables backend whose comment `matches`.
pub(crate) fn remove_go_rules(nft: &mut Nft, matches: impl Fn(&str) -> bool) -> netlink::Result<()> {
    remove_rules(nft, GO_TABLE, Some(GO_CHAIN), |rule| matches(&rule.comment)).map(drop)
}

/// Returns whether the Go plugins, or our iptables backend, have a rule or a jump for this address of the owner. The
/// rules behind a jump are not compared.
pub(super) fn is_masqueraded(nft: &mut Nft, owner: &Owner, ip: IpAddr) -> Result<bool, Error> {
    let chain = MASQUERADE.name_of(owner);
    let family = if ip.is_ipv4() { Family::Ipv4 } else { Family::Ipv6 };
    if nft.is_supported()? {
        let jumps = nft.rules(nat(family), Some(POSTROUTING))?;
        if jumps.iter().any(|rule| rule.target().as_ref() == Some(&chain) && mentions(rule, ip)) {
            return Ok(true);
        }
        let rules = nft.rules(GO_TABLE, Some(GO_CHAIN))?;
        if rules.iter().any(|rule| owner.owns(&rule.comment) && rule.has("masq") && mentions(rule, ip)) {
            return Ok(true);
        }
    }
    Ok(legacy_rules(family)?.is_some_and(|rules| {
        rules.iter().any(|rule| jumps_to(rule, POSTROUTING, &chain) && legacy_mentions(rule, ip))
    }))
}

/// Returns whether the source of a saved rule contains the address. False for a rule without a source.
pub(crate) fn legacy_mentions(rule: &str, ip: IpAddr) -> bool {
    legacy_source(rule).is_some_and(|source| source.contains(ip))
}

/// Returns the source of a saved rule, or `None` without one.
fn legacy_source(rule: &str) -> Option<IpNetwork> {
    rule.split(' ').skip_while(|word| *word != "-s").nth(1)?.parse().ok()
}

/// Returns whether a rule compares with the address or with leading bytes of it. A rule with a mask counts in any case.
fn mentions(rule: &Rule, ip: IpAddr) -> bool {
    let octets = octets(ip);
    // The kernel compares a prefix that isn't whole bytes after a mask, so the constant says too little.
    rule.has("bitwise") || rule.constants().any(|constant| octets.starts_with(constant))
}

/// Removes the rules of all attachments of `network` that are not in `valid` from nf_tables.
pub(super) fn gc_nf_tables(nft: &mut Nft, network: &str, valid: &[Attachment]) -> netlink::Result<()> {
    MASQUERADE.gc(nft, network, valid)?;
    remove_go_rules(nft, owner::stale(network, valid))
}

/// Returns all rules of the Go plugins' nftables backend.
pub(crate) fn go_rules(nft: &mut Nft) -> netlink::Result<Vec<Rule>> {
    nft.rules(GO_TABLE, Some(GO_CHAIN))
}

/// Removes the container's chain from the legacy variant. If another interface needs it, removes only the jumps of
/// `addrs`, as [`remove_nf_tables`] does.
pub(super) fn remove_legacy(owner: &Owner, addrs: &[IpNetwork]) -> Result<(), Error> {
    let chain = MASQUERADE.name_of(owner);
    let shared = RefCell::new(Vec::new());
    xtables::remove_legacy_chains(POSTROUTING, |rules| {
        let jumps = rules.iter().filter(|rule| jumps_to(rule, POSTROUTING, &chain));
        let (ours, others): (Vec<&String>, Vec<&String>) =
            jumps.partition(|rule| addrs.iter().any(|addr| legacy_mentions(rule, addr.ip())));
        if !ours.is_empty() && !others.is_empty() {
            shared.borrow_mut().extend(ours.into_iter().cloned());
            return BTreeSet::new();
        }
        let mentioned = !(ours.is_empty() && others.is_empty());
        let exists = mentioned || rules.iter().any(|rule| in_chain(rule, &chain));
        exists.then(|| chain.clone()).into_iter().collect()
    })?;
    for family in FAMILIES {
        let lines: Vec<String> = shared
            .borrow()
            .iter()
            .filter(|rule| legacy_source(rule).is_some_and(|source| is_of(family, &source)))
            .map(|rule| xtables::deletion(rule))
            .collect();
        xtables::restore_legacy(family, "nat", &lines)?;
    }
    Ok(())
}
