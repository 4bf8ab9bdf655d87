//! An attachment's elements in the sets of a table of ours: put there, found again by their
//! owner, taken out.
//!
//! Everything is optimistic: the elements are sent alone, since table, sets and rules are
//! there from the second attachment on. Only when the kernel refuses is it asked what is
//! missing, and all that is missing goes into one batch with the elements. If somebody
//! else was faster, the kernel refuses again, and we look again.

use std::collections::BTreeSet;

use nix::errno::Errno;

use super::Owner;
use crate::net::nft::{Batch, Element, Key, Nft, Set, Table};
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

    /// Creates the table with its base chain, and the sets and rules that are always there.
    fn create_table(batch: &mut Batch);

    /// Creates a set that not every attachment needs, with its rules.
    fn create_set(batch: &mut Batch, set: &str);

    /// Whether `set` comes with the table.
    fn is_fixed(set: &str) -> bool;

    /// Deletes the table with all that [`Layout::create_table`] made, refused by the kernel
    /// if anything else is in it.
    fn delete_table(batch: &mut Batch);

    /// The chain whose rules use the sets.
    const CHAIN: &'static str;
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
    /// Each with the element of another owner that it replaced.
    inserted: Vec<(Placed, Option<Element>)>,
    /// Elements that went with those that were replaced.
    removed: Vec<Placed>,
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

fn set<L: Layout>(name: &str) -> Set<'_> {
    L::TABLE.set(name)
}

/// Puts the owner's elements in place. An element that is the owner's already stays; one
/// that is somebody else's is replaced, as the address (or port) has been given to us.
pub(super) fn insert<L: Layout>(nft: &mut Nft, owner: &Owner, wanted: &[Placed]) -> Result<Changes> {
    let mut plan = Changes {
        inserted: wanted.iter().map(|placed| (placed.clone(), None)).collect(),
        ..Changes::default()
    };
    let mut refused = None;
    for _ in 0..ATTEMPTS {
        match nft.commit(&batch::<L>(&plan)) {
            Ok(()) => return Ok(plan),
            // Somebody may have been faster; or the table, a set, an element is or isn't there.
            Err(err) if matches!(err.errno, Errno::ENOENT | Errno::EEXIST | Errno::EBUSY) => {
                refused = Some(err);
            }
            Err(err) => return Err(err),
        }
        plan = look::<L>(nft, owner, wanted)?;
    }
    Err(refused.unwrap_or_else(|| Error::new(format!("fill table {}", L::TABLE), Errno::EBUSY)))
}

/// What has to be done, by what the kernel has.
fn look<L: Layout>(nft: &mut Nft, owner: &Owner, wanted: &[Placed]) -> Result<Changes> {
    let mut plan = Changes { made_table: !nft.has_table(L::TABLE)?, ..Changes::default() };
    for placed in wanted {
        let known = L::is_fixed(&placed.set) || plan.made_sets.contains(&placed.set);
        if !known && (plan.made_table || !nft.has_set(set::<L>(&placed.set))?) {
            plan.made_sets.push(placed.set.clone());
        }
        let old = nft.element(set::<L>(&placed.set), &placed.element.key)?;
        match old {
            Some(old) if owner.owns(&old.comment) && old.comment == placed.element.comment => {}
            old => plan.inserted.push((placed.clone(), old)),
        }
    }
    Ok(plan)
}

fn batch<L: Layout>(plan: &Changes) -> Batch {
    let mut batch = Batch::new();
    if plan.made_table {
        L::create_table(&mut batch);
    }
    for set in &plan.made_sets {
        L::create_set(&mut batch, set);
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
        if nft.element(set::<L>(&placed.set), &placed.element.key)?.is_none() {
            batch.create_element(set::<L>(&placed.set), &placed.element);
        }
    }
    match nft.commit(&batch) {
        Err(err) if !err.is(Errno::ENOENT) => return Err(err),
        _ => {}
    }
    drop_unused::<L>(nft, &changes.made_sets, changes.made_table)
}

/// Deletes sets (with their rules) and the table, unless somebody uses them: the kernel
/// refuses to delete what isn't empty, so nobody is overtaken.
pub(super) fn drop_unused<L: Layout>(nft: &mut Nft, sets: &[String], table: bool) -> Result<()> {
    let busy = |outcome: Result<()>| match outcome {
        Ok(()) => Ok(true),
        Err(err) if matches!(err.errno, Errno::EBUSY | Errno::ENOENT) => Ok(false),
        Err(err) => Err(err),
    };
    if table {
        let mut batch = Batch::new();
        delete_sets::<L>(nft, &mut batch, sets)?;
        L::delete_table(&mut batch);
        if busy(nft.commit(&batch))? {
            return Ok(());
        }
    }
    for set in sets {
        let mut batch = Batch::new();
        delete_sets::<L>(nft, &mut batch, std::slice::from_ref(set))?;
        busy(nft.commit(&batch))?;
    }
    Ok(())
}

fn delete_sets<L: Layout>(nft: &mut Nft, batch: &mut Batch, sets: &[String]) -> Result<()> {
    if sets.is_empty() {
        return Ok(());
    }
    let rules = nft.rules(L::TABLE, Some(L::CHAIN))?;
    for name in sets {
        for rule in rules.iter().filter(|rule| rule.uses_set(name)) {
            batch.delete_rule(L::TABLE.chain(L::CHAIN), rule.handle);
        }
        batch.delete_set(set::<L>(name));
    }
    Ok(())
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

/// Removes the owner's elements. `hints` are where they should be: if all are there and the
/// owner's, nothing is listed.
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
        found = find::<L>(nft, |comment| owner.owns(comment))?;
    }
    delete::<L>(nft, &found)
}

/// Removes the elements of all attachments of `network` that aren't in `valid`, and then
/// the sets, and in the end the table, that nobody uses any more.
pub(super) fn gc<L: Layout>(nft: &mut Nft, network: &str, valid: &[Attachment]) -> Result<()> {
    if !nft.has_table(L::TABLE)? {
        return Ok(());
    }
    let keep: BTreeSet<String> = valid
        .iter()
        .map(|attachment| Owner { network: network.to_owned(), attachment: attachment.clone() }.tag())
        .collect();
    let stale = find::<L>(nft, |comment| {
        let tag = comment.split(',').next().unwrap_or_default();
        Owner::in_network(comment, network) && !keep.contains(tag)
    })?;
    delete::<L>(nft, &stale)?;
    if stale.is_empty() {
        return Ok(());
    }
    let sets: Vec<String> = nft.sets(L::TABLE)?.into_iter().filter(|set| !L::is_fixed(set)).collect();
    drop_unused::<L>(nft, &sets, true)
}
