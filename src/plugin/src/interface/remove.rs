//! DEL and GC: pairs are found by whatever is left to find them by.

use std::path::Path;

use cnimble_cni::{Attachment, Error, Owner};
use cnimble_netlink::link::{self, Filter, Link};
use cnimble_netlink::{NetNs, Netlink};

use super::{check, pair};
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
/// plugin's are ports of a bridge.
///
/// # Errors
/// The kernel's.
pub fn find(call: &Call, host: &mut Netlink, owner: &Owner, is_port: bool) -> Result<Option<Link>, Error> {
    match ours(host, owner)? {
        Some(link) => Ok(Some(link)),
        None => in_prev_result(call, host, is_port),
    }
}

/// Removes `veth`, if the host's end was found, else what the attachment has in the pod.
///
/// # Errors
/// If it is still there.
pub fn veth(call: &Call, host: &mut Netlink, owner: &Owner, veth: Option<Link>) -> Result<(), Error> {
    if let Some(link) = veth {
        return delete(host, &link);
    }
    if call.netns.is_empty() {
        return Ok(());
    }
    // A path that is gone, or is no namespace, has no interface of ours.
    let Ok(netns) = NetNs::open(Path::new(&call.netns)) else { return Ok(()) };
    in_namespace(call, host, &netns, owner)
}

/// Removes the links of `kind` on the host of those attachments of `network` that aren't `valid`. They are told by
/// their alias; links without one are left alone: who made them can't be known.
///
/// # Errors
/// After all were tried.
pub fn stale(host: &mut Netlink, kind: &str, network: &str, valid: &[Attachment]) -> Result<(), Error> {
    let links = Filter { master: None, kind: Some(kind) };
    let keep: Vec<Owner> = valid
        .iter()
        .map(|attachment| Owner { network: network.to_owned(), attachment: attachment.clone() })
        .collect();
    let stale: Vec<Link> = host
        .links(&links)?
        .into_iter()
        .filter(|link| Owner::in_network(&link.alias, network))
        .filter(|link| !keep.iter().any(|owner| owner.owns(&link.alias)))
        .collect();
    all(stale.iter().map(|link| delete(host, link)))
}

pub(super) fn delete(netlink: &mut Netlink, link: &Link) -> Result<(), Error> {
    match netlink.execute(link::del(link.index, &link.name)) {
        Err(err) if !err.is_missing() => Err(err.into()),
        _ => Ok(()),
    }
}

/// The host's end, by its name; the alias says whether it really is this attachment's. A
/// veth without one is that of an ADD that was killed before it could write it: a name of 32
/// bits is no accident.
fn ours(host: &mut Netlink, owner: &Owner) -> Result<Option<Link>, Error> {
    for name in pair::host_names(owner) {
        match host.find_link(&name)? {
            None => return Ok(None),
            Some(link) if owner.owns(&link.alias) => return Ok(Some(link)),
            Some(link) if link.alias.is_empty() && link.kind == "veth" => return Ok(Some(link)),
            Some(_) => {}
        }
    }
    Ok(None)
}

/// The host's end of a pod that the Go plugins made, by name and MAC from prevResult, for
/// a DEL without a namespace. A link with an alias is somebody else's.
fn in_prev_result(call: &Call, host: &mut Netlink, is_port: bool) -> Result<Option<Link>, Error> {
    let Some(prev) = &call.config.prev_result else { return Ok(None) };
    for interface in prev.interfaces.iter().filter(|i| i.sandbox.is_empty() && i.name.starts_with("veth")) {
        if let Some(link) = host.find_link(&interface.name)?
            && link.kind == "veth"
            && link.master.is_some() == is_port
            && link.alias.is_empty()
            && !interface.mac.is_empty()
            && link.mac.is_some_and(|mac| mac.to_string() == interface.mac.to_ascii_lowercase())
        {
            return Ok(Some(link));
        }
    }
    Ok(None)
}

/// The pod's end, by CNI_IFNAME in its namespace: what the Go plugins do. But a name alone
/// proves little: an ADD may have failed because it was taken, or the namespace's path, of a
/// process that is dead, may lead to another pod by now. So nothing goes that is no veth,
/// that has another MAC than prevResult tells, or whose other end says that it belongs to
/// another attachment.
fn in_namespace(call: &Call, host: &mut Netlink, netns: &NetNs, owner: &Owner) -> Result<(), Error> {
    let mut inside = Netlink::open_in(netns)?;
    let Some(link) = inside.find_link(&call.ifname)? else { return Ok(()) };
    let told = call.config.prev_result.iter().flat_map(|prev| &prev.interfaces);
    let mut told = told.filter(|told| told.name == call.ifname && !told.sandbox.is_empty());
    if link.kind != "veth" || told.any(|told| check::same_mac(&link, told).is_err()) {
        log::warn!("{} in {} isn't what was added; left alone", call.ifname, call.netns);
        return Ok(());
    }
    if let Some(peer) = link.peer
        && let Ok(other_end) = host.link_at(peer)
        && other_end.peer == Some(link.index)
        && !other_end.alias.is_empty()
        && !owner.owns(&other_end.alias)
    {
        log::warn!("{} in {} belongs to {}; left alone", call.ifname, call.netns, other_end.alias);
        return Ok(());
    }
    delete(&mut inside, &link)
}
