//! Follows a packet from outside to a port of the host, which leads to a pod if a pod publishes it.

use std::net::IpAddr;

use cnimble_liveness::cache_entries::{owner_of, published_ports};
use cnimble_netlink::conntrack;
use cnimble_netlink::link::Link;
use cnimble_netlink::lookup::{Packet, RouteKind};
use cnimble_netlink::nft::HookPoint;
use cnimble_rules::listing::{self, Effect};
use cnimble_rules::portmap::{self, Mapping};
use cnimble_runtime::Entry;
use ipnetwork::IpNetwork;

use super::flow::{Flow, Protocol};
use super::host::{Exit, Receiver};
use super::pod::is_refusal;
use super::station::{Station, Verdict, Way};
use super::walk::{HOST, Step, Walk};
use super::walk_back;

/// A published port with the pod to which it leads.
struct Publication {
    entry: Entry,
    mapping: Mapping,
    pod: IpNetwork,
}

impl Walk<'_> {
    /// Follows the packet from the link of the host behind which the sender is to the receiver, and its answer back.
    pub(crate) fn walk_inwards(&mut self, flow: &Flow) -> Step<()> {
        let Some(sender) = flow.from else { return Ok(()) };
        let arrival = self.arrival(sender, flow.to)?;
        self.check_host_link(&arrival)?;
        self.check_rules(HookPoint::Prerouting, flow)?;
        self.check_nat(HookPoint::Prerouting, flow);
        let translated = self.translate(flow)?;
        let receiver = match self.route_packet(&arrival, &translated)? {
            Exit::Local => Receiver::Host { vrf: self.vrf_of(&arrival)? },
            Exit::Link(link, next_hop) => self.deliver(link, next_hop, &translated)?,
        };
        self.way = Way::Back;
        walk_back(self, receiver, &translated.answer(sender), None)
    }

    /// Returns the link at which packets of a host outside are expected: the one of the host's own route to it. If the
    /// receiver is an address of the host in a VRF, that VRF's routes count.
    fn arrival(&mut self, sender: IpAddr, receiver: IpAddr) -> Step<Link> {
        let vrf = match self.own.iter().find(|(_, addr)| addr.net.ip() == receiver) {
            Some((index, _)) => {
                let link = self.host_link(*index)?;
                self.vrf_of(&link)?
            }
            None => None,
        };
        let output = vrf.map(|link| link.index);
        let packet = Packet { to: sender, from: None, input: None, output, transport: None };
        let remedy = format!("ip route get {sender}");
        match self.host.choose_route(&packet) {
            Ok(route) if route.kind == RouteKind::Unicast => self.host_link(route.index),
            Ok(_) => {
                let text = format!("{sender} is an address of this node, and no host outside has it");
                Err(self.stops_until(HOST, "source", text, remedy))
            }
            Err(err) if is_refusal(&err) => {
                let text = format!("the host has no route to {sender}, so no answer can go there");
                Err(self.stops_until(HOST, "route", text, remedy))
            }
            Err(err) => Err(err.into()),
        }
    }

    /// Returns the packet with the destination that the rules of the published port give it. A port that no pod on record
    /// publishes stays as it is.
    fn translate(&mut self, flow: &Flow) -> Step<Flow> {
        if !self.own.iter().any(|(_, addr)| addr.net.ip() == flow.to) {
            return Ok(*flow);
        }
        let port = format!("port {}/{}", flow.to_port, flow.protocol);
        let Some(publication) = self.publication(flow) else {
            self.passes(HOST, "published", format!("no pod on record publishes {port}"));
            return Ok(*flow);
        };
        let (to, to_port) = (publication.pod.ip(), publication.mapping.container_port);
        self.check_mapping(&publication, flow, &format!("{port} leads to {to} port {to_port}"))?;
        Ok(Flow { to, to_port, ..*flow })
    }

    /// Returns the recorded pod that publishes the flow's port. If several do, the one that names the host's address
    /// comes first, because its rule does. It returns `None` if no pod that can be found publishes it.
    fn publication(&self, flow: &Flow) -> Option<Publication> {
        let mut found: Vec<(bool, Publication)> = Vec::new();
        for entry in self.records.entries() {
            for mapping in published_ports(entry).iter().filter_map(Mapping::from_entry) {
                let host_ip = mapping.host_ip.filter(|ip| !ip.is_unspecified());
                let is_it = mapping.protocol.to_string() == flow.protocol.to_string()
                    && mapping.host_port == flow.to_port
                    && host_ip.is_none_or(|ip| ip == flow.to);
                // A pod's namespace is opened only if it has the port.
                if !is_it || self.records.find(&entry.container_id).is_err() {
                    continue;
                }
                let result = entry.cni_result().ok().flatten().unwrap_or_default();
                let mut addresses = result.ips.iter().map(|ip| ip.address);
                if let Some(pod) = addresses.find(|ip| ip.is_ipv4() == flow.to.is_ipv4()) {
                    found.push((host_ip.is_none(), Publication { entry: entry.clone(), mapping, pod }));
                }
            }
        }
        found.sort_by_key(|(is_general, _)| *is_general);
        found.into_iter().next().map(|(_, publication)| publication)
    }

    /// Checks that the rule of a published port exists. `leads` is the text about where it leads.
    fn check_mapping(&mut self, publication: &Publication, flow: &Flow, leads: &str) -> Step<()> {
        let Publication { entry, mapping, pod } = publication;
        let owner = owner_of(entry);
        let tag = owner.tag();
        let listed = listing::list(&mut self.nft)?;
        let mut of_pod = listed.iter().filter(|rule| rule.owner.is(&owner, &tag));
        if of_pod.any(|rule| maps(&rule.effect, flow.to_port)) {
            self.passes(HOST, "published", leads);
            self.report_old_connections(publication, flow);
            return Ok(());
        }
        let text = match portmap::holder_by_go_rules(&mut self.nft, *mapping, *pod) {
            Ok(Some(holder)) if holder.container == entry.container_id => {
                self.passes(HOST, "published", leads);
                self.report_old_connections(publication, flow);
                return Ok(());
            }
            Ok(Some(holder)) => format!("{leads} on record, and the rules lead it to {holder}"),
            Ok(None) => format!("{leads} on record, and its rule is missing"),
            Err(err) => {
                self.unknown(
                    HOST,
                    "published",
                    format!("{leads} on record, and the rules can't be read: {err}"),
                );
                return Ok(());
            }
        };
        Err(self.stops_until(HOST, "published", text, "cnimble doctor --repair"))
    }
}

impl Walk<'_> {
    /// Reports datagrams to the port that connection tracking still leads elsewhere, because they began before the pod
    /// had the port. A client that keeps its own port never reaches the pod. A probe has a port of its own, and is not
    /// among them.
    fn report_old_connections(&mut self, publication: &Publication, flow: &Flow) {
        if flow.protocol != Protocol::Udp {
            return;
        }
        let (number, pod) = (flow.protocol.number(flow.to.is_ipv4()), publication.pod.ip());
        let of_port = |of: &conntrack::Flow| of.destination == flow.to && of.port == flow.to_port;
        let elsewhere = |of: &conntrack::Flow| of.answers_from != pod;
        let found = conntrack::connections(flow.to.is_ipv4(), number, |of| of_port(of) && elsewhere(of));
        let found = match found {
            Ok(found) => found,
            Err(err) => {
                log::debug!("connections of published ports were not looked at: {err}");
                return;
            }
        };
        let Some(first) = found.first() else { return };
        let text = format!(
            "connection tracking leads {} older connections to port {} elsewhere, such as to {}: their clients do not \
             reach the pod until these expire",
            found.len(),
            flow.to_port,
            first.answers_from
        );
        let remedy = format!("conntrack -D -p udp --orig-dst {} --orig-port-dst {}", flow.to, flow.to_port);
        self.stations.push(Station::new(self.way, HOST, "tracking", Verdict::Unknown, text).remedy(remedy));
    }
}

/// Returns whether a rule with this effect leads packets to this port of the host elsewhere.
fn maps(effect: &Effect, port: u16) -> bool {
    matches!(effect, Effect::PortMapping { host_port, .. } if *host_port == port)
}
