//! The stations in a pod. What is read there is used for the pod alone, and never to choose an object of the host.

use std::net::IpAddr;
use std::path::PathBuf;

use cnimble_liveness::named::NamedPod;
use cnimble_netlink::link::Link;
use cnimble_netlink::lookup::RouteKind;
use cnimble_netlink::neigh::Resolution;
use cnimble_netlink::{Errno, Error, NetNs, Netlink};
use cnimble_runtime::Entry;

use super::explain::{self, Cause};
use super::flow::Flow;
use super::programs::{in_words, on_link, programs_of};
use super::station::{Station, Verdict};
use super::walk::{Halt, Step, Walk, down_links, link_fault};

/// One interface of a pod.
pub(crate) struct PodEnd {
    pub(crate) name: String,
    pub(crate) netns: PathBuf,
    pub(crate) ns: NetNs,
    pub(crate) net: Netlink,
    pub(crate) link: Link,
    /// The record of its attachment. It is `None` without one.
    pub(crate) entry: Option<Entry>,
    /// The host's end of its pair. It is `None` for other kinds of links.
    pub(crate) host_end: Option<Link>,
}

impl PodEnd {
    /// Returns the interface with this index in the pod's namespace.
    fn at(host: &mut Netlink, pod: &NamedPod, index: u32) -> Result<Self, Error> {
        let ns = NetNs::open(&pod.netns)?;
        let mut net = Netlink::open_in(&ns)?;
        let link = net.link_at(index)?;
        let host_end = host.other_end(&link, &ns)?;
        let entry = pod.entries.iter().find(|entry| entry.ifname == link.name).cloned();
        Ok(PodEnd { name: pod.name.clone(), netns: pod.netns.clone(), ns, net, link, entry, host_end })
    }

    /// Returns the pod's interface with this address. It returns `None` if it has no such address.
    pub(crate) fn with_address(
        host: &mut Netlink,
        pod: &NamedPod,
        ip: IpAddr,
    ) -> Result<Option<Self>, Error> {
        let mut net = Netlink::open_in(&NetNs::open(&pod.netns)?)?;
        let found = net.addrs_with_links()?.into_iter().find(|(_, addr)| addr.net.ip() == ip);
        found.map(|(index, _)| PodEnd::at(host, pod, index)).transpose()
    }
}

/// The packet as it leaves a pod.
pub(crate) struct Departure {
    pub(crate) end: PodEnd,
    /// The gateway, or the receiver itself.
    pub(crate) next_hop: IpAddr,
    pub(crate) flow: Flow,
    /// The pod's neighbour entry of the next hop. It is `None` if it has none, or needs none.
    pub(crate) resolution: Option<Resolution>,
}

impl Walk<'_> {
    /// Follows the packet through the pod: its route, source address, neighbour and link. Returns `None` if the pod
    /// itself is the receiver.
    pub(crate) fn leave_pod(&mut self, pod: &NamedPod, flow: &Flow) -> Step<Option<Departure>> {
        let ns = NetNs::open(&pod.netns)?;
        let mut net = Netlink::open_in(&ns)?;
        let packet = flow.packet(None);
        let route = match net.choose_route(&packet) {
            Ok(route) => route,
            Err(err) => return Err(self.no_route_in_pod(pod, &mut net, flow, err)?),
        };
        if route.kind == RouteKind::Local {
            self.passes(&pod.name, "route", format!("{} is the pod's own address", flow.to));
            return Ok(None);
        }
        let flow = Flow { from: flow.from.or(route.source), ..*flow };
        let end = PodEnd::at(&mut self.host, pod, route.index)?;
        let next_hop = route.via.unwrap_or(flow.to);
        let via = route.via.map(|via| format!("via {via} ")).unwrap_or_default();
        let source = flow.from.map(|from| format!(", source {from}")).unwrap_or_default();
        self.passes(&pod.name, "route", format!("{via}by {}{source}", end.link.name));
        let mut departure = Departure { end, next_hop, flow, resolution: None };
        departure.resolution = self.resolve_in_pod(&mut departure)?;
        self.check_pod_link(&mut departure.end)?;
        Ok(Some(departure))
    }

    /// Adds the station of a packet that the pod's routes refuse. Fails if the error is no refusal.
    fn no_route_in_pod(
        &mut self,
        pod: &NamedPod,
        net: &mut Netlink,
        flow: &Flow,
        err: Error,
    ) -> Result<Halt, Error> {
        let remedy = format!("nsenter --net={} ip route get {}", pod.netns.display(), flow.to);
        let text = match explain::refusal(net, &flow.packet(None), None)? {
            Cause::Dropped(text) => text,
            Cause::NoRoute | Cause::Routed if err.is(Errno::ENETUNREACH) => {
                format!("the pod has no route to {}{}", flow.to, down_links(net)?)
            }
            _ if is_refusal(&err) => format!("the pod's routes refuse {}: {err}", flow.to),
            _ => return Err(err),
        };
        Ok(self.stops_until(&pod.name, "route", text, remedy))
    }

    /// Reports whether the pod knows its next hop's MAC, and returns the entry. It returns `None` on a link without
    /// such entries.
    fn resolve_in_pod(&mut self, departure: &mut Departure) -> Step<Option<Resolution>> {
        let (end, next_hop) = (&mut departure.end, departure.next_hop);
        if end.link.mac.is_none() || end.net.details(end.link.index)?.without_arp() {
            return Ok(None);
        }
        let resolution = end.net.resolution(end.link.index, next_hop)?;
        let name = end.name.clone();
        let link = end.link.name.clone();
        self.report_resolution(&name, &link, next_hop, resolution);
        Ok(resolution)
    }

    /// Adds the station of a neighbour entry.
    pub(crate) fn report_resolution(
        &mut self,
        place: &str,
        link: &str,
        ip: IpAddr,
        resolution: Option<Resolution>,
    ) {
        let text = match resolution {
            None => format!("{ip} on {link} was not asked for yet"),
            Some(Resolution::Known(mac)) => format!("{ip} is at {mac} on {link}"),
            Some(Resolution::Permanent(mac)) => format!("{ip} is at {mac} on {link}, by a permanent entry"),
            Some(Resolution::Asking | Resolution::Failed) => {
                let when = if self.probed { "" } else { ", when it was asked for last" };
                let text = format!("no host on {link} answers for {ip}{when}");
                // The way to the neighbour may be cut elsewhere. Only a probe shows whether this is an old failure.
                let mut station = Station::new(self.way, place, "neighbour", Verdict::Unknown, text);
                station.explains_silence = true;
                self.stations.push(station);
                return;
            }
        };
        self.passes(place, "neighbour", text);
    }

    /// Checks that the pod's interface is up and has a carrier.
    pub(crate) fn check_pod_link(&mut self, end: &mut PodEnd) -> Step<()> {
        let programs = programs_of(&mut end.net, &end.link)?;
        let (verdict, text) = match link_fault(&end.link) {
            None => {
                let text = format!("{} is up, MTU {}{}", end.link.name, end.link.mtu, in_words(&programs));
                (Verdict::Ok, text)
            }
            Some(fault) => (Verdict::Stops, fault),
        };
        let mut station = Station::new(self.way, &end.name, "link", verdict, text);
        station = station.tapped(Some(end.netns.clone()), end.link.index);
        station.programs = on_link(&end.link.name, programs);
        if verdict == Verdict::Stops {
            if !end.link.up {
                let netns = end.netns.display();
                station = station.remedy(format!("nsenter --net={netns} ip link set {} up", end.link.name));
            }
            self.stations.push(station);
            return Err(Halt::Ended);
        }
        self.stations.push(station);
        Ok(())
    }

    /// Checks that the pod accepts a packet that arrives by this interface.
    pub(crate) fn enter_pod(&mut self, end: &mut PodEnd, flow: &Flow) -> Step<()> {
        self.check_pod_link(end)?;
        let packet = flow.packet(Some(end.link.index));
        let name = end.name.clone();
        let link = end.link.name.clone();
        match end.net.choose_route(&packet) {
            Ok(route) if route.kind == RouteKind::Local => {
                self.passes(&name, "address", format!("the pod takes what comes for {} by {link}", flow.to));
                Ok(())
            }
            Ok(_) => {
                let text = format!("{} is no address of the pod", flow.to);
                let remedy = format!("nsenter --net={} ip address show dev {link}", end.netns.display());
                Err(self.stops_until(&name, "address", text, remedy))
            }
            Err(err) if is_refusal(&err) => {
                let text = self.refusal_in_pod(end, flow, &err)?;
                let remedy = format!(
                    "nsenter --net={} ip route get {} from {} iif {link}",
                    end.netns.display(),
                    flow.to,
                    flow.from.map(|from| from.to_string()).unwrap_or_default()
                );
                Err(self.stops_until(&name, "address", text, remedy))
            }
            Err(err) => Err(err.into()),
        }
    }

    /// Returns the text about a packet that the pod refuses.
    fn refusal_in_pod(&mut self, end: &mut PodEnd, flow: &Flow, err: &Error) -> Step<String> {
        let packet = flow.packet(Some(end.link.index));
        let cause = explain::refusal(&mut end.net, &packet, Some(&end.link.name))?;
        let link = &end.link.name;
        Ok(match (cause, flow.from) {
            (Cause::Dropped(text), _) => text,
            (Cause::Routed, Some(from)) if matches!(err.errno, Errno::EINVAL | Errno::EXDEV) => format!(
                "the pod takes nothing from {from} by {link}: its own route there is another one (rp_filter), or {from} \
                 is its own address"
            ),
            // No route takes it, or one that would forward it, as a pod does not.
            (Cause::NoRoute | Cause::Routed, _)
                if matches!(err.errno, Errno::ENETUNREACH | Errno::EHOSTUNREACH) =>
            {
                format!("{} is no address of the pod", flow.to)
            }
            _ => format!("the pod takes nothing for {} by {link}: {err}", flow.to),
        })
    }
}

/// Returns whether the error of a route look-up refuses the packet. Other errors are about the question itself.
pub(crate) fn is_refusal(err: &Error) -> bool {
    [Errno::ENETUNREACH, Errno::EHOSTUNREACH, Errno::EINVAL, Errno::EACCES, Errno::EXDEV].contains(&err.errno)
}
