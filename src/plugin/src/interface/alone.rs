//! An interface that has no end on the host: made in the pod, found again there, removed.
//!
//! One that has a master on the host is made by a socket of the host, and born in the pod. Its name
//! must be free in both namespaces at that moment (older kernels ask both, 6.18 only the pod's, and
//! `eth0` is seldom free on a host), so it is born under a temporary name, made from the attachment, and renamed as its owner
//! is written into its alias, in one message. If an ADD is killed in between, DEL and the next ADD
//! know the interface by the temporary name.

use std::os::fd::AsFd;

use nix::errno::Errno;

use cnimble_cni::{Attachment, CniResult, Code, Error, Interface, Owner, hash16};
use cnimble_netlink::kind::{self, Kind, NewLink};
use cnimble_netlink::link::{self, Change, Link, Mac};
use cnimble_netlink::{NetNs, Netlink, route};

use super::master::{self, Master};
use super::pinned::in_pinned;
use super::{arp, check, inside, pair, pod, remove};
use crate::Call;

/// An interface to make.
#[derive(Debug)]
pub struct NewInterface {
    /// The kind of link.
    pub kind: Kind,
    /// The master, for kinds that have one.
    pub master: Option<Master>,
    /// MTU in bytes; `None` is the kernel's.
    pub mtu: Option<u32>,
    /// Hardware address; `None` is the kernel's choice.
    pub mac: Option<Mac>,
}

/// Makes the interface in the pod, down, with its undo, and names its owner in its alias. Returns
/// it with a socket inside.
///
/// # Errors
/// Code 102 if the pod has an interface of that name; code 100 with the module that the kernel
/// lacks; the kernel's.
pub fn create(call: &Call, netns: &NetNs, new: NewInterface) -> Result<(Link, Netlink), Error> {
    match new.master {
        Some(Master { link, netlink, in_pod: false }) => {
            let wanted = NewInterface { master: None, ..new };
            from_host(call, netns, netlink, &link, &wanted)
        }
        Some(Master { ref link, in_pod: true, .. }) => inside(call, netns, &new, Some(link)),
        None => inside(call, netns, &new, None),
    }
}

/// Makes an interface by a socket in the pod.
fn inside(
    call: &Call,
    netns: &NetNs,
    new: &NewInterface,
    master: Option<&Link>,
) -> Result<(Link, Netlink), Error> {
    let mut inside = Netlink::open_in(netns)?;
    // Whatever undoes it is there before it is made.
    let home = call.open_netns()?;
    let parent = master.map(|master| master.index);
    let NewInterface { kind, mtu, mac, .. } = *new;
    let wanted = NewLink { name: &call.ifname, kind, parent, netns: None, mtu, mac, group: None, up: false };
    let link = match inside.create_link(kind::add(&wanted)) {
        // Or its master has such a VLAN.
        Err(err) if err.is(Errno::EEXIST) && inside.find_link(&call.ifname)?.is_some() => {
            return Err(pair::pod_name_taken(call));
        }
        made => made.map_err(|err| refused(kind, master, err))?,
    };
    claim(call, home, &mut inside, &link, None)?;
    Ok((link, inside))
}

/// Makes an interface on a master of the host, by the socket `host`.
fn from_host(
    call: &Call,
    netns: &NetNs,
    mut host: Netlink,
    master: &Link,
    new: &NewInterface,
) -> Result<(Link, Netlink), Error> {
    let mut inside = Netlink::open_in(netns)?;
    let home = call.open_netns()?;
    let name = temporary_name(&call.owner());
    let NewInterface { kind, mtu, mac, .. } = *new;
    let (parent, born_in) = (Some(master.index), Some(netns.as_fd()));
    let wanted = NewLink { name: &name, kind, parent, netns: born_in, mtu, mac, group: None, up: false };
    // Before it is made: an answer that is lost doesn't say whether it was.
    let (first_home, unfinished) = (call.open_netns()?, name.clone());
    call.undo.push(format!("remove {} {name} from the pod", kind.name()), move || {
        remove_unfinished(&mut Netlink::open_in(&first_home)?, &unfinished, kind)
    });
    let made = match host.execute(kind::add(&wanted)) {
        // Left by an ADD that was killed.
        Err(err) if err.is(Errno::EEXIST) => {
            remove_unfinished(&mut inside, &name, kind)?;
            host.execute(kind::add(&wanted))
        }
        made => made,
    };
    made.map_err(|err| refused(kind, Some(master), err))?;
    let link = inside.link(&name)?;
    claim(call, home, &mut inside, &link, Some(&call.ifname))?;
    Ok((Link { name: call.ifname.clone(), ..link }, inside))
}

/// Writes the owner into the alias of the pod's new interface, and gives it its `name`, if it has a
/// temporary one; pushes its undo, which goes to the namespace `home`. That is opened before the interface
/// is made: an error between the two would leave it.
///
/// # Errors
/// Code 102 if the name is taken; the kernel's.
pub fn claim(
    call: &Call,
    home: NetNs,
    inside: &mut Netlink,
    link: &Link,
    name: Option<&str>,
) -> Result<(), Error> {
    let made = Link { name: call.ifname.clone(), ..link.clone() };
    call.undo.push(format!("remove {} {} from the pod", made.kind, made.name), move || {
        remove::delete(&mut Netlink::open_in(&home)?, &made)
    });
    let alias = call.owner().comment();
    let change = Change { name, alias: Some(&alias), ..Change::default() };
    inside.execute(link::set(link.index, &link.name, &change)).map_err(|err| match err.errno {
        Errno::EEXIST => pair::pod_name_taken(call),
        _ => err.into(),
    })
}

/// The name that an interface is born under: `new` and twelve hex digits of a hash of the attachment.
fn temporary_name(owner: &Owner) -> String {
    format!("new{}", hash16(&owner.tag()).get(..12).unwrap_or_default())
}

/// Removes an interface of this name and kind that doesn't tell its owner yet: an ADD has ended before it could
/// write that. A temporary name, of 48 bits, is no accident.
///
/// # Errors
/// Fails if the kernel refuses the request.
pub fn remove_unfinished(inside: &mut Netlink, name: &str, kind: Kind) -> Result<(), Error> {
    match inside.find_link(name)? {
        Some(link) if link.kind == kind.name() && link.alias.is_empty() => remove::delete(inside, &link),
        _ => Ok(()),
    }
}

/// The kernel's refusal to make a link.
fn refused(kind: Kind, master: Option<&Link>, err: cnimble_netlink::Error) -> Error {
    match (err.errno, master) {
        (Errno::EOPNOTSUPP, None) => unknown_kind(kind, Code::KERNEL).details(err.to_string()),
        // Of a master that can't have such a link the kernel says why.
        (Errno::EOPNOTSUPP, Some(_)) if matches!(knows(kind), Ok(false)) => {
            unknown_kind(kind, Code::KERNEL).details(err.to_string())
        }
        (_, Some(master)) => master::explained(master, kind, err),
        (_, None) => err.into(),
    }
}

/// Whether the kernel can make such links.
fn knows(kind: Kind) -> cnimble_netlink::Result<bool> {
    Netlink::open()?.knows_kind(kind)
}

/// The error for a kernel without this kind of link.
pub fn unknown_kind(kind: Kind, code: Code) -> Error {
    Error::new(code, format!("this kernel has no interfaces of the kind {}", kind.name()))
        .details(format!("it needs the module {}", kind.module()))
}

/// Gives the interface the result's addresses and routes, and brings it up. Its addresses are announced. If its
/// network is shared, other hosts are asked whether they have one of its IPv6 addresses.
///
/// # Errors
/// Code 102 if another host has an address; fails if the kernel refuses a request.
pub fn configure(
    call: &Call,
    netns: &NetNs,
    inside: &mut Netlink,
    link: &Link,
    result: &CniResult,
    is_shared: bool,
) -> Result<(), Error> {
    netns.enter(|| pod::switches(call, &link.name, None, result, is_shared))??;
    let asking = match is_shared && link.kind != "ipvlan" {
        true => arp::probe_in_pod(call, netns, inside, link, result)?,
        false => None,
    };
    let mut requests = pod::up(link.index, &link.name, result, &Change::default(), !is_shared, true);
    for wanted in pod::routes(link.index, result) {
        // Not alone: the pod may have interfaces, and default routes, of other networks.
        requests.push(route::prepend(&wanted, &link.name));
    }
    inside.execute_all(requests)?;
    asking.map_or(Ok(()), |asking| asking.announce())?;
    if is_shared { pod::settle(inside, link.index, result) } else { Ok(()) }
}

/// The interface as it stands in a result.
pub fn described(call: &Call, link: &Link) -> Interface {
    Interface { sandbox: call.netns.clone(), ..super::described(link) }
}

/// CHECK: the interface has the kind with its settings, the hardware address, the addresses and the
/// routes that the result tells. Returns it with a socket inside.
///
/// # Errors
/// As those of [`mod@check`].
pub fn check(call: &Call, kind: Kind, prev: &CniResult) -> Result<(Link, Netlink), Error> {
    let netns = call.open_netns()?;
    let mut inside = Netlink::open_in(&netns)?;
    let ours = check::of_this_interface(call, prev);
    let link = check::pod(call, &mut inside, &ours, kind.name(), true)?;
    if !kind.is_of(&link.kind, link.settings) {
        let now = link.settings.map_or("another".to_owned(), |now| now.to_string());
        return Err(Error::check(format!("interface {} is {now}, expected {kind}", link.name)));
    }
    check::addresses(&mut inside, &link, &ours)?;
    check::routes(&mut inside, &link, &pod::routes(link.index, &ours), "in the pod")?;
    Ok((link, inside))
}

/// DEL: removes the interface, if the namespace is there and has it.
///
/// # Errors
/// If it is still there, or its name belongs to another interface that has its addresses.
pub fn delete(call: &Call, kind: Kind) -> Result<(), Error> {
    let unfinished = kind.has_parent().then(|| temporary_name(&call.owner()));
    inside::remove(call, kind.name(), None, unfinished.as_deref())
}

/// GC: removes the interfaces of this kind, in the namespaces that are pinned by a mount, of those
/// attachments of the network that aren't `valid`. They are told by their alias.
///
/// # Errors
/// After all were tried.
pub fn stale(call: &Call, kind: Kind, valid: &[Attachment]) -> Result<(), Error> {
    in_pinned(|inside| remove::stale(inside, kind.name(), &call.config.name, valid))
}

/// STATUS: the kernel can make such interfaces.
///
/// # Errors
/// Code 50.
pub fn status(kind: Kind) -> Result<(), Error> {
    let known = super::usable_netlink()?.knows_kind(kind).map_err(|err| super::unusable("netlink", &err))?;
    if known { Ok(()) } else { Err(unknown_kind(kind, Code::NOT_AVAILABLE)) }
}
