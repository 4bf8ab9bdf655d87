//! The pod's end: addresses, up, routes.

use std::net::IpAddr;
use std::time::Duration;

use cnimble::net::link::{self, Change};
use cnimble::net::{NetNs, Netlink, addr, route};
use cnimble::spec::{CniResult, Error};
use cnimble::veth::pair::Pair;
use cnimble::veth::pod;

use crate::config::Config;

/// Configures the interface, unless it is to stay down: enters the namespace once, and sends
/// one message to the kernel there. Returns the socket inside.
pub(crate) fn configure(
    netns: &NetNs,
    config: &Config,
    pair: &Pair,
    result: &CniResult,
) -> Result<Option<Netlink>, Error> {
    if !config.container_up {
        return Ok(None);
    }
    let mut inside = netns.enter(|| {
        if config.layer3() {
            pod::switches(&pair.pod_name, result, config.enable_dad)?;
        }
        Ok::<_, Error>(Netlink::open()?)
    })??;
    let nodad = !config.enable_dad;
    let mut requests = Vec::new();
    if config.layer3() {
        requests.push(link::set_arp_notify(pair.pod_index, &pair.pod_name));
    }
    for ip in &result.ips {
        requests.push(addr::add(pair.pod_index, &pair.pod_name, ip.address, nodad));
    }
    requests.push(link::set(pair.pod_index, &pair.pod_name, &Change { up: Some(true), ..Change::default() }));
    for wanted in pod::routes(pair.pod_index, result) {
        // Not alone: the pod may have interfaces, and default routes, of other networks.
        requests.push(route::prepend(&wanted, &pair.pod_name));
    }
    inside.execute_all(requests)?;
    Ok(Some(inside))
}

/// Where duplicate address detection was asked for, waits until the addresses are usable.
pub(crate) fn wait(
    inside: &mut Netlink,
    config: &Config,
    pair: &Pair,
    timeout: Duration,
) -> Result<(), Error> {
    if config.enable_dad && config.layer3() {
        inside.wait_oper_up(pair.pod_index, timeout)?;
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
