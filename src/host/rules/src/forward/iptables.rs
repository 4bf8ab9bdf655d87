//! Forwards with iptables. The chains and rules are exactly those of the Go plugin, so either set of plugins can remove
//! the other's.
//! ```text
//! -A FORWARD … -j CNI-ISOLATION-STAGE-1        with a policy
//! -A FORWARD … -j CNI-FORWARD
//! -A CNI-FORWARD … -j CNI-ADMIN
//! -A CNI-FORWARD -d 10.1.0.2/32 -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
//! -A CNI-FORWARD -s 10.1.0.2/32 -j ACCEPT
//! -A CNI-ISOLATION-STAGE-1 …                   see `isolation`
//! ```
//! One run of `iptables-restore` adds the missing rules, all or nothing. If only a pod's own rules are missing, they
//! are added by netlink, and no command runs (`direct`).

use std::net::IpAddr;

use cnimble_cni::Error;
use cnimble_netlink::nft::{Chain, Family, Nft};
use cnimble_netlink::{self as netlink, IfPresent as _};

use super::table::{FORWARD, PODS, RestoreLines, SavedTable, TO_ADMIN, TO_PODS, commented, filter};
use super::walk::{ChainEffect, Pods};
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

/// Returns what a saved table lacks. Without addresses this is the bridge's policy alone.
///
/// A missing jump is inserted in front of all rules of its chain. In `FORWARD` the jump to the policies must be the
/// first, because a packet that `CNI-FORWARD` accepts meets no later rule. So a new jump to `CNI-FORWARD` moves it,
/// too.
fn plan(saved: &SavedTable<'_>, forward: &Forward, addrs: &[IpAddr]) -> RestoreLines {
    let mut plan = RestoreLines::default();
    if !addrs.is_empty() {
        for chain in [PODS, forward.admin.chain()] {
            if !saved.has_chain(chain) {
                plan.shared.push(format!("-N {chain}"));
            }
        }
        let jump = format!("{FORWARD} {}", to_pods());
        if !saved.has(&jump) {
            plan.shared.push(format!("-I {jump}"));
            // The jump to the policies must stay in front of the new one.
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

/// Adds what is missing to a table and asserts that nothing is missing then. Fuzzers call it.
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
        let changes = plan(&SavedTable::new(text), &forward, &addrs);
        let mut table: Vec<String> = SavedTable::new(text).0.into_iter().map(str::to_owned).collect();
        for line in changes.lines() {
            match line.split_once(' ') {
                Some(("-N", chain)) => table.push(format!(":{chain} - [0:0]")),
                Some(("-A" | "-I", rule)) => table.push(format!("-A {rule}")),
                Some(("-D", rule)) => table.retain(|line| line.strip_prefix("-A ") != Some(rule)),
                _ => table.push(format!("not a change: {line}")),
            }
        }
        let left = plan(&SavedTable::new(&table.join("\n")), &forward, &addrs);
        assert_eq!(left.incomplete, None, "{table:?}");
    }
}

fn restore(variant: Variant, family: Family, lines: &[String]) -> Result<(), Error> {
    command::restore_by(&variant.command(family, "restore"), "filter", lines)
}

/// Returns the variants that need a pod's rules. The first is that of the command. The other one follows if its
/// `FORWARD` may drop what pods send, because an accept in one variant doesn't overrule a drop in the other.
fn variants(nft: &mut Nft, family: Family) -> Result<Vec<Variant>, Error> {
    let mut variants = vec![Variant::Usual];
    let other = Variant::other_than_usual();
    if others::way_in(nft, family, other, Pods::Refused)? != ChainEffect::Open {
        variants.push(other);
    }
    Ok(variants)
}

/// Adds the pod's rules and the policy, in each family of the pod's addresses. Without addresses it does nothing. If it
/// fails half-way, it takes back what it did.
pub(super) fn add(nft: &mut Nft, forward: &Forward) -> Result<Applied, Error> {
    let mut undo = Applied::default();
    for family in xtables::FAMILIES {
        let addrs: Vec<IpAddr> = forward.of_family(family).collect();
        if addrs.is_empty() {
            continue;
        }
        // The nf_tables variant of the command makes the table if it is missing.
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

/// Adds the rules in the usual variant of one family, by netlink if that is possible. Without addresses it adds the
/// policy alone. Adds to `undo` what takes them back.
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

/// Adds the rules by the commands of one variant. A failure may come from a concurrent change, so it tries again.
fn add_by_command(
    variant: Variant,
    family: Family,
    forward: &Forward,
    addrs: &[IpAddr],
    undo: &mut Applied,
) -> Result<(), Error> {
    retry_command(|| {
        let saved = command::run(&variant.command(family, "save"), &["-t", "filter"], "")?;
        let plan = plan(&SavedTable::new(&saved), forward, addrs);
        let lines = plan.lines();
        if !lines.is_empty() {
            restore(variant, family, &lines)?;
            undo.push(move |_| take_back(variant, family, &plan));
        }
        Ok(())
    })
}

/// Adds the bridge's policy in the families in which iptables has policies already. With the policy `open` it removes
/// the bridge's rules where there are some.
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

/// Returns the line that takes a line of a plan back. A deleted rule comes back at the front of its chain.
fn inverse(line: &str) -> Option<String> {
    let (action, rest) = line.split_once(' ')?;
    match action {
        "-A" | "-I" => Some(format!("-D {rest}")),
        "-D" => Some(format!("-I {rest}")),
        "-N" => Some(format!("-X {rest}")),
        _ => None,
    }
}

/// Returns the lines that take lines of a plan back, the last one first.
fn reverse(lines: &[String]) -> Vec<String> {
    lines.iter().rev().filter_map(|line| inverse(line)).collect()
}

/// Takes a plan back. Rules that were [`kept`](RestoreLines::kept) stay. Shared chains stay if others use them by now.
fn take_back(variant: Variant, family: Family, plan: &RestoreLines) -> Result<(), Error> {
    let RestoreLines { shared, policy, rules, .. } = plan;
    let mut outcome = Ok(());
    for lines in [reverse(rules), reverse(policy)].into_iter().filter(|lines| !lines.is_empty()) {
        outcome = outcome.and(restore(variant, family, &lines));
    }
    // The jumps go first, then the chains. If others have added rules to these since, the restore fails and both stay.
    let (chains, rules): (Vec<_>, Vec<_>) =
        reverse(shared).into_iter().partition(|line| line.starts_with("-X "));
    if !chains.is_empty() {
        let lines: Vec<String> = rules.into_iter().chain(chains).collect();
        if let Err(err) = restore(variant, family, &lines) {
            log::debug!("chains are in use and stay: {err}");
        }
    }
    outcome
}

/// Removes the rules of these addresses from the legacy variant, except those of `taken` addresses. Returns whether a
/// family of the addresses has a legacy table `filter`.
pub(crate) fn remove_legacy(addrs: &[IpAddr], taken: &dyn Fn(IpAddr) -> bool) -> Result<bool, Error> {
    let mut any = false;
    for family in xtables::FAMILIES {
        let of_family = addrs.iter().filter(|ip| ip.is_ipv4() == (family == Family::Ipv4));
        let of_family: Vec<(IpAddr, [String; 2])> =
            of_family.map(|ip| (*ip, [format!(" -s {ip}/"), format!(" -d {ip}/")])).collect();
        if of_family.is_empty() {
            continue;
        }
        any |= remove_legacy_rules(family, |rule| {
            of_family.iter().any(|(ip, ends)| ends.iter().any(|end| rule.contains(end)) && !taken(*ip))
        })?;
    }
    Ok(any)
}

/// Removes the rules that `choose` picks from the legacy variant's chain of pods. Returns whether there is a legacy
/// table `filter`.
pub(super) fn remove_legacy_rules(family: Family, choose: impl Fn(&str) -> bool) -> Result<bool, Error> {
    let Some(rules) = xtables::legacy_rules_of(family, "filter")? else { return Ok(false) };
    let chosen = rules.iter().filter(|rule| xtables::in_chain(rule, PODS) && choose(rule));
    let lines: Vec<String> = chosen.map(|rule| xtables::deletion(rule)).collect();
    xtables::restore_legacy(family, "filter", &lines)?;
    Ok(true)
}

/// Returns whether the chain exists. False on a kernel without nf_tables.
fn has_chain(nft: &mut Nft, chain: Chain<'_>) -> netlink::Result<bool> {
    nft.has_chain(chain).default_for(&UNSUPPORTED)
}

/// Returns a sentence about what a line of the plan would make.
fn lacking(family: Family, line: &str) -> String {
    let command = if family == Family::Ipv4 { "iptables" } else { "ip6tables" };
    match line.split_once(' ') {
        Some(("-N", chain)) => format!("{command} has no chain {chain} in its table filter"),
        Some((_, rule)) => format!("{command} has no rule {rule} in its table filter"),
        None => format!("{command} lacks {line}"),
    }
}

/// Returns what is missing, or `None` if everything is there in each variant that needs it.
pub(super) fn check(nft: &mut Nft, forward: &Forward) -> Result<Option<String>, Error> {
    for family in xtables::FAMILIES {
        let addrs: Vec<IpAddr> = forward.of_family(family).collect();
        if addrs.is_empty() {
            continue;
        }
        if let Some(other) = variants(nft, family)?.get(1) {
            let saved = command::run(&other.command(family, "save"), &["-t", "filter"], "")?;
            if let Some(line) = plan(&SavedTable::new(&saved), forward, &addrs).incomplete {
                return Ok(Some(format!("{}: {line}", other.command(family, "restore"))));
            }
        }
        if direct::is_whole(nft, family, forward, &addrs) {
            continue;
        }
        let save = command::tool(family, "save");
        if command::find_program(&save).is_none() {
            return Ok(Some(format!("the command {save} is not installed")));
        }
        // A host without the chain needs no command to see that.
        if !has_chain(nft, filter(family).chain(PODS))? && !xtables::has_legacy(family, "filter") {
            return Ok(Some(lacking(family, &format!("-N {PODS}"))));
        }
        let saved = command::run(&save, &["-t", "filter"], "")?;
        if let Some(line) = plan(&SavedTable::new(&saved), forward, &addrs).incomplete {
            return Ok(Some(lacking(family, &line)));
        }
    }
    Ok(None)
}
