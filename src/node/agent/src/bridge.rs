//! The bridge for pods of a shared subnet. The agent makes it, because its routes must exist before the first pod. The
//! plugin bridge would make it with the first pod.

use cnimble_netlink as netlink;
use cnimble_netlink::Netlink;
use cnimble_netlink::link::{self, Change, Mac, NewBridge};

use crate::conflist::BRIDGE;

/// Makes the bridge if it is missing, and sets it up. Returns its index.
pub(crate) fn ensure(netlink: &mut Netlink) -> netlink::Result<u32> {
    let bridge = match netlink.find_link(BRIDGE)? {
        Some(bridge) => bridge,
        None => {
            let new =
                NewBridge { name: BRIDGE, mtu: None, mac: Mac::random(), vlan_filtering: false, group: None };
            match netlink.create_link(link::add_bridge(&new)) {
                Err(err) if err.is(nix::errno::Errno::EEXIST) => netlink.link(BRIDGE)?,
                made => made?,
            }
        }
    };
    if !bridge.up {
        netlink.execute(link::set(bridge.index, BRIDGE, &Change { up: Some(true), ..Change::default() }))?;
    }
    Ok(bridge.index)
}
