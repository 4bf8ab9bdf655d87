//! An attachment's elements in the sets of a table of ours: put there, found again by their
//! owner, taken out.
//!
//! The kernel is asked first what is there, which costs a few µs, and what is missing goes
//! into one batch: from the second attachment of a network on that is the elements alone. A
//! batch that is refused would be no shorter way, as taking it back costs the kernel some
//! 10 ms; that happens only when somebody else was faster, and then we look again.

use std::collections::BTreeSet;

use nix::errno::Errno;

use super::{Owner, hash16};
use crate::net::nft::{Batch, Chain, Element, Key, Nft, Set, Table};
use crate::net::{Error, Result};
use crate::spec::Attachment;

/// How often to look again at what another process may just have changed.
const ATTEMPTS: usize = 20;
/// Deletions in one batch: with their errors they stay far below the socket's buffers.
const CHUNK: usize = 200;

/// What a table of ours consists of.
pub(super) trait Layout {
    /// Its name.
    const TABLE: Table<'static>;

    /// The base chain whose rules use the sets.
    const CHAIN: &'static str;

    /// The sets that come with the table.
    const FIXED: &'static [&'static str];

    /// Creates the base chain.
    fn create_chain(batch: &mut Batch);

    /// Adds the rules that stand first in it.
    fn add_first_rules(batch: &mut Batch);

    /// Creates a set.
    fn create_set(batch: &mut Batch, set: &str);

    /// Adds the rule over a set, if it is this set that it is made for.
    fn add_rule(batch: &mut Batch, set: &str);
}

/// An element and the set it belongs in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Placed {
    pub(super) set: String,
    pub(super) element: Element,
}

/// What [`insert`] changed.
#[derive(Debug, Default)]
pub(super) struct Changes {
    made_table: bool,
    made_sets: Vec<String>,
    /// What somebody had deleted from under the sets; it stays when the rest is taken back.
    repairs: Repairs,
    /// Each with the element of another owner that it replaced.
    inserted: Vec<(Placed, Option<Element>)>,
    /// Elements that went with those that were replaced.
    removed: Vec<Placed>,
}

#[derive(Debug, Default)]
struct Repairs {
    chain: bool,
    first_rules: bool,
    /// Sets without their rule.
    rules: Vec<String>,
}

impl Changes {
    /// The elements of other owners that were replaced, with the set that each was in.
    pub(super) fn replaced(&self) -> impl Iterator<Item = (&str, &Element)> {
        self.inserted.iter().filter_map(|(placed, old)| Some((placed.set.as_str(), old.as_ref()?)))
    }

    /// Whether nothing was changed.
    pub(super) fn is_empty(&self) -> bool {
        self.inserted.is_empty() && self.made_sets.is_empty() && !self.made_table
    }
}

fn is_fixed<L: Layout>(set: &str) -> bool {
    L::FIXED.contains(&set)
}

fn chain<L: Layout>() -> Chain<'static> {
    L::TABLE.chain(L::CHAIN)
}

/// Creates the table with all that is always there.
pub(super) fn create_table<L: Layout>(batch: &mut Batch) {
    batch.create_table(L::TABLE);
    L::create_chain(batch);
    L::add_first_rules(batch);
    for set in L::FIXED {
        L::create_set(batch, set);
    }
    for set in L::FIXED {
        L::add_rule(batch, set);
    }
}

fn set<L: Layout>(name: &str) -> Set<'_> {
    L::TABLE.set(name)
}

/// Puts the owner's elements in place. An element that is the owner's already stays; one
/// that is somebody else's is replaced, as the address (or port) has been given to us.
pub(super) fn insert<L: Layout>(nft: &mut Nft, wanted: &[Placed]) -> Result<Changes> {
    for attempt in 1.. {
        let plan = look::<L>(nft, wanted)?;
        match nft.commit(&batch::<L>(&plan)) {
            Ok(()) => return Ok(plan),
            // Somebody was faster: made the table, took or left the address.
            Err(err)
                if attempt < ATTEMPTS
                    && matches!(err.errno, Errno::ENOENT | Errno::EEXIST | Errno::EBUSY) => {}
            Err(err) => return Err(err),
        }
    }
    Err(Error::new(format!("fill table {}", L::TABLE), Errno::EBUSY))
}

/// What has to be done, by what the kernel has.
fn look<L: Layout>(nft: &mut Nft, wanted: &[Placed]) -> Result<Changes> {
    let mut plan = Changes::default();
    let mut missing: Vec<&str> = Vec::new();
    for placed in wanted {
        let set = set::<L>(&placed.set);
        if missing.contains(&set.name) {
            plan.inserted.push((placed.clone(), None));
        } else if !nft.has_set(set)? {
            missing.push(set.name);
            plan.inserted.push((placed.clone(), None));
        } else {
            match nft.element(set, &placed.element.key)? {
                Some(there) if there == placed.element => {}
                old => plan.inserted.push((placed.clone(), old)),
            }
        }
    }
    if !missing.is_empty() {
        plan.made_table = !nft.has_table(L::TABLE)?;
        plan.made_sets = missing.into_iter().filter(|set| !is_fixed::<L>(set)).map(str::to_owned).collect();
    }
    if !plan.made_table {
        plan.repairs = look_at_rules::<L>(nft, wanted, &plan.made_sets)?;
    }
    Ok(plan)
}

/// Elements are worth nothing without a rule, so a flushed chain must not go unnoticed.
fn look_at_rules<L: Layout>(nft: &mut Nft, wanted: &[Placed], made: &[String]) -> Result<Repairs> {
    let mut repairs = Repairs::default();
    let rules = nft.rules(L::TABLE, Some(L::CHAIN))?;
    if rules.is_empty() {
        repairs.chain = !nft.has_chain(chain::<L>())?;
        repairs.first_rules = true;
    }
    for Placed { set, .. } in wanted {
        let known = made.contains(set) || repairs.rules.contains(set);
        if !known && !rules.iter().any(|rule| rule.uses_set(set)) {
            repairs.rules.push(set.clone());
        }
    }
    Ok(repairs)
}

fn batch<L: Layout>(plan: &Changes) -> Batch {
    let mut batch = Batch::new();
    if plan.made_table {
        create_table::<L>(&mut batch);
    }
    if plan.repairs.chain {
        L::create_chain(&mut batch);
    }
    if plan.repairs.first_rules {
        L::add_first_rules(&mut batch);
    }
    for set in &plan.made_sets {
        L::create_set(&mut batch, set);
        L::add_rule(&mut batch, set);
    }
    for set in &plan.repairs.rules {
        L::add_rule(&mut batch, set);
    }
    for (placed, old) in &plan.inserted {
        let set = set::<L>(&placed.set);
        if old.is_some() {
            batch.delete_element(set, &placed.element.key);
        }
        batch.create_element(set, &placed.element);
    }
    batch
}

/// Deletes an element that belonged to one that [`insert`] replaced, and notes it there.
pub(super) fn also_delete<L: Layout>(
    nft: &mut Nft,
    changes: &mut Changes,
    name: &str,
    key: &Key,
) -> Result<()> {
    if let Some(element) = nft.element(set::<L>(name), key)? {
        let placed = Placed { set: name.to_owned(), element };
        delete::<L>(nft, std::slice::from_ref(&placed))?;
        changes.removed.push(placed);
    }
    Ok(())
}

/// Takes back what [`insert`] changed: the elements, if they are still ours; then what it
/// created, unless somebody else uses it by now.
pub(super) fn revert<L: Layout>(nft: &mut Nft, changes: &Changes) -> Result<()> {
    for attempt in 1.. {
        let batch = reverting::<L>(nft, changes)?;
        match nft.commit(&batch) {
            Ok(()) => break,
            // Somebody was there in between.
            Err(err) if attempt < ATTEMPTS && matches!(err.errno, Errno::ENOENT | Errno::EEXIST) => {}
            Err(err) => return Err(err),
        }
    }
    drop_unused::<L>(nft, &changes.made_sets, changes.made_table)
}

fn reverting<L: Layout>(nft: &mut Nft, changes: &Changes) -> Result<Batch> {
    let mut batch = Batch::new();
    for (placed, old) in &changes.inserted {
        let set = set::<L>(&placed.set);
        if nft.element(set, &placed.element.key)?.as_ref() != Some(&placed.element) {
            continue;
        }
        batch.delete_element(set, &placed.element.key);
        if let Some(old) = old {
            batch.create_element(set, old);
        }
    }
    for placed in &changes.removed {
        let set = set::<L>(&placed.set);
        if nft.has_set(set)? && nft.element(set, &placed.element.key)?.is_none() {
            batch.create_element(set, &placed.element);
        }
    }
    Ok(batch)
}

/// Deletes sets (with their rules) and the table, unless somebody uses them: the kernel
/// refuses to delete what isn't empty, so nobody is overtaken.
///
/// Looking first spares most refusals, which are slow.
fn drop_unused<L: Layout>(nft: &mut Nft, sets: &[String], table: bool) -> Result<()> {
    if sets.is_empty() && !table {
        return Ok(());
    }
    let (mut empty, mut all) = (Vec::new(), true);
    for set in nft.sets(L::TABLE)? {
        let considered = is_fixed::<L>(&set) || sets.contains(&set);
        if !considered || !nft.is_empty(self::set::<L>(&set))? {
            all = false;
        } else if !is_fixed::<L>(&set) {
            empty.push(set);
        }
    }
    if table && all && drop_together::<L>(nft, &empty, true)? {
        return Ok(());
    }
    for set in &empty {
        drop_together::<L>(nft, std::slice::from_ref(set), false)?;
    }
    Ok(())
}

/// Deletes these sets, and the table if wanted, all or nothing; whether they are gone.
fn drop_together<L: Layout>(nft: &mut Nft, sets: &[String], table: bool) -> Result<bool> {
    for attempt in 1.. {
        if !nft.has_table(L::TABLE)? {
            return Ok(true);
        }
        let present = nft.sets(L::TABLE)?;
        let rules = if sets.is_empty() { Vec::new() } else { nft.rules(L::TABLE, Some(L::CHAIN))? };
        let mut batch = Batch::new();
        for name in sets.iter().filter(|name| present.contains(name)) {
            for rule in rules.iter().filter(|rule| rule.uses_set(name)) {
                batch.delete_rule(chain::<L>(), rule.handle);
            }
            batch.delete_set(set::<L>(name));
        }
        if table {
            batch.flush_chain(chain::<L>());
            batch.delete_chain(chain::<L>());
            for set in L::FIXED {
                batch.delete_set(self::set::<L>(set));
            }
            batch.delete_table(L::TABLE);
        }
        match nft.commit(&batch) {
            Ok(()) => return Ok(true),
            Err(err) if err.is(Errno::EBUSY) => return Ok(false),
            // Somebody else drops it at the same time, or an operator did before.
            Err(err) if err.is(Errno::ENOENT) && attempt < ATTEMPTS => {}
            Err(err) if err.is(Errno::ENOENT) => return Ok(false),
            Err(err) => return Err(err),
        }
    }
    Ok(false)
}

/// All elements in the table whose comment `matches`.
pub(super) fn find<L: Layout>(nft: &mut Nft, matches: impl Fn(&str) -> bool) -> Result<Vec<Placed>> {
    let mut found = Vec::new();
    for set in nft.sets(L::TABLE)? {
        for element in nft.elements(L::TABLE.set(&set))? {
            if matches(&element.comment) {
                found.push(Placed { set: set.clone(), element });
            }
        }
    }
    Ok(found)
}

/// Deletes elements, as long as they are what they were when they were found.
pub(super) fn delete<L: Layout>(nft: &mut Nft, elements: &[Placed]) -> Result<()> {
    for chunk in elements.chunks(CHUNK) {
        let mut left: Vec<&Placed> = chunk.iter().collect();
        let mut attempts = 0;
        while !left.is_empty() {
            attempts += 1;
            let mut batch = Batch::new();
            for placed in &left {
                batch.delete_element(set::<L>(&placed.set), &placed.element.key);
            }
            match nft.commit(&batch) {
                Ok(()) => break,
                // Another DEL or GC was there in between.
                Err(err) if err.is(Errno::ENOENT) && attempts < ATTEMPTS => {}
                Err(err) => return Err(err),
            }
            let mut still = Vec::new();
            for placed in left {
                if nft.element(set::<L>(&placed.set), &placed.element.key)?.as_ref() == Some(&placed.element)
                {
                    still.push(placed);
                }
            }
            left = still;
        }
    }
    Ok(())
}

/// Removes the owner's elements, and what nobody uses any more without them. `hints` are
/// where they should be: if all are there and the owner's, nothing is listed.
pub(super) fn remove<L: Layout>(nft: &mut Nft, owner: &Owner, hints: &[(String, Key)]) -> Result<()> {
    let mut found = Vec::new();
    for (name, key) in hints {
        match nft.element(set::<L>(name), key)? {
            Some(element) if owner.owns(&element.comment) => {
                found.push(Placed { set: name.clone(), element });
            }
            _ => break,
        }
    }
    if hints.is_empty() || found.len() < hints.len() {
        // Hashed once: this may look at thousands.
        let tag = owner.tag();
        found = find::<L>(nft, |comment| tag_of(comment) == tag)?;
    }
    delete::<L>(nft, &found)?;
    // The last one out: nobody should find rules on a host without pods. Nearly always one
    // look at the owner's own sets says that others are still there.
    for placed in &found {
        if !nft.is_empty(set::<L>(&placed.set))? {
            return Ok(());
        }
    }
    if found.is_empty() { Ok(()) } else { drop_all_unused::<L>(nft) }
}

/// Removes the elements of all attachments of `network` that aren't in `valid`, and then
/// the sets, and in the end the table, that nobody uses any more.
pub(super) fn gc<L: Layout>(nft: &mut Nft, network: &str, valid: &[Attachment]) -> Result<()> {
    if !nft.has_table(L::TABLE)? {
        return Ok(());
    }
    let is_stale = stale(network, valid);
    let stale = find::<L>(nft, is_stale)?;
    delete::<L>(nft, &stale)?;
    if stale.is_empty() { Ok(()) } else { drop_all_unused::<L>(nft) }
}

/// [`drop_unused`] for all sets and the table.
fn drop_all_unused<L: Layout>(nft: &mut Nft) -> Result<()> {
    let sets: Vec<String> = nft.sets(L::TABLE)?.into_iter().filter(|set| !is_fixed::<L>(set)).collect();
    drop_unused::<L>(nft, &sets, true)
}

/// What a comment of [`Owner::comment`] begins with.
pub(super) fn tag_of(comment: &str) -> &str {
    comment.split(',').next().unwrap_or_default()
}

/// Tells comments of attachments of `network` that aren't in `valid` from all others.
pub(super) fn stale(network: &str, valid: &[Attachment]) -> impl Fn(&str) -> bool {
    let prefix = format!("{}-", hash16(network));
    let keep: BTreeSet<String> = valid
        .iter()
        .map(|attachment| Owner { network: network.to_owned(), attachment: attachment.clone() }.tag())
        .collect();
    move |comment| comment.starts_with(&prefix) && !keep.contains(tag_of(comment))
}
