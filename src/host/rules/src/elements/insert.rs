use std::collections::BTreeSet;

use nix::errno::Errno;

use cnimble_netlink::nft::{Batch, Key, Nft};
use cnimble_netlink::{Error, IfPresent as _, Result};

use super::plan::{Changes, Refusal, create_part};
use super::{Layout, Placed, Scope, delete, drop_unused, is_fixed, is_in_place, lists_part, set};
use crate::retry::{ATTEMPTS, OVERTAKEN, retry};

/// Returns an error if the kernel can't make the part, or a set that is made on demand ([`Layout::SAMPLE`]). Changes
/// nothing. Asks no further if the part exists.
pub(super) fn try_out<L: Layout>(nft: &mut Nft) -> Result<()> {
    let has_table = nft.has_table(L::TABLE)?;
    if has_table && lists_part::<L>(nft)? {
        return Ok(());
    }
    let mut batch = Batch::new();
    if !has_table {
        batch.create_table(L::TABLE);
    }
    create_part::<L>(&mut batch);
    if let Some(set) = L::SAMPLE {
        L::create_set(&mut batch, set);
        L::add_rule(&mut batch, set);
    }
    // EEXIST means that a concurrent ADD has just made it, so it can be made.
    nft.try_out(&batch).default_for(&[Errno::EEXIST])
}

/// Looks for obstacles in other sets before an insertion. It gets the names of all sets that rules of the part look at,
/// and its refusal ends the insertion.
type LookAround<'l> = &'l dyn Fn(&mut Nft, &BTreeSet<String>) -> std::result::Result<(), Refusal>;

/// Inserts the elements after a look at each key. Looks again if a concurrent process was faster.
fn insert_if_free<L: Layout>(
    nft: &mut Nft,
    wanted: &[Placed],
    container: Option<&str>,
    look_around: LookAround<'_>,
) -> std::result::Result<Changes, Refusal> {
    for attempt in 1.. {
        let plan = Changes::after_look::<L>(nft, wanted, container)?;
        look_around(nft, &plan.looked_at)?;
        match commit::<L>(nft, &plan) {
            Ok(()) => return Ok(plan),
            // A concurrent process made the table, or inserted or deleted an element with the key.
            Err(err) if attempt < ATTEMPTS && OVERTAKEN.contains(&err.errno) => {}
            Err(err) => return Err(err.into()),
        }
    }
    Err(Error::new(format!("fill table {}", L::TABLE), Errno::EBUSY).into())
}

/// Makes the changes. ENOBUFS means that the kernel had no memory for its answer; then a look tells whether they have
/// been made.
fn commit<L: Layout>(nft: &mut Nft, plan: &Changes) -> Result<()> {
    match nft.commit(&plan.batch::<L>()) {
        Err(err) if err.is(Errno::ENOBUFS) && is_done::<L>(nft, plan)? => Ok(()),
        answered => answered,
    }
}

/// Returns whether the changes of the plan have been made, by the first of them: a batch is applied as a whole.
fn is_done<L: Layout>(nft: &mut Nft, plan: &Changes) -> Result<bool> {
    match plan.inserted.first() {
        Some((placed, _)) => is_in_place(nft, L::TABLE, placed),
        None => Ok(nft.has_table(L::TABLE)? && lists_part::<L>(nft)?),
    }
}

/// Does what [`insert`](super::transaction::insert) does, for many elements that are probably new. Looks at their keys
/// only after the kernel has refused the first batch. Calls `look_around` before each batch.
///
/// `container` is the ID of the owner's container. With it, a second interface of the container may have the same key.
///
/// # Errors
/// Fails with the refusal of `look_around`, with [`Refusal::Taken`] or with [`Refusal::Lacks`].
pub(crate) fn insert_many<L: Layout>(
    nft: &mut Nft,
    wanted: &[Placed],
    container: &str,
    look_around: LookAround<'_>,
) -> std::result::Result<Changes, Refusal> {
    let mut plan = Changes::unseen::<L>(nft, wanted)?;
    look_around(nft, &plan.looked_at)?;
    if !plan.lacks.is_empty() {
        return Err(Refusal::Lacks(std::mem::take(&mut plan.lacks)));
    }
    match commit::<L>(nft, &plan) {
        Ok(()) => Ok(plan),
        Err(err) if OVERTAKEN.contains(&err.errno) => {
            insert_if_free::<L>(nft, wanted, Some(container), look_around)
        }
        Err(err) => Err(err.into()),
    }
}

/// Makes the part if it is missing and repairs its rules, without inserting elements.
pub(crate) fn prepare<L: Layout>(nft: &mut Nft) -> Result<Changes> {
    retry(&OVERTAKEN, || {
        let plan = Changes::without_elements::<L>(nft)?;
        commit::<L>(nft, &plan)?;
        Ok(plan)
    })
}

/// Deletes the element with this key, whoever owns it, and notes it in `changes`, so that an undo restores it. Returns
/// false if there is none.
pub(crate) fn also_delete<L: Layout>(
    nft: &mut Nft,
    changes: &mut Changes,
    name: &str,
    key: &Key,
) -> Result<bool> {
    let Some(element) = nft.element(set::<L>(name), key)? else { return Ok(false) };
    let placed = Placed { set: name.to_owned(), element };
    delete::<L>(nft, std::slice::from_ref(&placed))?;
    changes.removed.push(placed);
    Ok(true)
}

/// Takes the changes back. Removes the inserted elements that are unchanged, and restores those that were replaced or
/// deleted. Then removes unused sets and chains, also those that a concurrent DEL has left for the sake of these
/// elements.
pub(crate) fn revert<L: Layout>(nft: &mut Nft, changes: &Changes) -> Result<()> {
    retry(&[Errno::ENOENT, Errno::EEXIST, Errno::ERESTART], || {
        let batch = reverting::<L>(nft, changes)?;
        nft.commit(&batch)
    })?;
    let found = changes.inserted.iter().map(|(placed, _)| &placed.set).filter(|set| !is_fixed::<L>(set));
    let sets: Vec<String> = changes.made_sets.iter().chain(found).cloned().collect();
    let has_part = changes.made_part || !L::STAYS && !changes.inserted.is_empty();
    drop_unused::<L>(nft, &sets, if has_part { Scope::Part } else { Scope::Sets })
}

/// Returns the batch that takes the changes back. Its commit fails with ERESTART if nf_tables has changed since,
/// because an element may belong to another pod by then.
fn reverting<L: Layout>(nft: &mut Nft, changes: &Changes) -> Result<Batch> {
    let mut batch = Batch::only_in(nft.generation()?);
    for (placed, old) in &changes.inserted {
        if !is_in_place(nft, L::TABLE, placed)? {
            continue;
        }
        let set = set::<L>(&placed.set);
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
