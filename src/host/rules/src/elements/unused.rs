//! Removes unused sets and chains.
//!
//! Before Linux 6.12 the kernel deletes even a non-empty set if it has no size, as ours have none. So each deletion is
//! bound to the generation in which the sets were seen to be empty. If a concurrent ADD fills one, the kernel refuses.

use nix::errno::Errno;

use cnimble_netlink::Result;
use cnimble_netlink::nft::{Batch, Nft};

use super::{Layout, first_name, is_fixed, lists_part, our_rules, our_sets, set};
use crate::retry::ATTEMPTS;

/// What may be removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Scope {
    /// Sets that are not fixed, and nothing else.
    Sets,
    /// The whole part, and the table if no other part is in it.
    Part,
}

/// Deletes those of `sets` that are empty, with their rules. With [`Scope::Part`] also deletes the part, if all of its
/// sets are empty and either fixed or in `sets`. What is still in use stays without an error.
pub(crate) fn drop_unused<L: Layout>(nft: &mut Nft, sets: &[String], scope: Scope) -> Result<()> {
    if sets.is_empty() && scope == Scope::Sets {
        return Ok(());
    }
    let (mut empty, mut all) = (Vec::new(), true);
    for set in our_sets::<L>(nft)? {
        let considered = is_fixed::<L>(&set) || sets.contains(&set);
        if !considered || !nft.is_empty(self::set::<L>(&set))? {
            all = false;
        } else if !is_fixed::<L>(&set) {
            empty.push(set);
        }
    }
    if scope == Scope::Part && all && drop_together::<L>(nft, &empty, scope)? {
        return Ok(());
    }
    for set in &empty {
        drop_together::<L>(nft, std::slice::from_ref(set), Scope::Sets)?;
    }
    Ok(())
}

/// Deletes the part if all its fixed sets are empty, and returns whether it has gone. The part must have no other sets:
/// the deletion of its chains would leave them without a rule.
pub(crate) fn drop_part<L: Layout>(nft: &mut Nft) -> Result<bool> {
    drop_together::<L>(nft, &[], Scope::Part)
}

/// Deletes the sets with their rules, and with [`Scope::Part`] the part, all or nothing. Returns true if there is no
/// table. Returns false if a set has elements, if something is in use (EBUSY), or if the ruleset changed during each
/// attempt.
fn drop_together<L: Layout>(nft: &mut Nft, sets: &[String], scope: Scope) -> Result<bool> {
    for _ in 0..ATTEMPTS {
        let generation = nft.generation()?;
        if !nft.has_table(L::TABLE)? {
            return Ok(true);
        }
        let present = nft.sets(L::TABLE)?;
        let fixed = L::FIXED.iter().copied().filter(|_| scope == Scope::Part);
        for name in sets.iter().map(String::as_str).chain(fixed) {
            if !nft.is_empty(set::<L>(name))? {
                return Ok(false);
            }
        }
        let rules = if sets.is_empty() { Vec::new() } else { our_rules::<L>(nft)? };
        let mut batch = Batch::only_in(generation);
        for name in sets.iter().filter(|name| present.contains(name)) {
            for rule in rules.iter().filter(|rule| rule.uses_set(name)) {
                batch.delete_rule(L::TABLE.chain(&rule.chain), rule.handle);
            }
            batch.delete_set(set::<L>(name));
        }
        if scope == Scope::Part {
            delete_part::<L>(nft, &mut batch, &present)?;
        }
        match nft.commit(&batch) {
            Ok(()) => return Ok(true),
            Err(err) if err.is(Errno::EBUSY) => return Ok(false),
            Err(err) if err.is(Errno::ERESTART) || err.is(Errno::ENOENT) => {}
            Err(err) => return Err(err),
        }
    }
    Ok(false)
}

/// Returns the chains of the part that are among `present`. A chain comes before those that it jumps to.
fn chains_among<L: Layout>(present: &[String]) -> impl Iterator<Item = &'static str> {
    L::CHAINS.iter().rev().copied().filter(|chain| present.iter().any(|name| name == chain))
}

/// Adds to the batch the deletion of chains and fixed sets, and of the table if it has no other part. `present` are all
/// sets of the table. Rules in chains of [`Layout::FOREIGN`] stay, and the kernel then refuses the batch with EBUSY.
fn delete_part<L: Layout>(nft: &mut Nft, batch: &mut Batch, present: &[String]) -> Result<()> {
    let chains = nft.chains(L::TABLE)?;
    // The kernel deletes no chain that a rule jumps to. So all rules go first, and a chain goes before those that it
    // jumps to.
    for chain in chains_among::<L>(&chains).filter(|chain| !L::FOREIGN.contains(chain)) {
        batch.flush_chain(L::TABLE.chain(chain));
    }
    for chain in chains_among::<L>(&chains) {
        batch.delete_chain(L::TABLE.chain(chain));
    }
    for set in L::FIXED.iter().filter(|set| present.iter().any(|name| name == *set)) {
        batch.delete_set(self::set::<L>(set));
    }
    let alone = chains.iter().all(|chain| L::CHAINS.contains(&chain.as_str()))
        && present.iter().all(|set| L::is_ours(first_name(set)));
    if alone {
        batch.delete_table(L::TABLE);
    }
    Ok(())
}

/// Removes all empty sets that are not fixed, and the part if nothing uses it. A part that [stays](Layout::STAYS) is
/// left.
pub(crate) fn drop_all_unused<L: Layout>(nft: &mut Nft) -> Result<()> {
    let sets: Vec<String> = our_sets::<L>(nft)?.into_iter().filter(|set| !is_fixed::<L>(set)).collect();
    drop_unused::<L>(nft, &sets, if L::STAYS { Scope::Sets } else { Scope::Part })
}

/// Returns whether the part has sets or chains, and nothing uses it: no element apart from those in [`Layout::NOTES`],
/// and no rule in [`Layout::FOREIGN`].
pub(super) fn is_idle<L: Layout>(nft: &mut Nft) -> Result<bool> {
    let sets = our_sets::<L>(nft)?;
    if sets.is_empty() && !lists_part::<L>(nft)? {
        return Ok(false);
    }
    for name in sets.iter().filter(|name| !L::NOTES.contains(&name.as_str())) {
        if !nft.is_empty(set::<L>(name))? {
            return Ok(false);
        }
    }
    for chain in L::FOREIGN {
        if !nft.rules(L::TABLE, Some(chain))?.is_empty() {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Returns the sets without elements that are not fixed. An ADD makes and fills a set in one batch, so none of these
/// belongs to an ADD that is still running.
pub(super) fn empty_sets<L: Layout>(nft: &mut Nft) -> Result<Vec<String>> {
    let mut empty = Vec::new();
    for set in our_sets::<L>(nft)? {
        if !is_fixed::<L>(&set) && nft.is_empty(self::set::<L>(&set))? {
            empty.push(set);
        }
    }
    Ok(empty)
}
