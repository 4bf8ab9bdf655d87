//! The pod's port of its bridge: isolated ports can't talk to each other, whatever the
//! protocol, but to the bridge itself and to ports that aren't isolated (bridge(8),
//! `isolated`). The flag goes with the port.

use cnimble_cni::{CniResult, Error};
use cnimble_netlink::link::{Filter, Link};
use cnimble_netlink::port::{self, Port};
use cnimble_netlink::{Netlink, link};
use cnimble_plugin::Call;

/// The pod's port: the interface of the host in `prev` that is a port of the first one.
fn find(host: &mut Netlink, prev: &CniResult) -> Result<(Link, Port), Error> {
    let mut outside = prev.interfaces.iter().filter(|interface| interface.sandbox.is_empty());
    if let Some(bridge) = outside.next()
        && let Some(bridge) = host.find_link(&bridge.name)?
    {
        for interface in outside {
            if let Some(found) = host.find_link(&interface.name)?
                && found.master == Some(bridge.index)
                && let Some(flags) = found.port
            {
                return Ok((found, flags));
            }
        }
    }
    Err(Error::config("ingressPolicy: prevResult names no port of a bridge"))
}

/// The names of the interfaces on the host behind the bridge: the pod's port.
pub(crate) fn outside(prev: &CniResult) -> Vec<&str> {
    let outside = prev.interfaces.iter().filter(|interface| interface.sandbox.is_empty());
    outside.skip(1).map(|interface| interface.name.as_str()).collect()
}

/// Whether a bridge is gone or has no ports but those. A pod that is being added has its port by
/// the time that its rules are made.
pub(crate) fn is_unused(bridge: &str, own: &[&str]) -> Result<bool, Error> {
    let mut host = Netlink::open()?;
    let Some(bridge) = host.find_link(bridge)? else { return Ok(true) };
    let ports = host.links(&Filter { master: Some(bridge.index), kind: None })?;
    Ok(ports.iter().all(|port| own.contains(&port.name.as_str())))
}

/// Isolates the port.
pub(crate) fn isolate(call: &Call, prev: &CniResult) -> Result<(), Error> {
    let mut host = Netlink::open()?;
    let (found, old) = find(&mut host, prev)?;
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

/// The port is isolated.
pub(crate) fn check(prev: &CniResult) -> Result<(), Error> {
    let (found, flags) = find(&mut Netlink::open()?, prev)?;
    if flags.isolated {
        return Ok(());
    }
    Err(Error::check(format!("port {} is not isolated", found.name)))
}
