//! Finds or makes the bridge, and makes the pod's port on it.

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

/// Returns the error for a link that has the bridge's name but another kind, with code 102.
pub(crate) fn not_a_bridge(name: &str) -> Error {
    Error::new(Code::CONFLICT, format!("\"{name}\" already exists but is not a bridge"))
}

/// Finds or makes the bridge, and makes the pod's veth pair as its port. Returns the bridge and the pair.
///
/// A concurrent DEL may remove a bridge with `removeUnusedBridge`. So the lock of all bridges is held from the look for
/// such a bridge until the port exists, which the DEL then sees. If another network's ADD gave the bridge that mark,
/// this one learns of it late and tries again with the lock.
pub(crate) fn join(cx: &mut Context<'_>, netns: &NetNs, mac: Option<Mac>) -> Result<(Link, Pair), Error> {
    let (call, config) = (cx.call, cx.config);
    let mut lock = config.remove_unused.then(unused::lock).transpose()?;
    let what = format!("set up bridge {}", config.bridge);
    loop {
        let bridge = call.step(&what, || ensure(cx, None))?;
        // Another network's configuration may have marked the bridge for removal. The next round has the lock.
        if lock.is_none() && ours::is_removable(&bridge) {
            lock = Some(unused::lock()?);
            continue;
        }
        let pair = format!("make the veth pair of {}", call.ifname);
        let made = call.step(&pair, || port::create(cx, &bridge, netns, mac));
        match made {
            // The bridge was removed before the pair was made. Its alias did not announce that when it was read.
            Err(_) if lock.is_none() && unused::is_gone(&mut cx.host, &bridge)? => {
                lock = Some(unused::lock()?);
            }
            made => return Ok((bridge, made?)),
        }
    }
}

/// Finds the bridge, or makes it with `mac`, or with a random MAC if that is `None`.
///
/// Either bridge is set up, filters VLANs if a port needs that, and ignores router advertisements (CVE-2020-10749). A
/// new bridge gets a MAC that does not follow its ports, and the uplink. A foreign bridge that is up may still follow
/// them ([`ours::mac_to_hold`]).
///
/// Fails with code 102 if another kind of link has the name, or if the bridge cannot become what the configuration
/// wants.
pub(crate) fn ensure(cx: &mut Context<'_>, mac: Option<Mac>) -> Result<Link, Error> {
    let config = cx.config;
    let found = cx.host.find_link(&config.bridge)?;
    let is_complete = found.as_ref().is_some_and(|bridge| !is_unfinished(bridge));
    // The lock is held until a new bridge is complete. A later ADD that finds an unfinished bridge knows that its maker
    // was killed.
    let _alone = if is_complete { None } else { unused::lock_if_possible()? };
    let found = if is_complete { found } else { cx.host.find_link(&config.bridge)? };
    let (mut bridge, origin) = match found {
        Some(bridge) if is_unfinished(&bridge) => (bridge, BridgeOrigin::Unfinished),
        Some(bridge) => (bridge, BridgeOrigin::Found),
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
    if origin == BridgeOrigin::Unfinished {
        bridge = cx.host.link_at(bridge.index)?;
    }
    if let Some(name) = &config.uplink
        && (origin != BridgeOrigin::Found || ours::has_uplink(&bridge))
    {
        uplink::join(cx, &bridge, name)?;
    }
    Ok(bridge)
}

/// The maker of the bridge that [`ensure`] returns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum BridgeOrigin {
    /// This ADD has made it.
    Made,
    /// Another ADD has made it and was killed before it was complete. This ADD completes it.
    Unfinished,
    /// The bridge existed, or a concurrent ADD has made it meanwhile.
    Found,
}

/// Creates the bridge with a MAC of its own. Otherwise the kernel would give it the lowest MAC of its ports, and each
/// change would break the neighbour entries of the pods.
///
/// The link group [`UNFINISHED`] marks the bridge until it has an alias. The undo removes the bridge only if it has no
/// port.
fn create(cx: &mut Context<'_>, mac: Option<Mac>) -> Result<(Link, BridgeOrigin), Error> {
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
            Ok((bridge, BridgeOrigin::Made))
        }
        // A concurrent ADD made it without the lock, as an ADD does where `/run` is read-only.
        Err(err) if err.is(Errno::EEXIST) => Ok((host.link(&config.bridge)?, BridgeOrigin::Found)),
        Err(err) if config.filters_vlans => Err(explain(err)),
        Err(err) => Err(err.into()),
    }
}

/// Returns true if any link is a port of the bridge with this index.
fn has_ports(host: &mut Netlink, bridge: u32) -> netlink::Result<bool> {
    Ok(!host.links(&Filter { master: Some(bridge), kind: None })?.is_empty())
}

/// Sets the bridge up, switches `promiscMode` on, and sets the MAC that a foreign bridge has to keep
/// ([`ours::mac_to_hold`]). Sends nothing if a bridge that was found needs nothing.
///
/// A new bridge gets the alias that says who made it. The same message sets the default link group in place of
/// [`UNFINISHED`]. So a kill leaves either the mark or the alias.
fn switch_on(
    cx: &mut Context<'_>,
    bridge: &Link,
    origin: BridgeOrigin,
    mac: Option<Mac>,
) -> Result<(), Error> {
    let (config, is_new) = (cx.config, origin != BridgeOrigin::Found);
    let up = (!bridge.up).then_some(true);
    let promisc = (config.promisc && !bridge.promisc).then_some(true);
    let (mac, mtu) = match origin {
        BridgeOrigin::Made => (None, None),
        // The killed ADD set the MAC and the MTU of its own configuration, which may have changed since.
        BridgeOrigin::Unfinished => (mac, cx.mtu.filter(|mtu| *mtu != bridge.mtu)),
        BridgeOrigin::Found => (ours::mac_to_hold(bridge), None),
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
        // An ADD that joins later sets the flags itself ([`ours::hold_mac`]).
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

/// Reverts a change of the bridge for the undo of an ADD, unless `is_used` says that other pods use the bridge.
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

/// Switches VLAN filtering on, with its undo. Fails with code 102 if the bridge has ports of others. With the filter, a
/// port without VLANs loses the tagged frames that it may need.
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
        // A port with other VLANs than the default ones belongs to a concurrent ADD and depends on the filter.
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

/// Returns the name of a port that is neither cnimble's nor a pod's, or `None`. A port is cnimble's if its alias names
/// an owner. On a bridge that this plugin made, a veth with the name of a pod's is enough.
fn port_of_others(host: &mut Netlink, bridge: &Link) -> Result<Option<String>, Error> {
    let made_here = ours::is_ours(bridge);
    let ports = host.links(&Filter { master: Some(bridge.index), kind: None })?;
    let strange = ports.into_iter().find(|port| {
        // A port that is down and has no alias may be one that a concurrent ADD is making.
        let pods = is_a_pods(port) && (made_here || !port.up && port.alias.is_empty());
        !pods && owner::tag(&port.alias).is_none()
    });
    Ok(strange.map(|port| port.name))
}

/// Explains the error of a request that switches VLAN filtering on. A kernel that was built without it answers
/// EOPNOTSUPP, which says nothing about VLANs.
fn explain(err: netlink::Error) -> Error {
    if !err.is(Errno::EOPNOTSUPP) {
        return err.into();
    }
    Error::new(Code::KERNEL, "vlan, vlanTrunk: the bridges of this kernel can't filter vlans")
        .details(format!("built without CONFIG_BRIDGE_VLAN_FILTERING? {err}"))
}
