//! The gateway of a vlan: one end of a veth pair on the host. The other end is an untagged port of the vlan. It
//! outlives the pods of the vlan, unless the bridge is removed with its last pod.

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

const NEW: &str = "new ";

pub(crate) fn port_name(gateway: &str) -> String {
    format!("veth{}", cnimble_cni::hash16(gateway).get(..8).unwrap_or_default())
}

pub(crate) fn lasting(vlan: u16) -> String {
    format!("gateway of vlan {vlan}")
}

/// The alias until the ADD that made it has succeeded. A concurrent ADD that uses it makes it permanent, so that the
/// undo of the first ADD keeps it.
fn fresh(vlan: u16, call: &Call) -> String {
    format!("{NEW}{}, made for {}", lasting(vlan), call.container_id)
}

fn is_new(gateway: &Link) -> bool {
    gateway.alias.starts_with(NEW)
}

/// Whether a gateway without pods may go with its bridge. An ADD that was killed has left the alias of a new one, or
/// none. The port of a living ADD is in the vlan before the gateway is made.
pub(crate) fn may_be_removed(gateway: &Link, vlan: u16) -> bool {
    gateway.alias == lasting(vlan) || is_new(gateway) || gateway.alias.is_empty()
}

/// Finds the port of a gateway that its ADD has not completed, because it was killed or is at it. The port's name is a
/// hash, so the pair is no administrator's. The alias is the last thing that an ADD writes.
fn unfinished(host: &mut Netlink, gateway: &Link) -> Result<Option<Link>, Error> {
    if gateway.kind != "veth" || !gateway.alias.is_empty() {
        return Ok(None);
    }
    let port = host.find_link(&port_name(&gateway.name))?;
    Ok(port.filter(|port| port.far.is_none() && gateway.far.is_none() && port.peer == Some(gateway.index)))
}

pub(crate) fn ensure(cx: &mut Context<'_>, bridge: &Link, vlan: u16) -> Result<Link, Error> {
    let name = vlan_gateway_name(&bridge.name, vlan);
    if let Some(found) = cx.host.find_link(&name)?
        && unfinished(&mut cx.host, &found)?.is_none()
    {
        return share(cx, found, vlan);
    }
    // Its ADD may still be making it.
    let _alone = unused::lock_if_possible()?;
    let Some(found) = cx.host.find_link(&name)? else { return create(cx, bridge, vlan, &name) };
    match unfinished(&mut cx.host, &found)? {
        Some(port) => complete(cx, bridge, vlan, &port, &name),
        None => share(cx, found, vlan),
    }
}

/// Gives the port of a gateway its bridge again.
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

/// Both ends have the MTU of the pods (`mtuAuto`), or the one with the smaller MTU would drop frames.
pub(crate) fn follow(cx: &mut Context<'_>, bridge: &Link, mtu: Option<u32>) -> Result<(), Error> {
    let (Some(vlan), Some(mtu)) = (cx.config.vlan, mtu) else { return Ok(()) };
    let (call, gateway) = (cx.call, vlan_gateway_name(&bridge.name, vlan));
    for name in [port_name(&gateway), gateway] {
        // The administrator may have made another kind of interface of that name.
        let Some(link) = cx.host.find_link(&name)?.filter(|link| link.kind == "veth") else { continue };
        let verify = |cx: &mut Context<'_>| pair_mtu::verify_mtu(&cx.host.link_at(link.index)?, mtu);
        call.wants(Place::Host, cx, verify, |cx| pair_mtu::set_mtu(&mut cx.host, &link, mtu))?;
    }
    Ok(())
}

/// Makes `gateway` permanent: the last step of an ADD.
pub(crate) fn keep(host: &mut Netlink, gateway: &Link, vlan: u16) -> Result<(), Error> {
    if !is_new(gateway) {
        return Ok(());
    }
    let alias = lasting(vlan);
    let change = Change { alias: Some(&alias), ..Change::default() };
    Ok(host.execute(link::set(gateway.index, &gateway.name, &change))?)
}

fn share(cx: &mut Context<'_>, found: Link, vlan: u16) -> Result<Link, Error> {
    let (call, host) = (cx.call, &mut cx.host);
    keep(host, &found, vlan)?;
    if found.accept_ra != Some(0) {
        ignore_router_advertisements(call, &found.name)?;
    }
    if !found.up {
        switch_on(host, &found, None)?;
    }
    Ok(found)
}

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
        // A concurrent ADD made it.
        Err(err) if err.is(Errno::EEXIST) => {
            let found = host.link(name)?;
            return share(cx, found, vlan);
        }
        Err(err) => return Err(err.into()),
    };
    complete(cx, bridge, vlan, &port, name)
}

/// Gives a new gateway all that it needs, and the alias last.
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
    ours::hold(cx, &mut bridge.clone(), port)?;
    ignore_router_advertisements_on_new(port)?;
    switch_on(&mut cx.host, port, None)?;
    port::configure_vlans(cx, bridge, port, &[port::untagged(vlan)])?;
    let gateway = cx.host.link(name)?;
    ignore_router_advertisements_on_new(&gateway)?;
    switch_on(&mut cx.host, &gateway, Some(&alias))?;
    Ok(Link { alias, ..gateway })
}

fn switch_on(host: &mut Netlink, gateway: &Link, alias: Option<&str>) -> Result<(), Error> {
    let change = Change { up: Some(true), alias, ..Change::default() };
    Ok(host.execute(link::set(gateway.index, &gateway.name, &change))?)
}
