//! An interface of the host that becomes a port of a new bridge (`uplink`), so that the pods are on its network.

use cnimble_cni::{Code, Error};
use cnimble_netlink::link::{self, Change, Filter, Link};
use cnimble_netlink::{IfPresent, Netlink};

use crate::bridge::take_back;
use crate::context::Context;
use crate::{dependents, ours};

/// Makes the interface a port of the bridge and sets it up, with its undo. Does nothing if it is that port already. If
/// the interface was down and the bridge has `removeUnusedBridge`, the bridge's alias records that for its removal.
///
/// Fails with code 102 if the interface is a port of another bridge, or if a part of the host depends on it.
pub(crate) fn join(cx: &mut Context<'_>, bridge: &Link, name: &str) -> Result<(), Error> {
    let uplink = cx.host.link(name)?;
    if uplink.master == Some(bridge.index) {
        return Ok(());
    }
    if uplink.master.is_some() {
        return Err(Error::new(Code::CONFLICT, format!("uplink: {name} is a port already"))
            .details("take it off, or name another interface"));
    }
    if let Some(dependent) = dependents::find_dependent(&mut cx.host, &uplink)? {
        return Err(
            Error::new(Code::CONFLICT, format!("uplink: {name} {}", dependent.what)).details(dependent.hint)
        );
    }
    let up = (!uplink.up).then_some(true);
    if up.is_some() && cx.config.remove_unused {
        let alias = Change { alias: Some(ours::WAKES_UPLINK), ..Change::default() };
        cx.host.execute(link::set(bridge.index, &bridge.name, &alias))?;
    }
    let change = Change { master: Some(bridge.index), up, ..Change::default() };
    cx.host.execute(link::set(uplink.index, name, &change))?;
    let (index, bridge_index, name) = (uplink.index, bridge.index, name.to_owned());
    let back = Change { master: Some(0), up: up.map(|_| false), ..Change::default() };
    cx.call.undo.push(format!("take {name} off {}", bridge.name), move || {
        take_back(
            |host| has_pods(host, bridge_index, index),
            |host| Ok(host.execute(link::set(index, &name, &back)).if_present().map(drop)?),
            |host| Ok(host.execute(link::set(index, &name, &change)).if_present().map(drop)?),
        )
    });
    Ok(())
}

/// Returns true if the bridge has a port besides the uplink.
fn has_pods(host: &mut Netlink, bridge: u32, uplink: u32) -> Result<bool, Error> {
    let ports = host.links(&Filter { master: Some(bridge), kind: None })?;
    Ok(ports.iter().any(|port| port.index != uplink))
}

/// Sets the uplink of a removed bridge down again. Leaves it up if it is a port of another bridge or has a link on top
/// of it. The same holds if a part of the host depends on it by now.
pub(crate) fn take_down(host: &mut Netlink, name: &str) -> Result<(), Error> {
    let Some(uplink) = host.find_link(name)?.filter(|uplink| uplink.up && uplink.master.is_none()) else {
        return Ok(());
    };
    let all = host.links(&Filter { master: None, kind: None })?;
    let carries = all.iter().any(|other| other.peer == Some(uplink.index) && other.kind != "veth");
    if carries || dependents::find_dependent(host, &uplink)?.is_some() {
        return Ok(());
    }
    let down = Change { up: Some(false), ..Change::default() };
    host.execute(link::set(uplink.index, name, &down)).if_present()?;
    Ok(())
}

/// Fails with code 103 if the interface `name` is missing or not a port of the bridge.
pub(crate) fn check(host: &mut Netlink, bridge: &Link, name: &str) -> Result<(), Error> {
    let uplink = host.find_link(name)?;
    if uplink.is_some_and(|uplink| uplink.master == Some(bridge.index)) {
        Ok(())
    } else {
        Err(Error::check(format!("uplink: {name} is not a port of {}", bridge.name)))
    }
}
