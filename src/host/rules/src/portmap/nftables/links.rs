//! Notes the links on which `route_localnet` was switched on, and switches it off when the mappings go.

use std::collections::BTreeSet;

use nix::errno::Errno;

use cnimble_netlink as netlink;
use cnimble_netlink::nft::{Batch, Element, Key, Nft};

use super::names::{LINKS, Portmap};
use super::{local, local_pods, services};
use crate::elements::{self, Changes, Layout, Placed, Scope, first_name};
use crate::portmap::localnet;
use crate::retry::{OVERTAKEN, retry};

/// Notes that we switch `route_localnet` on for a link. Makes the part and the set first if they are missing.
pub(in crate::portmap) fn note_link(nft: &mut Nft, link: &str) -> netlink::Result<()> {
    let (set, element) = (Portmap::TABLE.set(LINKS), Element::new(Key::ifname(link), ""));
    let mut batch = Batch::new();
    // `add` is no error if the link is noted already.
    batch.add_element(set, &element);
    match nft.commit(&batch) {
        Err(err) if err.is(Errno::ENOENT) => {}
        outcome => return outcome,
    }
    // The set does not exist, for example after a flush of the ruleset.
    retry(&OVERTAKEN, || {
        elements::prepare::<Portmap>(nft)?;
        let mut batch = Batch::new();
        if !nft.has_set(set)? {
            Portmap::create_set(&mut batch, LINKS);
        }
        batch.add_element(set, &element);
        nft.commit(&batch)
    })
}

/// Returns whether the link has a note. Without the set there is none.
pub(in crate::portmap) fn is_noted(nft: &mut Nft, link: &str) -> netlink::Result<bool> {
    let set = Portmap::TABLE.set(LINKS);
    Ok(nft.has_set(set)? && nft.element(set, &Key::ifname(link))?.is_some())
}

/// Takes back that an ADD has opened a link: switches `route_localnet` off and removes the note. Does nothing if a pod
/// other than those of `changes` needs it on the same link.
pub(in crate::portmap) fn close_link(nft: &mut Nft, changes: &Changes, link: &str) -> netlink::Result<()> {
    for Placed { set, element } in local(nft)? {
        let others = element.key.as_ip().filter(|_| !changes.has_inserted(&set, &element));
        if let Some(pod) = others
            && localnet::towards(pod)?.as_deref() == Some(link)
        {
            return Ok(());
        }
    }
    localnet::close_noted(link)?;
    forget_links(nft, &[Element::new(Key::ifname(link), "")])
}

/// Removes the notes that still exist.
fn forget_links(nft: &mut Nft, links: &[Element]) -> netlink::Result<()> {
    let links: Vec<Placed> =
        links.iter().map(|element| Placed { set: LINKS.to_owned(), element: element.clone() }).collect();
    elements::delete::<Portmap>(nft, &links)
}

/// Returns those of the `opened` links that have no note and that no mapping needs. This happens if the ruleset is
/// flushed while there are mappings.
pub(in crate::portmap) fn orphans(nft: &mut Nft, opened: Vec<String>) -> netlink::Result<Vec<String>> {
    if opened.is_empty() {
        return Ok(opened);
    }
    let noted = nft.elements(Portmap::TABLE.set(LINKS))?;
    let mut known: BTreeSet<String> = noted.iter().filter_map(|element| element.key.as_ifname()).collect();
    for pod in local_pods(nft)? {
        known.extend(localnet::towards(pod)?);
    }
    Ok(opened.into_iter().filter(|link| !known.contains(link)).collect())
}

/// Switches `route_localnet` off on the links that [`orphans`] returns.
pub(in crate::portmap) fn close_orphans(nft: &mut Nft, opened: Vec<String>) -> netlink::Result<()> {
    for link in orphans(nft, opened)? {
        let closed = localnet::close(&link)?;
        if closed && orphans(nft, vec![link.clone()])?.is_empty() {
            // A concurrent ADD has made a mapping that needs it.
            note_link(nft, &link)?;
            localnet::reopen(&link)?;
        }
    }
    Ok(())
}

/// Removes unused sets after the elements `removed`. If no mapping is left on the host, also switches `route_localnet`
/// off on all noted links, and then removes the part with the guard. Pass no elements if the caller knows none.
pub(super) fn leave(nft: &mut Nft, removed: &[Placed]) -> netlink::Result<()> {
    // If each of these sets has other elements, nothing is unused. Nearly always this is so.
    let sets: BTreeSet<&str> = removed.iter().map(|placed| placed.set.as_str()).collect();
    let mut shared = !sets.is_empty();
    for set in sets {
        shared = shared && !nft.is_empty(Portmap::TABLE.set(set))?;
    }
    if shared {
        return Ok(());
    }
    let (mut used, mut empty) = (false, Vec::new());
    for set in nft.sets(Portmap::TABLE)? {
        if set == LINKS || !Portmap::is_ours(first_name(&set)) {
            continue;
        }
        if !nft.is_empty(Portmap::TABLE.set(&set))? {
            used = true;
        } else if !Portmap::FIXED.contains(&set.as_str()) {
            empty.push(set);
        }
    }
    elements::drop_unused::<Portmap>(nft, &empty, Scope::Sets)?;
    if used {
        return Ok(());
    }
    let links = nft.elements(Portmap::TABLE.set(LINKS))?;
    let mut closed = Vec::new();
    for name in links.iter().filter_map(|element| element.key.as_ifname()) {
        if localnet::close_noted(&name)? {
            closed.push(name);
        }
    }
    forget_links(nft, &links)?;
    services::remove(nft)?;
    if !elements::drop_part::<Portmap>(nft)? {
        // The part is in use again, so a concurrent ADD may need the addresses of Services and `route_localnet`.
        services::refresh(nft)?;
        for name in &closed {
            note_link(nft, name)?;
            localnet::reopen(name)?;
        }
    }
    Ok(())
}
