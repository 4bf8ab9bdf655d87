//! Finds the attachment's interface in the pod, for DEL.
//!
//! The name alone proves little. An ADD may have failed because the name was taken, the path of a dead process may lead
//! to another pod, or another runtime may have added the interface again. The evidence is, the strongest first:
//!
//! 1. an alias with an owner: on a veth's end on the host, which the pod cannot write, or on any other interface;
//! 2. the host's end has the name of the attachment's;
//! 3. the MAC in prevResult, except of an interface that has its master's, also after a change. Of an ipvlan, one of
//!    the addresses in prevResult;
//! 4. without a prevResult, the name and the kind, as for the Go plugins.
//!
//! Another interface of that name is not removed. If it has one of the attachment's addresses, DEL fails and the lease
//! stays.

use cnimble_cni::{Error, Owner, owner};
use cnimble_netlink::link::{Filter, Link};
use cnimble_netlink::{NetNs, Netlink};

use super::{pair, result};
use crate::Call;

/// Removes the attachment's interfaces of this `kind`, under any name. Without a namespace there are none. `host` is a
/// socket in the namespace of a veth's other end, and `None` for kinds without one. `unfinished` is the temporary name
/// of a killed ADD.
///
/// If nothing was removed, an interface with the attachment's name stays. Fails with code 102 if that has one of the
/// attachment's addresses, unless an alias proves that it is another attachment's.
pub(super) fn remove(
    call: &Call,
    kind: &str,
    mut host: Option<&mut Netlink>,
    unfinished: Option<&str>,
) -> Result<(), Error> {
    let Some(netns) = call.find_netns()? else { return Ok(()) };
    let mut inside = Netlink::open_in(&netns)?;
    let mut removed = false;
    for link in inside.links(&Filter { master: None, kind: Some(kind) })? {
        let is_ours = match judge(call, &link, &netns, host.as_deref_mut())? {
            _ if link.alias.is_empty() && Some(link.name.as_str()) == unfinished => true,
            Verdict::Ours => true,
            Verdict::Unknown => link.name == call.ifname && may_be_ours(call, &mut inside, &link)?,
            Verdict::Different | Verdict::Another | Verdict::Sibling => false,
        };
        if is_ours {
            result::delete(&mut inside, &link)?;
            removed = true;
        }
    }
    if removed {
        return Ok(());
    }
    let Some(link) = inside.find_link(&call.ifname)? else { return Ok(()) };
    log::warn!("nothing shows that {} in {} is what was added; left alone", call.ifname, call.netns);
    match judge(call, &link, &netns, host)? {
        Verdict::Another | Verdict::Sibling => Ok(()),
        _ => {
            let ips = call.config.prev_result.iter().flat_map(|prev| &prev.ips);
            let what = format!("another interface {} than was added", link.name);
            result::not_in_use(call, ips, &inside.addrs(link.index)?, &what)
        }
    }
}

/// Returns the interface with the attachment's name. Returns `None` if there is none, and with a warning if it is
/// another's. `inside` is a socket in `netns`.
pub fn find_own(call: &Call, inside: &mut Netlink, netns: &NetNs) -> Result<Option<Link>, Error> {
    let Some(link) = inside.find_link(&call.ifname)? else { return Ok(None) };
    Ok(is_own(call, inside, &link, netns)?.then_some(link))
}

/// Returns whether the interface `link`, which has the attachment's name, is the attachment's. The path of a dead pod
/// may lead to another pod. A physical device with another MAC than in prevResult counts, because a pod can change the
/// MAC.
pub fn is_own(call: &Call, inside: &mut Netlink, link: &Link, netns: &NetNs) -> Result<bool, Error> {
    if result::find_told(call, link).is_some_and(|own| result::has_mac(link, own)) {
        return Ok(true);
    }
    let mut host = (link.kind == "veth").then(Netlink::open).transpose()?;
    let is_own = match judge(call, link, netns, host.as_mut())? {
        Verdict::Ours | Verdict::Sibling => true,
        Verdict::Unknown => may_be_ours(call, inside, link)?,
        Verdict::Different => link.kind.is_empty(),
        Verdict::Another => false,
    };
    if !is_own {
        log::warn!("nothing shows that {} in {} is what was added; left alone", call.ifname, call.netns);
    }
    Ok(is_own)
}

/// Returns false for an ipvlan that has none of the addresses in prevResult. Only its addresses distinguish an ipvlan
/// of the Go plugins from another one.
fn may_be_ours(call: &Call, inside: &mut Netlink, link: &Link) -> Result<bool, Error> {
    let mut assigned = call.config.prev_result.iter().flat_map(|prev| &prev.ips).peekable();
    if link.kind != "ipvlan" || assigned.peek().is_none() {
        return Ok(true);
    }
    let present = inside.addrs(link.index)?;
    Ok(assigned.any(|ip| present.iter().any(|addr| addr.net.ip() == ip.address.ip())))
}

/// The owner of an interface in the pod, as far as it is known.
#[derive(Debug, PartialEq, Eq)]
enum Verdict {
    /// The attachment owns it.
    Ours,
    /// An alias names another attachment.
    Another,
    /// An attachment of the same container to another network owns it, as a plugin that delegates makes it.
    Sibling,
    /// prevResult has another MAC for it, or the same MAC while its alias names another attachment.
    Different,
    /// The interface has the right name, which alone proves nothing, and there is no evidence against it.
    Unknown,
}

/// Finds the owner of `link` in the namespace `netns`, in the order of the module. A pod can make its link look like
/// the other end of any link. So the host's end is the one that leads to the link ([`Netlink::other_end`]).
fn judge(call: &Call, link: &Link, netns: &NetNs, host: Option<&mut Netlink>) -> Result<Verdict, Error> {
    let matches_result =
        result::find_told(call, link).map(|own| own.mac.is_empty() || result::has_mac(link, own));
    let in_pod = host.is_none();
    let host_end = match host {
        Some(host) => host.other_end(link, netns)?,
        None => None,
    };
    let owner = call.owner();
    let alias = if in_pod { Some(&link.alias) } else { host_end.as_ref().map(|end| &end.alias) };
    match alias.filter(|alias| owner::tag(alias).is_some()) {
        Some(alias) if owner.owns(alias) => return Ok(Verdict::Ours),
        Some(alias) if Owner::is_of_container(alias, &call.container_id) => return Ok(Verdict::Sibling),
        // The pod may have written the alias itself.
        Some(_) if in_pod && matches_result == Some(true) => return Ok(Verdict::Different),
        Some(_) => return Ok(Verdict::Another),
        None => {}
    }
    if let Some(end) = host_end
        && (pair::host_names(&owner).any(|name| name == end.name)
            || result::ends_on_host(call).any(|known| known.name == end.name))
    {
        return Ok(Verdict::Ours);
    }
    Ok(match matches_result {
        Some(true) => Verdict::Ours,
        Some(false) => Verdict::Different,
        None => Verdict::Unknown,
    })
}
