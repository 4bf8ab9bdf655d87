//! The pod's port of the bridge: the host's end of the veth pair.

use cnimble_cni::Error;
use cnimble_netlink::NetNs;
use cnimble_netlink::link::{self, Change, Link, Mac, VlanFiltering};
use cnimble_netlink::port::{self, Port, Vlan};
use cnimble_plugin::interface::host::ignore_router_advertisements_on_new;
use cnimble_plugin::interface::pair::{self, NewPair, Pair};

use crate::config::Config;
use crate::context::Context;
use crate::ours;

/// Makes the pair, then the port's master, flags, vlans, and alias.
pub(crate) fn create(
    cx: &mut Context<'_>,
    bridge: &Link,
    netns: &NetNs,
    mac: Option<Mac>,
) -> Result<Pair, Error> {
    let config = cx.config;
    let host_mac = Some(Mac::random_port());
    let new = NewPair { master: Some(bridge.index), up: false, mtu: cx.mtu, mac, host_mac };
    let mut pair = pair::create(cx.call, &mut cx.host, &cx.owner, netns, &new)?;
    // The bridge receives the packets now, but the port may leave it later.
    ignore_router_advertisements_on_new(&pair.host)?;
    let flags = Port { hairpin: config.hairpin, isolated: config.isolated, closed: true };
    // Set up after the alias: on a link that is up, a new alias makes the kernel walk all IPv6 routes.
    let mut requests = vec![pair.claim_port(&cx.owner, flags)];
    if !is_raised_last(config, bridge, &pair) {
        pair.host.up = true;
        let up = Change { up: Some(true), ..Change::default() };
        requests.push(link::set(pair.host.index, &pair.host.name, &up));
    }
    cx.host.execute_all(requests)?;
    configure_vlans(cx, bridge, &pair.host, &vlans(config))?;
    Ok(pair)
}

/// Whether the port stays down until the pod's end is complete. With a carrier, the kernel announces the pod to all
/// others, and no request gets in meanwhile: milliseconds among hundreds of pods.
///
/// DHCP and probes need the carrier before. With equal indexes, Linux 5.10 and 6.1 may take a second to report a host's
/// end that is set up last.
fn is_raised_last(config: &Config, bridge: &Link, pair: &Pair) -> bool {
    let needs_none = matches!(config.ipam.as_deref(), Some("host-local" | "static" | "cluster-local"));
    config.container_up && needs_none && ours::is_ours(bridge) && pair.host.index != pair.pod_index
}

pub(crate) fn vlans(config: &Config) -> Vec<(Vlan, u16)> {
    let native = config.native.map(untagged);
    let trunk =
        config.trunk.iter().map(|(first, last)| (Vlan { id: *first, pvid: false, untagged: false }, *last));
    native.into_iter().chain(trunk).collect()
}

/// Its frames have no tag on the port.
pub(crate) fn untagged(id: u16) -> (Vlan, u16) {
    (Vlan { id, pvid: true, untagged: true }, id)
}

/// Removes the bridge's default vlans, unless they are wanted.
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
    // A concurrent ADD may have switched filtering on, failed, and switched it off before it could see these vlans.
    requests.push(link::set_vlan_filtering(bridge.index, &bridge.name, VlanFiltering::On));
    Ok(cx.host.execute_all(requests)?)
}
