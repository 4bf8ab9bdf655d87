//! DEL: everything that ADD made, from whatever is left to find it by.

use std::path::Path;

use ipnetwork::IpNetwork;

use cnimble::net::link::{self, Link};
use cnimble::net::nft::Nft;
use cnimble::net::{NetNs, Netlink};
use cnimble::plugin::{Call, Command, delegate};
use cnimble::rules::{Owner, masquerade, spoof};
use cnimble::spec::Error;

use crate::pair;

/// Removes the attachment. The order keeps others safe and the caller's wait short:
///
/// 1. rules, while the lease still keeps the address from being given to another pod;
/// 2. the veth pair, whose removal takes the kernel longest, and in whose shadow the rules'
///    own grace period passes (see `docs/NFTABLES.md`);
/// 3. the lease, last: an address is free only when nobody uses it any more.
///
/// A failure doesn't stop the steps behind it, except that the lease stays while the
/// interface does.
pub(crate) fn attachment(call: &Call) -> Result<(), Error> {
    let owner = Owner { network: call.config.name.clone(), attachment: call.attachment() };
    let mut host = Netlink::open()?;
    let mut nft = Nft::new();

    let veth = find(call, &mut host, &owner);
    let rules = remove_rules(call, &mut nft, &owner, veth.as_ref().ok());
    let veth = veth.and_then(|veth| remove_veth(call, &mut host, &owner, veth));
    let lease = match (&veth, call.config.ipam_type.as_str()) {
        (Err(_), _) | (_, "") => Ok(()),
        (Ok(()), ipam) => delegate::call(call, ipam, Command::Del),
    };
    all([veth, lease, rules])
}

/// The first error, with the others in its details.
pub(crate) fn all(outcomes: impl IntoIterator<Item = Result<(), Error>>) -> Result<(), Error> {
    let mut errors = outcomes.into_iter().filter_map(Result::err);
    match errors.next() {
        None => Ok(()),
        Some(first) => Err(errors.fold(first, |all, next| all.details(next.to_string()))),
    }
}

/// Whether the network has rules is not asked: the configuration may have changed since.
/// What is known of addresses and port saves listing everybody's rules.
fn remove_rules(call: &Call, nft: &mut Nft, owner: &Owner, veth: Option<&Option<Link>>) -> Result<(), Error> {
    let addrs: Vec<IpNetwork> =
        call.config.prev_result.iter().flat_map(|prev| &prev.ips).map(|ip| ip.address).collect();
    let port = veth.and_then(Option::as_ref).map(|veth| veth.name.as_str());
    let masquerade = masquerade::remove(nft, owner, &addrs);
    let spoof = spoof::remove(nft, owner, port);
    all([masquerade, spoof])
}

/// The host's end: ours by its name, the Go plugins' by prevResult.
fn find(call: &Call, host: &mut Netlink, owner: &Owner) -> Result<Option<Link>, Error> {
    match ours(host, owner)? {
        Some(link) => Ok(Some(link)),
        None => in_prev_result(call, host),
    }
}

fn remove_veth(call: &Call, host: &mut Netlink, owner: &Owner, veth: Option<Link>) -> Result<(), Error> {
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

fn delete(netlink: &mut Netlink, link: &Link) -> Result<(), Error> {
    match netlink.execute(link::del(link.index, &link.name)) {
        Err(err) if !err.is_missing() => Err(err.into()),
        _ => Ok(()),
    }
}

/// The host's end, by its name; the alias says whether it really is this attachment's.
fn ours(host: &mut Netlink, owner: &Owner) -> Result<Option<Link>, Error> {
    for name in pair::host_names(owner) {
        match host.find_link(&name)? {
            None => return Ok(None),
            Some(link) if owner.owns(&link.alias) => return Ok(Some(link)),
            Some(_) => {}
        }
    }
    Ok(None)
}

/// The host's end of a pod that the Go plugins made, by name and MAC from prevResult, for
/// a DEL without a namespace. A link with an alias is somebody else's.
fn in_prev_result(call: &Call, host: &mut Netlink) -> Result<Option<Link>, Error> {
    let Some(prev) = &call.config.prev_result else { return Ok(None) };
    for interface in prev.interfaces.iter().filter(|i| i.sandbox.is_empty() && i.name.starts_with("veth")) {
        if let Some(link) = host.find_link(&interface.name)?
            && link.kind == "veth"
            && link.master.is_some()
            && link.alias.is_empty()
            && !interface.mac.is_empty()
            && link.mac.is_some_and(|mac| mac.to_string() == interface.mac.to_ascii_lowercase())
        {
            return Ok(Some(link));
        }
    }
    Ok(None)
}

/// The pod's end, by CNI_IFNAME in its namespace: what the Go plugins do. It is left alone
/// if its other end says that it belongs to another attachment.
fn in_namespace(call: &Call, host: &mut Netlink, netns: &NetNs, owner: &Owner) -> Result<(), Error> {
    let mut inside = Netlink::open_in(netns)?;
    let Some(link) = inside.find_link(&call.ifname)? else { return Ok(()) };
    if link.kind == "veth"
        && let Some(peer) = link.peer
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
