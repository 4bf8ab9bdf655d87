//! Bridges that we made: how they are told, and how their MAC stays.

use cnimble_netlink::link::{self, Change, Link, Mac};
use cnimble_netlink::{self as netlink, Netlink};

use crate::config::Config;

/// The alias of a bridge that we made.
pub(crate) const OURS: &str = "bridge, made by cnimble";

/// The alias of one that we made for a network with `removeUnusedBridge`.
pub(crate) const GOES: &str = "bridge, made by cnimble, goes with its last pod";

/// Whether we made it, and it has been left to us since.
pub(crate) fn is_ours(bridge: &Link) -> bool {
    bridge.alias == OURS || goes(bridge)
}

/// Whether it goes with its last pod.
pub(crate) fn goes(bridge: &Link) -> bool {
    bridge.alias == GOES
}

/// The MAC of a bridge that has lost its last port; it can't be set.
const NONE: Option<Mac> = Some(Mac([0; 6]));

/// The MAC that a bridge of others has to be given before its first port comes: it would follow that one's, and another
/// ADD at this moment would take it for the bridge's.
pub(crate) fn mac_to_hold(bridge: &Link) -> Option<Mac> {
    bridge.mac.filter(|_| !is_ours(bridge) && !bridge.oper_up && bridge.mac != NONE)
}

/// Gives `bridge` the MAC back that it had before `port` joined, if that was made to follow
/// the ports: the pods' neighbour entries, and what earlier results say, stay true. (The
/// kernel takes the lowest of the ports' unless one was ever set, and netlink doesn't tell which
/// is the case.) `bridge` is then as the kernel describes it.
///
/// It gets its flags back, too, if the ADD that has set them has failed meanwhile, and has seen no port.
pub(crate) fn hold(
    host: &mut Netlink,
    config: &Config,
    bridge: &mut Link,
    port: &Link,
) -> netlink::Result<()> {
    // A bridge that is up has a port already, so it has either the lowest MAC of its ports',
    // which ours isn't, or one that was set.
    if bridge.oper_up && bridge.mac < port.mac {
        return Ok(());
    }
    let before = bridge.mac;
    // Its alias, too: the ADD that has made it writes that behind its look.
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
