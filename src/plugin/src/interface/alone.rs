//! An interface that has no end on the host: made in the pod, found again there, removed.

use std::path::Path;

use nix::errno::Errno;

use cnimble_cni::{CniResult, Code, Error, Interface};
use cnimble_netlink::kind::{self, Kind, NewLink};
use cnimble_netlink::link::{self, Change, Link, Mac};
use cnimble_netlink::{NetNs, Netlink, route};

use super::{check, pair, pod, remove};
use crate::Call;

/// An interface to make.
#[derive(Debug, Clone, Copy)]
pub struct NewInterface {
    /// What sort of link it is.
    pub kind: Kind,
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
pub fn create(call: &Call, netns: &NetNs, new: &NewInterface) -> Result<(Link, Netlink), Error> {
    let mut inside = Netlink::open_in(netns)?;
    let wanted = NewLink { name: &call.ifname, kind: new.kind, mtu: new.mtu, mac: new.mac };
    let link = inside.create_link(kind::add(&wanted)).map_err(|err| match err.errno {
        Errno::EEXIST => pair::pod_name_taken(call),
        Errno::EOPNOTSUPP => unknown_kind(new.kind, Code::KERNEL).details(err.to_string()),
        _ => err.into(),
    })?;
    let (index, name) = (link.index, link.name.clone());
    let home = call.open_netns()?;
    call.undo.push(
        format!("remove {} {name} from the pod", new.kind.name()),
        move || match Netlink::open_in(&home)?.execute(link::del(index, &name)) {
            Err(err) if !err.is_missing() => Err(err.into()),
            _ => Ok(()),
        },
    );
    let alias = call.owner().comment();
    let change = Change { alias: Some(&alias), ..Change::default() };
    inside.execute(link::set(link.index, &link.name, &change))?;
    Ok((link, inside))
}

/// The error for a kernel without this kind of link.
pub fn unknown_kind(kind: Kind, code: Code) -> Error {
    let kind = kind.name();
    Error::new(code, format!("this kernel has no interfaces of the kind {kind}"))
        .details(format!("it needs the module {kind}"))
}

/// Gives the interface the result's addresses and routes, and brings it up.
///
/// # Errors
/// The kernel's.
pub fn configure(netns: &NetNs, inside: &mut Netlink, link: &Link, result: &CniResult) -> Result<(), Error> {
    netns.enter(|| pod::switches(&link.name, None, result, false))??;
    let mut requests = pod::up(link.index, &link.name, result, &Change::default(), true, true);
    for wanted in pod::routes(link.index, result) {
        // Not alone: the pod may have interfaces, and default routes, of other networks.
        requests.push(route::prepend(&wanted, &link.name));
    }
    Ok(inside.execute_all(requests)?)
}

/// The interface as it stands in a result.
pub fn described(call: &Call, link: &Link) -> Interface {
    Interface { sandbox: call.netns.clone(), ..super::described(link) }
}

/// CHECK: the interface has the kind, the hardware address, the addresses and the routes that the
/// result tells.
///
/// # Errors
/// As those of [`mod@check`].
pub fn check(call: &Call, kind: Kind, prev: &CniResult) -> Result<(), Error> {
    let netns = call.open_netns()?;
    let mut inside = Netlink::open_in(&netns)?;
    let ours = check::of_this_interface(call, prev);
    let link = check::pod(call, &mut inside, &ours, kind.name(), true)?;
    check::addresses(&mut inside, &link, &ours)?;
    check::routes(&mut inside, &link, &pod::routes(link.index, &ours), "in the pod")
}

/// DEL: removes the interface, if the namespace is there and has it. A name alone proves little:
/// an ADD may have failed because it was taken. So an interface of another kind, with another
/// hardware address than prevResult tells, or with another owner in its alias, is left alone.
///
/// # Errors
/// If it is still there.
pub fn delete(call: &Call, kind: Kind) -> Result<(), Error> {
    if call.netns.is_empty() {
        return Ok(());
    }
    // A path that is gone, or is no namespace, has no interface of ours.
    let Ok(netns) = NetNs::open(Path::new(&call.netns)) else { return Ok(()) };
    let mut inside = Netlink::open_in(&netns)?;
    let Some(link) = inside.find_link(&call.ifname)? else { return Ok(()) };
    let told = call.config.prev_result.iter().flat_map(|prev| &prev.interfaces);
    let mut told = told.filter(|told| told.name == call.ifname && !told.sandbox.is_empty());
    // The Go plugins write no alias.
    let ours = link.alias.is_empty() || call.owner().owns(&link.alias);
    if link.kind != kind.name() || !ours || told.any(|told| check::same_mac(&link, told).is_err()) {
        log::warn!("{} in {} isn't what was added; left alone", call.ifname, call.netns);
        return Ok(());
    }
    remove::delete(&mut inside, &link)
}

/// STATUS: the kernel can make such interfaces.
///
/// # Errors
/// Code 50.
pub fn status(kind: Kind) -> Result<(), Error> {
    let known = super::usable_netlink()?.knows_kind(kind).map_err(|err| super::unusable("netlink", &err))?;
    if known { Ok(()) } else { Err(unknown_kind(kind, Code::NOT_AVAILABLE)) }
}
