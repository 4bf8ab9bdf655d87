//! The pod's end of the veth pair: its addresses, and how other hosts learn its MAC.

use std::net::IpAddr;
use std::time::Duration;

use cnimble_cni::reach::Gateways;
use cnimble_cni::{CniResult, Error};
use cnimble_netlink::link::{self, Change, Link, Mac};
use cnimble_netlink::{NetNs, Netlink, route};
use cnimble_plugin::interface::arp;
use cnimble_plugin::interface::pair::Pair;
use cnimble_plugin::interface::pod::{self, Detection, Start};

use crate::context::Context;
use crate::ours;

/// The time to wait until the host's end is up. That takes microseconds unless the machine is stuck.
pub(crate) const UP_TIMEOUT: Duration = Duration::from_secs(10);

/// Decides how other hosts learn the pod's MAC, and carries that out in the pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Arrival {
    /// The MAC that is derived from the first address. `None` keeps the present MAC of the interface.
    mac: Option<Mac>,
    /// The kernel announces the IPv4 addresses when the link goes up (`arp_notify`).
    announced: bool,
    /// The bridge is not one of [`ours::is_ours`], so it may lead to other hosts. IPv4 addresses are then probed if the
    /// configuration asks for it.
    shared: bool,
    detection: Detection,
}

impl Arrival {
    /// Returns the MAC that replaces the first one of the pod's interface, or `None` if that one stays.
    pub(crate) fn mac(&self) -> Option<Mac> {
        self.mac
    }

    /// Decides the MAC of the pod's interface, and whether its addresses are announced and probed. Every pod reads an
    /// announcement, which among hundreds of pods costs more than everything else. So it is made only in these cases:
    ///
    /// - `final_mac` is set: the MAC was requested, or an IPAM plugin has seen it (DHCP, reservations). The host may
    ///   know a former owner of the address by another MAC.
    /// - The host's neighbour table has one of the addresses with another MAC.
    /// - The bridge is not the pods' gateway, or the network has a VLAN. Then switches have to learn the port of the
    ///   MAC.
    ///
    /// IPv6 addresses are probed if `enabledad` asks for that, or if the bridge is foreign. Nothing is planned for an
    /// interface that stays down.
    pub(crate) fn plan(
        cx: &mut Context<'_>,
        bridge: &Link,
        result: &CniResult,
        final_mac: Option<Mac>,
    ) -> Self {
        let (config, host) = (cx.config, &mut cx.host);
        if !config.container_up {
            return Arrival { mac: None, announced: false, shared: false, detection: Detection::Off };
        }
        let shared = !ours::is_ours(bridge);
        let has_ipv6 = result.ips.iter().any(|ip| ip.address.is_ipv6());
        let is_probed = config.enable_dad || (shared && has_ipv6);
        let detection = if is_probed { Detection::On } else { Detection::Off };
        let first = result.ips.iter().map(|ip| ip.address.ip()).min_by_key(IpAddr::is_ipv6);
        let (None, Some(ip)) = (final_mac, first) else {
            return Arrival { mac: None, announced: true, shared, detection };
        };
        let mac = Mac::of_address(ip);
        // The kernel announces only IPv4 addresses here, so a lookup of IPv6 neighbours would not matter.
        let mut v4 = result.ips.iter().map(|ip| ip.address.ip()).filter(IpAddr::is_ipv4);
        let announced = !config.is_gateway
            || config.vlan.is_some()
            || v4.any(|ip| {
                host.neighbour(bridge.index, ip).map_or(true, |old| old.is_some_and(|old| old != mac))
            });
        Arrival { mac: Some(mac), announced, shared, detection }
    }

    /// Adds the addresses and routes in the pod and sets its interface up. Enters the namespace once and sends one
    /// batch of requests there. `pair` gets the final MAC.
    ///
    /// Returns the socket in the pod, or `None` if the configuration keeps the interface down. Fails with code 102 if a
    /// probe of IPv4 addresses finds another host on a foreign bridge.
    pub(crate) fn configure(
        self,
        cx: &Context<'_>,
        netns: &NetNs,
        pair: &mut Pair,
        result: &CniResult,
    ) -> Result<Option<Netlink>, Error> {
        let (call, config) = (cx.call, cx.config);
        if !config.container_up {
            return Ok(None);
        }
        let mut inside = netns.enter(|| {
            if config.layer3() {
                pod::switches(call, &pair.pod_name, pair.host.peer_netnsid, result, self.detection)?;
            }
            Ok::<_, Error>(Netlink::open()?)
        })??;
        if self.shared {
            let link = Link { index: pair.pod_index, name: pair.pod_name.clone(), ..Link::default() };
            // [`Arrival::finish`] announces the addresses when the bridge forwards.
            arp::probe_in_pod(call, netns, &mut inside, &link, result)?;
        }
        let start =
            Start { mac: self.mac, detection: self.detection, announced: config.layer3() && self.announced };
        let mut requests = pod::up(pair.pod_index, &pair.pod_name, result, &start);
        for wanted in pod::routes(pair.pod_index, result) {
            // The pod may have interfaces and default routes of other networks. `prepend` accepts those.
            requests.push(route::prepend(&wanted, &pair.pod_name));
        }
        inside.execute_all(requests).map_err(|err| pod::explained(result, Gateways::InNetworks, err))?;
        pair.pod_mac = self.mac.unwrap_or(pair.pod_mac);
        Ok(Some(inside))
    }

    /// Announces the IPv4 addresses again if that was planned. For IPv6 addresses, waits until the pod's end is up and
    /// duplicate address detection is over.
    ///
    /// The bridge may drop the kernel's own announcement. It opens a port only when it is notified that the link is up,
    /// which takes longer on a busy machine. Setting the same MAC again repeats the announcement (NETDEV_CHANGEADDR).
    pub(crate) fn finish(
        self,
        cx: &Context<'_>,
        inside: &mut Netlink,
        pair: &Pair,
        result: &CniResult,
    ) -> Result<(), Error> {
        let ifname = &cx.call.ifname;
        if cx.config.layer3() && self.announced {
            let same = Change { mac: Some(pair.pod_mac), ..Change::default() };
            cx.call.step(&format!("announce the addresses of {ifname}"), || {
                inside.execute(link::set(pair.pod_index, &pair.pod_name, &same))
            })?;
        }
        if !result.ips.iter().any(|ip| ip.address.is_ipv6()) {
            return Ok(());
        }
        cx.call.step(&format!("wait until the addresses of {ifname} can be used"), || {
            inside.wait_oper_up(pair.pod_index, UP_TIMEOUT)?;
            if self.detection == Detection::On {
                pod::wait_for_addresses(inside, pair.pod_index, result)
            } else {
                Ok(())
            }
        })
    }
}
