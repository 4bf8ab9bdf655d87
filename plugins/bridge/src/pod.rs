//! The pod's end: addresses, up, routes.

use std::net::IpAddr;
use std::time::Duration;

use cnimble::net::link::{self, Change};
use cnimble::net::{NetNs, Netlink, addr, route};
use cnimble::spec::{CniResult, Error};
use cnimble::veth::pair::Pair;
use cnimble::veth::pod;

use crate::config::Config;

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
        netns.enter(|| pod::switches(&pair.pod_name, result, config.enable_dad))??;
    }
    let nodad = !config.enable_dad;
    let mut requests: Vec<_> =
        result.ips.iter().map(|ip| addr::add(pair.pod_index, &pair.pod_name, ip.address, nodad)).collect();
    requests.push(link::set(pair.pod_index, &pair.pod_name, &Change { up: Some(true), ..Change::default() }));
    for wanted in pod::routes(pair.pod_index, result) {
        // Not alone: the pod may have interfaces, and default routes, of other networks.
        requests.push(route::prepend(&wanted, &pair.pod_name));
    }
    Ok(inside.execute_all(requests)?)
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
