//! An interface of the host that is a port of a new bridge (`uplink`), so that the pods are on its network.

use ipnetwork::IpNetwork;

use cnimble_cni::{Code, Error};
use cnimble_netlink::link::{self, Change, Filter, Link};
use cnimble_netlink::{IfPresent, Netlink};

use crate::context::Context;

/// Fails with code 102 if the interface has an address, which would be cut off, or is a port already.
pub(crate) fn join(cx: &mut Context<'_>, bridge: &Link, name: &str) -> Result<(), Error> {
    let uplink = cx.host.link(name)?;
    if uplink.master == Some(bridge.index) {
        return Ok(());
    }
    let refused = |why: String, hint: &str| Err(Error::new(Code::CONFLICT, why).details(hint));
    if uplink.master.is_some() {
        return refused(
            format!("uplink: {name} is a port already"),
            "take it off, or name another interface",
        );
    }
    let stays = |net: IpNetwork| matches!(net, IpNetwork::V6(net) if net.ip().is_unicast_link_local());
    if let Some(addr) = cx.host.addrs(uplink.index)?.into_iter().find(|addr| !stays(addr.net)) {
        let hint =
            "a port gets no packets for its addresses; remove them, or give the bridge to the host yourself";
        return refused(format!("uplink: {name} has the address {}", addr.net), hint);
    }
    let up = (!uplink.up).then_some(true);
    let change = Change { master: Some(bridge.index), up, ..Change::default() };
    cx.host.execute(link::set(uplink.index, name, &change))?;
    let (index, bridge_index, name) = (uplink.index, bridge.index, name.to_owned());
    let back = Change { master: Some(0), up: up.map(|_| false), ..Change::default() };
    cx.call.undo.push(format!("take {name} off {}", bridge.name), move || {
        let mut host = Netlink::open()?;
        let ports = host.links(&Filter { master: Some(bridge_index), kind: None })?;
        // Another pod may have joined the bridge meanwhile.
        if ports.iter().all(|port| port.index == index) {
            host.execute(link::set(index, &name, &back)).if_present()?;
        }
        Ok(())
    });
    Ok(())
}

pub(crate) fn check(host: &mut Netlink, bridge: &Link, name: &str) -> Result<(), Error> {
    let uplink = host.find_link(name)?;
    match uplink.is_some_and(|uplink| uplink.master == Some(bridge.index)) {
        true => Ok(()),
        false => Err(Error::check(format!("uplink: {name} is not a port of {}", bridge.name))),
    }
}
