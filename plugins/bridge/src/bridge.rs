//! The bridge itself: found, or made.

use cnimble_cni::{Code, Error};
use cnimble_netlink::Netlink;
use cnimble_netlink::link::{self, Change, Filter, Link, Mac, NewBridge};
use cnimble_plugin::Call;
use cnimble_plugin::interface::host::ignore_router_advertisements;

use crate::config::Config;
use crate::vlan;

/// What stands in the way when the name is taken by something else.
pub(crate) fn not_a_bridge(name: &str) -> Error {
    Error::new(Code::CONFLICT, format!("\"{name}\" already exists but is not a bridge"))
}

/// Returns the bridge, made if it is missing, up, with router advertisements ignored
/// (CVE-2020-10749) and a MAC that doesn't follow its ports.
pub(crate) fn ensure(call: &Call, host: &mut Netlink, config: &Config) -> Result<Link, Error> {
    let bridge = match host.find_link(&config.bridge)? {
        Some(bridge) => bridge,
        None => create(call, host, config)?,
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
    switch_on(call, host, config, &bridge)?;
    Ok(bridge)
}

/// Makes the bridge. Its MAC is given at creation: one that the kernel chose would change
/// to the lowest of the ports' and break the pods' neighbour entries.
fn create(call: &Call, host: &mut Netlink, config: &Config) -> Result<Link, Error> {
    let wanted = NewBridge {
        name: &config.bridge,
        mtu: config.mtu,
        mac: Mac::random(),
        vlan_filtering: config.uses_vlans(),
    };
    match host.create_link(link::add_bridge(&wanted)) {
        Ok(bridge) => {
            let (index, name) = (bridge.index, bridge.name.clone());
            call.undo.push(format!("remove bridge {name}"), move || {
                let mut host = Netlink::open()?;
                // Another pod may have come to live on it meanwhile.
                if host.links(&Filter { master: Some(index), kind: None })?.is_empty() {
                    host.execute(link::del(index, &name))?;
                }
                Ok(())
            });
            Ok(bridge)
        }
        // Another ADD was faster.
        Err(err) if err.is(nix::errno::Errno::EEXIST) => Ok(host.link(&config.bridge)?),
        Err(err) if config.uses_vlans() => Err(vlan::explain(err)),
        Err(err) => Err(err.into()),
    }
}

/// Gives `bridge` the MAC back that it had before `port` joined, if that was made to follow
/// the ports: the pods' neighbour entries, and what earlier results say, stay true. (The
/// kernel takes the lowest of the ports' unless somebody has ever set one; which is the case
/// isn't to be learned by netlink.) Returns the bridge's MAC.
pub(crate) fn hold_mac(host: &mut Netlink, bridge: &Link, port: &Link) -> Result<Option<Mac>, Error> {
    /// What a bridge has that has lost its last port; it can't be set.
    const NONE: Option<Mac> = Some(Mac([0; 6]));
    // A bridge that is up has a port already, so it has either the lowest MAC of its ports',
    // which ours isn't, or one that was set.
    if bridge.oper_up && bridge.mac < port.mac {
        return Ok(bridge.mac);
    }
    let now = host.link_at(bridge.index)?.mac;
    if now == bridge.mac || now != port.mac || bridge.mac == NONE {
        return Ok(now);
    }
    host.execute(link::set(bridge.index, &bridge.name, &Change { mac: bridge.mac, ..Change::default() }))?;
    Ok(bridge.mac)
}

fn switch_on(call: &Call, host: &mut Netlink, config: &Config, bridge: &Link) -> Result<(), Error> {
    let up = (!bridge.up).then_some(true);
    let promisc = (config.promisc && !bridge.promisc).then_some(true);
    if up.is_none() && promisc.is_none() {
        return Ok(());
    }
    host.execute(link::set(bridge.index, &bridge.name, &Change { up, promisc, ..Change::default() }))?;
    let (index, name) = (bridge.index, bridge.name.clone());
    let back = Change { up: up.map(|_| false), promisc: promisc.map(|_| false), ..Change::default() };
    call.undo.push(format!("restore the flags of {name}"), move || {
        let mut host = Netlink::open()?;
        if host.links(&Filter { master: Some(index), kind: None })?.is_empty() {
            host.execute(link::set(index, &name, &back))?;
        }
        Ok(())
    });
    Ok(())
}
