//! The vlans of a port: one untagged, or several tagged.

use nix::errno::Errno;

use cnimble_cni::{Code, Error};
use cnimble_netlink::link::{self, Filter, Link};
use cnimble_netlink::port::{self, Vlan};
use cnimble_netlink::{self as netlink, Netlink};
use cnimble_plugin::Call;

use crate::config::Config;

/// The vlans that a port of this configuration has to carry.
pub(crate) fn wanted(config: &Config) -> Vec<(Vlan, u16)> {
    let access = config.vlan.map(|id| (Vlan { id, pvid: true, untagged: true }, id));
    let trunk =
        config.trunk.iter().map(|(first, last)| (Vlan { id: *first, pvid: false, untagged: false }, *last));
    access.into_iter().chain(trunk).collect()
}

/// Gives `port` its vlans, and takes those that the bridge gave it by default unless they
/// are to be kept.
pub(crate) fn configure_port(
    host: &mut Netlink,
    config: &Config,
    bridge: &Link,
    port: &Link,
) -> Result<(), Error> {
    if !config.uses_vlans() {
        return Ok(());
    }
    let mut requests = Vec::new();
    if !config.preserve_default_vlan {
        for vlan in host.vlans(port.index)? {
            requests.push(port::del_vlans(port.index, &port.name, vlan.id, vlan.id, false));
        }
    }
    for (vlan, last) in wanted(config) {
        requests.push(port::add_vlans(port.index, &port.name, vlan, last, false));
    }
    // Once more, for an ADD that had switched it on, failed, and took it back before it
    // could see these vlans.
    requests.push(link::set_vlan_filtering(bridge.index, &bridge.name, true));
    Ok(host.execute_all(requests)?)
}

/// Makes a bridge that doesn't yet tell vlans apart do so.
pub(crate) fn filter(call: &Call, host: &mut Netlink, bridge: &Link) -> Result<(), Error> {
    host.execute(link::set_vlan_filtering(bridge.index, &bridge.name, true)).map_err(explain)?;
    let (index, name) = (bridge.index, bridge.name.clone());
    call.undo.push(format!("switch vlan_filtering of {name} off"), move || {
        let mut host = Netlink::open()?;
        // A port with vlans belongs to a pod that has come meanwhile and counts on it.
        let default = host.vlans(index)?;
        for port in host.links(&Filter { master: Some(index), kind: None })? {
            if host.vlans(port.index)? != default {
                return Ok(());
            }
        }
        Ok(host.execute(link::set_vlan_filtering(index, &name, false))?)
    });
    Ok(())
}

/// The error of a bridge that should filter vlans; the kernel's is one word for everything.
pub(crate) fn explain(err: netlink::Error) -> Error {
    if !err.is(Errno::EOPNOTSUPP) {
        return err.into();
    }
    Error::new(Code::KERNEL, "vlan, vlanTrunk: the bridges of this kernel can't filter vlans")
        .details(format!("built without CONFIG_BRIDGE_VLAN_FILTERING? {err}"))
}
