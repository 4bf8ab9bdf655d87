//! Removes pairs for DEL and GC, by all evidence that still exists.

use std::collections::HashSet;

use cnimble_cni::{Attachment, Error, Owner, owner};
use cnimble_netlink::Netlink;
use cnimble_netlink::link::{Filter, Link};

pub use super::result::{delete, is_another, not_in_use};
use super::result::{ends_on_host, has_mac};
use super::{inside, pair};
use crate::Call;

/// Returns the first error, with the others in its details.
pub fn all(outcomes: impl IntoIterator<Item = Result<(), Error>>) -> Result<(), Error> {
    let mut errors = outcomes.into_iter().filter_map(Result::err);
    match errors.next() {
        None => Ok(()),
        Some(first) => Err(errors.fold(first, |all, next| all.details(next.to_string()))),
    }
}

/// What the plugin uses the host's end for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HostEnd {
    /// The host's end is a port of a bridge.
    Port,
    /// The host's end is an interface of the host, without a master.
    Routed,
}

/// Finds the host's end by its name, or for the Go plugins by prevResult. If the pod's namespace has gone, looks at all
/// veths of the host for the alias or the MAC. Returns `None` if it is not found, which proves nothing about the pod's
/// end.
pub fn find_host_end(
    call: &Call,
    host: &mut Netlink,
    owner: &Owner,
    end: HostEnd,
) -> Result<Option<Link>, Error> {
    if let Some(link) = ours(host, owner)? {
        return Ok(Some(link));
    }
    if let Some(link) = in_prev_result(call, host, end)? {
        return Ok(Some(link));
    }
    match call.find_netns()? {
        Some(_) => Ok(None),
        None => renamed(call, host, owner),
    }
}

/// Removes the host's end `veth`, or else the attachment's interfaces in the pod.
pub fn veth(call: &Call, host: &mut Netlink, veth: Option<Link>) -> Result<(), Error> {
    match veth {
        Some(link) => delete(host, &link),
        None => inside::remove(call, "veth", Some(host), None),
    }
}

/// Removes the links of `kind` from attachments of `network` that are not `valid`, in the namespace of the socket. The
/// alias names the attachment; links without one stay. Tries all before it fails.
pub fn stale(host: &mut Netlink, kind: &str, network: &str, valid: &[Attachment]) -> Result<(), Error> {
    let links = Filter { master: None, kind: Some(kind) };
    let is_stale = owner::stale(network, valid);
    let stale: Vec<Link> = host.links(&links)?.into_iter().filter(|link| is_stale(&link.alias)).collect();
    Ok(host.remove_links(&stale)?)
}

/// Returns those of the `owners` with a pair on the host whose alias names no attachment. [`stale`] goes by aliases,
/// and does not remove such a pair.
pub fn unmarked(owners: Vec<Owner>) -> Result<Vec<Owner>, Error> {
    if owners.is_empty() {
        return Ok(owners);
    }
    let veths = Netlink::open()?.links(&Filter { master: None, kind: Some("veth") })?;
    let names: HashSet<&str> = veths
        .iter()
        .filter(|link| link.peer_netnsid.is_some() && owner::tag(&link.alias).is_none())
        .map(|link| link.name.as_str())
        .collect();
    let unmarked =
        owners.into_iter().filter(|owner| pair::host_names(owner).any(|name| names.contains(name.as_str())));
    Ok(unmarked.collect())
}

/// Finds the host's end by its names. One with the owner's alias comes first, then a veth whose alias names no
/// attachment. Such a veth is from an ADD that was killed before it wrote the alias, or another program has replaced
/// the alias. A name of 32 bits is no coincidence. A link with the alias of another attachment is skipped.
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

/// Finds the host's end of a pod from the Go plugins, by name and MAC from prevResult. A link with an alias that names
/// an attachment belongs to that one.
fn in_prev_result(call: &Call, host: &mut Netlink, end: HostEnd) -> Result<Option<Link>, Error> {
    for known in ends_on_host(call) {
        if let Some(link) = host.find_link(&known.name)?
            && link.kind == "veth"
            && link.master.is_some() == (end == HostEnd::Port)
            && owner::tag(&link.alias).is_none()
            && has_mac(&link, known)
        {
            return Ok(Some(link));
        }
    }
    Ok(None)
}

/// Finds the host's end under any name, by its alias or by a MAC in prevResult.
fn renamed(call: &Call, host: &mut Netlink, owner: &Owner) -> Result<Option<Link>, Error> {
    let own = owner.tag();
    let veths = host.links(&Filter { master: None, kind: Some("veth") })?;
    Ok(veths.into_iter().find(|link| match owner::tag(&link.alias) {
        Some(tag) => tag == own,
        None => ends_on_host(call).any(|known| has_mac(link, known)),
    }))
}
