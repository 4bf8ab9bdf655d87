//! The ifb of a pod, the link whose queue limits what the pod sends. Its name is the one that the Go plugin gives it,
//! so that the DEL of either plugin removes it. Its alias names the owner.
//!
//! The name is a hash of the network and the container. So a container with two interfaces in one network can have only
//! one ifb.

use nix::errno::Errno;

use cnimble_cni::{Attachment, Code, Error};
use cnimble_netlink::Netlink;
use cnimble_netlink::kind::{self, Kind, NewLink};
use cnimble_netlink::link::{self, Change, Link};
use cnimble_netlink::tc::{qdisc, redirect};
use cnimble_plugin::Call;
use cnimble_plugin::interface::{check, remove};
use cnimble_rules::objects::ifb as made;

use crate::root::{self, Limit};

/// Makes the ifb, limits it, and then redirects what `veth` receives to it, so that no packet passes without the limit.
/// Each step has its undo. Fails with code 102 if the ifb exists, or if `veth` has an ingress qdisc in use.
pub(crate) fn add(call: &Call, host: &mut Netlink, veth: &Link, limit: &Limit<'_>) -> Result<Link, Error> {
    let name = made::name(&call.config.name, &call.container_id);
    let what = format!("limit what {} sends", call.ifname);
    let ifb = call.step(&what, || make_ifb(host, veth, &name))?;
    let (index, undone) = (ifb.index, name.clone());
    call.undo.push(format!("remove {name}"), move || Ok(Netlink::open()?.remove_link(index, &undone)?));
    let alias = call.owner().comment();
    let mark = Change { alias: Some(&alias), ..Change::default() };
    call.step(&what, || host.execute(link::set(index, &name, &mark)))?;
    call.step(&what, || root::put_limit(call, host, &ifb, limit))?;
    call.step(&what, || add_ingress(host, veth))?;
    let (at, undone) = (veth.index, veth.name.clone());
    call.undo.push(format!("remove the ingress qdisc of {undone}"), move || {
        Ok(Netlink::open()?.execute(qdisc::del_ingress(at, &undone))?)
    });
    call.step(&what, || host.execute(redirect::add(veth.index, &veth.name, index)))?;
    Ok(ifb)
}

/// Makes the ifb, up, with MTU and queue length of `veth`. Fails with code 102 if a link has the name.
fn make_ifb(host: &mut Netlink, veth: &Link, name: &str) -> Result<Link, Error> {
    let (mtu, txqlen) = (Some(veth.mtu), Some(veth.txqlen));
    let new = NewLink { mtu, txqlen, up: true, ..NewLink::new(name, Kind::Ifb) };
    match host.create_link(kind::add(&new)) {
        Err(err) if err.is(Errno::EEXIST) => {
            Err(Error::new(Code::CONFLICT, format!("interface {name} exists already")).details(
                "the container has another limited interface in this network, or had one; hint: call DEL",
            ))
        }
        made => Ok(made?),
    }
}

/// Adds the ingress qdisc to `veth`. An old one is replaced if its filters redirect only to ifbs that are gone. Fails
/// with code 102 for any other.
fn add_ingress(host: &mut Netlink, veth: &Link) -> Result<(), Error> {
    match host.execute_until_answered(&qdisc::add_ingress(veth.index, &veth.name)) {
        Err(err) if err.is(Errno::EEXIST) => {}
        done => return Ok(done?),
    }
    let ingress = host.ingress_qdisc(veth.index)?.is_some_and(|qdisc| qdisc.kind == "ingress");
    if !ingress || !host.redirects_nowhere(veth.index)? {
        let msg = format!("interface {} has an ingress qdisc already", veth.name);
        let hint = format!("hint: `tc filter show dev {} ingress` tells its use", veth.name);
        return Err(Error::new(Code::CONFLICT, msg).details(hint));
    }
    log::info!("{}: replacing a redirection that was left behind", veth.name);
    host.execute(qdisc::del_ingress(veth.index, &veth.name))?;
    Ok(host.execute(qdisc::add_ingress(veth.index, &veth.name))?)
}

/// Finds the ifb of this attachment by its name. Returns `None` if there is none. Also returns `None`, with a warning,
/// if its kind or alias shows another owner: the container may have a second interface.
pub(crate) fn find_ifb(call: &Call, host: &mut Netlink) -> Result<Option<Link>, Error> {
    let Some(link) = host.find_link(&made::name(&call.config.name, &call.container_id))? else {
        return Ok(None);
    };
    if link.kind != made::KIND || !(link.alias.is_empty() || call.owner().owns(&link.alias)) {
        log::warn!("{} belongs to another owner ({} {}); left alone", link.name, link.kind, link.alias);
        return Ok(None);
    }
    Ok(Some(link))
}

/// Removes the ifb. A missing one is no error.
pub(crate) fn remove(host: &mut Netlink, ifb: &Link) -> Result<(), Error> {
    remove::delete(host, ifb)
}

/// Fails with code 103 if the ifb is missing, down or has another limit, or if it does not get what `veth` receives.
pub(crate) fn check(call: &Call, host: &mut Netlink, veth: &Link, limit: &Limit<'_>) -> Result<(), Error> {
    let name = made::name(&call.config.name, &call.container_id);
    let ifb = host.find_link(&name)?.filter(|link| link.kind == made::KIND);
    let ifb = ifb.ok_or_else(|| Error::check(format!("interface {name} is missing")))?;
    if !ifb.up {
        return Err(Error::check(format!("interface {name} is down")));
    }
    root::check(host, &ifb, limit)?;
    if host.redirects(veth.index)?.first() != Some(&ifb.index) {
        return Err(Error::check(format!("what interface {} receives doesn't go to {name}", veth.name)));
    }
    Ok(())
}

/// Makes a missing ifb again, or gives it what it lacks: the limit, and the packets of the pod.
pub(crate) fn put_back(call: &Call, host: &mut Netlink, veth: &Link, limit: &Limit<'_>) -> Result<(), Error> {
    let Some(ifb) = find_ifb(call, host)? else { return add(call, host, veth, limit).map(drop) };
    if root::check(host, &ifb, limit).is_err() {
        root::put_limit(call, host, &ifb, limit)?;
    }
    check::switch_on(host, &ifb)?;
    if host.redirects(veth.index)?.first() != Some(&ifb.index) {
        add_ingress(host, veth)?;
        host.execute(redirect::add(veth.index, &veth.name, ifb.index))?;
    }
    Ok(())
}

/// Removes the ifbs of the network's attachments that are not `valid`. Those of the Go plugin stay: they have no alias,
/// so their network is unknown.
pub(crate) fn gc(network: &str, valid: &[Attachment]) -> Result<(), Error> {
    remove::stale(&mut Netlink::open()?, made::KIND, network, valid)
}
