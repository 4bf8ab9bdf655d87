//! The pod's end: addresses, up, routes.

use std::net::IpAddr;
use std::time::Duration;

use cnimble::net::link::{self, Change};
use cnimble::net::{NetNs, Netlink, addr, route, sysctl};
use cnimble::spec::{CniResult, Error};

use crate::config::Config;
use crate::pair::Pair;

/// Configures the interface in one message to the kernel.
pub(crate) fn configure(
    netns: &NetNs,
    inside: &mut Netlink,
    config: &Config,
    pair: &Pair,
    result: &CniResult,
) -> Result<(), Error> {
    if !config.container_up {
        return Ok(());
    }
    if config.layer3() {
        netns.enter(|| switches(config, &pair.pod_name, result))??;
    }
    let nodad = !config.enable_dad;
    let mut requests: Vec<_> =
        result.ips.iter().map(|ip| addr::add(pair.pod_index, &pair.pod_name, ip.address, nodad)).collect();
    requests.push(link::set(pair.pod_index, &pair.pod_name, &Change { up: Some(true), ..Change::default() }));
    for wanted in routes(pair.pod_index, result) {
        requests.push(route::add(&wanted, &pair.pod_name));
    }
    Ok(inside.execute_all(requests)?)
}

/// The routes of the result; one without a gateway goes through the first gateway of its
/// family.
pub(crate) fn routes(index: u32, result: &CniResult) -> Vec<route::NewRoute> {
    let gateway =
        |v4: bool| result.ips.iter().filter_map(|ip| ip.gateway).find(|gateway| gateway.is_ipv4() == v4);
    result
        .routes
        .iter()
        .map(|wanted| route::NewRoute {
            dst: cnimble::spec::cidr::network_of(wanted.dst),
            // The unspecified address is how to say: no gateway, straight out of the interface.
            via: wanted
                .gw
                .or_else(|| gateway(wanted.dst.is_ipv4()))
                .filter(|gateway| !gateway.is_unspecified()),
            index,
            src: None,
            mtu: wanted.mtu,
            advmss: wanted.advmss,
            priority: wanted.priority,
            table: wanted.table,
            scope: wanted.scope,
            onlink: false,
        })
        .collect()
}

/// Switches of the interface, which hold for the namespace of the thread that writes them.
///
/// IPAM owns the addresses, so nobody has to ask the network whether they are free: no
/// duplicate address detection, unless asked for. `arp_notify` makes the kernel announce
/// the pod's addresses when the link comes up.
fn switches(config: &Config, name: &str, result: &CniResult) -> Result<(), Error> {
    let mut switches = vec![("ipv4", "arp_notify", "1")];
    if result.ips.iter().any(|ip| ip.address.is_ipv6()) {
        switches.push(("ipv6", "disable_ipv6", "0"));
        switches.push(("ipv6", "keep_addr_on_down", "1"));
    }
    if config.enable_dad {
        switches.push(("ipv6", "enhanced_dad", "1"));
    }
    switches.push(("ipv6", "accept_dad", if config.enable_dad { "1" } else { "0" }));
    for (family, switch, value) in switches {
        match sysctl::write(&format!("net/{family}/conf/{name}/{switch}"), value) {
            // A kernel without the family or the switch; an IPv6 address would fail by itself.
            Err(err) if !err.is_missing() => return Err(err.into()),
            _ => {}
        }
    }
    Ok(())
}

/// Waits until the pod's end is operationally up and, where duplicate address detection
/// was asked for, until the addresses are usable.
pub(crate) fn wait(
    inside: &mut Netlink,
    config: &Config,
    pair: &Pair,
    timeout: Duration,
) -> Result<(), Error> {
    inside.wait_oper_up(pair.pod_index, timeout)?;
    if config.enable_dad && config.layer3() {
        // The kernel probes for about a second per address.
        inside.wait_addrs_settled(pair.pod_index, timeout * 2)?;
    }
    Ok(())
}

/// The gateway that a pod address has when IPAM named none: the first of its network.
pub(crate) fn first_address(net: ipnetwork::IpNetwork) -> IpAddr {
    match net.network() {
        IpAddr::V4(ip) => IpAddr::V4(u32::from(ip).wrapping_add(1).into()),
        IpAddr::V6(ip) => IpAddr::V6(u128::from(ip).wrapping_add(1).into()),
    }
}
