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
use crate::{ours, port};

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

pub(crate) fn ensure(cx: &mut Context<'_>, bridge: &Link, vlan: u16) -> Result<Link, Error> {
    let name = vlan_gateway_name(&bridge.name, vlan);
    match cx.host.find_link(&name)? {
        Some(found) => share(cx, found, vlan),
        None => create(cx, bridge, vlan, &name),
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
    let (call, host) = (cx.call, &mut cx.host);
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
    let alias = fresh(vlan, call);
    let (index, made, own) = (port.index, name.to_owned(), alias.clone());
    call.undo.push(format!("remove {name}"), move || {
        let mut host = Netlink::open()?;
        match host.find_link(&made)? {
            Some(gateway) if gateway.alias == own || gateway.alias.is_empty() => {
                Ok(host.remove_link(index, &port_name)?)
            }
            _ => Ok(()),
        }
    });
    ours::hold(cx, &mut bridge.clone(), &port)?;
    ignore_router_advertisements_on_new(&port)?;
    switch_on(&mut cx.host, &port, None)?;
    port::configure_vlans(cx, bridge, &port, &[port::untagged(vlan)])?;
    let gateway = cx.host.link(name)?;
    ignore_router_advertisements_on_new(&gateway)?;
    switch_on(&mut cx.host, &gateway, Some(&alias))?;
    Ok(Link { alias, ..gateway })
}

fn switch_on(host: &mut Netlink, gateway: &Link, alias: Option<&str>) -> Result<(), Error> {
    let change = Change { up: Some(true), alias, ..Change::default() };
    Ok(host.execute(link::set(gateway.index, &gateway.name, &change))?)
}
