//! An interface without an end on the host: creates it in the pod, finds it again, and removes it.
//!
//! An interface with a master on the host is created through a socket of the host, and starts in the pod. Its name must
//! be free in both namespaces then: kernels before 6.18 check both. A host often has an `eth0`, so the interface starts
//! with a temporary name, made from the attachment. One message then renames it and writes its owner into its alias.
//! DEL and the next ADD recognize the temporary name after a kill.

use std::os::fd::AsFd;

use nix::errno::Errno;

use cnimble_cni::reach::Gateways;
use cnimble_cni::{Attachment, CniResult, Code, Error, Interface, Owner, hash16};
use cnimble_netlink::kind::{self, Kind, NewLink};
use cnimble_netlink::link::{self, Change, Link, Mac};
use cnimble_netlink::{NetNs, Netlink, route};

use super::master::{self, Master};
use super::pinned::in_pinned;
use super::pod::{Detection, Start};
use super::{arp, check, inside, pair, pod, remove};
use crate::Call;

/// The wanted interface of a pod.
#[derive(Debug)]
pub struct NewInterface {
    pub kind: Kind,
    /// The link that it is made on, or `None` for a kind without one.
    pub master: Option<Master>,
    /// The MTU in bytes, or `None` for the kernel's default.
    pub mtu: Option<u32>,
    /// The hardware address, or `None` for the kernel's choice.
    pub mac: Option<Mac>,
}

/// Creates the interface in the pod, down, with its undo, and writes its owner into its alias. Returns it with a socket
/// inside. Fails with code 102 if the pod has an interface of that name, 100 if the kernel lacks a module.
pub fn create(call: &Call, netns: &NetNs, new: NewInterface) -> Result<(Link, Netlink), Error> {
    let (link, inside) = match new.master {
        Some(Master { link, netlink, in_pod: false }) => {
            let wanted = NewInterface { master: None, ..new };
            from_host(call, netns, netlink, &link, &wanted)?
        }
        Some(Master { ref link, in_pod: true, .. }) => inside(call, netns, &new, Some(link))?,
        None => inside(call, netns, &new, None)?,
    };
    pod::ignore_routers(call, netns, &link.name, None)?;
    Ok((link, inside))
}

/// Creates an interface through a socket in the pod, with the final name.
fn inside(
    call: &Call,
    netns: &NetNs,
    new: &NewInterface,
    master: Option<&Link>,
) -> Result<(Link, Netlink), Error> {
    let mut inside = Netlink::open_in(netns)?;
    // The undo action is prepared before the interface is created.
    let home = call.open_netns()?;
    let parent = master.map(|master| master.index);
    let NewInterface { kind, mtu, mac, .. } = *new;
    let wanted = NewLink { parent, mtu, mac, ..NewLink::new(&call.ifname, kind) };
    let link = match inside.create_link(kind::add(&wanted)) {
        // EEXIST may also mean that the master has such a VLAN.
        Err(err) if err.is(Errno::EEXIST) && inside.find_link(&call.ifname)?.is_some() => {
            return Err(pair::pod_name_taken(call));
        }
        made => made.map_err(|err| explain_refusal(kind, master, err))?,
    };
    claim(call, home, &mut inside, &link, None)?;
    Ok((link, inside))
}

/// Creates an interface on a master of the host, through the socket `host`. It has a temporary name at first.
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
    let wanted = NewLink { parent, netns: born_in, mtu, mac, ..NewLink::new(&name, kind) };
    // The undo action comes first, because a lost answer does not say whether the interface was created.
    let (first_home, unfinished) = (call.open_netns()?, name.clone());
    call.undo.push(format!("remove {} {name} from the pod", kind.name()), move || {
        remove_unfinished(&mut Netlink::open_in(&first_home)?, &unfinished, kind)
    });
    let made = match host.execute(kind::add(&wanted)) {
        // An ADD that was killed has left the interface.
        Err(err) if err.is(Errno::EEXIST) => {
            remove_unfinished(&mut inside, &name, kind)?;
            host.execute(kind::add(&wanted))
        }
        made => made,
    };
    made.map_err(|err| explain_refusal(kind, Some(master), err))?;
    let link = inside.link(&name)?;
    claim(call, home, &mut inside, &link, Some(&call.ifname))?;
    Ok((Link { name: call.ifname.clone(), ..link }, inside))
}

/// Writes the owner into the alias of the pod's new interface. If it has a temporary name, gives it its final `name` in
/// the same message. Fails with code 102 if the name is taken.
///
/// Pushes its undo first, which runs in the namespace `home`. The caller must open `home` before it creates the
/// interface, because an error between the two would leave the interface.
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

/// Returns the temporary name: `new` and twelve hexadecimal digits of a hash of the attachment.
fn temporary_name(owner: &Owner) -> String {
    format!("new{}", hash16(&owner.tag()).get(..12).unwrap_or_default())
}

/// Removes an interface of this name and kind if it has no alias: an ADD has ended before it could write one. A
/// temporary name has 48 bits, so a match is no coincidence. Any other interface stays, without an error.
pub fn remove_unfinished(inside: &mut Netlink, name: &str, kind: Kind) -> Result<(), Error> {
    match inside.find_link(name)? {
        Some(link) if link.kind == kind.name() && link.alias.is_empty() => remove::delete(inside, &link),
        _ => Ok(()),
    }
}

/// Explains why the kernel has refused to create the interface.
fn explain_refusal(kind: Kind, master: Option<&Link>, err: cnimble_netlink::Error) -> Error {
    match (err.errno, master) {
        (Errno::EOPNOTSUPP, None) => unknown_kind(kind, Code::KERNEL).details(err.to_string()),
        // If the master cannot have such a link, the kernel gives the reason.
        (Errno::EOPNOTSUPP, Some(_)) if matches!(knows(kind), Ok(false)) => {
            unknown_kind(kind, Code::KERNEL).details(err.to_string())
        }
        (_, Some(master)) => master::explained(master, kind, err),
        (_, None) => err.into(),
    }
}

/// Returns whether the kernel supports such links.
fn knows(kind: Kind) -> cnimble_netlink::Result<bool> {
    Netlink::open()?.knows_kind(kind)
}

/// Returns the error for a kernel that does not support such links.
pub fn unknown_kind(kind: Kind, code: Code) -> Error {
    Error::new(code, format!("this kernel has no interfaces of the kind {}", kind.name()))
        .details(format!("it needs the module {}", kind.module()))
}

/// Gives the interface the result's addresses and routes, brings it up, and announces its addresses. `is_shared` says
/// that other hosts are on its network, which may have one of the addresses. Then the kernel probes for those of IPv6.
/// Those of IPv4 are probed by ARP if the configuration asks for it. Fails with code 102 if another host has one.
///
/// On a shared network it returns when the probes have ended, which takes up to five seconds
/// ([`pod::wait_for_addresses`]). The addresses of an ipvlan are never probed by ARP.
pub fn configure(
    call: &Call,
    netns: &NetNs,
    inside: &mut Netlink,
    link: &Link,
    result: &CniResult,
    is_shared: bool,
) -> Result<(), Error> {
    let detection = if is_shared { Detection::On } else { Detection::Off };
    super::carries(link, result.ips.iter().map(|ip| ip.address.ip()))?;
    netns.enter(|| pod::switches(call, &link.name, None, result, detection))??;
    let asking = if is_shared && link.kind != "ipvlan" {
        arp::probe_in_pod(call, netns, inside, link, result)?
    } else {
        None
    };
    let start = Start { mac: None, detection, announced: true };
    let mut requests = pod::up(link.index, &link.name, result, &start);
    for wanted in pod::routes(link.index, result) {
        // The pod may have interfaces and default routes of other networks.
        requests.push(route::prepend(&wanted, &link.name));
    }
    inside.execute_all(requests).map_err(|err| pod::explained(result, Gateways::InNetworks, err))?;
    asking.map_or(Ok(()), |asking| asking.announce())?;
    if is_shared { pod::wait_for_addresses(inside, link.index, result) } else { Ok(()) }
}

/// Returns the pod's interface in the form of a result.
pub fn described(call: &Call, link: &Link) -> Interface {
    let mut interface = super::described(link);
    interface.sandbox.clone_from(&call.netns);
    interface
}

/// CHECK: the interface has its kind and settings, and the hardware address, addresses and routes of the result.
/// Returns it with a socket inside.
pub fn check(call: &Call, kind: Kind, prev: &CniResult) -> Result<(Link, Netlink), Error> {
    let netns = call.open_netns()?;
    let mut inside = call.look_inside(&netns)?;
    let ours = check::of_this_interface(call, prev);
    let link = check::pod(call, &mut inside, &ours, kind.name(), false)?;
    if !kind.is_of(&link.kind, link.settings) {
        let now = link.settings.map_or("another".to_owned(), |now| now.to_string());
        return Err(Error::check(format!("interface {} is {now}, expected {kind}", link.name)));
    }
    check::inside_pod(call, &mut inside, &link, &ours, &pod::routes(link.index, &ours))?;
    Ok((link, inside))
}

/// DEL: removes the attachment's interface of this kind with any settings, if it and the namespace exist. Fails with
/// code 102 if its name belongs to another interface that has its addresses.
pub fn delete(call: &Call, kind: Kind) -> Result<(), Error> {
    let unfinished = kind.has_parent().then(|| temporary_name(&call.owner()));
    inside::remove(call, kind.name(), None, unfinished.as_deref())
}

/// GC: removes interfaces of this kind from attachments of the network that are not `valid`, in namespaces that are
/// pinned by a mount. The alias names the attachment. Tries all before it fails.
pub fn stale(call: &Call, kind: Kind, valid: &[Attachment]) -> Result<(), Error> {
    in_pinned(|inside| remove::stale(inside, kind.name(), &call.config.name, valid))
}

/// STATUS: fails with code 50 if the kernel lacks such interfaces.
pub fn status(kind: Kind) -> Result<(), Error> {
    let known = super::usable_netlink()?.knows_kind(kind).map_err(|err| super::unusable("netlink", &err))?;
    if known { Ok(()) } else { Err(unknown_kind(kind, Code::NOT_AVAILABLE)) }
}
