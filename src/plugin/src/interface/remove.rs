//! DEL and GC: pairs are found by whatever is left to find them by.

use std::collections::HashSet;

use cnimble_cni::{Attachment, Error, Owner, owner};
use cnimble_netlink::Netlink;
use cnimble_netlink::link::{Filter, Link};

pub use super::told::{delete, not_in_use};
use super::told::{has_mac, told_on_host};
use super::{inside, pair};
use crate::Call;

/// The first error, with the others in its details.
///
/// # Errors
/// If there is one.
pub fn all(outcomes: impl IntoIterator<Item = Result<(), Error>>) -> Result<(), Error> {
    let mut errors = outcomes.into_iter().filter_map(Result::err);
    match errors.next() {
        None => Ok(()),
        Some(first) => Err(errors.fold(first, |all, next| all.details(next.to_string()))),
    }
}

/// The host's end: ours by its name, the Go plugins' by prevResult. `is_port`: whether the
/// plugin's are ports of a bridge. Where there is no namespace to look into, a veth is found under
/// whatever name.
///
/// # Errors
/// Fails if the kernel refuses the request.
pub fn find(call: &Call, host: &mut Netlink, owner: &Owner, is_port: bool) -> Result<Option<Link>, Error> {
    if let Some(link) = ours(host, owner)? {
        return Ok(Some(link));
    }
    if let Some(link) = in_prev_result(call, host, is_port)? {
        return Ok(Some(link));
    }
    match call.find_netns()? {
        Some(_) => Ok(None),
        None => renamed(call, host, owner),
    }
}

/// Removes `veth`, if the host's end was found, else what the attachment has in the pod.
///
/// # Errors
/// If it is still there.
pub fn veth(call: &Call, host: &mut Netlink, veth: Option<Link>) -> Result<(), Error> {
    match veth {
        Some(link) => delete(host, &link),
        None => inside::remove(call, "veth", Some(host), None),
    }
}

/// Removes the links of `kind` on the host of those attachments of `network` that aren't `valid`. The alias names
/// the attachment; links without one are left alone, since their owner is unknown.
///
/// # Errors
/// After all were tried.
pub fn stale(host: &mut Netlink, kind: &str, network: &str, valid: &[Attachment]) -> Result<(), Error> {
    let links = Filter { master: None, kind: Some(kind) };
    let is_stale = owner::stale(network, valid);
    let stale: Vec<Link> = host.links(&links)?.into_iter().filter(|link| is_stale(&link.alias)).collect();
    Ok(host.remove_links(&stale)?)
}

/// Returns those of `owners` whose pair is still there under its name, with an alias that names no attachment.
/// [`stale`], which goes by aliases, doesn't remove such a pair.
///
/// # Errors
/// Fails if the kernel refuses the request.
pub fn unmarked(owners: Vec<Owner>) -> Result<Vec<Owner>, Error> {
    if owners.is_empty() {
        return Ok(owners);
    }
    let veths = Netlink::open()?.links(&Filter { master: None, kind: Some("veth") })?;
    let names: HashSet<&str> = veths
        .iter()
        .filter(|link| link.far.is_some() && owner::tag(&link.alias).is_none())
        .map(|link| link.name.as_str())
        .collect();
    let is_there = |owner: &Owner| pair::host_names(owner).any(|name| names.contains(name.as_str()));
    Ok(owners.into_iter().filter(is_there).collect())
}

/// The host's end, by its name, unless its alias names another attachment. An alias that names none
/// says nothing: an ADD was killed before it could write it, or something else has written one
/// since; and a name of 32 bits is no accident.
fn ours(host: &mut Netlink, owner: &Owner) -> Result<Option<Link>, Error> {
    let mut unmarked = None;
    for name in pair::host_names(owner) {
        match host.find_link(&name)? {
            None => break,
            Some(link) if owner.owns(&link.alias) => return Ok(Some(link)),
            Some(link) if link.kind == "veth" && owner::tag(&link.alias).is_none() => {
                unmarked = unmarked.or(Some(link));
            }
            Some(_) => {}
        }
    }
    Ok(unmarked)
}

/// The host's end of a pod that the Go plugins made, by name and MAC from prevResult, for
/// a DEL without a namespace. A link with an alias that names an attachment belongs to that one.
fn in_prev_result(call: &Call, host: &mut Netlink, is_port: bool) -> Result<Option<Link>, Error> {
    for told in told_on_host(call) {
        if let Some(link) = host.find_link(&told.name)?
            && link.kind == "veth"
            && link.master.is_some() == is_port
            && owner::tag(&link.alias).is_none()
            && has_mac(&link, told)
        {
            return Ok(Some(link));
        }
    }
    Ok(None)
}

/// The host's end under another name than ADD gave it: by its alias, or by its MAC.
fn renamed(call: &Call, host: &mut Netlink, owner: &Owner) -> Result<Option<Link>, Error> {
    let own = owner.tag();
    let is_ours = |link: &Link| match owner::tag(&link.alias) {
        Some(tag) => tag == own,
        None => told_on_host(call).any(|told| has_mac(link, told)),
    };
    let veths = host.links(&Filter { master: None, kind: Some("veth") })?;
    Ok(veths.into_iter().find(is_ours))
}
