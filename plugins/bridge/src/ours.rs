//! The aliases that tell which bridges this plugin made, and the MAC that a bridge keeps.

use cnimble_netlink as netlink;
use cnimble_netlink::link::{self, Change, Link, Mac};

use crate::config::Config;
use crate::context::Context;

pub(crate) use cnimble_rules::objects::bridge::WAKES_UPLINK;
use cnimble_rules::objects::bridge::{OURS, OURS_REMOVABLE, UPLINKED, UPLINKED_REMOVABLE};

/// Returns the alias of a new bridge. It records whether the bridge has an uplink, and whether it is removed with its
/// last pod.
pub(crate) fn alias(config: &Config) -> &'static str {
    match (config.uplink.is_some(), config.remove_unused) {
        (false, false) => OURS,
        (false, true) => OURS_REMOVABLE,
        (true, false) => UPLINKED,
        (true, true) => UPLINKED_REMOVABLE,
    }
}

/// Returns true if cnimble made the bridge without an uplink, and nobody has changed its alias since. Other hosts are
/// on such a bridge only if an administrator has added a port that leads to them. A bridge with an uplink is not among
/// them ([`has_uplink`]).
pub(crate) fn is_ours(bridge: &Link) -> bool {
    [OURS, OURS_REMOVABLE].contains(&bridge.alias.as_str())
}

/// Returns true if cnimble made the bridge with an uplink, so that it leads to other hosts.
pub(crate) fn has_uplink(bridge: &Link) -> bool {
    [UPLINKED, UPLINKED_REMOVABLE, WAKES_UPLINK].contains(&bridge.alias.as_str())
}

/// Returns true if the uplink was down before it joined this bridge. It is set down again when the bridge is removed.
pub(crate) fn wakes_uplink(bridge: &Link) -> bool {
    bridge.alias == WAKES_UPLINK
}

/// Returns true if the bridge is to be removed with its last pod, with or without an uplink.
pub(crate) fn is_removable(bridge: &Link) -> bool {
    [OURS_REMOVABLE, UPLINKED_REMOVABLE, WAKES_UPLINK].contains(&bridge.alias.as_str())
}

/// The MAC that the kernel gives a bridge when its last port leaves, unless a MAC was set. The kernel refuses to set
/// it.
const NONE: Option<Mac> = Some(Mac([0; 6]));

/// Returns the bridge's present MAC if it has to be set explicitly, or `None`. A foreign bridge follows the lowest MAC
/// of its ports until one is set. So the MAC is set before the first port joins, while the bridge is not operationally
/// up.
pub(crate) fn mac_to_hold(bridge: &Link) -> Option<Mac> {
    bridge.mac.filter(|_| !is_ours(bridge) && !bridge.oper_up && bridge.mac != NONE)
}

/// Restores the MAC that `bridge` had before `port` joined, so that neighbour entries and earlier results stay true.
/// The kernel uses the lowest MAC of the ports until one is set, and netlink does not report whether one is set.
///
/// Also restores the flags that the undo of a failed ADD took away without seeing the port. `bridge` is updated, with
/// the alias that its maker has written meanwhile.
pub(crate) fn hold_mac(cx: &mut Context<'_>, bridge: &mut Link, port: &Link) -> netlink::Result<()> {
    let (config, host) = (cx.config, &mut cx.host);
    // A bridge that is operationally up has a port. If its MAC is lower than that of `port`, the kernel has not changed
    // it.
    if bridge.oper_up && bridge.mac < port.mac {
        return Ok(());
    }
    let before = bridge.mac;
    // This also reads the alias, which the maker of the bridge writes after this ADD has found the bridge.
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
