//! The stations between a pod's link and the host: the host's end, the port of a bridge, or the master of a macvlan or
//! an ipvlan.

use std::net::IpAddr;

use cnimble_netlink::fdb;
use cnimble_netlink::kind::{Kind, MacvlanMode};
use cnimble_netlink::link::{Filter, Link, Mac};
use cnimble_netlink::neigh::Resolution;
use cnimble_netlink::port::Vlan;
use cnimble_netlink::port_state::PortState;

use super::flow::Flow;
use super::pod::{Departure, PodEnd};
use super::station::{Station, Verdict};
use super::walk::{HOST, Step, Walk, link_fault};

/// The length of a VLAN tag in bytes (`VLAN_HLEN`).
const VLAN_TAG: u32 = 4;

/// The next receiver of a packet that has left a pod.
pub(crate) enum Crossed {
    /// The host has received it by this link.
    Host(Link),
    /// A bridge has handed it to another pod.
    Pod(Box<PodEnd>),
    /// The packet has left by this link without the host's IP layer, which sees no answer either.
    Outside(String),
}

impl Walk<'_> {
    /// Follows the packet from a pod's link to the next receiver: the host, another pod on the bridge, or whatever is
    /// outside.
    pub(crate) fn cross(&mut self, departure: &Departure) -> Step<Crossed> {
        let end = &departure.end;
        let Some(host_end) = end.host_end.clone() else { return self.cross_master(departure) };
        // The pair drops a packet that is too large before the host's end receives it.
        self.check_port_mtu(&host_end, &departure.flow)?;
        self.check_host_link(&host_end)?;
        self.note_mtu(end, &host_end);
        let Some(bridge) = self.bridge_of(&host_end)? else {
            self.check_frame(departure, std::slice::from_ref(&host_end))?;
            return Ok(Crossed::Host(host_end));
        };
        let vlan = self.check_port(&host_end, &bridge)?;
        if let Some(gateway) = self.link_with(departure.next_hop)? {
            let arrival = if self.is_on(&gateway, &bridge)? { gateway } else { bridge.clone() };
            self.check_bridge_vlan(&bridge, vlan)?;
            self.check_frame(departure, &[arrival.clone(), bridge])?;
            self.check_host_link(&arrival)?;
            return Ok(Crossed::Host(arrival));
        }
        match self.pod_on(&bridge, departure.next_hop)? {
            Some(other) => {
                if let Some(other_end) = other.host_end.clone() {
                    self.check_port_mtu(&other_end, &departure.flow)?;
                }
                self.check_frame(departure, std::slice::from_ref(&other.link))?;
                self.check_between(&host_end, &other, &bridge, vlan)?;
                Ok(Crossed::Pod(Box::new(other)))
            }
            None if self.report_lost_address(departure.next_hop)? => Ok(Crossed::Outside(bridge.name)),
            None => {
                let text = format!(
                    "{} belongs neither to the host nor to a pod on record: it is behind {}, or nowhere",
                    departure.next_hop, bridge.name
                );
                let mut station = Station::new(self.way, HOST, "bridge", Verdict::Unknown, text);
                station.explains_silence = self.has_only_pods(&bridge)?;
                self.stations.push(station);
                Ok(Crossed::Outside(bridge.name))
            }
        }
    }

    /// Returns whether each port of a bridge is a pair with its other end in another namespace.
    fn has_only_pods(&mut self, bridge: &Link) -> Step<bool> {
        let ports = self.host.links(&Filter { master: Some(bridge.index), kind: None })?;
        Ok(ports.iter().all(|port| port.kind == "veth" && port.peer_netnsid.is_some()))
    }

    /// Reports that the host's end has the smaller MTU. A veth drops packets that exceed the MTU of its other end.
    fn note_mtu(&mut self, end: &PodEnd, host_end: &Link) {
        if end.link.mtu > host_end.mtu {
            let text = format!(
                "{} drops packets of more than {} bytes, and the pod sends up to {}",
                host_end.name, host_end.mtu, end.link.mtu
            );
            self.unknown(HOST, "mtu", text);
        }
    }

    /// Checks that a packet of a given size fits through the host's end of a pair. Both the pair and the bridge drop a
    /// larger one silently. The kernel leaves room for a VLAN tag (`is_skb_forwardable`), also without one.
    pub(crate) fn check_port_mtu(&mut self, host_end: &Link, flow: &Flow) -> Step<()> {
        let Some(size) = flow.size.filter(|size| *size > host_end.mtu.saturating_add(VLAN_TAG)) else {
            return Ok(());
        };
        let text = format!(
            "{} drops {size} bytes silently: its MTU is {}, and nobody tells the sender",
            host_end.name, host_end.mtu
        );
        Err(self.stops_until(HOST, "mtu", text, format!("ip link show {}", host_end.name)))
    }

    /// Returns the bridge of which a link is a port, or `None`.
    pub(crate) fn bridge_of(&mut self, link: &Link) -> Step<Option<Link>> {
        let Some(master) = link.master else { return Ok(None) };
        let master = self.host_link(master)?;
        Ok((master.kind == "bridge").then_some(master))
    }

    /// Checks that the port forwards frames. Returns the VLAN of untagged frames, or `None` if the bridge does not
    /// filter VLANs.
    pub(crate) fn check_port(&mut self, port: &Link, bridge: &Link) -> Step<Option<u16>> {
        let Some(state) = port.frames.map(|frames| frames.state) else { return Ok(None) };
        if let Some(fault) = link_fault(bridge).filter(|_| !bridge.up) {
            return Err(self.stops_until(HOST, "port", fault, format!("ip link set {} up", bridge.name)));
        }
        // The kernel disables a port without a carrier. No command about the state of the port brings it back.
        if let Some(fault) = link_fault(port).filter(|_| state != PortState::Forwarding) {
            let text = format!("port {} of {} is {state}: {fault}", port.name, bridge.name);
            return Err(if port.up {
                self.stops(HOST, "port", text)
            } else {
                self.stops_until(HOST, "port", text, format!("ip link set {} up", port.name))
            });
        }
        if state != PortState::Forwarding {
            let text = format!("port {} of {} is {} and lets nothing pass", port.name, bridge.name, state);
            let remedy = format!("bridge link set dev {} state 3", port.name);
            return Err(self.stops_until(HOST, "port", text, remedy));
        }
        let vlan = self.untagged_vlan(port, bridge)?;
        let in_vlan = vlan.map(|id| format!(", VLAN {id}")).unwrap_or_default();
        self.passes(HOST, "port", format!("{} of {} is forwarding{in_vlan}", port.name, bridge.name));
        Ok(vlan)
    }

    /// Returns the VLAN of the frames that a pod sends, or `None` if the bridge does not filter. A port without such a
    /// VLAN drops the frames, which ends the walk.
    fn untagged_vlan(&mut self, port: &Link, bridge: &Link) -> Step<Option<u16>> {
        if !bridge.vlan_filtering {
            return Ok(None);
        }
        let vlans = self.host.vlans(port.index)?;
        match vlans.iter().find(|vlan| vlan.pvid) {
            Some(Vlan { id, .. }) => Ok(Some(*id)),
            None => {
                let text = format!(
                    "{} filters VLANs, and port {} has none for untagged frames",
                    bridge.name, port.name
                );
                Err(self.stops_until(HOST, "port", text, format!("bridge vlan show dev {}", port.name)))
            }
        }
    }

    /// Checks that the host has an interface in the VLAN: the bridge itself, or a pair with one end in it.
    fn check_bridge_vlan(&mut self, bridge: &Link, vlan: Option<u16>) -> Step<()> {
        let Some(id) = vlan else { return Ok(()) };
        if self.host.vlans(bridge.index)?.iter().any(|vlan| vlan.id == id) {
            return Ok(());
        }
        // The gateway of a VLAN can be a pair with one end in the bridge.
        let ports = self.host.links(&Filter { master: Some(bridge.index), kind: None })?;
        for port in ports.iter().filter(|port| port.kind == "veth" && port.peer_netnsid.is_none()) {
            if self.host.vlans(port.index)?.iter().any(|vlan| vlan.id == id) {
                return Ok(());
            }
        }
        let text = format!("{} itself is not in VLAN {id}, so no address of the host is there", bridge.name);
        Err(self.stops_until(HOST, "port", text, format!("bridge vlan show dev {}", bridge.name)))
    }

    /// Checks that the frame's destination is the MAC of one of the receivers. A wrong one stops the packet only if it
    /// is from a permanent entry of the pod, because others are renewed.
    fn check_frame(&mut self, departure: &Departure, receivers: &[Link]) -> Step<()> {
        let (mac, permanent) = match departure.resolution {
            Some(Resolution::Permanent(mac)) => (mac, true),
            Some(Resolution::Known(mac)) => (mac, false),
            _ => return Ok(()),
        };
        if receivers.iter().any(|link| link.mac == Some(mac)) {
            return Ok(());
        }
        let (pod, ip) = (departure.end.name.clone(), departure.next_hop);
        let mut names: Vec<&str> = receivers.iter().map(|link| link.name.as_str()).collect();
        names.dedup();
        let text = format!("the pod takes {ip} for {mac}, which is no address of {}", names.join(" or "));
        if !permanent {
            self.unknown(&pod, "frame", format!("{text}: an old entry, which the pod renews"));
            return Ok(());
        }
        let remedy = format!(
            "nsenter --net={} ip neighbour del {ip} dev {}",
            departure.end.netns.display(),
            departure.end.link.name
        );
        Err(self.stops_until(
            &pod,
            "frame",
            format!("{text}: its permanent neighbour entry is wrong"),
            remedy,
        ))
    }

    /// Returns the link of the host with this address, or `None` if the host has no such address.
    pub(crate) fn link_with(&mut self, ip: IpAddr) -> Step<Option<Link>> {
        let Some(index) = self.own.iter().find(|(_, addr)| addr.net.ip() == ip).map(|(index, _)| *index)
        else {
            return Ok(None);
        };
        self.host_link(index).map(Some)
    }

    /// Returns whether a link of the host receives frames of a bridge: the bridge, a VLAN on it, or a pair into it.
    pub(crate) fn is_on(&mut self, link: &Link, bridge: &Link) -> Step<bool> {
        if link.index == bridge.index {
            return Ok(true);
        }
        let (Some(lower), None) = (link.peer, link.peer_netnsid) else { return Ok(false) };
        if lower == bridge.index {
            return Ok(true);
        }
        Ok(link.kind == "veth" && self.host_link(lower)?.master == Some(bridge.index))
    }

    /// Reports a recorded pod none of whose interfaces has its address. A virtual machine behind the interface may have
    /// it, so only a missing answer shows that this is a fault. Returns whether there is such a pod.
    pub(crate) fn report_lost_address(&mut self, ip: IpAddr) -> Step<bool> {
        let Ok(pod) = self.records.find_address(ip) else { return Ok(false) };
        if PodEnd::with_address(&mut self.host, &pod, ip)?.is_some() {
            return Ok(false);
        }
        let text = format!("{ip} is on record for {}, and no interface of it has the address", pod.name);
        let mut station = Station::new(self.way, &pod.name, "address", Verdict::Unknown, text)
            .remedy(format!("nsenter --net={} ip address", pod.netns.display()));
        station.explains_silence = true;
        self.stations.push(station);
        Ok(true)
    }

    /// Returns the recorded pod with this address if it is on this bridge, otherwise `None`.
    fn pod_on(&mut self, bridge: &Link, ip: IpAddr) -> Step<Option<PodEnd>> {
        let Ok(pod) = self.records.find_address(ip) else { return Ok(None) };
        let end = PodEnd::with_address(&mut self.host, &pod, ip)?;
        Ok(end.filter(|end| end.host_end.as_ref().is_some_and(|of| of.master == Some(bridge.index))))
    }

    /// Follows the packet from one port of a bridge to another one. `vlan` is the VLAN of the first one.
    fn check_between(&mut self, port: &Link, other: &PodEnd, bridge: &Link, vlan: Option<u16>) -> Step<()> {
        let Some(end) = &other.host_end else { return Ok(()) };
        let end = end.clone();
        self.check_bridge_rules()?;
        self.check_port(&end, bridge)?;
        if let Some(id) = vlan
            && !self.host.vlans(end.index)?.iter().any(|vlan| vlan.id == id)
        {
            let text = format!(
                "port {} is not in VLAN {id}, in which {} carries these frames",
                end.name, bridge.name
            );
            return Err(self.stops_until(HOST, "port", text, format!("bridge vlan show dev {}", end.name)));
        }
        if [port, &end].iter().all(|link| link.port.is_some_and(|of| of.isolated)) {
            let text =
                format!("both ports of {} are isolated, so these pods cannot reach each other", bridge.name);
            return Err(self.stops_until(
                HOST,
                "port",
                text,
                format!("bridge -d link show dev {}", end.name),
            ));
        }
        self.check_forwarding_entry(other.link.mac, &end, bridge)?;
        self.check_host_link(&end)
    }

    /// Checks that the bridge's forwarding database does not lead frames for a pod to another port. A learned entry is
    /// only reported, because it changes when the pod sends.
    pub(crate) fn check_forwarding_entry(&mut self, mac: Option<Mac>, end: &Link, bridge: &Link) -> Step<()> {
        let Some(mac) = mac else { return Ok(()) };
        let vlan = match self.host.vlans(end.index) {
            Ok(vlans) if bridge.vlan_filtering => vlans.iter().find(|vlan| vlan.pvid).map(|vlan| vlan.id),
            _ => None,
        };
        let entry: Option<fdb::Entry> = self.host.forwarding_entry(bridge.index, mac, vlan)?;
        if entry.is_none() && end.frames.is_some_and(|frames| !frames.flood) {
            self.report_lack_of_flooding(mac, end, bridge);
        }
        let Some(entry) = entry.filter(|entry| entry.port != end.index) else { return Ok(()) };
        let other = self.host_link(entry.port)?.name;
        let text = format!("{} sends frames for {mac} to {other} instead of {}", bridge.name, end.name);
        let remedy = format!("bridge fdb show br {} | grep -i {mac}", bridge.name);
        if entry.sticky || entry.local {
            return Err(self.stops_until(HOST, "bridge", text, remedy));
        }
        self.unknown(HOST, "bridge", format!("{text}, until the pod sends again"));
        Ok(())
    }

    /// Reports that a bridge does not know behind which port a MAC is, and does not flood frames to the right one.
    fn report_lack_of_flooding(&mut self, mac: Mac, end: &Link, bridge: &Link) {
        let text = format!(
            "{} knows no port for {mac}, and floods nothing to {} (flood, bcast_flood or mcast_flood is off)",
            bridge.name, end.name
        );
        let mut station = Station::new(self.way, HOST, "bridge", Verdict::Unknown, text)
            .remedy(format!("bridge -d link show dev {}", end.name));
        station.explains_silence = true;
        self.stations.push(station);
    }

    /// Follows a packet from an interface without a host end. A macvlan or an ipvlan sends by its master. Any other
    /// kind of link leaves the node by itself.
    fn cross_master(&mut self, departure: &Departure) -> Step<Crossed> {
        let end = &departure.end;
        let Some(master) = self.master_of(end)? else {
            let kind = if end.link.kind.is_empty() { "hardware" } else { end.link.kind.as_str() };
            let text = format!("{} is {kind} without an end on the host", end.link.name);
            let name = end.name.clone();
            self.unknown(&name, "link", text);
            return Ok(Crossed::Outside(end.link.name.clone()));
        };
        self.check_host_link(&master)?;
        self.check_own_master(departure, &master)?;
        self.check_private_mode(departure, &master)?;
        Ok(Crossed::Outside(master.name))
    }

    /// Returns the link of the host on which a pod's interface is made, or `None` if there is none.
    fn master_of(&mut self, end: &PodEnd) -> Step<Option<Link>> {
        let (Some(index), Some(netnsid)) = (end.link.peer, end.link.peer_netnsid) else { return Ok(None) };
        if !end.link.settings.is_some_and(Kind::has_parent) {
            return Ok(None);
        }
        let mut inside = cnimble_netlink::Netlink::open_in(&end.ns)?;
        if inside.number_of(&self.host_ns)? != Some(netnsid) {
            return Ok(None);
        }
        self.host_link(index).map(Some)
    }

    /// Checks that the receiver is no address of the host on the interface's own master. Only a macvlan in mode vepa
    /// can reach one.
    fn check_own_master(&mut self, departure: &Departure, master: &Link) -> Step<()> {
        let to: &Flow = &departure.flow;
        let Some(own) = self.link_with(to.to)? else { return Ok(()) };
        let end = &departure.end;
        if own.index != master.index
            || end.link.settings.is_none()
            || macvlan_mode(end) == Some(MacvlanMode::Vepa)
        {
            return Ok(());
        }
        let text = format!(
            "{} is an address of {}, and a {} on it cannot reach its own host there",
            to.to, master.name, end.link.kind
        );
        Err(self.stops(HOST, "master", text))
    }

    /// Checks that no private macvlan separates two pods on one master. Such a macvlan takes no frame from another one.
    fn check_private_mode(&mut self, departure: &Departure, master: &Link) -> Step<()> {
        let Ok(pod) = self.records.find_address(departure.next_hop) else { return Ok(()) };
        let Some(other) = PodEnd::with_address(&mut self.host, &pod, departure.next_hop)? else {
            return Ok(());
        };
        if self.master_of(&other)?.is_none_or(|of| of.index != master.index) {
            return Ok(());
        }
        let sender = &departure.end;
        let mut both = [sender, &other].into_iter();
        let Some(private) = both.find(|end| macvlan_mode(end) == Some(MacvlanMode::Private)) else {
            return Ok(());
        };
        let text = format!(
            "{} of {} and {} of {} are on {}, and {} is a macvlan in mode private, which takes nothing from another one",
            sender.link.name, sender.name, other.link.name, other.name, master.name, private.name
        );
        Err(self.stops_until(HOST, "master", text, format!("ip -d link show {}", master.name)))
    }

    /// Checks that a pod to which the host sends by `link` is not on that link itself. The host then reaches it only by
    /// another interface on the same master, such as that of `hostShim`, or by a switch that sends frames back.
    pub(crate) fn check_pod_on_link(&mut self, link: &Link, end: &PodEnd, flow: &Flow) -> Step<()> {
        if self.master_of(end)?.is_none_or(|of| of.index != link.index) || end.link.kind == "vlan" {
            return Ok(());
        }
        if macvlan_mode(end) == Some(MacvlanMode::Vepa) {
            return Ok(());
        }
        let text = format!(
            "{} is the address of {}, a {} on {}, and the host cannot reach it by {} (see the key hostShim)",
            flow.to, end.name, end.link.kind, link.name, link.name
        );
        Err(self.stops(HOST, "master", text))
    }
}

/// Returns the mode of a pod's interface, or `None` if it is no macvlan.
fn macvlan_mode(end: &PodEnd) -> Option<MacvlanMode> {
    match end.link.settings {
        Some(Kind::Macvlan(settings)) => Some(settings.mode),
        _ => None,
    }
}
