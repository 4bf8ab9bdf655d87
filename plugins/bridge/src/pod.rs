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

/// How other hosts learn the pod's MAC.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Arrival {
    /// Derived from the address, unless another one is final.
    mac: Option<Mac>,
    /// The kernel announces it (`arp_notify`).
    announced: bool,
    /// A foreign bridge may lead to other hosts.
    shared: bool,
    detection: Detection,
}

impl Arrival {
    /// Replaces the first MAC of the pod's interface.
    pub(crate) fn mac(&self) -> Option<Mac> {
        self.mac
    }

    /// Decides whether addresses are announced and probed. Every pod reads an announcement, which among hundreds of
    /// pods costs more than everything else. It is only needed if hosts know the address with another than a derived
    /// MAC.
    ///
    /// With `final_mac` the MAC was requested, or an IPAM plugin has seen it (DHCP, reservations). The host may know a
    /// former owner of the address by another MAC. A bridge that isn't a gateway leads to switches that have to learn
    /// the MAC's port. IPv6 addresses are probed if that is configured, or on a foreign bridge.
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
        // Only IPv4 addresses are announced.
        let mut v4 = result.ips.iter().map(|ip| ip.address.ip()).filter(IpAddr::is_ipv4);
        let announced = !config.is_gateway
            || config.vlan.is_some()
            || v4.any(|ip| {
                host.neighbour(bridge.index, ip).map_or(true, |old| old.is_some_and(|old| old != mac))
            });
        Arrival { mac: Some(mac), announced, shared, detection }
    }

    /// Enters the namespace once, and sends one message there. Returns the socket in the pod.
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
                pod::switches(call, &pair.pod_name, pair.host.far, result, self.detection)?;
            }
            Ok::<_, Error>(Netlink::open()?)
        })??;
        if self.shared {
            let link = Link { index: pair.pod_index, name: pair.pod_name.clone(), ..Link::default() };
            // [`Arrival::finish`] announces them when the bridge forwards.
            arp::probe_in_pod(call, netns, &mut inside, &link, result)?;
        }
        let start =
            Start { mac: self.mac, detection: self.detection, announced: config.layer3() && self.announced };
        let mut requests = pod::up(pair.pod_index, &pair.pod_name, result, &start);
        for wanted in pod::routes(pair.pod_index, result) {
            // The pod may have other networks' interfaces and default routes.
            requests.push(route::prepend(&wanted, &pair.pod_name));
        }
        inside.execute_all(requests).map_err(|err| pod::explained(result, Gateways::InNetworks, err))?;
        pair.pod_mac = self.mac.unwrap_or(pair.pod_mac);
        Ok(Some(inside))
    }

    /// Announces the addresses again if needed, and waits until they are usable. The bridge may drop the kernel's
    /// announcement: it opens a port only when notified that the link is up, later on a busy machine. Setting a MAC
    /// again repeats the announcement (NETDEV_CHANGEADDR).
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
            if self.detection == Detection::On { pod::settle(inside, pair.pod_index, result) } else { Ok(()) }
        })
    }
}
