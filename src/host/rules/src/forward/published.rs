//! Lets connections to published ports pass (`acceptPublished` of portmap) where `FORWARD` of iptables has rules of
//! others.
//!
//! An accept in our own table overrules none of them. So a pod's rules are in the chain of the plugin firewall, behind
//! `CNI-ADMIN`. Tools that rewrite chains of their own, like ufw, leave other rules in `FORWARD` alone.

use ipnetwork::IpNetwork;

use cnimble_cni::{Code, Error, Owner};
use cnimble_netlink::nft::{Family, Nft};

use super::others::{self, FilterContent};
use super::table::{PODS, filter};
use super::{Applied, Forward, iptables, verify};
use crate::failures::{Failures, has_nf_tables, not_available};
use crate::retry::remove_rules;
use crate::{command, xtables};

/// Returns the families in which `FORWARD` has rules of others. Fails with code 100 if there are any and the commands
/// are missing.
fn needed(nft: &mut Nft) -> Result<Vec<Family>, Error> {
    let mut families = Vec::new();
    for family in xtables::FAMILIES {
        if others::of_family(nft, family)? == FilterContent::Rules {
            families.push(family);
        }
    }
    if families.is_empty() || command::installed() {
        return Ok(families);
    }
    Err(Error::new(
        Code::KERNEL,
        "acceptPublished: FORWARD of iptables has rules, and the command iptables-restore is not installed",
    )
    .details("hint: install iptables, or leave acceptPublished out and let published ports pass yourself"))
}

/// Returns what must be accepted: the pod's addresses of families that need rules.
fn wanted(nft: &mut Nft, owner: &Owner, addrs: &[IpNetwork]) -> Result<Forward, Error> {
    let families = needed(nft)?;
    let addrs = addrs
        .iter()
        .map(IpNetwork::ip)
        .filter(|ip| families.contains(if ip.is_ipv4() { &Family::Ipv4 } else { &Family::Ipv6 }))
        .collect();
    Ok(Forward { addrs, published: Some(owner.comment()), ..Forward::default() })
}

/// Accepts connections that were translated to a pod, and the answers. Changes nothing in a family in which `FORWARD`
/// has no rules of others, and nothing in a second call. Fails with code 100 if the commands of iptables are needed and
/// missing.
pub fn accept(nft: &mut Nft, owner: &Owner, addrs: &[IpNetwork]) -> Result<Applied, Error> {
    let forward = wanted(nft, owner, addrs)?;
    iptables::add(nft, &forward)
}

/// Fails with code 103 if a rule is missing, or if packets are dropped before they reach it.
pub fn check(nft: &mut Nft, owner: &Owner, addrs: &[IpNetwork]) -> Result<(), Error> {
    let forward = wanted(nft, owner, addrs)?;
    match iptables::check(nft, &forward)? {
        None => verify::in_front(nft, &forward),
        Some(missing) => Err(Error::check("rules for published ports are missing").details(missing)),
    }
}

/// Fails with code 50 if rules are needed and the commands that make them are missing.
pub fn status(nft: &mut Nft) -> Result<(), Error> {
    needed(nft).map(drop).map_err(not_available)
}

/// Removes the rules whose comments `choose` picks from iptables' nf_tables variant. If a step fails, the others are
/// tried before the error is returned.
pub fn remove(nft: &mut Nft, choose: &dyn Fn(&str) -> bool) -> Result<(), Error> {
    let mut failures = Failures::default();
    if has_nf_tables(nft, &mut failures) {
        for family in xtables::FAMILIES {
            let removed = remove_rules(nft, filter(family), Some(PODS), |rule| choose(&rule.comment));
            failures.note(removed.map(drop));
        }
    }
    failures.outcome()
}

/// Returns the comment of a rule as `iptables-save` prints it, or `None` without one.
pub(crate) fn comment(rule: &str) -> Option<&str> {
    Some(rule.split_once("--comment \"")?.1.split_once('"')?.0)
}

/// Removes the rules whose comments `choose` picks from the legacy variant.
pub fn remove_legacy(choose: &dyn Fn(&str) -> bool) -> Result<(), Error> {
    let mut failures = Failures::default();
    for family in xtables::FAMILIES {
        let removed = iptables::remove_legacy_rules(family, |rule| comment(rule).is_some_and(choose));
        failures.note(removed.map(drop));
    }
    failures.outcome()
}
