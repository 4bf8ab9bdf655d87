use std::collections::BTreeSet;

use nix::errno::Errno;

use cnimble_cni::owner::{stale, tag_of};
use cnimble_cni::{Attachment, Owner};
use cnimble_netlink::Result;
use cnimble_netlink::nft::{Batch, Nft};

use super::overlap::look_beside;
use super::{
    CHUNK, Layout, Placed, Scope, drop_all_unused, drop_unused, first, is_fixed, is_in_place, our_sets, set,
};
use crate::retry::ATTEMPTS;

/// All elements of the part with a comment that `matches`.
pub(crate) fn find<L: Layout>(nft: &mut Nft, matches: impl Fn(&str) -> bool) -> Result<Vec<Placed>> {
    Ok(look::<L>(nft, matches)?.found)
}

struct Look {
    found: Vec<Placed>,
    /// Sets that a killed DEL has emptied. A fixed set may be empty.
    empty: Vec<String>,
    only_empty_sets: bool,
}

fn look<L: Layout>(nft: &mut Nft, matches: impl Fn(&str) -> bool) -> Result<Look> {
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
    Ok(Look { found, empty, only_empty_sets: !sets.is_empty() && !any })
}

/// Refused deletions before an error. A refusal for its generation costs the kernel nothing.
const DELETIONS: usize = 100;

/// Deletes those of the elements that are still as they were found. An element that has changed meanwhile, or is gone,
/// is left out without an error.
pub(crate) fn delete<L: Layout>(nft: &mut Nft, elements: &[Placed]) -> Result<()> {
    delete_seen::<L>(nft, elements, None)
}

/// Does the same as [`delete`]. If `seen` is the generation in which all elements were found, the first attempt needs no
/// second look at them.
///
/// A deletion names nothing but the key. Beside another DEL of the attachment, an ADD may have taken the freed key for a
/// pod that lives. So the kernel refuses a batch if the ruleset has changed since the elements were seen.
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

/// Removes and returns the owner's elements, then unused sets and chains. If all are where `hints` says, lists nothing.
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
        Look { found, empty, only_empty_sets } = look::<L>(nft, |comment| tag_of(comment) == tag)?;
    }
    delete_seen::<L>(nft, &found, generation)?;
    // A DEL that was killed may have left what it had emptied.
    if only_empty_sets {
        drop_all_unused::<L>(nft)?;
    } else {
        leave::<L>(nft, &found)?;
        drop_unused::<L>(nft, &empty, Scope::Sets)?;
    }
    Ok(found)
}

/// Leaves no rules on a host without pods. Nearly always one look at the owner's own sets shows other elements.
fn leave<L: Layout>(nft: &mut Nft, removed: &[Placed]) -> Result<()> {
    let sets: BTreeSet<&str> = removed.iter().map(|placed| placed.set.as_str()).collect();
    // Sets beside others have few elements, however many the others have.
    let (firsts, seconds): (Vec<&str>, Vec<&str>) = sets.into_iter().partition(|set| first(set) == *set);
    for name in firsts {
        if !nft.is_empty(set::<L>(name))? {
            let seconds: Vec<String> = seconds.into_iter().map(str::to_owned).collect();
            return drop_unused::<L>(nft, &seconds, Scope::Sets);
        }
    }
    if removed.is_empty() { Ok(()) } else { drop_all_unused::<L>(nft) }
}

/// Deletes and returns a gone owner's elements by its tag, but only elements that it saw.
pub(crate) fn expel<L: Layout>(nft: &mut Nft, tag: &str) -> Result<Vec<Placed>> {
    let (mut expelled, mut attempts) = (Vec::new(), 0);
    loop {
        let generation = nft.generation()?;
        let mut found = find::<L>(nft, |comment| tag_of(comment) == tag)?;
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

/// Removes and returns the elements of attachments of `network` outside `valid`, then unused sets and the unused part.
pub(crate) fn gc<L: Layout>(nft: &mut Nft, network: &str, valid: &[Attachment]) -> Result<Vec<Placed>> {
    if !nft.has_table(L::TABLE)? {
        return Ok(Vec::new());
    }
    let is_stale = stale(network, valid);
    let generation = nft.told_generation();
    let Look { found: stale, empty, only_empty_sets } = look::<L>(nft, is_stale)?;
    delete_seen::<L>(nft, &stale, generation)?;
    if !stale.is_empty() || !empty.is_empty() || only_empty_sets {
        drop_all_unused::<L>(nft)?;
    }
    Ok(stale)
}

pub(crate) fn unchanged<L: Layout>(nft: &mut Nft, found: &[Placed]) -> Result<Vec<Placed>> {
    let mut unchanged = Vec::new();
    for placed in found {
        if is_in_place(nft, L::TABLE, placed)? {
            unchanged.push(placed.clone());
        }
    }
    Ok(unchanged)
}
