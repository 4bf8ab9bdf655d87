//! Forwarding with iptables: the reference's chains and rules, to the letter, so that either set of plugins can remove
//! the other's.
//! ```text
//! -A FORWARD … -j CNI-ISOLATION-STAGE-1        with a policy
//! -A FORWARD … -j CNI-FORWARD
//! -A CNI-FORWARD … -j CNI-ADMIN
//! -A CNI-FORWARD -d 10.1.0.2/32 -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
//! -A CNI-FORWARD -s 10.1.0.2/32 -j ACCEPT
//! -A CNI-ISOLATION-STAGE-1 …                   see `isolation`
//! ```
//! One run of `iptables-restore` adds the missing rules, all or nothing. If only a pod's own are missing, no command
//! runs (`direct`).

use std::net::IpAddr;

use cnimble_cni::Error;
use cnimble_netlink::nft::{Chain, Family, Nft};
use cnimble_netlink::{self as netlink, IfPresent as _};

use super::table::{FORWARD, PODS, Plan, Saved, TO_ADMIN, TO_PODS, commented, filter};
use super::walk::{Pods, Way};
use super::{Forward, direct, isolation, others};
use crate::failures::UNSUPPORTED;
use crate::retry::retry_command;
use crate::undo::{Applied, undone};
use crate::xtables::Variant;
use crate::{command, xtables};

fn to_pods() -> String {
    format!("{} -j {PODS}", commented(TO_PODS))
}

fn to_admin(chain: &str) -> String {
    format!("{} -j {chain}", commented(TO_ADMIN))
}

/// Without addresses it is the bridge's policy alone.
fn plan(saved: &Saved<'_>, forward: &Forward, addrs: &[IpAddr]) -> Plan {
    let mut plan = Plan::default();
    if !addrs.is_empty() {
        for chain in [PODS, forward.admin.chain()] {
            if !saved.has_chain(chain) {
                plan.shared.push(format!("-N {chain}"));
            }
        }
        let jump = format!("{FORWARD} {}", to_pods());
        if !saved.has(&jump) {
            plan.shared.push(format!("-I {jump}"));
            // The policies have to stay in front.
            if let Some(policies) = isolation::jump(saved) {
                plan.shared.push(format!("-D {policies}"));
                plan.shared.push(format!("-I {policies}"));
            }
        }
        let admin = format!("{PODS} {}", to_admin(forward.admin.chain()));
        if !saved.has(&admin) {
            plan.shared.push(format!("-I {admin}"));
        }
    }
    let rules = addrs.iter().flat_map(|ip| forward.rules(*ip));
    plan.rules = rules.filter(|rule| !saved.has(rule)).map(|rule| format!("-A {rule}")).collect();
    plan.incomplete = plan.shared.iter().chain(&plan.rules).next().cloned();
    isolation::plan(saved, forward, &mut plan);
    plan
}

/// For fuzzers: adds what is missing to a table; then nothing is.
#[cfg(feature = "fuzzing")]
pub(crate) fn fuzz(text: &str) {
    use super::Policy;
    let addrs = [IpAddr::from([10, 0, 0, 2])];
    for policy in [Policy::Open, Policy::SameBridge, Policy::Isolated] {
        let forward = Forward {
            addrs: addrs.to_vec(),
            policy,
            interfaces: vec!["br0".to_owned()],
            ..Forward::default()
        };
        let changes = plan(&Saved::new(text), &forward, &addrs);
        let mut table: Vec<String> = Saved::new(text).0.into_iter().map(str::to_owned).collect();
        for line in changes.lines() {
            match line.split_once(' ') {
                Some(("-N", chain)) => table.push(format!(":{chain} - [0:0]")),
                Some(("-A" | "-I", rule)) => table.push(format!("-A {rule}")),
                Some(("-D", rule)) => table.retain(|line| line.strip_prefix("-A ") != Some(rule)),
                _ => table.push(format!("not a change: {line}")),
            }
        }
        let left = plan(&Saved::new(&table.join("\n")), &forward, &addrs);
        assert_eq!(left.incomplete, None, "{table:?}");
    }
}

fn restore(variant: Variant, family: Family, lines: &[String]) -> Result<(), Error> {
    command::restore_by(&variant.command(family, "restore"), "filter", lines)
}

/// The variants that need a pod's rules: that of the command, and the other one if its `FORWARD` drops what pods send.
/// An accept in one of them doesn't overrule a drop in the other.
fn variants(nft: &mut Nft, family: Family) -> Result<Vec<Variant>, Error> {
    let mut variants = vec![Variant::Usual];
    let other = Variant::other_than_usual();
    if others::way_in(nft, family, other, Pods::Refused)? != Way::Open {
        variants.push(other);
    }
    Ok(variants)
}

pub(super) fn add(nft: &mut Nft, forward: &Forward) -> Result<Applied, Error> {
    let mut undo = Applied::default();
    for family in xtables::FAMILIES {
        let addrs: Vec<IpAddr> = forward.of_family(family).collect();
        if addrs.is_empty() {
            continue;
        }
        // The nf_tables variant makes a missing table.
        if nft.is_supported()? && !nft.has_table(filter(family))? {
            undo.push(move |nft| xtables::drop_table(nft, filter(family)));
        }
        for variant in variants(nft, family)? {
            let added = match variant {
                Variant::Usual => add_family(nft, family, forward, &addrs, &mut undo),
                other => add_by_command(other, family, forward, &addrs, &mut undo),
            };
            if let Err(err) = added {
                return Err(undone(err, undo.run()));
            }
        }
    }
    Ok(undo)
}

pub(super) fn add_family(
    nft: &mut Nft,
    family: Family,
    forward: &Forward,
    addrs: &[IpAddr],
    undo: &mut Applied,
) -> Result<(), Error> {
    if let Some(plan) = direct::add(nft, family, forward, addrs)? {
        undo.push(move |_| take_back(Variant::Usual, family, &plan));
        return Ok(());
    }
    add_by_command(Variant::Usual, family, forward, addrs, undo)
}

fn add_by_command(
    variant: Variant,
    family: Family,
    forward: &Forward,
    addrs: &[IpAddr],
    undo: &mut Applied,
) -> Result<(), Error> {
    retry_command(|| {
        let saved = command::run(&variant.command(family, "save"), &["-t", "filter"], "")?;
        let plan = plan(&Saved::new(&saved), forward, addrs);
        let lines = plan.lines();
        if !lines.is_empty() {
            restore(variant, family, &lines)?;
            undo.push(move |_| take_back(variant, family, &plan));
        }
        Ok(())
    })
}

/// Adds the bridge's policy in families that have any.
pub(super) fn add_policy(nft: &mut Nft, forward: &Forward) -> Result<Applied, Error> {
    let mut undo = Applied::default();
    for family in xtables::FAMILIES {
        if !isolation::concerns(nft, family, forward)? {
            continue;
        }
        if let Err(err) = add_family(nft, family, forward, &[], &mut undo) {
            return Err(undone(err, undo.run()));
        }
    }
    Ok(undo)
}

fn inverse(line: &str) -> Option<String> {
    let (action, rest) = line.split_once(' ')?;
    match action {
        "-A" | "-I" => Some(format!("-D {rest}")),
        "-D" => Some(format!("-I {rest}")),
        "-N" => Some(format!("-X {rest}")),
        _ => None,
    }
}

fn take_back(variant: Variant, family: Family, plan: &Plan) -> Result<(), Error> {
    let Plan { shared, policy, rules, .. } = plan;
    let mut outcome = Ok(());
    let back =
        |lines: &[String]| -> Vec<String> { lines.iter().rev().filter_map(|line| inverse(line)).collect() };
    for lines in [back(rules), back(policy)].into_iter().filter(|lines| !lines.is_empty()) {
        outcome = outcome.and(restore(variant, family, &lines));
    }
    // Rules first, so that the chains are empty. If others have put rules into our chains since, all of it stays.
    let (chains, rules): (Vec<_>, Vec<_>) =
        back(shared).into_iter().partition(|line| line.starts_with("-X "));
    if !chains.is_empty() {
        let lines: Vec<String> = rules.into_iter().chain(chains).collect();
        if let Err(err) = restore(variant, family, &lines) {
            log::debug!("chains are in use and stay: {err}");
        }
    }
    outcome
}

/// Removes the rules that name one of these addresses that isn't `taken`. Returns whether there is a table.
pub(crate) fn remove_legacy(addrs: &[IpAddr], taken: &dyn Fn(IpAddr) -> bool) -> Result<bool, Error> {
    let mut any = false;
    for family in xtables::FAMILIES {
        let of_family = addrs.iter().filter(|ip| ip.is_ipv4() == (family == Family::Ipv4));
        let of_family: Vec<(IpAddr, [String; 2])> =
            of_family.map(|ip| (*ip, [format!(" -s {ip}/"), format!(" -d {ip}/")])).collect();
        let names = |rule: &str, ends: &[String]| ends.iter().any(|end| rule.contains(end));
        let names_one = |rule: &str| of_family.iter().any(|(ip, ends)| names(rule, ends) && !taken(*ip));
        any |= !of_family.is_empty() && remove_legacy_rules(family, names_one)?;
    }
    Ok(any)
}

/// Removes rules of the chain of pods. Returns whether there is a table.
pub(super) fn remove_legacy_rules(family: Family, choose: impl Fn(&str) -> bool) -> Result<bool, Error> {
    let Some(rules) = xtables::legacy_rules_of(family, "filter")? else { return Ok(false) };
    let chosen = rules.iter().filter(|rule| xtables::in_chain(rule, PODS) && choose(rule));
    let lines: Vec<String> = chosen.map(|rule| xtables::deletion(rule)).collect();
    xtables::restore_legacy(family, "filter", &lines)?;
    Ok(true)
}

/// A kernel without nf_tables has none.
fn has_chain(nft: &mut Nft, chain: Chain<'_>) -> netlink::Result<bool> {
    nft.has_chain(chain).default_for(&UNSUPPORTED)
}

/// What a line of the plan would make, for people.
fn lacking(family: Family, line: &str) -> String {
    let command = if family == Family::Ipv4 { "iptables" } else { "ip6tables" };
    match line.split_once(' ') {
        Some(("-N", chain)) => format!("{command} has no chain {chain} in its table filter"),
        Some((_, rule)) => format!("{command} has no rule {rule} in its table filter"),
        None => format!("{command} lacks {line}"),
    }
}

pub(super) fn check(nft: &mut Nft, forward: &Forward) -> Result<Option<String>, Error> {
    for family in xtables::FAMILIES {
        let addrs: Vec<IpAddr> = forward.of_family(family).collect();
        if addrs.is_empty() {
            continue;
        }
        if let Some(other) = variants(nft, family)?.get(1) {
            let saved = command::run(&other.command(family, "save"), &["-t", "filter"], "")?;
            if let Some(line) = plan(&Saved::new(&saved), forward, &addrs).incomplete {
                return Ok(Some(format!("{}: {line}", other.command(family, "restore"))));
            }
        }
        if direct::is_whole(nft, family, forward, &addrs) {
            continue;
        }
        let save = command::tool(family, "save");
        if command::find(&save).is_none() {
            return Ok(Some(format!("the command {save} is not installed")));
        }
        // No command runs for each pod of a host without the chain.
        if !has_chain(nft, filter(family).chain(PODS))? && !xtables::has_legacy(family, "filter") {
            return Ok(Some(lacking(family, &format!("-N {PODS}"))));
        }
        let saved = command::run(&save, &["-t", "filter"], "")?;
        if let Some(line) = plan(&Saved::new(&saved), forward, &addrs).incomplete {
            return Ok(Some(lacking(family, &line)));
        }
    }
    Ok(None)
}
