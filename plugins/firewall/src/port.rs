//! The pod's port of its bridge. Isolated ports can only send to the bridge itself and to ports that aren't isolated,
//! with any protocol (bridge(8), `isolated`). The flag goes with the port.

use cnimble_cni::{CniResult, Error, Owner, owner};
use cnimble_netlink::link::{Filter, Link};
use cnimble_netlink::port::{self, Port};
use cnimble_netlink::{IfPresent as _, Netlink, link};
use cnimble_plugin::Call;
use cnimble_plugin::interface::pair;
use cnimble_rules::objects::pair::leads_to_a_pod;

use crate::config;

/// Finds the port of a bridge among the host's interfaces in `prev`. Returns `None` for a pod without a bridge: all of
/// its packets pass the host's rules. Fails with code 7 if `prev` names no port of a bridge.
fn find(host: &mut Netlink, prev: &CniResult) -> Result<Option<(Link, Port)>, Error> {
    let mut outside = prev.interfaces.iter().filter(|interface| interface.sandbox.is_empty());
    if let Some(first) = outside.next()
        && let Some(first) = host.find_link(&first.name)?
    {
        if leads_to_a_pod(&first) {
            return Ok(None);
        }
        for interface in outside {
            if let Some(found) = host.find_link(&interface.name)?
                && found.master == Some(first.index)
                && let Some(flags) = found.port
            {
                return Ok(Some((found, flags)));
            }
        }
    }
    Err(Error::config("ingressPolicy: prevResult names no port of a bridge"))
}

/// The host's interfaces, with the pod's own end.
pub(crate) fn outside(prev: &CniResult) -> Vec<&str> {
    let outside = prev.interfaces.iter().filter(|interface| interface.sandbox.is_empty());
    outside.map(|interface| interface.name.as_str()).collect()
}

/// Whether the host has the pod's end.
pub(crate) fn is_there(prev: &CniResult) -> Result<bool, Error> {
    let mut host = Netlink::open()?;
    for name in outside(prev) {
        if host.find_link(name)?.is_some_and(|link| leads_to_a_pod(&link)) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// By its owner. Returns its bridge (or itself), too.
pub(crate) fn of_owner(owner: &Owner) -> Result<Option<(String, String)>, Error> {
    let (mut host, tag) = (Netlink::open()?, owner.tag());
    for name in pair::host_names(owner) {
        let Some(end) = host.find_link(&name)?.filter(|end| owner::tag(&end.alias) == Some(&tag)) else {
            continue;
        };
        let interface = match end.master {
            None => Some(end.name.clone()),
            Some(master) => host.link_at(master).if_present()?.map(|bridge| bridge.name),
        };
        return Ok(interface.map(|interface| (end.name, interface)));
    }
    Ok(None)
}

/// An interface is missing or has no user but this pod. The pod's ends are known by their names, or after a rename by
/// their owner. A concurrent ADD has its port before its rules.
pub(crate) fn is_unused(interface: &str, own: &[&str], owner: Option<&Owner>) -> Result<bool, Error> {
    let mut host = Netlink::open()?;
    let Some(mut link) = host.find_link(interface)? else { return Ok(true) };
    if leads_to_a_pod(&link) {
        return Ok(own.contains(&interface));
    }
    if link.kind != "bridge"
        && let Some(bridge) = config::vlan_of(interface)
    {
        match host.find_link(bridge)? {
            Some(bridge) => link = bridge,
            None => return Ok(true),
        }
    }
    let ports = host.links(&Filter { master: Some(link.index), kind: None })?;
    // A vlan's gateway has its other end in this namespace.
    let leads_here = |port: &Link| port.kind == "veth" && port.far.is_none();
    let tag = owner.map(Owner::tag);
    let is_own = |port: &Link| {
        own.contains(&port.name.as_str()) || (tag.is_some() && owner::tag(&port.alias) == tag.as_deref())
    };
    Ok(ports.iter().all(|port| is_own(port) || leads_here(port)))
}

pub(crate) fn isolate(call: &Call, prev: &CniResult) -> Result<(), Error> {
    let mut host = Netlink::open()?;
    let Some((found, old)) = find(&mut host, prev)? else { return Ok(()) };
    if old.isolated {
        return Ok(());
    }
    host.execute(port::set(found.index, &found.name, Port { isolated: true, ..old }))?;
    let link::Link { index, name, .. } = found;
    call.undo.push(format!("stop isolating {name}"), move || {
        Ok(Netlink::open()?.execute(port::set(index, &name, old))?)
    });
    Ok(())
}

pub(crate) fn check(prev: &CniResult) -> Result<(), Error> {
    let Some((found, flags)) = find(&mut Netlink::open()?, prev)? else { return Ok(()) };
    if flags.isolated {
        return Ok(());
    }
    Err(Error::check(format!("port {} is not isolated", found.name)))
}
