//! The pod's entry in the bridge's forwarding table. The bridge learns entries from the source of any frame. Without a
//! fixed entry, a pod that uses its neighbour's MAC would get the neighbour's frames.

use nix::errno::Errno;

use cnimble_cni::{Code, Error};
use cnimble_netlink::fdb::{self, Entry, NewEntry};
use cnimble_netlink::link::{Link, Mac};
use cnimble_netlink::{IfPresent, Netlink};
use cnimble_plugin::interface::pair::is_a_pods;

use crate::context::Context;

/// Adds a fixed entry for `mac` to the forwarding table. The kernel removes it with the port.
///
/// - A checked MAC (`macspoofchk`) gets a sticky entry. No frame moves it, not even from a Go plugin's port or an
///   uplink.
/// - A requested MAC gets a fixed entry, because two pods may ask for the same one.
/// - Any other MAC gets none, and the function does nothing. Its learned entry can move to another interface of a bond
///   or with a migrated machine.
///
/// Fails with code 102 if the bridge, one of its ports or another pod has the MAC. Without a requested MAC, only a
/// pod's sticky entry counts.
pub(crate) fn hold_mac(cx: &mut Context<'_>, bridge: &Link, port: &Link, mac: Mac) -> Result<(), Error> {
    let (config, host) = (cx.config, &mut cx.host);
    let evidence = match config.requested_mac(cx.call)? {
        Some(_) => Evidence::Any,
        None => Evidence::Fixed,
    };
    if !config.mac_spoof_check && evidence == Evidence::Fixed {
        return Ok(());
    }
    // The same MAC may be in use by several pods in different VLANs. A trunk takes all of its VLANs for this pod, so
    // its entry names none.
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
            && let Some(holder) = holder(host, bridge, &found, evidence)?
        {
            return Err(Error::new(Code::CONFLICT, format!("MAC {mac} is taken by {holder}"))
                .details(format!("hint: `bridge fdb show br {}` tells which port has which", bridge.name)));
        }
    }
    // This replaces an entry that proves nothing, such as a learned one, which may come from a forged frame.
    Ok(host.execute(fdb::replace(&entry))?)
}

/// The kind of entries that prove that a MAC is taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Evidence {
    /// Any entry of a pod counts, also a learned one.
    Any,
    /// Only sticky entries count. A learned entry may come from a forged frame, and a pod with a derived MAC must not
    /// fail because of it.
    Fixed,
}

/// Describes who has the MAC of the entry `found`, for an error text. Returns `None` if the entry is no proof, or if
/// its port is gone.
fn holder(
    host: &mut Netlink,
    bridge: &Link,
    found: &Entry,
    evidence: Evidence,
) -> Result<Option<String>, Error> {
    if found.local {
        return Ok(Some(format!("bridge {} or one of its ports itself", bridge.name)));
    }
    let Some(port) = host.link_at(found.port).if_present()? else { return Ok(None) };
    let keeps = is_a_pods(&port) && (found.sticky || evidence == Evidence::Any);
    Ok(keeps.then(|| match port.alias.as_str() {
        "" => format!("the pod behind port {}", port.name),
        alias => format!("the pod behind port {} ({alias})", port.name),
    }))
}
