//! Maps ports in nf_tables, by maps in the table `inet cnimble`. A mapping is one element of a map. Its key is protocol
//! and port, with the address of the host if there is one, and its value is the pod's address and port. One rule looks
//! all of them up:
//! ```text
//! dnat ip to meta l4proto . th dport map @portmap4
//! ```
//! Only packets to an address of this host (`fib daddr type local`) get there. So packets that the host forwards to
//! port 80 of another machine are left alone (CVE-2025-67499).

mod check;
pub(super) mod conditions;
mod conflict;
mod layout;
mod links;
mod names;
pub(super) mod services;

use std::collections::BTreeSet;
use std::net::IpAddr;

use ipnetwork::IpNetwork;
use nix::errno::Errno;

use cnimble_cni::Owner;
use cnimble_netlink as netlink;
use cnimble_netlink::nft::{Element, Key, Nft};

use super::holder::{Holder, IsGone};
use super::{Forward, foreign};
use crate::backend::Refused;
use crate::elements::{self, Changes, Layout, LookUp, Placed, Refusal, first_name};
use crate::undo::undone;
pub(super) use check::check;
use conflict::Keys;
use links::leave;
pub(super) use links::{close_link, close_orphans, is_noted, note_link, orphans};
pub(crate) use names::Portmap;
use names::{ALL, LOCAL, element, for_family, hairpin_set};
pub(super) use names::{hairpin_network, has_ports, is_all, is_conditional};

/// Returns the owner's comment with the number of its elements. By this number DEL knows whether it has found all.
fn comment(owner: &Owner, count: usize) -> String {
    owner.comment_with(&format!(", of: {count}"))
}

/// Returns the number of elements in such a comment, or `None` if the comment has none.
fn count_in(comment: &str) -> Option<usize> {
    let (_, rest) = comment.split_once(", of: ")?;
    rest.split(',').next()?.parse().ok()
}

/// `NF_IP_PRI_NAT_DST` (linux/netfilter_ipv4.h): the priority of the Go plugins' chains, and of iptables' table nat.
const GO_PRIORITY: i32 = -100;

/// Returns whether packets meet the Go plugins' rules before ours. False without our chain, and for a chain of an
/// earlier version. That has the same priority as theirs, and then the chain that was registered last runs first.
pub(crate) fn runs_after_go(nft: &mut Nft) -> netlink::Result<bool> {
    let priority = nft.priority(Portmap::TABLE.chain(names::PREROUTING))?;
    Ok(priority.is_some_and(|priority| priority > GO_PRIORITY))
}

/// Returns the elements of an attachment: one for each mapping ([`names`]), and the pod's addresses in the sets for
/// hairpin and localhost. Each comment has the number of all of them.
fn wanted(owner: &Owner, forward: &Forward) -> Vec<Placed> {
    let hashes = [&forward.conditions_v4, &forward.conditions_v6].map(|words| conditions::hash(words));
    let [v4, v6] = hashes.each_ref().map(Option::as_deref);
    let mut wanted: Vec<Placed> = forward
        .targets()
        .map(|(mapping, pod)| element(mapping, pod, if pod.is_ipv4() { v4 } else { v6 }))
        .collect();
    let used: Vec<IpNetwork> =
        forward.addrs.iter().filter(|pod| forward.targets().any(|(_, used)| used == *pod)).copied().collect();
    for pod in used.iter().filter(|_| forward.snat) {
        let hairpin = if forward.masq_all { for_family(ALL, pod.ip()).to_owned() } else { hairpin_set(pod) };
        wanted.push(Placed::new(hairpin, Key::ip(pod.ip()), ""));
        if forward.localhost() == Some(pod.ip()) {
            wanted.push(Placed::new(LOCAL.to_owned(), Key::ip(pod.ip()), ""));
        }
    }
    let comment = comment(owner, wanted.len());
    for placed in &mut wanted {
        placed.element.comment.clone_from(&comment);
    }
    wanted
}

/// The maximum number of elements that DEL looks up one by one.
const ONE_BY_ONE: usize = 64;
/// Attempts to make maps for conditions. Each time, another call may remove them with its last mapping.
const ATTEMPTS: usize = 40;

/// Inserts the mappings. Removes those of a container that `is_gone`, as its DEL would; an undo does not restore them.
/// Finally removes the container's own rules of an earlier run in the form of the Go plugins.
///
/// # Errors
/// Fails with [`Refused::Taken`] if a port belongs to another container, and with [`Refused::Kernel`] if the kernel
/// refuses a change. Nothing of it stays then.
pub(super) fn add(
    nft: &mut Nft,
    owner: &Owner,
    forward: &Forward,
    is_gone: IsGone<'_>,
) -> Result<Changes, Refused> {
    let has_own = foreign::refuse(nft, owner, forward, is_gone)?;
    let wanted = wanted(owner, forward);
    let mut made = Changes::default();
    let elements = Elements { owner, forward, wanted: &wanted, is_gone, services: services::local()? };
    let inserted = elements.keep_off_services(nft, &mut made).map_err(Refused::Kernel);
    match inserted.and_then(|()| elements.insert(nft, &mut made)) {
        Ok(mut changes) => {
            changes.also_made(made);
            match foreign::replace_own(nft, owner, forward, has_own) {
                Ok(()) => Ok(changes),
                Err(err) => Err(Refused::Taken(undone(err, revert(nft, &changes)))),
            }
        }
        Err(refused) if made.is_empty() => Err(refused),
        Err(refused) => match revert(nft, &made) {
            Ok(()) => Err(refused),
            failed => Err(Refused::Taken(undone(refused, failed))),
        },
    }
}

/// Takes the changes of an ADD back. An ADD that has made the part has made the sets for the addresses of Services,
/// too. These are not the layout's, so they go here, and with them the table if it has nothing else.
pub(super) fn revert(nft: &mut Nft, changes: &Changes) -> netlink::Result<()> {
    elements::revert::<Portmap>(nft, changes)?;
    if !changes.made_part || nft.has_chain(Portmap::TABLE.chain(names::PREROUTING))? {
        return Ok(());
    }
    services::remove(nft)?;
    if !elements::drop_part::<Portmap>(nft)? {
        // A concurrent ADD has made the part again, and may need the addresses of Services.
        services::refresh(nft)?;
    }
    Ok(())
}

/// What an ADD inserts, and the present addresses of Services.
struct Elements<'a> {
    owner: &'a Owner,
    forward: &'a Forward,
    wanted: &'a [Placed],
    is_gone: IsGone<'a>,
    services: BTreeSet<IpAddr>,
}

impl Elements<'_> {
    /// Excludes the addresses of Services. It must come before the mappings, so that no packet for a Service meets
    /// them. Adds to `made` what an undo has to remove.
    fn keep_off_services(&self, nft: &mut Nft, made: &mut Changes) -> netlink::Result<()> {
        if self.services.is_empty() {
            return Ok(());
        }
        made.also_made(elements::prepare::<Portmap>(nft)?);
        services::keep_off(nft, &self.services)
    }

    /// Inserts the elements, and makes the maps for conditions before if they are missing. Adds to `made` what an undo
    /// has to remove besides the returned changes, also after an error.
    fn insert(&self, nft: &mut Nft, made: &mut Changes) -> Result<Changes, Refused> {
        let Elements { owner, forward, wanted, is_gone, ref services } = *self;
        let id = &owner.attachment.container_id;
        let around = |nft: &mut Nft, sets: &BTreeSet<String>| {
            // The node has no addresses of Services any more, so those in the sets may be its own by now.
            if services.is_empty() && sets.iter().any(|set| services::is_set(set)) {
                services::keep_off(nft, services)?;
            }
            conflict::look_around(nft, owner, wanted, sets, Keys::OfOtherSets)
        };
        let mut attempts = 0;
        loop {
            match elements::insert_many::<Portmap>(nft, wanted, id, &around) {
                Ok(changes) => return Ok(changes),
                Err(Refusal::Kernel(err)) => return Err(Refused::Kernel(err)),
                Err(Refusal::Taken(old)) => make_room(nft, &old.element, is_gone)?,
                // A DEL of the last mapping in a map may remove the map each time.
                Err(Refusal::Lacks(sets)) if attempts < ATTEMPTS => {
                    attempts += 1;
                    made.also_made(elements::prepare::<Portmap>(nft)?);
                    match conditions::make_maps(nft, &sets, forward) {
                        Ok(()) => made.made_sets.extend(sets),
                        // The next look finds what is missing now.
                        Err(failure) if attempts < ATTEMPTS && failure.is_overtaken => {}
                        Err(failure) => return Err(Refused::Taken(failure.err)),
                    }
                }
                Err(Refusal::Lacks(sets)) => {
                    let what = format!("fill set {}", Portmap::TABLE.set(&sets.join(", ")));
                    return Err(Refused::Kernel(netlink::Error::new(what, Errno::EBUSY)));
                }
            }
        }
    }
}

/// Removes all mappings of the container that has an element in the way, if it `is_gone`. Otherwise fails with
/// [`Refused::Taken`].
fn make_room(nft: &mut Nft, old: &Element, is_gone: IsGone<'_>) -> Result<(), Refused> {
    let gone = conflict::holder(old).filter(is_gone);
    let Some(Holder { tag: Some(tag), .. }) = gone else { return Err(Refused::Taken(conflict::taken(old))) };
    let expelled = elements::expel::<Portmap>(nft, &tag)?;
    log::info!("{} port mappings of {} are removed: it is gone", expelled.len(), old.comment);
    super::conntrack::after(super::conntrack::of_elements(&expelled).collect());
    Ok(())
}

/// Fails with [`Refused::Taken`] if an element of another container is in the way of the ports. For the iptables
/// backend, which inserts no elements. Removes those of a container that `is_gone`.
pub(super) fn refuse_taken(
    nft: &mut Nft,
    owner: &Owner,
    forward: &Forward,
    is_gone: IsGone<'_>,
) -> Result<(), Refused> {
    let wanted = wanted(owner, forward);
    loop {
        let sets: BTreeSet<String> = elements::our_sets::<Portmap>(nft)?.into_iter().collect();
        match conflict::look_around(nft, owner, &wanted, &sets, Keys::All) {
            Ok(()) => return Ok(()),
            Err(Refusal::Kernel(err)) => return Err(Refused::Kernel(err)),
            Err(Refusal::Taken(old)) => make_room(nft, &old.element, is_gone)?,
            Err(Refusal::Lacks(_)) => return Ok(()),
        }
    }
}

/// Removes and returns the owner's elements, then unused sets and the unused part.
///
/// Looks the elements up where `forward` says, if these are at most [`ONE_BY_ONE`]. Each element's comment has the
/// number of the owner's elements. If as many were found as each of them says, no set is listed for others. Otherwise,
/// or if none was found, lists all sets until no element of the owner is left.
pub(super) fn remove(
    nft: &mut Nft,
    owner: &Owner,
    forward: Option<&Forward>,
) -> netlink::Result<Vec<Placed>> {
    let generation = nft.told_generation();
    let mut removed = configured(nft, owner, forward)?;
    elements::delete_seen::<Portmap>(nft, &removed, generation)?;
    let complete = !removed.is_empty()
        && removed.iter().all(|placed| count_in(&placed.element.comment) == Some(removed.len()));
    // A listing may be incomplete while other elements make the kernel's hash table grow. So it is repeated until it is
    // empty.
    if !complete {
        loop {
            let found = elements::remove::<Portmap>(nft, owner, &[])?;
            if found.is_empty() {
                break;
            }
            removed.extend(found);
        }
    }
    // A DEL that was killed may have left an unused part.
    if !removed.is_empty() || Portmap::is_idle(nft)? {
        leave(nft, &removed)?;
    }
    Ok(removed)
}

/// Returns the owner's elements that the configuration leads to. Returns none if they are too many to look up each, or
/// `forward` is unknown.
fn configured(nft: &mut Nft, owner: &Owner, forward: Option<&Forward>) -> netlink::Result<Vec<Placed>> {
    let mut found = Vec::new();
    let wanted = forward.map(|forward| wanted(owner, forward)).unwrap_or_default();
    if wanted.len() > ONE_BY_ONE {
        return Ok(found);
    }
    for placed in wanted {
        let looked_up = elements::look_up::<Portmap>(nft, owner, &placed.set, &placed.element.key)?;
        if let LookUp::Own(placed) = looked_up {
            found.push(placed);
        }
    }
    Ok(found)
}

/// Returns the elements of all pods that localhost reaches.
fn local(nft: &mut Nft) -> netlink::Result<Vec<Placed>> {
    let mut sets = elements::our_sets::<Portmap>(nft)?;
    sets.retain(|set| first_name(set) == LOCAL);
    let mut found = Vec::new();
    for set in sets {
        let listed = nft.elements(Portmap::TABLE.set(&set))?;
        found.extend(listed.into_iter().map(|element| Placed { set: set.clone(), element }));
    }
    Ok(found)
}

/// Returns the addresses of all pods that localhost reaches.
pub(super) fn local_pods(nft: &mut Nft) -> netlink::Result<Vec<IpAddr>> {
    Ok(local(nft)?.iter().filter_map(|placed| placed.element.key.as_ip()).collect())
}
