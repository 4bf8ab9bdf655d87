//! The pod's end: addresses, up, routes.

use std::net::IpAddr;
use std::time::Duration;

use cnimble_cni::{CniResult, Error};
use cnimble_netlink::link::{self, Change, Link, Mac};
use cnimble_netlink::{NetNs, Netlink, route};
use cnimble_plugin::Call;
use cnimble_plugin::interface::pair::Pair;
use cnimble_plugin::interface::{arp, pod};

use crate::config::Config;
use crate::ours;

/// Configures the interface, unless it is to stay down: enters the namespace once, and sends
/// one message to the kernel there. Returns the socket inside.
pub(crate) fn configure(
    call: &Call,
    netns: &NetNs,
    config: &Config,
    pair: &mut Pair,
    result: &CniResult,
    arrival: Arrival,
) -> Result<Option<Netlink>, Error> {
    if !config.container_up {
        return Ok(None);
    }
    let mut inside = netns.enter(|| {
        if config.layer3() {
            pod::switches(call, &pair.pod_name, pair.host.far, result, arrival.probed)?;
        }
        Ok::<_, Error>(Netlink::open()?)
    })??;
    if arrival.shared {
        let link = Link { index: pair.pod_index, name: pair.pod_name.clone(), ..Link::default() };
        // `announce` announces them, when the bridge forwards.
        arp::probe_in_pod(call, netns, &mut inside, &link, result)?;
    }
    let change = Change { mac: arrival.mac, ..Change::default() };
    let announced = config.layer3() && arrival.announced;
    let mut requests = pod::up(pair.pod_index, &pair.pod_name, result, &change, !arrival.probed, announced);
    for wanted in pod::routes(pair.pod_index, result) {
        // Not alone: the pod may have interfaces, and default routes, of other networks.
        requests.push(route::prepend(&wanted, &pair.pod_name));
    }
    inside.execute_all(requests)?;
    pair.pod_mac = arrival.mac.unwrap_or(pair.pod_mac);
    Ok(Some(inside))
}

/// Announces the addresses once more, now that the bridge forwards what comes from the pod.
///
/// The kernel announces them when the interface comes up. The bridge may drop that: it opens a port
/// when it hears that the link is up, which takes the kernel longer on a busy machine. A MAC that is
/// set again is announced again (NETDEV_CHANGEADDR).
pub(crate) fn announce(
    inside: &mut Netlink,
    config: &Config,
    pair: &Pair,
    arrival: Arrival,
) -> Result<(), Error> {
    if !(config.layer3() && arrival.announced) {
        return Ok(());
    }
    let same = Change { mac: Some(pair.pod_mac), ..Change::default() };
    Ok(inside.execute(link::set(pair.pod_index, &pair.pod_name, &same))?)
}

/// How others come to know the pod's MAC.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Arrival {
    /// The MAC that goes with its address, unless another is final.
    mac: Option<Mac>,
    /// Whether the kernel announces its addresses (`arp_notify`).
    announced: bool,
    /// Whether the bridge isn't ours: it may lead to other hosts.
    shared: bool,
    /// Whether other hosts are asked for its IPv6 addresses.
    probed: bool,
}

impl Arrival {
    /// The MAC that the pod gets instead of the one that it was born with.
    pub(crate) fn mac(&self) -> Option<Mac> {
        self.mac
    }

    /// An announcement reaches every port of the bridge, and every pod looks at it, so among
    /// hundreds of pods it costs more than all else. It is for hosts that know the address under
    /// another MAC. There are none if the MAC goes with the address. It doesn't if `final_mac` is another,
    /// which was asked for or which an IPAM plugin has seen (DHCP, reservations), or if the host still
    /// knows a former owner of the address by another MAC.
    /// A bridge that is no gateway leads to switches that have to learn where the MAC is.
    ///
    /// IPv6 addresses are probed for if that was asked for, or if the bridge isn't ours.
    pub(crate) fn plan(
        host: &mut Netlink,
        config: &Config,
        bridge: &Link,
        result: &CniResult,
        final_mac: Option<Mac>,
    ) -> Self {
        if !config.container_up {
            return Arrival { mac: None, announced: false, shared: false, probed: false };
        }
        let shared = !ours::is_ours(bridge);
        let has_ipv6 = result.ips.iter().any(|ip| ip.address.is_ipv6());
        let probed = config.enable_dad || (shared && has_ipv6);
        let first = result.ips.iter().map(|ip| ip.address.ip()).min_by_key(IpAddr::is_ipv6);
        let (None, Some(ip)) = (final_mac, first) else {
            return Arrival { mac: None, announced: true, shared, probed };
        };
        let mac = Mac::of_address(ip);
        // Announcements are an affair of IPv4 alone.
        let mut v4 = result.ips.iter().map(|ip| ip.address.ip()).filter(IpAddr::is_ipv4);
        let announced = !config.is_gateway
            || config.vlan.is_some()
            || v4.any(|ip| {
                host.neighbour(bridge.index, ip).map_or(true, |old| old.is_some_and(|old| old != mac))
            });
        Arrival { mac: Some(mac), announced, shared, probed }
    }
}

/// Waits until the addresses are usable. IPv4's are at once; IPv6's when the link is
/// operationally up, and known to be free if they are probed for.
pub(crate) fn wait(
    inside: &mut Netlink,
    arrival: Arrival,
    pair: &Pair,
    result: &CniResult,
    timeout: Duration,
) -> Result<(), Error> {
    if !result.ips.iter().any(|ip| ip.address.is_ipv6()) {
        return Ok(());
    }
    inside.wait_oper_up(pair.pod_index, timeout)?;
    if arrival.probed { pod::settle(inside, pair.pod_index, result) } else { Ok(()) }
}

/// The gateway that a pod address has when IPAM named none: the first of its network.
pub(crate) fn first_address(net: ipnetwork::IpNetwork) -> IpAddr {
    match net.network() {
        IpAddr::V4(ip) => IpAddr::V4(u32::from(ip).wrapping_add(1).into()),
        IpAddr::V6(ip) => IpAddr::V6(u128::from(ip).wrapping_add(1).into()),
    }
}
