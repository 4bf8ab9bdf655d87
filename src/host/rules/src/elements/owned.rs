use std::collections::BTreeSet;

use nix::errno::Errno;

use cnimble_cni::owner::{stale, tag_of};
use cnimble_cni::{Attachment, Owner};
use cnimble_netlink::Result;
use cnimble_netlink::nft::{Batch, Nft};

use super::overlap::look_beside;
use super::{
    CHUNK, Layout, Placed, Scope, drop_all_unused, drop_unused, first_name, is_fixed, is_in_place, our_sets,
    set,
};
use crate::retry::ATTEMPTS;

/// Returns all elements of the part whose comment `matches`. Lists every set of the part.
pub(crate) fn find_elements<L: Layout>(nft: &mut Nft, matches: impl Fn(&str) -> bool) -> Result<Vec<Placed>> {
    Ok(list_part::<L>(nft, matches)?.found)
}

/// What one listing of all sets of a part has found.
struct SetListing {
    /// The elements whose comment matches.
    found: Vec<Placed>,
    /// The sets without elements that are not fixed. A DEL that was killed has left them.
    empty: Vec<String>,
    /// Whether the part has sets, and none of them has an element of anybody.
    only_empty_sets: bool,
}

fn list_part<L: Layout>(nft: &mut Nft, matches: impl Fn(&str) -> bool) -> Result<SetListing> {
    let (mut found, mut empty, mut any) = (Vec::new(), Vec::new(), false);
    let sets = our_sets::<L>(nft)?;
    for set in &sets {
        let elements = nft.elements(L::TABLE.set(set))?;
        if elements.is_empty() && !is_fixed::<L>(set) {
            empty.push(set.clone());
        }
        any |= !elements.is_empty();
        let matching = elements.into_iter().filter(|element| matches(&element.comment));
        found.extend(matching.map(|element| Placed { set: set.clone(), element }));
    }
    Ok(SetListing { found, empty, only_empty_sets: !sets.is_empty() && !any })
}

/// The number of attempts for one batch of deletions. There are many, because the kernel refuses a batch of an old
/// generation at no cost.
const DELETIONS: usize = 100;

/// Deletes those of the elements that are still as they were found. Skips an element that has changed meanwhile, or has
/// gone.
pub(crate) fn delete<L: Layout>(nft: &mut Nft, elements: &[Placed]) -> Result<()> {
    delete_seen::<L>(nft, elements, None)
}

/// Does what [`delete`] does. If `seen` is the generation in which all elements were found, the first attempt does not
/// look at the elements of the first chunk again.
///
/// A deletion names nothing but the key. If another DEL of the attachment was faster, an ADD may have taken the freed
/// key for a living pod. So each batch is bound to the generation in which its elements were seen.
pub(crate) fn delete_seen<L: Layout>(
    nft: &mut Nft,
    elements: &[Placed],
    mut seen: Option<u32>,
) -> Result<()> {
    for chunk in elements.chunks(CHUNK) {
        for attempt in 1.. {
            let (generation, present) = match seen.take() {
                Some(generation) => (generation, chunk.to_vec()),
                None => (nft.generation()?, unchanged::<L>(nft, chunk)?),
            };
            let mut batch = Batch::only_in(generation);
            for placed in &present {
                batch.delete_element(set::<L>(&placed.set), &placed.element.key);
            }
            match nft.commit(&batch) {
                Ok(()) => break,
                Err(err) if attempt < DELETIONS && [Errno::ERESTART, Errno::ENOENT].contains(&err.errno) => {}
                Err(err) => return Err(err),
            }
        }
    }
    Ok(())
}

/// Removes and returns the owner's elements, then unused sets and chains.
///
/// `hints` are the elements that the configuration leads to. If the owner has an element for each of them, in the first
/// or second set, no set is listed. So `hints` must be complete or empty: an element beyond them would stay. Call
/// [`Nft::is_supported`] first: its answer contains the generation that saves a second look.
pub(crate) fn remove<L: Layout>(nft: &mut Nft, owner: &Owner, hints: &[Placed]) -> Result<Vec<Placed>> {
    let generation = nft.told_generation();
    let (mut found, mut empty, mut only_empty_sets) = (Vec::new(), Vec::new(), false);
    for Placed { set: name, element } in hints {
        let placed = match nft.element(set::<L>(name), &element.key)? {
            Some(found) if owner.owns(&found.comment) => Some(Placed { set: name.clone(), element: found }),
            Some(_) => look_beside::<L>(nft, owner, name, &element.key)?,
            None => None,
        };
        match placed {
            Some(placed) if !found.contains(&placed) => found.push(placed),
            // An address may be given twice.
            Some(_) => {}
            None => break,
        }
    }
    if hints.is_empty() || found.len() < hints.len() {
        // Hashed once: this may look at thousands.
        let tag = owner.tag();
        SetListing { found, empty, only_empty_sets } = list_part::<L>(nft, |comment| tag_of(comment) == tag)?;
    }
    delete_seen::<L>(nft, &found, generation)?;
    // A DEL that was killed may have left empty sets.
    if only_empty_sets {
        drop_all_unused::<L>(nft)?;
    } else {
        leave::<L>(nft, &found)?;
        drop_unused::<L>(nft, &empty, Scope::Sets)?;
    }
    Ok(found)
}

/// Removes unused sets and chains after the elements `removed`, so that a host without pods has no rules. If a first
/// set still has elements, which one query shows, only the second sets of `removed` can be unused.
fn leave<L: Layout>(nft: &mut Nft, removed: &[Placed]) -> Result<()> {
    let sets: BTreeSet<&str> = removed.iter().map(|placed| placed.set.as_str()).collect();
    // Second sets have few elements, so that they are often empty while the first set is not.
    let (firsts, seconds): (Vec<&str>, Vec<&str>) = sets.into_iter().partition(|set| first_name(set) == *set);
    for name in firsts {
        if !nft.is_empty(set::<L>(name))? {
            let seconds: Vec<String> = seconds.into_iter().map(str::to_owned).collect();
            return drop_unused::<L>(nft, &seconds, Scope::Sets);
        }
    }
    if removed.is_empty() { Ok(()) } else { drop_all_unused::<L>(nft) }
}

/// Deletes and returns all elements of the owner with this tag, which must be gone. Lists all sets before each batch
/// and binds the batch to that generation, so it deletes no element that another owner has taken meanwhile. Unused sets
/// stay.
pub(crate) fn expel<L: Layout>(nft: &mut Nft, tag: &str) -> Result<Vec<Placed>> {
    let (mut expelled, mut attempts) = (Vec::new(), 0);
    loop {
        let generation = nft.generation()?;
        let mut found = find_elements::<L>(nft, |comment| tag_of(comment) == tag)?;
        found.truncate(CHUNK);
        let mut batch = Batch::only_in(generation);
        for placed in &found {
            batch.delete_element(set::<L>(&placed.set), &placed.element.key);
        }
        match nft.commit(&batch) {
            Ok(()) if found.is_empty() => return Ok(expelled),
            Ok(()) => expelled.append(&mut found),
            Err(err) if err.is(Errno::ERESTART) && attempts < ATTEMPTS => attempts += 1,
            Err(err) => return Err(err),
        }
    }
}

/// Removes and returns the elements of attachments of `network` that are not in `valid`. Then removes unused sets, and
/// the part if nothing uses it. Does nothing without the table.
pub(crate) fn gc<L: Layout>(nft: &mut Nft, network: &str, valid: &[Attachment]) -> Result<Vec<Placed>> {
    if !nft.has_table(L::TABLE)? {
        return Ok(Vec::new());
    }
    let is_stale = stale(network, valid);
    let generation = nft.told_generation();
    let SetListing { found: stale, empty, only_empty_sets } = list_part::<L>(nft, is_stale)?;
    delete_seen::<L>(nft, &stale, generation)?;
    if !stale.is_empty() || !empty.is_empty() || only_empty_sets {
        drop_all_unused::<L>(nft)?;
    }
    Ok(stale)
}

/// Returns those of the elements that are still in their sets with the same comment and data.
pub(crate) fn unchanged<L: Layout>(nft: &mut Nft, found: &[Placed]) -> Result<Vec<Placed>> {
    let mut unchanged = Vec::new();
    for placed in found {
        if is_in_place(nft, L::TABLE, placed)? {
            unchanged.push(placed.clone());
        }
    }
    Ok(unchanged)
}
