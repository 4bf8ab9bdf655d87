use std::collections::BTreeSet;

use nix::errno::Errno;

use cnimble_cni::owner::{stale, tag_of};
use cnimble_cni::{Attachment, Owner};
use cnimble_netlink::Result;
use cnimble_netlink::nft::{Batch, Nft};

use super::overlap::look_beside;
use super::{CHUNK, Layout, Placed, Scope, drop_all_unused, drop_unused, first, is_in_place, our_sets, set};
use crate::retry::ATTEMPTS;

/// All elements of the part with a comment that `matches`.
pub(crate) fn find<L: Layout>(nft: &mut Nft, matches: impl Fn(&str) -> bool) -> Result<Vec<Placed>> {
    Ok(look::<L>(nft, matches)?.found)
}

struct Look {
    found: Vec<Placed>,
    only_empty_sets: bool,
}

fn look<L: Layout>(nft: &mut Nft, matches: impl Fn(&str) -> bool) -> Result<Look> {
    let (mut found, mut any) = (Vec::new(), false);
    let sets = our_sets::<L>(nft)?;
    for set in &sets {
        for element in nft.elements(L::TABLE.set(set))? {
            any = true;
            if matches(&element.comment) {
                found.push(Placed { set: set.clone(), element });
            }
        }
    }
    Ok(Look { found, only_empty_sets: !sets.is_empty() && !any })
}

/// Deletes elements that have not changed since they were found.
pub(crate) fn delete<L: Layout>(nft: &mut Nft, elements: &[Placed]) -> Result<()> {
    for chunk in elements.chunks(CHUNK) {
        let mut remaining = chunk.to_vec();
        let mut attempts = 0;
        while !remaining.is_empty() {
            attempts += 1;
            let mut batch = Batch::new();
            for placed in &remaining {
                batch.delete_element(set::<L>(&placed.set), &placed.element.key);
            }
            match nft.commit(&batch) {
                Ok(()) => break,
                // A concurrent DEL or GC has deleted some.
                Err(err) if err.is(Errno::ENOENT) && attempts < ATTEMPTS => {}
                Err(err) => return Err(err),
            }
            remaining = unchanged::<L>(nft, &remaining)?;
        }
    }
    Ok(())
}

/// Removes and returns the owner's elements, then unused sets and chains. If all are where `hints` says, lists nothing.
pub(crate) fn remove<L: Layout>(nft: &mut Nft, owner: &Owner, hints: &[Placed]) -> Result<Vec<Placed>> {
    let (mut found, mut only_empty_sets) = (Vec::new(), false);
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
        Look { found, only_empty_sets } = look::<L>(nft, |comment| tag_of(comment) == tag)?;
    }
    delete::<L>(nft, &found)?;
    // A DEL that was killed may have left what it had emptied.
    if only_empty_sets {
        drop_all_unused::<L>(nft)?;
    } else {
        leave::<L>(nft, &found)?;
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
    let Look { found: stale, only_empty_sets } = look::<L>(nft, is_stale)?;
    delete::<L>(nft, &stale)?;
    if !stale.is_empty() || only_empty_sets {
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
