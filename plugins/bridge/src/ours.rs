//! Bridges that this plugin made, and their stable MAC.

use cnimble_netlink as netlink;
use cnimble_netlink::link::{self, Change, Link, Mac};

use crate::config::Config;
use crate::context::Context;

pub(crate) use cnimble_rules::objects::bridge::WAKES_UPLINK;
use cnimble_rules::objects::bridge::{OURS, OURS_REMOVABLE, UPLINKED, UPLINKED_REMOVABLE};

pub(crate) fn alias(config: &Config) -> &'static str {
    match (config.uplink.is_some(), config.remove_unused) {
        (false, false) => OURS,
        (false, true) => OURS_REMOVABLE,
        (true, false) => UPLINKED,
        (true, true) => UPLINKED_REMOVABLE,
    }
}

/// Whether cnimble made the bridge, nobody has changed its alias since, and it has no uplink. So no other host is on
/// it.
pub(crate) fn is_ours(bridge: &Link) -> bool {
    [OURS, OURS_REMOVABLE].contains(&bridge.alias.as_str())
}

pub(crate) fn has_uplink(bridge: &Link) -> bool {
    [UPLINKED, UPLINKED_REMOVABLE, WAKES_UPLINK].contains(&bridge.alias.as_str())
}

pub(crate) fn wakes_uplink(bridge: &Link) -> bool {
    bridge.alias == WAKES_UPLINK
}

pub(crate) fn is_removable(bridge: &Link) -> bool {
    [OURS_REMOVABLE, UPLINKED_REMOVABLE, WAKES_UPLINK].contains(&bridge.alias.as_str())
}

/// The MAC of a bridge that has lost its last port. The kernel refuses to set it.
const NONE: Option<Mac> = Some(Mac([0; 6]));

/// The MAC to set on a foreign bridge before its first port joins, which it would follow otherwise.
pub(crate) fn mac_to_hold(bridge: &Link) -> Option<Mac> {
    bridge.mac.filter(|_| !is_ours(bridge) && !bridge.oper_up && bridge.mac != NONE)
}

/// Restores the MAC from before `port` joined, so that neighbour entries and earlier results stay true. The kernel uses
/// the lowest MAC of the ports until one is set, which netlink doesn't report. Also restores flags if the ADD that set
/// them has failed without seeing a port. Updates `bridge`.
pub(crate) fn hold(cx: &mut Context<'_>, bridge: &mut Link, port: &Link) -> netlink::Result<()> {
    let (config, host) = (cx.config, &mut cx.host);
    // A bridge that is up has a port. So its MAC was set, or is that port's.
    if bridge.oper_up && bridge.mac < port.mac {
        return Ok(());
    }
    let before = bridge.mac;
    // Also the alias, which the maker writes after its look.
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
