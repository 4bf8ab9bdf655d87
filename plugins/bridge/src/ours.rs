//! Bridges that this plugin made: their identification, and their stable MAC.

use cnimble_netlink as netlink;
use cnimble_netlink::link::{self, Change, Link, Mac};

use crate::context::Context;

/// The alias of a bridge that this plugin made.
pub(crate) const OURS: &str = "bridge, made by cnimble";

/// The alias of a bridge that this plugin made for a network with `removeUnusedBridge`.
pub(crate) const OURS_REMOVABLE: &str = "bridge, made by cnimble, goes with its last pod";

/// Whether this plugin made the bridge, and its alias is unchanged.
pub(crate) fn is_ours(bridge: &Link) -> bool {
    bridge.alias == OURS || is_removable(bridge)
}

/// Whether the bridge is removed with its last pod.
pub(crate) fn is_removable(bridge: &Link) -> bool {
    bridge.alias == OURS_REMOVABLE
}

/// The MAC of a bridge that has lost its last port. It can't be set.
const NONE: Option<Mac> = Some(Mac([0; 6]));

/// Returns the MAC that has to be set on a foreign bridge before its first port joins. Otherwise the
/// bridge would follow the port's MAC, and a concurrent ADD would take that for the bridge's.
pub(crate) fn mac_to_hold(bridge: &Link) -> Option<Mac> {
    bridge.mac.filter(|_| !is_ours(bridge) && !bridge.oper_up && bridge.mac != NONE)
}

/// Restores the MAC that `bridge` had before `port` joined, if the MAC followed the ports. So the pods'
/// neighbour entries and earlier results stay true. The kernel uses the lowest MAC of the ports unless
/// one was ever set, and netlink doesn't report whether it was. Updates `bridge` to the kernel's state.
///
/// Also restores its flags if the ADD that set them has failed meanwhile and has seen no port.
pub(crate) fn hold(cx: &mut Context<'_>, bridge: &mut Link, port: &Link) -> netlink::Result<()> {
    let (config, host) = (cx.config, &mut cx.host);
    // A bridge that is up has a port already. So its MAC is the lowest one of its ports, which isn't ours, or was set.
    if bridge.oper_up && bridge.mac < port.mac {
        return Ok(());
    }
    let before = bridge.mac;
    // This also updates its alias, which the ADD that made it writes after its look.
    *bridge = host.link_at(bridge.index)?;
    let promisc = (config.promisc && !bridge.promisc).then_some(true);
    if !bridge.up || promisc.is_some() {
        let change = Change { up: Some(true), promisc, ..Change::default() };
        host.execute(link::set(bridge.index, &bridge.name, &change))?;
    }
    if bridge.mac == before || bridge.mac != port.mac || before == NONE {
        return Ok(());
    }
    host.execute(link::set(bridge.index, &bridge.name, &Change { mac: before, ..Change::default() }))?;
    bridge.mac = before;
    Ok(())
}
