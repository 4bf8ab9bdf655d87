//! The bridge: found or made.

use cnimble_cni::{Code, Error};
use cnimble_netlink::link::{self, Change, Filter, Link, Mac, NewBridge};
use cnimble_netlink::{self as netlink, Netlink};
use cnimble_plugin::Call;
use cnimble_plugin::interface::host::ignore_router_advertisements;

use crate::config::Config;
use crate::ours::{self, GOES, OURS};
use crate::{unused, vlan};

/// Returns the error for a name that a link of another kind has.
pub(crate) fn not_a_bridge(name: &str) -> Error {
    Error::new(Code::CONFLICT, format!("\"{name}\" already exists but is not a bridge"))
}

/// Finds or makes the bridge, and sets it up. It ignores router advertisements (CVE-2020-10749), and its
/// MAC doesn't follow its ports.
///
/// A missing bridge is made with this `mac`, or with a random one.
pub(crate) fn ensure(
    call: &Call,
    host: &mut Netlink,
    config: &Config,
    mac: Option<Mac>,
) -> Result<Link, Error> {
    let (bridge, is_new) = match host.find_link(&config.bridge)? {
        Some(bridge) => (bridge, false),
        None => create(call, host, config, mac)?,
    };
    if bridge.kind != "bridge" {
        return Err(not_a_bridge(&config.bridge));
    }
    if config.uses_vlans() && !bridge.vlan_filtering {
        vlan::filter(call, host, &bridge)?;
    }
    if bridge.accept_ra != Some(0) {
        ignore_router_advertisements(call, &bridge.name)?;
    }
    switch_on(call, host, config, &bridge, is_new)?;
    Ok(bridge)
}

/// Makes the bridge, unless a concurrent ADD has made it. Returns whether this ADD made it. The MAC is
/// set at the creation. Otherwise the kernel would change it to the lowest one of the ports and break
/// the pods' neighbour entries.
fn create(call: &Call, host: &mut Netlink, config: &Config, mac: Option<Mac>) -> Result<(Link, bool), Error> {
    let wanted = NewBridge {
        name: &config.bridge,
        mtu: config.mtu,
        mac: mac.unwrap_or_else(Mac::random),
        vlan_filtering: config.filters_vlans,
    };
    match host.create_link(link::add_bridge(&wanted)) {
        Ok(bridge) => {
            let (index, name, goes) = (bridge.index, bridge.name.clone(), config.remove_unused);
            call.undo.push(format!("remove bridge {name}"), move || {
                let _alone = goes.then(unused::lock).transpose()?;
                let mut host = Netlink::open()?;
                // Another pod may have joined it meanwhile.
                if !has_ports(&mut host, index)? {
                    host.remove_link(index, &name)?;
                }
                Ok(())
            });
            Ok((bridge, true))
        }
        // A concurrent ADD made it.
        Err(err) if err.is(nix::errno::Errno::EEXIST) => Ok((host.link(&config.bridge)?, false)),
        Err(err) if config.filters_vlans => Err(vlan::explain(err)),
        Err(err) => Err(err.into()),
    }
}

fn has_ports(host: &mut Netlink, bridge: u32) -> netlink::Result<bool> {
    Ok(!host.links(&Filter { master: Some(bridge), kind: None })?.is_empty())
}

/// Sets the bridge up. `is_new` means that this ADD has made it, which its alias then says.
fn switch_on(
    call: &Call,
    host: &mut Netlink,
    config: &Config,
    bridge: &Link,
    is_new: bool,
) -> Result<(), Error> {
    let up = (!bridge.up).then_some(true);
    let promisc = (config.promisc && !bridge.promisc).then_some(true);
    let mac = ours::mac_to_hold(bridge).filter(|_| !is_new);
    if up.is_none() && promisc.is_none() && mac.is_none() {
        return Ok(());
    }
    let alias = is_new.then_some(if config.remove_unused { GOES } else { OURS });
    let change = Change { up, promisc, mac, alias, ..Change::default() };
    host.execute(link::set(bridge.index, &bridge.name, &change))?;
    if up.is_none() && promisc.is_none() {
        return Ok(());
    }
    let (index, name) = (bridge.index, bridge.name.clone());
    let back = Change { up: up.map(|_| false), promisc: promisc.map(|_| false), ..Change::default() };
    call.undo.push(format!("restore the flags of {name}"), move || {
        let mut host = Netlink::open()?;
        if has_ports(&mut host, index)? {
            return Ok(());
        }
        host.execute(link::set(index, &name, &back))?;
        // A concurrent ADD may have joined the bridge. A later one checks the flags itself
        // ([`ours::hold`]).
        if has_ports(&mut host, index)? {
            host.execute(link::set(index, &name, &Change { up, promisc, ..Change::default() }))?;
        }
        Ok(())
    });
    Ok(())
}
