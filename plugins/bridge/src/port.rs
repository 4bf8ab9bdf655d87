//! The pod's port of the bridge: the host's end of the veth pair.

use cnimble_cni::Error;
use cnimble_netlink::NetNs;
use cnimble_netlink::link::{self, Change, Link, Mac, VlanFiltering};
use cnimble_netlink::port::{self, Port, Vlan};
use cnimble_plugin::interface::host::ignore_router_advertisements_on_new;
use cnimble_plugin::interface::pair::{self, NewPair, Pair};

use crate::config::Config;
use crate::context::Context;

/// Makes the veth pair with the host's end as a port of the bridge. Then the port gets its alias and flags in one
/// message, is set up, and gets its VLANs. The pod's end stays down.
///
/// Fails with code 102 if the pod has an interface with that name, or if the attachment exists already.
pub(crate) fn create(
    cx: &mut Context<'_>,
    bridge: &Link,
    netns: &NetNs,
    mac: Option<Mac>,
) -> Result<Pair, Error> {
    let config = cx.config;
    let host_mac = Some(Mac::random_port());
    let new = NewPair { master: Some(bridge.index), up: false, mtu: cx.mtu, mac, host_mac };
    let pair = pair::create(cx.call, &mut cx.host, &cx.owner, netns, &new)?;
    // A port passes its packets to the bridge and hears no advertisements. The setting counts if it leaves the bridge.
    ignore_router_advertisements_on_new(&pair.host)?;
    let flags = Port { hairpin: config.hairpin, isolated: config.isolated, closed: true };
    // The port goes up after it has its alias: on a link that is up, a new alias makes the kernel walk all IPv6 routes.
    cx.host.execute_all(vec![
        pair.claim_port(&cx.owner, flags),
        link::set(pair.host.index, &pair.host.name, &Change { up: Some(true), ..Change::default() }),
    ])?;
    configure_vlans(cx, bridge, &pair.host, &vlans(config))?;
    Ok(pair)
}

/// Returns the VLANs of a pod's port, each with the last ID of its range. The native VLAN comes first. Empty if the
/// network uses no VLANs.
pub(crate) fn vlans(config: &Config) -> Vec<(Vlan, u16)> {
    let native = config.native.map(untagged);
    let trunk =
        config.trunk.iter().map(|(first, last)| (Vlan { id: *first, pvid: false, untagged: false }, *last));
    native.into_iter().chain(trunk).collect()
}

/// Returns the native VLAN of a port: frames without a tag belong to it (PVID), and its frames leave without one.
pub(crate) fn untagged(id: u16) -> (Vlan, u16) {
    (Vlan { id, pvid: true, untagged: true }, id)
}

/// Gives the port the `wanted` VLANs and switches the bridge's filter on. First removes the VLANs that the port has,
/// such as the bridge's default one, unless `preserveDefaultVlan` keeps them. Does nothing if `wanted` is empty.
pub(crate) fn configure_vlans(
    cx: &mut Context<'_>,
    bridge: &Link,
    port: &Link,
    wanted: &[(Vlan, u16)],
) -> Result<(), Error> {
    if wanted.is_empty() {
        return Ok(());
    }
    let mut requests = Vec::new();
    if !cx.config.preserve_default_vlan {
        for vlan in cx.host.vlans(port.index)? {
            requests.push(port::del_vlans(port.index, &port.name, vlan.id, vlan.id));
        }
    }
    for (vlan, last) in wanted {
        requests.push(port::add_vlans(port.index, &port.name, *vlan, *last));
    }
    // A concurrent ADD may have switched the filter on for this ADD to find, failed, and switched it off before it
    // could see these VLANs.
    requests.push(link::set_vlan_filtering(bridge.index, &bridge.name, VlanFiltering::On));
    Ok(cx.host.execute_all(requests)?)
}
