//! Finds foreign rules in iptables' chain `FORWARD`, in both variants.
//!
//! An accept in one chain doesn't overrule a drop in another, so a pod's rules must come before them in the same chain.
//! A command runs only for a legacy table that the kernel lists.

use cnimble_cni::Error;
use cnimble_netlink::IfPresent as _;
use cnimble_netlink::nft::{Chain, Family, HookPoint, Nft, Rule, Table};

use super::ForwardChain;
use super::table::{ADMIN, FORWARD, PODS, STAGE1, filter};
use super::walk::{self, ChainEffect, Pods};
use crate::drops::ReadTables;
use crate::failures::UNSUPPORTED;
use crate::filter_rule::FilterRule;
use crate::xtables::{self, Variant};

/// Returns whether a rule of `FORWARD` jumps to a chain of the plugin.
fn is_ours(target: Option<&str>) -> bool {
    matches!(target, Some(PODS | STAGE1))
}

/// Returns whether a rule of `FORWARD` in nf_tables is none of the plugin's.
fn is_foreign(rule: &Rule) -> bool {
    !is_ours(rule.target().as_deref())
}

/// What iptables has in its table `filter`. A later one needs more care and is greater.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum FilterContent {
    /// There is no such table.
    Nothing,
    /// There is a table, but nothing in `FORWARD` concerns pods, except policies of bridges.
    Harmless,
    /// `FORWARD` drops by policy or has rules of others, or there are chains with pods' or the administrator's rules.
    Rules,
}

/// Looks at both families and both variants, and returns the greatest result.
pub(super) fn look_at_all(nft: &mut Nft) -> Result<FilterContent, Error> {
    let mut found = FilterContent::Nothing;
    for family in xtables::FAMILIES {
        found = found.max(of_family(nft, family)?);
    }
    Ok(found)
}

/// Looks at both variants of one family.
pub(super) fn of_family(nft: &mut Nft, family: Family) -> Result<FilterContent, Error> {
    let found = if nft.is_supported()? { in_nf_tables(nft, family)? } else { FilterContent::Nothing };
    if found == FilterContent::Rules {
        return Ok(found);
    }
    Ok(match xtables::legacy_table(family, "filter")? {
        Some(saved) if is_taken(&saved) => FilterContent::Rules,
        Some(_) => FilterContent::Harmless,
        None => found,
    })
}

fn in_nf_tables(nft: &mut Nft, family: Family) -> Result<FilterContent, Error> {
    let table = filter(family);
    if !nft.has_table(table)? {
        return Ok(FilterContent::Nothing);
    }
    let any = nft.drops_by_policy(table.chain(FORWARD))?
        || nft.rules_until(table.chain(FORWARD), is_foreign)?.iter().any(is_foreign)
        || nft.has_chain(table.chain(PODS))?
        || nft.has_chain(table.chain(ADMIN))?;
    Ok(if any { FilterContent::Rules } else { FilterContent::Harmless })
}

/// Returns whether a saved legacy table is [`FilterContent::Rules`].
fn is_taken(saved: &str) -> bool {
    xtables::drops(saved, FORWARD)
        || xtables::rules_in(saved).iter().any(|rule| {
            xtables::in_chain(rule, FORWARD) && !is_ours(rule.rsplit_once(" -j ").map(|(_, target)| target))
        })
        || saved.lines().any(|line| {
            [PODS, ADMIN].contains(&line.trim_start_matches(':').split(' ').next().unwrap_or_default())
                && line.starts_with(':')
        })
}

/// Reads the rules of an nf_tables chain for a walk.
fn lines(
    nft: &mut Nft,
    chain: Chain<'_>,
    last: &dyn Fn(&FilterRule) -> bool,
) -> Result<Vec<FilterRule>, Error> {
    let rules = nft.rules_until(chain, |rule| last(&FilterRule::from(rule)))?;
    Ok(rules.iter().map(FilterRule::from).collect())
}

/// Returns the base chains at the forward hook that surely drop what pods send. Leaves out `FORWARD` of iptables and
/// firewalld's chains, because the backends let pods pass there.
pub(super) fn closed(nft: &mut Nft, tables: &mut ReadTables) -> Result<Vec<ForwardChain>, Error> {
    let mut closed = Vec::new();
    for base in nft.chains_at(HookPoint::Forward)? {
        let table = Table::new(base.family, &base.table);
        let is_iptables = xtables::FAMILIES.into_iter().any(|family| table == filter(family));
        if is_iptables && base.name == FORWARD || base.table == "firewalld" {
            continue;
        }
        let rules = tables.rules(nft, table)?;
        let way = walk::through(&base.name, base.drops, Pods::Refused, &mut |chain, _| {
            Ok(rules.of_chain(chain).to_vec())
        })?;
        if way == (ChainEffect::Shut { surely: true }) {
            closed.push(ForwardChain { family: base.family, text: table.chain(&base.name).to_string() });
        }
    }
    Ok(closed)
}

/// Returns what `FORWARD` does with pods' packets: the worse one of both variants.
pub(super) fn way(nft: &mut Nft, family: Family, pods: Pods) -> Result<ChainEffect, Error> {
    let usual = way_in(nft, family, Variant::Nft, pods)?;
    Ok(usual.max(way_in(nft, family, Variant::Legacy, pods)?))
}

/// Returns what `FORWARD` of one variant does with pods' packets. A missing chain or table lets them pass. The usual
/// variant is read as nf_tables, even if the command is the legacy one.
pub(super) fn way_in(
    nft: &mut Nft,
    family: Family,
    variant: Variant,
    pods: Pods,
) -> Result<ChainEffect, Error> {
    let table = filter(family);
    if variant != Variant::Legacy {
        if !nft.has_chain(table.chain(FORWARD)).default_for(&UNSUPPORTED)? {
            return Ok(ChainEffect::Open);
        }
        let policy = nft.drops_by_policy(table.chain(FORWARD))?;
        return walk::through(FORWARD, policy, pods, &mut |chain, last| lines(nft, table.chain(chain), last));
    }
    let Some(saved) = xtables::legacy_table(family, "filter")? else { return Ok(ChainEffect::Open) };
    let rules = xtables::rules_in(&saved);
    walk::through(FORWARD, xtables::drops(&saved, FORWARD), pods, &mut |chain, _| {
        let inside = rules.iter().filter(|rule| xtables::in_chain(rule, chain));
        Ok(inside.map(|rule| FilterRule::saved(rule)).collect())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn legacy_tables_of_others_are_told_from_ours() {
        let ours = "*filter\n:FORWARD ACCEPT [0:0]\n:CNI-ISOLATION-STAGE-1 - [0:0]\n\
                    -A FORWARD -m comment --comment \"x -j y\" -j CNI-ISOLATION-STAGE-1\n\
                    -A INPUT -s 10.0.0.1/32 -j DROP\nCOMMIT\n";
        assert!(!is_taken(ours));
        for more in [
            ":FORWARD DROP [0:0]",
            ":CNI-ADMIN - [0:0]",
            ":CNI-FORWARD - [0:0]",
            "-A FORWARD -j REJECT --reject-with icmp-host-prohibited",
            "-A FORWARD -o docker0 -j DOCKER",
        ] {
            assert!(is_taken(&format!("{ours}{more}\n")), "{more}");
        }
    }
}
