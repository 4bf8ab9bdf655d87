//! The veth pair, with its host's end as a port of the bridge.

use cnimble_cni::{Error, Owner};
use cnimble_netlink::link::{self, Change, Link, Mac};
use cnimble_netlink::port::Port;
use cnimble_netlink::{NetNs, Netlink};
use cnimble_plugin::Call;
use cnimble_plugin::interface::host::ignore_router_advertisements_on_new;
use cnimble_plugin::interface::pair::{self, NewPair, Pair};

use crate::config::Config;
use crate::vlan;

/// Makes the pair and configures the port: master, flags, vlans, and the alias that names the owner.
pub(crate) fn create(
    call: &Call,
    host: &mut Netlink,
    config: &Config,
    bridge: &Link,
    owner: &Owner,
    netns: &NetNs,
    mac: Option<Mac>,
) -> Result<Pair, Error> {
    let host_mac = Some(Mac::random_port());
    let new = NewPair { master: Some(bridge.index), up: false, mtu: config.mtu, mac, host_mac };
    let pair = pair::create(call, host, owner, netns, &new)?;
    // The bridge receives the pod's packets, but the port may leave the bridge later.
    ignore_router_advertisements_on_new(&pair.host)?;
    let flags = Port { hairpin: config.hairpin, isolated: config.isolated, closed: true };
    // It is set up after the alias. For a link that is up, a new alias makes the kernel walk all IPv6
    // routes.
    host.execute_all(vec![
        pair.claim_port(owner, flags),
        link::set(pair.host.index, &pair.host.name, &Change { up: Some(true), ..Change::default() }),
    ])?;
    vlan::configure_port(host, config, bridge, &pair.host, &vlan::wanted(config))?;
    Ok(pair)
}
