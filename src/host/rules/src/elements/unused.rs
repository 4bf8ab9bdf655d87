//! Removes unused sets and chains.
//!
//! Before Linux 6.12 the kernel deletes non-empty sets without a size, such as ours. So each deletion is bound to the
//! generation in which the sets were seen to be empty: a concurrent ADD is safe.

use nix::errno::Errno;

use cnimble_netlink::Result;
use cnimble_netlink::nft::{Batch, Nft};

use super::{Layout, first, is_fixed, lists_part, our_rules, our_sets, set};
use crate::retry::ATTEMPTS;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Scope {
    Sets,
    /// The part, and the table if that was all.
    Part,
}

/// Deletes unused sets with their rules, and what else is in the scope.
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

/// Returns whether the part is gone. It must have no elements, and only its fixed sets.
pub(crate) fn drop_part<L: Layout>(nft: &mut Nft) -> Result<bool> {
    drop_together::<L>(nft, &[], Scope::Part)
}

/// All or nothing. Returns false if no look holds until the deletion.
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

/// Deletes chains and fixed sets, and then an empty table. `present` are all sets of the table.
fn delete_part<L: Layout>(nft: &mut Nft, batch: &mut Batch, present: &[String]) -> Result<()> {
    let chains = nft.chains(L::TABLE)?;
    // A chain comes before those that it jumps to, and all rules before all chains.
    let ours = || L::CHAINS.iter().rev().filter(|chain| chains.iter().any(|present| present == *chain));
    for chain in ours().filter(|chain| !L::FOREIGN.contains(chain)) {
        batch.flush_chain(L::TABLE.chain(chain));
    }
    for chain in ours() {
        batch.delete_chain(L::TABLE.chain(chain));
    }
    for set in L::FIXED.iter().filter(|set| present.iter().any(|name| name == *set)) {
        batch.delete_set(self::set::<L>(set));
    }
    let alone = chains.iter().all(|chain| L::CHAINS.contains(&chain.as_str()))
        && present.iter().all(|set| L::is_ours(first(set)));
    if alone {
        batch.delete_table(L::TABLE);
    }
    Ok(())
}

pub(crate) fn drop_all_unused<L: Layout>(nft: &mut Nft) -> Result<()> {
    let sets: Vec<String> = our_sets::<L>(nft)?.into_iter().filter(|set| !is_fixed::<L>(set)).collect();
    drop_unused::<L>(nft, &sets, if L::STAYS { Scope::Sets } else { Scope::Part })
}

/// Whether the part has sets or chains, and no element. Elements of [`Layout::NOTES`] don't count.
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

/// Sets without elements, apart from fixed ones. An ADD fills a set in the batch that makes it.
pub(super) fn empty_sets<L: Layout>(nft: &mut Nft) -> Result<Vec<String>> {
    let mut empty = Vec::new();
    for set in our_sets::<L>(nft)? {
        if !is_fixed::<L>(&set) && nft.is_empty(self::set::<L>(&set))? {
            empty.push(set);
        }
    }
    Ok(empty)
}
