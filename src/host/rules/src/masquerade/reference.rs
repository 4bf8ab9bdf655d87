//! Finds and removes rules that the Go reference plugins left.
//!
//! With **iptables** each container has a chain `CNI-<hash>` in the table `nat`, which POSTROUTING jumps to. Each rule
//! has the comment `name: "<network>" id: "<container>"`. A command runs only for the legacy variant, if this namespace
//! has such a table `nat`. With **nftables** there are rules in the chain `masq_checks` of the table `inet
//! cni_plugins_masquerade`, with comments like ours.

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

/// Removes the owner's objects from nf_tables, whichever way made them. A container's chain stays for another interface
/// if rules for other addresses than `addrs` lead there.
pub(super) fn remove_nf_tables(nft: &mut Nft, owner: &Owner, addrs: &[IpNetwork]) -> netlink::Result<()> {
    let chain = MASQUERADE.of(owner);
    for family in FAMILIES {
        if nft.has_chain(nat(family).chain(&chain))? && !remove_jumps(nft, family, &chain, addrs)? {
            MASQUERADE.remove(nft, family, owner)?;
        }
    }
    let tag = owner.tag();
    remove_go_rules(nft, |comment| owner::tag_of(comment) == tag)
}

/// Deletes the jumps for `addrs` if there are others, too. Returns whether that was so.
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

fn is_of(family: Family, addr: &IpNetwork) -> bool {
    addr.is_ipv4() == (family == Family::Ipv4)
}

pub(crate) fn remove_go_rules(nft: &mut Nft, matches: impl Fn(&str) -> bool) -> netlink::Result<()> {
    remove_rules(nft, GO_TABLE, Some(GO_CHAIN), |rule| matches(&rule.comment)).map(drop)
}

/// Whether the Go plugins (or our iptables backend) masquerade this address for the owner.
pub(super) fn is_masqueraded(nft: &mut Nft, owner: &Owner, ip: IpAddr) -> Result<bool, Error> {
    let chain = MASQUERADE.of(owner);
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

pub(crate) fn legacy_mentions(rule: &str, ip: IpAddr) -> bool {
    legacy_source(rule).is_some_and(|source| source.contains(ip))
}

fn legacy_source(rule: &str) -> Option<IpNetwork> {
    rule.split(' ').skip_while(|word| *word != "-s").nth(1)?.parse().ok()
}

fn mentions(rule: &Rule, ip: IpAddr) -> bool {
    let octets = octets(ip);
    // A prefix that isn't whole bytes is compared masked.
    rule.has("bitwise") || rule.constants().any(|constant| octets.starts_with(constant))
}

/// Removes from nf_tables what attachments of `network` outside `valid` left.
pub(super) fn gc_nf_tables(nft: &mut Nft, network: &str, valid: &[Attachment]) -> netlink::Result<()> {
    MASQUERADE.gc(nft, network, valid)?;
    remove_go_rules(nft, owner::stale(network, valid))
}

pub(crate) fn go_rules(nft: &mut Nft) -> netlink::Result<Vec<Rule>> {
    nft.rules(GO_TABLE, Some(GO_CHAIN))
}

/// Removes the owner's chain, unless another interface needs it, as in [`remove_nf_tables`].
pub(super) fn remove_legacy(owner: &Owner, addrs: &[IpNetwork]) -> Result<(), Error> {
    let chain = MASQUERADE.of(owner);
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
        let of_family = |rule: &&String| legacy_source(rule).is_some_and(|source| is_of(family, &source));
        let lines: Vec<String> =
            shared.borrow().iter().filter(of_family).map(|rule| xtables::deletion(rule)).collect();
        xtables::restore_legacy(family, "nat", &lines)?;
    }
    Ok(())
}
