//! The veth pair, whose host's end is a port of the bridge.

use cnimble::net::link::{self, Change, Link, Mac};
use cnimble::net::port::{self, Port};
use cnimble::net::{NetNs, Netlink};
use cnimble::plugin::Call;
use cnimble::rules::Owner;
use cnimble::spec::Error;
use cnimble::veth::pair::{self, NewPair, Pair};

use crate::config::Config;
use crate::vlan;

/// Makes the pair and everything that belongs to the port: master, flags, vlans, and the
/// alias that says whose it is.
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
    let mut requests = vec![pair.claim_port(owner)];
    // A new port has neither flag; saying so again costs a message.
    if config.hairpin || config.isolated {
        let flags = Port { hairpin: config.hairpin, isolated: config.isolated };
        requests.push(port::set(pair.host.index, &pair.host.name, flags));
    }
    // After the alias: a new alias of a link that is up makes the kernel walk all IPv6 routes.
    requests.push(link::set(
        pair.host.index,
        &pair.host.name,
        &Change { up: Some(true), ..Change::default() },
    ));
    host.execute_all(requests)?;
    vlan::configure_port(host, config, bridge, &pair.host)?;
    Ok(pair)
}
