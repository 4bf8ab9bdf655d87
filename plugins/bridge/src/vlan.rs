//! The vlans of a port: one untagged, or several tagged.

use nix::errno::Errno;

use cnimble_cni::{Code, Error, owner};
use cnimble_netlink::link::{self, Filter, Link, VlanFiltering};
use cnimble_netlink::port::{self, Vlan};
use cnimble_netlink::{self as netlink, Netlink};
use cnimble_plugin::Call;

use crate::config::Config;
use crate::ours;

/// Returns the vlans that a port of this configuration has to carry.
pub(crate) fn wanted(config: &Config) -> Vec<(Vlan, u16)> {
    let native = config.native.map(untagged);
    let trunk =
        config.trunk.iter().map(|(first, last)| (Vlan { id: *first, pvid: false, untagged: false }, *last));
    native.into_iter().chain(trunk).collect()
}

/// Returns a single vlan. Its frames have no tag on the port.
pub(crate) fn untagged(id: u16) -> (Vlan, u16) {
    (Vlan { id, pvid: true, untagged: true }, id)
}

/// Gives `port` the `wanted` vlans. Removes the bridge's default vlans from it, unless they are to be
/// kept.
pub(crate) fn configure_port(
    host: &mut Netlink,
    config: &Config,
    bridge: &Link,
    port: &Link,
    wanted: &[(Vlan, u16)],
) -> Result<(), Error> {
    if wanted.is_empty() {
        return Ok(());
    }
    let mut requests = Vec::new();
    if !config.preserve_default_vlan {
        for vlan in host.vlans(port.index)? {
            requests.push(port::del_vlans(port.index, &port.name, vlan.id, vlan.id));
        }
    }
    for (vlan, last) in wanted {
        requests.push(port::add_vlans(port.index, &port.name, *vlan, *last));
    }
    // Filtering is switched on again. A concurrent ADD may have switched it on, failed, and switched it
    // off before it could see these vlans.
    requests.push(link::set_vlan_filtering(bridge.index, &bridge.name, VlanFiltering::On));
    Ok(host.execute_all(requests)?)
}

/// Makes a bridge filter vlans, unless foreign ports may depend on tagged frames.
pub(crate) fn filter(call: &Call, host: &mut Netlink, bridge: &Link) -> Result<(), Error> {
    if let Some(port) = port_of_others(host, bridge)? {
        let msg =
            format!("vlan, vlanTrunk: bridge {} doesn't filter vlans, and has ports of others", bridge.name);
        return Err(Error::new(Code::CONFLICT, msg).details(format!(
            "port {port} may need its tagged frames; `ip link set {} type bridge vlan_filtering 1` \
             if it doesn't, or another bridge",
            bridge.name
        )));
    }
    host.execute(link::set_vlan_filtering(bridge.index, &bridge.name, VlanFiltering::On)).map_err(explain)?;
    let (index, name) = (bridge.index, bridge.name.clone());
    call.undo.push(format!("switch vlan_filtering of {name} off"), move || {
        let mut host = Netlink::open()?;
        // A port with vlans belongs to a concurrent ADD and depends on the filter.
        let default = host.vlans(index)?;
        for port in host.links(&Filter { master: Some(index), kind: None })? {
            if host.vlans(port.index)? != default {
                return Ok(());
            }
        }
        Ok(host.execute(link::set_vlan_filtering(index, &name, VlanFiltering::Off))?)
    });
    Ok(())
}

/// Returns a foreign port. On a bridge that this plugin made, ports of all pods are ours.
fn port_of_others(host: &mut Netlink, bridge: &Link) -> Result<Option<String>, Error> {
    let made_here = ours::is_ours(bridge);
    let ports = host.links(&Filter { master: Some(bridge.index), kind: None })?;
    let strange = ports.into_iter().find(|port| {
        // A port that is down and has no alias belongs to a concurrent ADD of ours.
        let pods = is_a_pods(port) && (made_here || !port.up && port.alias.is_empty());
        !pods && owner::tag(&port.alias).is_none()
    });
    Ok(strange.map(|port| port.name))
}

/// Whether it is the port of a pod, also of the Go plugins. The name decides, because an uplink may be a
/// veth, too, on a node in a container.
pub(crate) fn is_a_pods(port: &Link) -> bool {
    port.kind == "veth" && port.far.is_some() && port.name.starts_with("veth")
}

/// Returns the error for a bridge that can't filter vlans. The kernel's errno doesn't tell the reason.
pub(crate) fn explain(err: netlink::Error) -> Error {
    if !err.is(Errno::EOPNOTSUPP) {
        return err.into();
    }
    Error::new(Code::KERNEL, "vlan, vlanTrunk: the bridges of this kernel can't filter vlans")
        .details(format!("built without CONFIG_BRIDGE_VLAN_FILTERING? {err}"))
}
