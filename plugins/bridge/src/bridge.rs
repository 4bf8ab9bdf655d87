//! The bridge: found or made, and joined.

use nix::errno::Errno;

use cnimble_cni::{Code, Error, owner};
use cnimble_netlink::link::{self, Change, Filter, Link, Mac, NewBridge, VlanFiltering};
use cnimble_netlink::{self as netlink, NetNs, Netlink};
use cnimble_plugin::interface::host::ignore_router_advertisements;
use cnimble_plugin::interface::pair::Pair;
use cnimble_plugin::interface::pair::is_a_pods;
use cnimble_rules::objects::bridge::{UNFINISHED, is_unfinished};

use crate::context::Context;
use crate::{ours, port, unused, uplink};

pub(crate) fn not_a_bridge(name: &str) -> Error {
    Error::new(Code::CONFLICT, format!("\"{name}\" already exists but is not a bridge"))
}

/// Makes the pod's port. A bridge that is removed with its last pod is locked meanwhile: a concurrent DEL sees the
/// port.
pub(crate) fn join(cx: &mut Context<'_>, netns: &NetNs, mac: Option<Mac>) -> Result<(Link, Pair), Error> {
    let (call, config) = (cx.call, cx.config);
    let mut lock = config.remove_unused.then(unused::lock).transpose()?;
    let what = format!("set up bridge {}", config.bridge);
    loop {
        let bridge = call.step(&what, || ensure(cx, None))?;
        // Another network's configuration may have marked the bridge for removal.
        if lock.is_none() && ours::is_removable(&bridge) {
            lock = Some(unused::lock()?);
            continue;
        }
        let pair = format!("make the veth pair of {}", call.ifname);
        let made = call.step(&pair, || port::create(cx, &bridge, netns, mac));
        match made {
            // The bridge was removed before the pair was made, and its alias didn't announce that yet.
            Err(_) if lock.is_none() && unused::is_gone(&mut cx.host, &bridge)? => {
                lock = Some(unused::lock()?);
            }
            made => return Ok((bridge, made?)),
        }
    }
}

/// Finds the bridge, or makes it with this or a random `mac`. It ignores router advertisements (CVE-2020-10749), and
/// its MAC doesn't follow its ports.
pub(crate) fn ensure(cx: &mut Context<'_>, mac: Option<Mac>) -> Result<Link, Error> {
    let config = cx.config;
    let found = cx.host.find_link(&config.bridge)?;
    let is_complete = found.as_ref().is_some_and(|bridge| !is_unfinished(bridge));
    // Held until a new bridge is complete: an unfinished one is a killed ADD's then.
    let _alone = if is_complete { None } else { unused::lock_if_possible()? };
    let found = if is_complete { found } else { cx.host.find_link(&config.bridge)? };
    let (mut bridge, origin) = match found {
        Some(bridge) if is_unfinished(&bridge) => (bridge, Origin::Unfinished),
        Some(bridge) => (bridge, Origin::Found),
        None => create(cx, mac)?,
    };
    if bridge.kind != "bridge" {
        return Err(not_a_bridge(&config.bridge));
    }
    if config.uses_vlans() && !bridge.vlan_filtering {
        filter_vlans(cx, &bridge)?;
    }
    if bridge.accept_ra != Some(0) {
        ignore_router_advertisements(cx.call, &bridge.name)?;
    }
    switch_on(cx, &bridge, origin, mac)?;
    if origin == Origin::Unfinished {
        bridge = cx.host.link_at(bridge.index)?;
    }
    if let Some(name) = &config.uplink
        && (origin != Origin::Found || ours::has_uplink(&bridge))
    {
        uplink::join(cx, &bridge, name)?;
    }
    Ok(bridge)
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Origin {
    Made,
    /// An ADD that was killed has made it.
    Unfinished,
    /// The bridge was there, or a concurrent ADD has made it meanwhile.
    Found,
}

/// Creates the bridge with its MAC. Otherwise the kernel would change it to the lowest one of the ports and break the
/// pods' neighbour entries. The group marks the bridge until it has an alias.
fn create(cx: &mut Context<'_>, mac: Option<Mac>) -> Result<(Link, Origin), Error> {
    let (call, config, host) = (cx.call, cx.config, &mut cx.host);
    let wanted = NewBridge {
        name: &config.bridge,
        mtu: cx.mtu,
        mac: mac.unwrap_or_else(Mac::random),
        vlan_filtering: config.filters_vlans,
        group: Some(UNFINISHED),
    };
    match host.create_link(link::add_bridge(&wanted)) {
        Ok(bridge) => {
            let (index, name) = (bridge.index, bridge.name.clone());
            call.undo.push(format!("remove bridge {name}"), move || {
                let _alone = unused::lock_if_possible()?;
                let mut host = Netlink::open()?;
                // Another pod may have joined it meanwhile.
                if !has_ports(&mut host, index)? {
                    host.remove_link(index, &name)?;
                }
                Ok(())
            });
            Ok((bridge, Origin::Made))
        }
        // A concurrent ADD made it, without the lock.
        Err(err) if err.is(Errno::EEXIST) => Ok((host.link(&config.bridge)?, Origin::Found)),
        Err(err) if config.filters_vlans => Err(explain(err)),
        Err(err) => Err(err.into()),
    }
}

fn has_ports(host: &mut Netlink, bridge: u32) -> netlink::Result<bool> {
    Ok(!host.links(&Filter { master: Some(bridge), kind: None })?.is_empty())
}

/// Brings the bridge up, with `promiscMode`, and with the MAC that it has to keep if an earlier cnimble made it. Sends
/// nothing if a bridge that was found needs nothing.
///
/// A new bridge gets the alias that says who made it. One message writes it and takes the mark of an unfinished bridge
/// (its group) away, so that a kill leaves one or the other.
fn switch_on(cx: &mut Context<'_>, bridge: &Link, origin: Origin, mac: Option<Mac>) -> Result<(), Error> {
    let (config, is_new) = (cx.config, origin != Origin::Found);
    let up = (!bridge.up).then_some(true);
    let promisc = (config.promisc && !bridge.promisc).then_some(true);
    let (mac, mtu) = match origin {
        Origin::Made => (None, None),
        // The creation set those of a configuration that may have changed since.
        Origin::Unfinished => (mac, cx.mtu.filter(|mtu| *mtu != bridge.mtu)),
        Origin::Found => (ours::mac_to_hold(bridge), None),
    };
    if !is_new && up.is_none() && promisc.is_none() && mac.is_none() {
        return Ok(());
    }
    let (alias, group) = (is_new.then_some(ours::alias(config)), is_new.then_some(0));
    let change = Change { up, promisc, mac, mtu, alias, group, ..Change::default() };
    cx.host.execute(link::set(bridge.index, &bridge.name, &change))?;
    if up.is_none() && promisc.is_none() {
        return Ok(());
    }
    let (index, name) = (bridge.index, bridge.name.clone());
    let back = Change { up: up.map(|_| false), promisc: promisc.map(|_| false), ..Change::default() };
    cx.call.undo.push(format!("restore the flags of {name}"), move || {
        // An ADD that joins later checks the flags itself ([`ours::hold`]).
        take_back(
            |host| Ok(has_ports(host, index)?),
            |host| Ok(host.execute(link::set(index, &name, &back))?),
            |host| {
                let change = Change { up, promisc, ..Change::default() };
                Ok(host.execute(link::set(index, &name, &change))?)
            },
        )
    });
    Ok(())
}

/// Takes a change of the bridge back for the undo of an ADD, unless other pods use the bridge.
///
/// An ADD may join the bridge between that look and `take`, and rely on what it has found. Its port is on the bridge
/// before it looks at anything there. So a second look sees the port, and `put_back` makes the change again.
pub(crate) fn take_back(
    is_used: impl Fn(&mut Netlink) -> Result<bool, Error>,
    take: impl FnOnce(&mut Netlink) -> Result<(), Error>,
    put_back: impl FnOnce(&mut Netlink) -> Result<(), Error>,
) -> Result<(), Error> {
    let mut host = Netlink::open()?;
    if is_used(&mut host)? {
        return Ok(());
    }
    take(&mut host)?;
    if is_used(&mut host)? { put_back(&mut host) } else { Ok(()) }
}

/// Switches VLAN filtering on. Fails with code 102 if the bridge has ports of others: with the filter, a port without
/// VLANs loses the tagged frames that it may need.
fn filter_vlans(cx: &mut Context<'_>, bridge: &Link) -> Result<(), Error> {
    if let Some(port) = port_of_others(&mut cx.host, bridge)? {
        let msg =
            format!("vlan, vlanTrunk: bridge {} doesn't filter vlans, and has ports of others", bridge.name);
        return Err(Error::new(Code::CONFLICT, msg).details(format!(
            "port {port} may need its tagged frames; `ip link set {} type bridge vlan_filtering 1` \
             if it doesn't, or another bridge",
            bridge.name
        )));
    }
    cx.host
        .execute(link::set_vlan_filtering(bridge.index, &bridge.name, VlanFiltering::On))
        .map_err(explain)?;
    let (index, name) = (bridge.index, bridge.name.clone());
    cx.call.undo.push(format!("switch vlan_filtering of {name} off"), move || {
        let mut host = Netlink::open()?;
        // Ports with vlans are a concurrent ADD's, and depend on the filter.
        let default = host.vlans(index)?;
        for port in host.links(&Filter { master: Some(index), kind: None })? {
            if host.vlans(port.index)? != default {
                return Ok(());
            }
        }
        Ok(host.execute(link::set_vlan_filtering(index, &name, VlanFiltering::Off))?)
    });
    Ok(())
}

/// Returns a foreign port. All pods' ports are ours if this plugin made the bridge.
fn port_of_others(host: &mut Netlink, bridge: &Link) -> Result<Option<String>, Error> {
    let made_here = ours::is_ours(bridge);
    let ports = host.links(&Filter { master: Some(bridge.index), kind: None })?;
    let strange = ports.into_iter().find(|port| {
        // A port that is down without an alias is a concurrent ADD's.
        let pods = is_a_pods(port) && (made_here || !port.up && port.alias.is_empty());
        !pods && owner::tag(&port.alias).is_none()
    });
    Ok(strange.map(|port| port.name))
}

/// The kernel's errno doesn't tell that it can't filter vlans.
fn explain(err: netlink::Error) -> Error {
    if !err.is(Errno::EOPNOTSUPP) {
        return err.into();
    }
    Error::new(Code::KERNEL, "vlan, vlanTrunk: the bridges of this kernel can't filter vlans")
        .details(format!("built without CONFIG_BRIDGE_VLAN_FILTERING? {err}"))
}
