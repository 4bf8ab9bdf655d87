//! The ifb for a pod's egress. Its name is the Go plugin's, so that either set removes it, and its alias names the
//! owner. A container with two interfaces in one network can have only one ifb.

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

/// Makes and limits the ifb before it redirects packets: no packet passes without the limit.
pub(crate) fn add(call: &Call, host: &mut Netlink, veth: &Link, limit: &Limit<'_>) -> Result<Link, Error> {
    let name = made::name(&call.config.name, &call.container_id);
    let what = format!("limit what {} sends", call.ifname);
    let ifb = call.step(&what, || make(host, veth, &name))?;
    let (index, undone) = (ifb.index, name.clone());
    call.undo.push(format!("remove {name}"), move || Ok(Netlink::open()?.remove_link(index, &undone)?));
    let alias = call.owner().comment();
    let mark = Change { alias: Some(&alias), ..Change::default() };
    call.step(&what, || host.execute(link::set(index, &name, &mark)))?;
    call.step(&what, || root::put(call, host, &ifb, limit))?;
    call.step(&what, || add_ingress(host, veth))?;
    let (at, undone) = (veth.index, veth.name.clone());
    call.undo.push(format!("remove the ingress qdisc of {undone}"), move || {
        Ok(Netlink::open()?.execute(qdisc::del_ingress(at, &undone))?)
    });
    call.step(&what, || host.execute(redirect::add(veth.index, &veth.name, index)))?;
    Ok(ifb)
}

fn make(host: &mut Netlink, veth: &Link, name: &str) -> Result<Link, Error> {
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

/// Replaces an old ingress qdisc if the ifb that it redirected to is gone.
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

/// Finds the ifb of this attachment by its name. Returns `None` if there is none, or if its kind or alias shows that it
/// belongs to another owner: the name is a hash of the container, which may have a second interface.
pub(crate) fn find(call: &Call, host: &mut Netlink) -> Result<Option<Link>, Error> {
    let Some(link) = host.find_link(&made::name(&call.config.name, &call.container_id))? else {
        return Ok(None);
    };
    if link.kind != made::KIND || !(link.alias.is_empty() || call.owner().owns(&link.alias)) {
        log::warn!("{} belongs to another owner ({} {}); left alone", link.name, link.kind, link.alias);
        return Ok(None);
    }
    Ok(Some(link))
}

pub(crate) fn remove(host: &mut Netlink, ifb: &Link) -> Result<(), Error> {
    remove::delete(host, ifb)
}

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

/// Makes the ifb again, or gives it what it lacks: the limit, and the packets of the pod.
pub(crate) fn put_back(call: &Call, host: &mut Netlink, veth: &Link, limit: &Limit<'_>) -> Result<(), Error> {
    let Some(ifb) = find(call, host)? else { return add(call, host, veth, limit).map(drop) };
    if root::check(host, &ifb, limit).is_err() {
        root::put(call, host, &ifb, limit)?;
    }
    check::switch_on(host, &ifb)?;
    if host.redirects(veth.index)?.first() != Some(&ifb.index) {
        add_ingress(host, veth)?;
        host.execute(redirect::add(veth.index, &veth.name, ifb.index))?;
    }
    Ok(())
}

/// The Go plugin's ifbs have no alias, so their network is unknown, and they stay.
pub(crate) fn gc(network: &str, valid: &[Attachment]) -> Result<(), Error> {
    remove::stale(&mut Netlink::open()?, made::KIND, network, valid)
}
