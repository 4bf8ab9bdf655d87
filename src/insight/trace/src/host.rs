//! The stations of the host's IP layer: rules, routes, forwarding, and the link that the packet leaves by.

use std::net::IpAddr;

use cnimble_netlink::link::Link;
use cnimble_netlink::lookup::{ChosenRoute, Packet, RouteKind};
use cnimble_netlink::nft::HookPoint;
use cnimble_netlink::xfrm::IpsecDirection;
use cnimble_netlink::{Errno, Error, sysctl};
use cnimble_rules::portmap;

use super::explain::{self, Cause, table_name};
use super::flow::Flow;
use super::pod::{PodEnd, is_refusal};
use super::station::{Station, Verdict};
use super::walk::{HOST, Halt, Step, Walk, down_links};

/// Where the host's routes lead a packet.
pub(crate) enum Exit {
    /// The host itself is the receiver.
    Local,
    /// The packet leaves by this link, to the next hop.
    Link(Link, IpAddr),
}

/// The end of a walk.
pub(crate) enum Receiver {
    /// The host itself. It answers by the routes of the VRF in which the packet arrived, if it did.
    Host {
        vrf: Option<Link>,
    },
    Pod(Box<PodEnd>),
    /// A host behind this link of the host.
    Outside(Link),
}

impl Walk<'_> {
    /// Follows a packet that arrives at a link of the host, through the rules and routes.
    pub(crate) fn pass_host(&mut self, arrival: &Link, flow: &Flow) -> Step<Exit> {
        self.check_rules(HookPoint::Prerouting, flow)?;
        self.check_nat(HookPoint::Prerouting, flow);
        self.route_packet(arrival, flow)
    }

    /// Does what [`pass_host`](Self::pass_host) does after the rules of prerouting. The flow has the destination that
    /// they gave it.
    pub(crate) fn route_packet(&mut self, arrival: &Link, flow: &Flow) -> Step<Exit> {
        let route = match self.host.choose_route(&flow.packet(Some(arrival.index))) {
            Ok(route) => route,
            Err(err) => return Err(self.refused_by_host(arrival, flow, err)?),
        };
        if route.kind == RouteKind::Local {
            self.passes(HOST, "route", format!("{} is an address of the host", flow.to));
            self.check_ipsec(&[IpsecDirection::In], flow)?;
            self.check_rules(HookPoint::Input, flow)?;
            self.check_services(flow)?;
            return Ok(Exit::Local);
        }
        if route.kind != RouteKind::Unicast {
            self.unknown(HOST, "route", format!("the route to {} is of the type {}", flow.to, route.kind));
            return Err(Halt::Ended);
        }
        let link = self.host_link(route.index)?;
        self.passes(HOST, "route", route_text(&route, &link));
        self.check_ipv6_forwarding(flow)?;
        self.check_ipsec(&[IpsecDirection::Forward, IpsecDirection::Out], flow)?;
        self.check_mtu(&route, &link, flow)?;
        self.check_rules(HookPoint::Forward, flow)?;
        self.check_rules(HookPoint::Postrouting, flow)?;
        self.check_nat(HookPoint::Postrouting, flow);
        Ok(Exit::Link(link, route.via.unwrap_or(flow.to)))
    }

    /// Ends the walk at an address of a Service that is on a link of the host. IPVS takes such packets behind the rules
    /// of `input`, and its tables are not read.
    fn check_services(&mut self, flow: &Flow) -> Step<()> {
        let holders: Vec<u32> =
            self.own.iter().filter(|(_, addr)| addr.net.ip() == flow.to).map(|(index, _)| *index).collect();
        let mut holder = None;
        for index in holders {
            let link = self.host_link(index)?;
            // An address that another link has as well is the node's own.
            if !portmap::is_link_of_services(&link.name) {
                return Ok(());
            }
            holder = Some(link);
        }
        let Some(link) = holder else { return Ok(()) };
        let text = format!(
            "{} is the address of a Service on {}, and where IPVS sends the packet is not followed",
            flow.to, link.name
        );
        let mut station = Station::new(self.way, HOST, "ipvs", Verdict::Unknown, text).remedy("ipvsadm -Ln");
        station.explains_silence = true;
        self.stations.push(station);
        Err(Halt::Ended)
    }

    /// Follows a packet that the host itself sends, by the routes of a VRF if there is one.
    pub(crate) fn leave_host(&mut self, flow: &Flow, vrf: Option<&Link>) -> Step<Exit> {
        let packet = Packet { output: vrf.map(|link| link.index), ..flow.packet(None) };
        let route = match self.host.choose_route(&packet) {
            Ok(route) => route,
            Err(err) if is_refusal(&err) => {
                let cause = explain::refusal(&mut self.host, &packet, None)?;
                let text = match cause {
                    Cause::Dropped(text) => text,
                    Cause::NoRoute | Cause::Routed if err.is(Errno::ENETUNREACH) => {
                        format!("the host has no route to {}", flow.to)
                    }
                    _ => format!("the host refuses it: {err}"),
                };
                let vrf = vrf.map(|link| format!(" vrf {}", link.name)).unwrap_or_default();
                return Err(self.stops_until(HOST, "route", text, format!("ip route get {}{vrf}", flow.to)));
            }
            Err(err) => return Err(err.into()),
        };
        if route.kind == RouteKind::Local {
            self.passes(HOST, "route", format!("{} is an address of the host", flow.to));
            return Ok(Exit::Local);
        }
        let link = self.host_link(route.index)?;
        self.passes(HOST, "route", route_text(&route, &link));
        self.check_ipsec(&[IpsecDirection::Out], flow)?;
        self.check_rules(HookPoint::Output, flow)?;
        self.check_nat(HookPoint::Output, flow);
        self.check_rules(HookPoint::Postrouting, flow)?;
        self.check_nat(HookPoint::Postrouting, flow);
        Ok(Exit::Link(link, route.via.unwrap_or(flow.to)))
    }

    /// Adds the station of a packet that the host's IP layer refuses, with the reason. Fails if the error is no
    /// refusal.
    fn refused_by_host(&mut self, arrival: &Link, flow: &Flow, err: Error) -> Step<Halt> {
        if !is_refusal(&err) {
            return Err(err.into());
        }
        let packet = flow.packet(Some(arrival.index));
        let show = show_route(arrival, flow);
        match explain::refusal(&mut self.host, &packet, Some(&arrival.name))? {
            Cause::Dropped(text) => return Ok(self.stops_until(HOST, "route", text, show)),
            // A rule decides by what this walk can't judge, and the kernel tells the outcome alone.
            Cause::Unclear if err.is(Errno::ENETUNREACH) => {
                let text = format!("the host refuses it: {err}");
                return Ok(self.stops_until(HOST, "route", text, show));
            }
            _ => {}
        }
        if err.is(Errno::EHOSTUNREACH) && flow.to.is_ipv4() && arrival.forwards == Some(false) {
            return Ok(self.not_forwarded(arrival));
        }
        if err.is(Errno::ENETUNREACH) {
            let text = format!("the host has no route to {}{}", flow.to, down_links(&mut self.host)?);
            return Ok(self.stops_until(HOST, "route", text, show));
        }
        if matches!(err.errno, Errno::EINVAL | Errno::EXDEV) {
            return Ok(self.refused_source(arrival, flow, show));
        }
        Ok(self.stops_until(HOST, "route", format!("the host refuses it: {err}"), show))
    }

    /// Adds the station of a packet that is not forwarded, with the sysctl that forbids it.
    fn not_forwarded(&mut self, arrival: &Link) -> Halt {
        let (key, remedy) = match sysctl::read("net/ipv4/ip_forward").as_deref() {
            Ok("0") => ("net.ipv4.ip_forward".to_owned(), "sysctl -w net.ipv4.ip_forward=1".to_owned()),
            _ => {
                let key = format!("net.ipv4.conf.{}.forwarding", arrival.name);
                // A dot in the name of a link is a slash for sysctl.
                let name = arrival.name.replace('.', "/");
                (key, format!("sysctl -w net.ipv4.conf.{name}.forwarding=1"))
            }
        };
        let text = format!("what comes by {} is not forwarded: {key} is 0", arrival.name);
        self.stops_until(HOST, "forwarding", text, remedy)
    }

    /// Adds the station of a refused source. A usable route leads to the destination, so the kernel refused the source.
    fn refused_source(&mut self, arrival: &Link, flow: &Flow, show: String) -> Halt {
        let from = flow.from.map(|from| from.to_string()).unwrap_or_default();
        let strict = filter_mode("all").max(filter_mode(&arrival.name));
        if flow.to.is_ipv4() && strict > 0 {
            // RFC 3704: the loose mode drops only what no route leads to.
            let route = if strict == 1 {
                "the host's route there is another one"
            } else {
                "the host has no route there"
            };
            let text = format!(
                "the reverse-path filter drops {from} on {}, because {route} (rp_filter is {strict})",
                arrival.name
            );
            return self.stops_until(HOST, "reverse path", text, format!("ip route get {from}"));
        }
        let text = format!(
            "the host takes nothing from {from} on {}: is it one of its own addresses?",
            arrival.name
        );
        self.stops_until(HOST, "source", text, show)
    }

    /// Checks that IPv6 is forwarded. One switch counts for all links, and a look-up of a route does not regard it.
    fn check_ipv6_forwarding(&mut self, flow: &Flow) -> Step<()> {
        if flow.to.is_ipv4() || self.host.forwards(false)? {
            return Ok(());
        }
        let text = "IPv6 packets are not forwarded: net.ipv6.conf.all.forwarding is 0";
        Err(self.stops_until(HOST, "forwarding", text, "sysctl -w net.ipv6.conf.all.forwarding=1"))
    }

    /// Checks that a packet of a given size fits into the MTU of the route that the host has chosen, and of its link.
    /// The host reports to the sender of a larger one that it is too large.
    fn check_mtu(&mut self, route: &ChosenRoute, link: &Link, flow: &Flow) -> Step<()> {
        let Some(size) = flow.size else { return Ok(()) };
        if size > link.mtu {
            let text = format!("{size} bytes do not fit: the MTU of {} is {}", link.name, link.mtu);
            return Err(self.stops_until(HOST, "mtu", text, format!("ip link show {}", link.name)));
        }
        match route.mtu.filter(|mtu| size > *mtu) {
            Some(mtu) => {
                let text = format!("{size} bytes do not fit: the MTU of the route to {} is {mtu}", flow.to);
                Err(self.stops_until(HOST, "mtu", text, format!("ip route get {}", flow.to)))
            }
            None => {
                self.passes(
                    HOST,
                    "mtu",
                    format!("{size} bytes fit: the MTU of {} is {}", link.name, link.mtu),
                );
                Ok(())
            }
        }
    }

    /// Follows the packet from the link by which the host sends it to the receiver.
    pub(crate) fn deliver(&mut self, link: Link, next_hop: IpAddr, flow: &Flow) -> Step<Receiver> {
        let pod = match self.records.find_address(flow.to) {
            Ok(pod) => PodEnd::with_address(&mut self.host, &pod, flow.to)?,
            Err(_) => None,
        };
        let pod = match pod {
            Some(end) if next_hop == flow.to => {
                if self.leads_to(&link, &end)? {
                    return self.deliver_to_pod(&link, end, flow);
                }
                self.check_pod_on_link(&link, &end, flow)?;
                Some(end)
            }
            pod => pod,
        };
        self.check_neighbour(&link, next_hop)?;
        self.check_host_link(&link)?;
        match &pod {
            Some(end) => self.report_detour(&link, end, flow)?,
            None if next_hop == flow.to => {
                self.report_lost_address(flow.to)?;
            }
            None => {}
        }
        Ok(Receiver::Outside(link))
    }

    /// Reports that the host's route leads away from a pod of this node. Another host may send the packet back, so only
    /// a missing answer shows that the route is wrong.
    fn report_detour(&mut self, link: &Link, end: &PodEnd, flow: &Flow) -> Step<()> {
        let Some(host_end) = end.host_end.clone() else { return Ok(()) };
        let behind = self.bridge_of(&host_end)?.unwrap_or(host_end);
        let text = format!(
            "{} is the address of {}, which is behind {}, and the host's route leads to {}{}",
            flow.to,
            end.name,
            behind.name,
            link.name,
            down_links(&mut self.host)?
        );
        let mut station = Station::new(self.way, HOST, "route", Verdict::Unknown, text)
            .remedy(format!("ip route get {}", flow.to));
        station.explains_silence = true;
        self.stations.push(station);
        Ok(())
    }

    /// Returns whether a pod is behind a link of the host: at its other end, or at a port of its bridge.
    fn leads_to(&mut self, link: &Link, end: &PodEnd) -> Step<bool> {
        let Some(host_end) = end.host_end.clone() else { return Ok(false) };
        if host_end.index == link.index {
            return Ok(true);
        }
        match self.bridge_of(&host_end)? {
            Some(bridge) => self.is_on(link, &bridge),
            None => Ok(false),
        }
    }

    /// Follows the packet into a pod with a known end on the host.
    pub(crate) fn deliver_to_pod(&mut self, link: &Link, mut end: PodEnd, flow: &Flow) -> Step<Receiver> {
        let resolution = self.host.resolution(link.index, flow.to)?;
        self.report_resolution(HOST, &link.name, flow.to, resolution);
        self.check_pod_mac(link, &end, flow.to, resolution)?;
        self.check_host_link(link)?;
        if let Some(host_end) = end.host_end.clone() {
            if let Some(bridge) = self.bridge_of(&host_end)? {
                self.check_port(&host_end, &bridge)?;
                self.check_port_mtu(&host_end, flow)?;
                self.check_forwarding_entry(end.link.mac, &host_end, &bridge)?;
            }
            if host_end.index != link.index {
                self.check_host_link(&host_end)?;
            }
        }
        self.enter_pod(&mut end, flow)?;
        Ok(Receiver::Pod(Box::new(end)))
    }

    /// Reports whether the next hop answers on the link.
    fn check_neighbour(&mut self, link: &Link, next_hop: IpAddr) -> Step<()> {
        if link.mac.is_none() || self.host.details(link.index)?.without_arp() {
            return Ok(());
        }
        // A link that is down keeps no neighbours, so its own station says more.
        if !link.up || !link.carrier {
            return Ok(());
        }
        let resolution = self.host.resolution(link.index, next_hop)?;
        self.report_resolution(HOST, &link.name, next_hop, resolution);
        Ok(())
    }
}

fn route_text(route: &ChosenRoute, link: &Link) -> String {
    let via = route.via.map(|via| format!("via {via} ")).unwrap_or_default();
    format!("{via}by {}, table {}", link.name, table_name(route.table))
}

fn show_route(arrival: &Link, flow: &Flow) -> String {
    let from = flow.from.map(|from| format!(" from {from}")).unwrap_or_default();
    format!("ip route get {}{from} iif {}", flow.to, arrival.name)
}

/// Returns the mode of the reverse-path filter of a link. 0 if it is off, or can't be read.
fn filter_mode(link: &str) -> u32 {
    let value = sysctl::read(&format!("net/ipv4/conf/{link}/rp_filter"));
    value.ok().and_then(|value| value.parse().ok()).unwrap_or(0)
}
