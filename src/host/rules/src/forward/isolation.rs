//! Policies of bridges in iptables, as release 1.9.1 of the Go plugin writes them:
//! ```text
//! -A CNI-ISOLATION-STAGE-1 -i br0 ! -o br0 … -j CNI-ISOLATION-STAGE-2
//! -A CNI-ISOLATION-STAGE-1 -i br0 -o br0 … -j DROP                     isolated
//! -A CNI-ISOLATION-STAGE-1 … -j RETURN
//! -A CNI-ISOLATION-STAGE-2 -o br0 … -j DROP
//! -A CNI-ISOLATION-STAGE-2 … -j RETURN
//! ```
//! Releases before 1.7.1 have other comments, so rules are compared without them.

use std::collections::BTreeSet;

use nix::errno::Errno;

use cnimble_cni::Error;
use cnimble_netlink::nft::{Batch, Family, Nft, Rule, Verdict};

use super::table::{FORWARD, RestoreLines, STAGE1, SavedTable, commented, filter, uncommented};
use super::{Forward, Policy, Unused, nftables};
use crate::retry::ATTEMPTS;
use crate::xtables;

/// The chain that drops packets to another bridge with a policy.
pub(super) const STAGE2: &str = "CNI-ISOLATION-STAGE-2";

fn comment(policy: &str) -> String {
    commented(&format!("{OURS}{policy})"))
}

/// Returns the comment of rules that both policies share.
fn any_policy() -> String {
    comment("same-bridge|isolated")
}

/// Returns the rules of a bridge's policy, without `-I`.
fn bridge_rules(bridge: &str, policy: Policy) -> Vec<String> {
    let own = comment(&policy.to_string());
    let mut rules = vec![
        format!("{STAGE1} -i {bridge} ! -o {bridge} {own} -j {STAGE2}"),
        format!("{STAGE2} -o {bridge} {} -j DROP", any_policy()),
    ];
    if policy == Policy::Isolated {
        rules.push(format!("{STAGE1} -i {bridge} -o {bridge} {own} -j DROP"));
    }
    rules
}

/// The beginning of the comments on the plugins' rules. Other rules in these chains are the administrator's.
const OURS: &str = "CNI firewall plugin rules (ingressPolicy: ";

/// Returns the bridge of a saved rule without `-A`, or `None` if the rule is no bridge's.
fn bridge_of(rule: &str) -> Option<&str> {
    let mut words = rule.split(' ').take_while(|_| rule.contains(OURS));
    match (words.next()?, words.next()?) {
        (STAGE1, "-i") | (STAGE2, "-o") => words.next(),
        _ => None,
    }
}

/// Returns the saved rule by which FORWARD leads to the policies, without `-A`.
pub(super) fn jump(saved: &SavedTable<'_>) -> Option<String> {
    find_rule(saved, &format!("{FORWARD} -j {STAGE1}")).map(str::to_owned)
}

/// Returns the saved rule that equals `bare` if its comments are left out.
fn find_rule<'a>(saved: &SavedTable<'a>, bare: &str) -> Option<&'a str> {
    saved.rules().find(|rule| uncommented(rule) == bare)
}

/// Adds to a plan what the bridge's policy needs, and the deletion of its other rules.
pub(super) fn plan(saved: &SavedTable<'_>, forward: &Forward, plan: &mut RestoreLines) {
    let mut wanted = Vec::new();
    if forward.policy != Policy::Open {
        for chain in [STAGE1, STAGE2] {
            if !saved.has_chain(chain) {
                plan.shared.push(format!("-N {chain}"));
            }
            if find_rule(saved, &format!("{chain} -j RETURN")).is_none() {
                plan.shared.push(format!("-A {chain} {} -j RETURN", any_policy()));
            }
        }
        if jump(saved).is_none() {
            plan.shared.push(format!("-I {FORWARD} {} -j {STAGE1}", any_policy()));
        }
        if let Some(line) = plan.shared.first().cloned() {
            plan.lacks(&line);
        }
        wanted.extend(forward.interfaces.iter().flat_map(|name| bridge_rules(name, forward.policy)));
    }
    let bare: Vec<String> = wanted.iter().map(|rule| uncommented(rule)).collect();
    let present: Vec<&str> = saved
        .rules()
        .filter(|rule| bridge_of(rule).is_some_and(|bridge| forward.interfaces.iter().any(|of| of == bridge)))
        .collect();
    for rule in present.iter().filter(|rule| !bare.contains(&uncommented(rule))) {
        let line = format!("-D {rule}");
        if forward.policy != Policy::Open {
            plan.lacks(&line);
        }
        plan.policy.push(line);
    }
    for (rule, bare) in wanted.iter().zip(&bare) {
        match present.iter().find(|rule| uncommented(rule) == *bare) {
            Some(kept) => plan.kept.extend([format!("-D {kept}"), format!("-I {kept}")]),
            None => {
                let line = format!("-I {rule}");
                plan.lacks(&line);
                plan.policy.push(line);
            }
        }
    }
}

/// Returns whether iptables has policies from which the bridge's must separate it. With the policy `open`, returns
/// whether it has rules of the bridge, which must be removed.
pub(super) fn concerns(nft: &mut Nft, family: Family, forward: &Forward) -> Result<bool, Error> {
    if forward.interfaces.is_empty() {
        return Ok(false);
    }
    let rules = nf_tables(nft, family)?;
    let legacy = xtables::legacy_rules_of(family, "filter")?.unwrap_or_default();
    let mut bridges = rules.iter().filter_map(named);
    let mut legacy = legacy.iter().filter_map(|rule| bridge_of(rule.strip_prefix("-A ")?));
    Ok(if forward.policy == Policy::Open {
        bridges.any(|name| forward.interfaces.contains(&name))
            || legacy.any(|name| forward.interfaces.iter().any(|interface| interface == name))
    } else {
        bridges.next().is_some() || legacy.next().is_some()
    })
}

/// Returns the rules of both chains in the nf_tables variant.
fn nf_tables(nft: &mut Nft, family: Family) -> Result<Vec<Rule>, Error> {
    let mut rules = nft.rules(filter(family), Some(STAGE1))?;
    rules.extend(nft.rules(filter(family), Some(STAGE2))?);
    Ok(rules)
}

/// Does what [`bridge_of`] does, for a rule of the nf_tables variant. It compares the name with its NUL byte.
fn named(rule: &Rule) -> Option<String> {
    let ours = rule.comment.starts_with(OURS);
    let name = rule.constants().next().filter(|_| ours)?.strip_suffix(&[0])?;
    Some(String::from_utf8_lossy(name).trim_end_matches('\0').to_owned())
}

/// Removes the rules of unused bridges from the nf_tables variant, and the chains with the last rules. Rules of the
/// bridges `own` are also removed if no pod on the host has rules any more. Each removal is bound to the generation of
/// the look, and is given up after some attempts without an error.
pub(super) fn remove_nf_tables(nft: &mut Nft, own: &[String], unused: Unused<'_>) -> Result<(), Error> {
    for family in xtables::FAMILIES {
        let mut are_chains_used = false;
        for _ in 0..ATTEMPTS {
            let Some(dead) = Dead::find_removable(nft, family, own, unused)? else { break };
            let whole = if are_chains_used { None } else { dead.with_chains(nft)? };
            match nft.commit(&whole.unwrap_or_else(|| dead.rules_alone())) {
                Err(err) if err.is(Errno::ERESTART) || err.is(Errno::ENOENT) => {}
                // A rule of somebody else leads to the chains.
                Err(err) if err.is(Errno::EBUSY) && !are_chains_used => are_chains_used = true,
                Err(err) => return Err(err.into()),
                Ok(()) => break,
            }
        }
    }
    Ok(())
}

/// Removable rules in a generation of nf_tables, with their bridges.
struct Dead {
    family: Family,
    generation: u32,
    rules: Vec<Rule>,
    bridges: BTreeSet<String>,
}

impl Dead {
    /// Looks for removable rules. Returns `None` if all bridges are in use.
    fn find_removable(
        nft: &mut Nft,
        family: Family,
        own: &[String],
        unused: &mut dyn FnMut(&str) -> Result<bool, Error>,
    ) -> Result<Option<Self>, Error> {
        let generation = nft.generation()?;
        let rules = nf_tables(nft, family)?;
        let names: BTreeSet<String> = rules.iter().filter_map(named).collect();
        let mut bridges = BTreeSet::new();
        for name in names {
            if unused(&name)? || own.contains(&name) && !nftables::any_pod(nft)? {
                bridges.insert(name);
            }
        }
        Ok((!bridges.is_empty()).then_some(Dead { family, generation, rules, bridges }))
    }

    /// Returns whether a rule belongs to a removable bridge.
    fn has(&self, rule: &Rule) -> bool {
        named(rule).is_some_and(|name| self.bridges.contains(&name))
    }

    /// Returns the batch that removes both chains with all rules, or `None` if another rule in them is in use.
    fn with_chains(&self, nft: &mut Nft) -> Result<Option<Batch>, Error> {
        let table = filter(self.family);
        let has_others = self.rules.iter().any(|rule| {
            let is_end = rule.matches_all() && rule.verdict() == Some(Verdict::Return);
            !is_end && !self.has(rule)
        });
        if has_others {
            return Ok(None);
        }
        let mut batch = Batch::only_in(self.generation);
        for rule in nft.rules(table, Some(FORWARD))? {
            if rule.target().as_deref() == Some(STAGE1) {
                batch.delete_rule(table.chain(FORWARD), rule.handle);
            }
        }
        for chain in [STAGE1, STAGE2] {
            batch.flush_chain(table.chain(chain));
        }
        for chain in [STAGE1, STAGE2] {
            batch.delete_chain(table.chain(chain));
        }
        Ok(Some(batch))
    }

    /// Returns the batch that removes the rules and leaves the chains.
    fn rules_alone(&self) -> Batch {
        let mut batch = Batch::only_in(self.generation);
        for rule in self.rules.iter().filter(|rule| self.has(rule)) {
            batch.delete_rule(filter(self.family).chain(&rule.chain), rule.handle);
        }
        batch
    }
}

/// Removes the rules of unused bridges from the legacy variant. The chains stay. This variant can't bind a removal to
/// what was seen, so the rules of a bridge that is in use afterwards are inserted again.
pub(super) fn remove_legacy(unused: Unused<'_>) -> Result<(), Error> {
    for family in xtables::FAMILIES {
        let Some(rules) = xtables::legacy_rules_of(family, "filter")? else { continue };
        let mut dead: Vec<(&str, &str)> = Vec::new();
        for rule in rules.iter().filter_map(|rule| rule.strip_prefix("-A ")) {
            if let Some(bridge) = bridge_of(rule)
                && unused(bridge)?
            {
                dead.push((bridge, rule));
            }
        }
        let lines: Vec<String> = dead.iter().map(|(_, rule)| format!("-D {rule}")).collect();
        xtables::restore_legacy(family, "filter", &lines)?;
        let mut back = Vec::new();
        for (bridge, rule) in &dead {
            if !unused(bridge)? {
                back.push(format!("-I {rule}"));
            }
        }
        xtables::restore_legacy(family, "filter", &back)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn planned(saved: &str, policy: Policy) -> RestoreLines {
        let forward = Forward { policy, interfaces: vec!["br0".into()], ..Forward::default() };
        let mut made = RestoreLines::default();
        plan(&SavedTable::new(saved), &forward, &mut made);
        made
    }

    /// The rules of 1.1.1 and 1.9.1, as iptables-save prints them.
    fn by_go(shared: &str) -> String {
        let rules = [
            "FORWARD COMMENT -j CNI-ISOLATION-STAGE-1",
            "CNI-ISOLATION-STAGE-1 -i br0 ! -o br0 OWN -j CNI-ISOLATION-STAGE-2",
            "CNI-ISOLATION-STAGE-1 COMMENT -j RETURN",
            "CNI-ISOLATION-STAGE-2 -o br0 COMMENT -j DROP",
            "CNI-ISOLATION-STAGE-2 COMMENT -j RETURN",
        ];
        let rules: String = rules.iter().map(|rule| format!("-A {rule}\n")).collect();
        let rules = rules.replace("COMMENT", &comment(shared)).replace("OWN", &comment("same-bridge"));
        format!(":CNI-ISOLATION-STAGE-1 - [0:0]\n:CNI-ISOLATION-STAGE-2 - [0:0]\n{rules}")
    }

    #[test]
    fn rules_of_all_versions_of_the_reference_are_known() {
        for shared in ["same-bridge", "same-bridge|isolated"] {
            let plan = planned(&by_go(shared), Policy::SameBridge);
            assert_eq!(plan.incomplete, None, "{shared}");
            assert!(plan.shared.is_empty(), "{plan:?}");
            let isolated = planned(&by_go(shared), Policy::Isolated);
            let line = format!("-I CNI-ISOLATION-STAGE-1 -i br0 -o br0 {} -j DROP", comment("isolated"));
            assert_eq!(isolated.incomplete, Some(line));
            let open = planned(&by_go(shared), Policy::Open);
            assert_eq!(open.policy.len(), 2);
            assert!(open.policy.iter().all(|line| line.starts_with("-D CNI-ISOLATION-STAGE-")), "{open:?}");
        }
    }

    #[test]
    fn a_bridge_with_a_longer_name_is_another_bridge() {
        let saved = by_go("same-bridge").replace("br0", "br01");
        assert!(planned(&saved, Policy::Open).policy.is_empty());
        let plan = planned(&saved, Policy::SameBridge);
        assert!(plan.policy.iter().all(|line| line.starts_with("-I ")), "{plan:?}");
    }
}
