//! The gateway interface of a VLAN: one end of a veth pair on the host. The other end is an untagged port of the bridge
//! in that VLAN. The pair outlives the pods of the VLAN, unless the bridge is removed with its last pod.
//!
//! The alias of the gateway interface tells its state. It is empty until the pair is complete, then [`fresh`] until the
//! ADD that made it succeeds, and [`lasting`] from then on.

use std::os::fd::AsFd;

use nix::errno::Errno;

use cnimble_cni::Error;
use cnimble_netlink::link::{self, Change, Link, NewVeth};
use cnimble_netlink::{NetNs, Netlink};
use cnimble_plugin::interface::host::{ignore_router_advertisements, ignore_router_advertisements_on_new};
use cnimble_plugin::interface::pair_mtu;
use cnimble_plugin::{Call, Place};

use crate::config::vlan_gateway_name;
use crate::context::Context;
use crate::{ours, port, unused};

/// The beginning of the alias [`fresh`].
const NEW: &str = "new ";

/// Returns the name of the bridge's port behind this gateway interface. It is a hash, because a name has only 15 bytes.
pub(crate) fn port_name(gateway: &str) -> String {
    format!("veth{}", cnimble_cni::hash16(gateway).get(..8).unwrap_or_default())
}

/// Returns the alias of a gateway interface that no undo removes any more.
pub(crate) fn lasting(vlan: u16) -> String {
    format!("gateway of vlan {vlan}")
}

/// Returns the alias of a gateway interface until the ADD that made it has succeeded. A concurrent ADD that uses the
/// interface writes [`lasting`], so that the undo of the first ADD keeps it.
fn fresh(vlan: u16, call: &Call) -> String {
    format!("{NEW}{}, made for {}", lasting(vlan), call.container_id)
}

fn is_new(gateway: &Link) -> bool {
    gateway.alias.starts_with(NEW)
}

/// Returns true if a gateway interface without a pod in its VLAN may be removed. It has an alias of cnimble's or none:
/// a killed ADD leaves it with the alias [`fresh`] or without one. The port of a running ADD is in the VLAN before the
/// gateway interface is made, and so protects it.
pub(crate) fn may_be_removed(gateway: &Link, vlan: u16) -> bool {
    gateway.alias == lasting(vlan) || is_new(gateway) || gateway.alias.is_empty()
}

/// Returns the port of a gateway interface that its ADD has not completed, or `None` for any other interface. The ADD
/// was killed, or is still running unless the caller holds the lock.
///
/// An ADD writes the alias last, so it is still empty. The port's name is a hash, which no administrator chooses.
fn unfinished(host: &mut Netlink, gateway: &Link) -> Result<Option<Link>, Error> {
    if gateway.kind != "veth" || !gateway.alias.is_empty() {
        return Ok(None);
    }
    let port = host.find_link(&port_name(&gateway.name))?;
    Ok(port.filter(|port| {
        port.peer_netnsid.is_none() && gateway.peer_netnsid.is_none() && port.peer == Some(gateway.index)
    }))
}

/// Finds the gateway interface of the VLAN, or makes or completes it, with its undo. The caller gives it the addresses
/// and calls [`keep_gateway`] at the end of ADD. An interface of that name that an administrator has made is used as it
/// is.
pub(crate) fn ensure(cx: &mut Context<'_>, bridge: &Link, vlan: u16) -> Result<Link, Error> {
    let name = vlan_gateway_name(&bridge.name, vlan);
    if let Some(found) = cx.host.find_link(&name)?
        && unfinished(&mut cx.host, &found)?.is_none()
    {
        return share(cx, found, vlan);
    }
    // An unfinished interface may be one that a running ADD is making. That ADD has the lock until it is complete.
    let _alone = unused::lock_if_possible()?;
    let Some(found) = cx.host.find_link(&name)? else { return create(cx, bridge, vlan, &name) };
    match unfinished(&mut cx.host, &found)? {
        Some(port) => complete(cx, bridge, vlan, &port, &name),
        None => share(cx, found, vlan),
    }
}

/// Makes the port of the gateway interface a port of the bridge again, for a bridge that was deleted and put back. Does
/// nothing if the port is missing or has a master.
pub(crate) fn rejoin(cx: &mut Context<'_>, bridge: &Link, vlan: u16) -> Result<(), Error> {
    let Some(port) = cx.host.find_link(&port_name(&vlan_gateway_name(&bridge.name, vlan)))? else {
        return Ok(());
    };
    if port.kind != "veth" || port.master.is_some() {
        return Ok(());
    }
    let change = Change { master: Some(bridge.index), ..Change::default() };
    cx.host.execute(link::set(port.index, &port.name, &change))?;
    port::configure_vlans(cx, bridge, &port, &[port::untagged(vlan)])
}

/// Verifies that both ends have the MTU of the pods (`mtuAuto`), and lets a repair set it. Otherwise the end with the
/// smaller MTU would drop frames. Does nothing without a VLAN or if `mtu` is `None`.
pub(crate) fn follow(cx: &mut Context<'_>, bridge: &Link, mtu: Option<u32>) -> Result<(), Error> {
    let (Some(vlan), Some(mtu)) = (cx.config.vlan, mtu) else { return Ok(()) };
    let (call, gateway) = (cx.call, vlan_gateway_name(&bridge.name, vlan));
    for name in [port_name(&gateway), gateway] {
        // The administrator may have made another kind of interface with that name.
        let Some(link) = cx.host.find_link(&name)?.filter(|link| link.kind == "veth") else { continue };
        call.wants(
            Place::Host,
            cx,
            |cx| pair_mtu::verify_mtu(&cx.host.link_at(link.index)?, mtu),
            |cx| pair_mtu::set_mtu(&mut cx.host, &link, mtu),
        )?;
    }
    Ok(())
}

/// Makes a new gateway interface permanent by its alias. It is the last step of an ADD, because the undo then keeps the
/// interface. Does nothing if the interface has another alias than [`fresh`].
pub(crate) fn keep_gateway(host: &mut Netlink, gateway: &Link, vlan: u16) -> Result<(), Error> {
    if !is_new(gateway) {
        return Ok(());
    }
    let alias = lasting(vlan);
    let change = Change { alias: Some(&alias), ..Change::default() };
    Ok(host.execute(link::set(gateway.index, &gateway.name, &change))?)
}

/// Prepares a gateway interface that another ADD or an administrator has made. It is set up and ignores router
/// advertisements, and a new one becomes permanent.
fn share(cx: &mut Context<'_>, found: Link, vlan: u16) -> Result<Link, Error> {
    let (call, host) = (cx.call, &mut cx.host);
    keep_gateway(host, &found, vlan)?;
    if found.accept_ra != Some(0) {
        ignore_router_advertisements(call, &found.name)?;
    }
    if !found.up {
        switch_on(host, &found, None)?;
    }
    Ok(found)
}

/// Makes the veth pair of the gateway interface and completes it. If a concurrent ADD has made it, shares that one.
fn create(cx: &mut Context<'_>, bridge: &Link, vlan: u16, name: &str) -> Result<Link, Error> {
    let host = &mut cx.host;
    let here = NetNs::current()?;
    let port_name = port_name(name);
    let port = host.create_link(link::add_veth(&NewVeth {
        name: &port_name,
        mac: None,
        master: Some(bridge.index),
        up: false,
        mtu: Some(bridge.mtu),
        peer_name: name,
        peer_mac: None,
        peer_ns: here.as_fd(),
    }));
    let port = match port {
        Ok(port) => port,
        // A concurrent ADD made it without the lock.
        Err(err) if err.is(Errno::EEXIST) => {
            let found = host.link(name)?;
            return share(cx, found, vlan);
        }
        Err(err) => return Err(err.into()),
    };
    complete(cx, bridge, vlan, &port, name)
}

/// Completes a veth pair that is new, or that a killed ADD has left unfinished: both ends are up and ignore router
/// advertisements, the port is in the VLAN, and the alias comes last. Returns the gateway interface with that alias.
/// The undo removes the pair unless a concurrent ADD has made it permanent.
fn complete(cx: &mut Context<'_>, bridge: &Link, vlan: u16, port: &Link, name: &str) -> Result<Link, Error> {
    let alias = fresh(vlan, cx.call);
    let (index, port_name, made, own) = (port.index, port.name.clone(), name.to_owned(), alias.clone());
    cx.call.undo.push(format!("remove {name}"), move || {
        let _alone = unused::lock_if_possible()?;
        let mut host = Netlink::open()?;
        match host.find_link(&made)? {
            Some(gateway) if gateway.alias == own || gateway.alias.is_empty() => {
                Ok(host.remove_link(index, &port_name)?)
            }
            _ => Ok(()),
        }
    });
    ours::hold_mac(cx, &mut bridge.clone(), port)?;
    ignore_router_advertisements_on_new(port)?;
    switch_on(&mut cx.host, port, None)?;
    port::configure_vlans(cx, bridge, port, &[port::untagged(vlan)])?;
    let gateway = cx.host.link(name)?;
    ignore_router_advertisements_on_new(&gateway)?;
    switch_on(&mut cx.host, &gateway, Some(&alias))?;
    Ok(Link { alias, ..gateway })
}

/// Sets one end of the pair up, and writes its alias in the same message if there is one.
fn switch_on(host: &mut Netlink, gateway: &Link, alias: Option<&str>) -> Result<(), Error> {
    let change = Change { up: Some(true), alias, ..Change::default() };
    Ok(host.execute(link::set(gateway.index, &gateway.name, &change))?)
}
