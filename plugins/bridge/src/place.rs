//! The pod's place in the bridge's forwarding table: by which port its hardware address is
//! reached. The bridge learns such places from the source of any frame, so a pod that sends with
//! its neighbour's address gets the neighbour's frames; and so does one that is given it.

use nix::errno::Errno;

use cnimble_cni::{Code, Error};
use cnimble_netlink::Netlink;
use cnimble_netlink::fdb::{self, Entry, NewEntry};
use cnimble_netlink::link::{Link, Mac};

use crate::config::Config;
use crate::vlan;

/// Holds the place of `mac` at `port`, which takes the entry along when it goes.
///
/// It is for pods with a checked address (macspoofchk), and theirs is sticky: no frame moves
/// it, not even one from a port that isn't checked, be it a Go plugin's or an uplink. And it is
/// for addresses that were `requested`, as two pods may ask for the same one. All other pods have
/// an address that goes with their IP address; their places are learned, and can be moved to a
/// bond's other interface, or to where a machine has migrated.
///
/// # Errors
/// Code 102 if another pod has the address; the kernel's.
pub(crate) fn hold(
    host: &mut Netlink,
    config: &Config,
    bridge: &Link,
    port: &Link,
    mac: Mac,
    requested: bool,
) -> Result<(), Error> {
    if !config.mac_spoof_check && !requested {
        return Ok(());
    }
    // The vlans of one address may belong to several pods; those of a trunk are all this one's.
    let vlan = config.native.filter(|_| config.trunk.is_empty());
    let entry = NewEntry { port: port.index, name: &port.name, mac, vlan, sticky: config.mac_spoof_check };
    match host.execute(fdb::add(&entry)) {
        Err(err) if err.is(Errno::EEXIST) => {}
        outcome => return Ok(outcome?),
    }
    let vlans = match vlan {
        Some(id) => vec![Some(id)],
        None if bridge.vlan_filtering => {
            let all = host.vlans(port.index)?;
            std::iter::once(None).chain(all.into_iter().map(|vlan| Some(vlan.id))).collect()
        }
        None => vec![None],
    };
    for vlan in vlans {
        if let Some(found) = host.forwarding_entry(bridge.index, mac, vlan)?
            && found.port != port.index
            && let Some(whose) = whose(host, bridge, &found, requested)?
        {
            return Err(Error::new(Code::CONFLICT, format!("MAC {mac} is taken by {whose}"))
                .details(format!("hint: `bridge fdb show br {}` tells which port has which", bridge.name)));
        }
    }
    // What was learned of an uplink, say, or from a frame that lied.
    Ok(host.execute(fdb::replace(&entry))?)
}

/// The holder of the place. A learned entry may be a pod's lie. A pod with an address that goes
/// with its IP address must come up all the same, so only a place that is held counts then.
fn whose(host: &mut Netlink, bridge: &Link, found: &Entry, requested: bool) -> Result<Option<String>, Error> {
    if found.local {
        return Ok(Some(format!("bridge {} or one of its ports itself", bridge.name)));
    }
    let port = match host.link_at(found.port) {
        Ok(port) => port,
        Err(err) if err.is_missing() => return Ok(None),
        Err(err) => return Err(err.into()),
    };
    let keeps = vlan::is_a_pods(&port) && (found.sticky || requested);
    Ok(keeps.then(|| match port.alias.as_str() {
        "" => format!("the pod behind port {}", port.name),
        alias => format!("the pod behind port {} ({alias})", port.name),
    }))
}
