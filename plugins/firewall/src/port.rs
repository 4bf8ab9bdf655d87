//! The pod's port of its bridge. Isolated ports can only send to the bridge itself and to ports that are not isolated,
//! with any protocol (bridge(8), `isolated`). The kernel removes the flag with the port.

use cnimble_cni::{CniResult, Error, Owner, owner};
use cnimble_netlink::link::{Filter, Link};
use cnimble_netlink::port::{self, Port};
use cnimble_netlink::{IfPresent as _, Netlink, link};
use cnimble_plugin::Call;
use cnimble_plugin::interface::pair;
use cnimble_rules::objects::pair::leads_to_a_pod;

use crate::config;

/// Finds the port of a bridge among the host's interfaces in `prev`, with its flags. Returns `None` for a pod without a
/// bridge, whose packets all pass the host's rules. Fails with code 7 if `prev` names no port of a bridge.
fn find_port(host: &mut Netlink, prev: &CniResult) -> Result<Option<(Link, Port)>, Error> {
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

/// Returns the names of the host's interfaces in `prev`. The pod's own end on the host is among them.
pub(crate) fn outside(prev: &CniResult) -> Vec<&str> {
    let outside = prev.interfaces.iter().filter(|interface| interface.sandbox.is_empty());
    outside.map(|interface| interface.name.as_str()).collect()
}

/// Returns true if an interface in `prev` is on the host and leads to a pod.
pub(crate) fn is_there(prev: &CniResult) -> Result<bool, Error> {
    let mut host = Netlink::open()?;
    for name in outside(prev) {
        if host.find_link(name)?.is_some_and(|link| leads_to_a_pod(&link)) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Finds the pod's end on the host by its name and its owner. Returns its name and the name of its bridge, or its own
/// name twice if it has no bridge. `None` if there is no such end, or if its bridge has just been removed.
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

/// Returns true if an interface is missing or has no user but this pod, so that its policy may be removed. The pod's
/// ends are known by the names in `own`, or after a rename by their `owner`. GC passes neither.
///
/// A concurrent ADD is seen, because its port exists before its rules. The gateway interface of a VLAN is used if its
/// bridge is.
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
    let tag = owner.map(Owner::tag);
    Ok(ports.iter().all(|port| {
        let is_own =
            own.contains(&port.name.as_str()) || (tag.is_some() && owner::tag(&port.alias) == tag.as_deref());
        // The port of a VLAN's gateway interface is no pod's: its other end is in this namespace.
        is_own || (port.kind == "veth" && port.peer_netnsid.is_none())
    }))
}

/// Isolates the pod's port, with its undo. Does nothing for a pod without a bridge. Fails as [`find_port`] does.
pub(crate) fn isolate(call: &Call, prev: &CniResult) -> Result<(), Error> {
    let mut host = Netlink::open()?;
    let Some((found, old)) = find_port(&mut host, prev)? else { return Ok(()) };
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

/// Fails with code 103 if the pod's port is not isolated, and with code 7 if `prev` names no port of a bridge. A pod
/// without a bridge has none to check.
pub(crate) fn check(prev: &CniResult) -> Result<(), Error> {
    let Some((found, flags)) = find_port(&mut Netlink::open()?, prev)? else { return Ok(()) };
    if flags.isolated {
        return Ok(());
    }
    Err(Error::check(format!("port {} is not isolated", found.name)))
}
