//! Finds out why a pod does not reach an address (`cnimble trace`). It follows a packet from its pod, or from a host
//! outside, through the node to its receiver, and follows its answer back. Each [`Station`] is a place where the kernel
//! decides about the packet.
//!
//! | module | stations |
//! |---|---|
//! | `pod` | the pod's route, neighbour, link and address |
//! | `bridge` | the host's end, ports and VLANs of bridges, masters of macvlan and ipvlan |
//! | `host` | routes, forwarding, reverse path, the link outwards |
//! | `ipsec` | the IPsec policies of the host |
//! | `neighbour`, `masquerade`, `nat`, `rules` | neighbour entries of pods, translation, packet rules |
//! | `published` | the way from outside to a published port |
//! | `programs` | what is on a link and no trace sees |
//! | `explain` | the rule or route behind a refusal of the routing tables |
//! | `probe` | a packet that is sent, captured and traced |
//!
//! A look asks the kernel and changes nothing. A station that it cannot judge is reported as unknown. A probe is a real
//! packet.

mod bridge;
mod explain;
mod flow;
mod host;
mod ipsec;
mod masquerade;
mod nat;
mod neighbour;
mod pod;
mod probe;
mod programs;
mod published;
mod rules;
mod station;
mod walk;

use std::net::IpAddr;
use std::time::Duration;

use cnimble_liveness::named::{NamedPod, Records};
use cnimble_netlink::raw::Transport;
use cnimble_netlink::{Error, NetNs, Netlink};
use serde::Serialize;

use bridge::Crossed;
use host::{Exit, Receiver};
use probe::{Evidence, Origin};
use station::Tap;
use walk::{HOST, Halt, Step, Walk};

pub use flow::{Flow, Protocol, Target};
pub use station::{Outcome, Station, Verdict, Way};

/// How long to wait for an answer that a look does not expect.
const CONFIRMATION: Duration = Duration::from_millis(500);
/// How long to wait at least for a packet of a host outside. A person has to make that host send one.
const REAL_PATIENCE: Duration = Duration::from_secs(30);

/// The way of one packet.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Trace {
    /// The name of the pod that sends the packet. It is `None` if it comes from outside.
    pub pod: Option<String>,
    /// The source address. It is `None` if the pod has no route.
    pub from: Option<IpAddr>,
    pub to: IpAddr,
    pub protocol: Protocol,
    /// The port of the receiver. It is `None` for an echo request.
    pub port: Option<u16>,
    pub outcome: Outcome,
    /// The answer to the probe in words, if one came.
    pub answer: Option<&'static str>,
    pub stations: Vec<Station>,
}

/// The sender of a packet.
#[derive(Debug, Clone, Copy)]
pub enum Sender<'a> {
    Pod(&'a NamedPod),
    /// A host outside with the address [`Flow::from`].
    Outside,
}

impl<'a> Sender<'a> {
    fn pod(self) -> Option<&'a NamedPod> {
        match self {
            Sender::Pod(pod) => Some(pod),
            Sender::Outside => None,
        }
    }
}

/// Follows the packet by questions to the kernel, and sends nothing. The calling thread must be in the host's network
/// namespace.
///
/// # Errors
/// Fails if the kernel can't be asked. A station that has just gone is reported as unknown instead.
pub fn look(sender: Sender<'_>, flow: Flow, records: &Records<'_>) -> Result<Trace, Error> {
    look_along(&mut Walk::new(records)?, sender, flow)
}

fn look_along(walk: &mut Walk<'_>, sender: Sender<'_>, flow: Flow) -> Result<Trace, Error> {
    let from = follow(walk, sender, &flow)?;
    let stations = std::mem::take(&mut walk.stations);
    Ok(Trace {
        pod: sender.pod().map(|pod| pod.name.clone()),
        from,
        to: flow.to,
        protocol: flow.protocol,
        port: Some(flow.to_port).filter(|port| *port != 0),
        outcome: station::outcome(&stations),
        answer: None,
        stations,
    })
}

/// Does what [`look`] does, then sends a packet and waits at most `patience` for its answer. After that it looks again,
/// because the packet makes the kernel ask for neighbours. If nothing can be sent in the place of a host outside, it
/// waits half a minute for a packet that this host sends itself. If none comes, it returns the look, which says so.
///
/// # Errors
/// Fails as [`look`] does, or if the packet can't be captured.
pub fn probe(
    sender: Sender<'_>,
    flow: Flow,
    records: &Records<'_>,
    patience: Duration,
) -> Result<Trace, Error> {
    let mut walk = Walk::new(records)?;
    let mut trace = look_along(&mut walk, sender, flow)?;
    let Some(from) = trace.from else { return Ok(trace) };
    let Some(transport) = flow.protocol.transport() else {
        let text = format!(
            "no probe of {} is sent: what a rule with conditions does cannot be known",
            flow.protocol
        );
        trace.stations.push(Station::new(Way::Out, HOST, "probe", Verdict::Unknown, text));
        trace.outcome = station::outcome(&trace.stations);
        return Ok(trace);
    };
    // Without its rule a published port is a port of the host, which refuses the probe. That would look like the pod's
    // answer.
    let lacks_rule =
        trace.stations.last().is_some_and(|of| of.name == "published" && of.verdict == Verdict::Stops);
    let origin = match (sender, trace.stations.iter().find_map(|station| station.tap.as_ref())) {
        (Sender::Pod(pod), _) => Origin::Pod(pod),
        (Sender::Outside, Some(tap)) if !lacks_rule => Origin::Link(tap.index),
        (Sender::Outside, _) => return Ok(trace),
    };
    let mut taps = Vec::new();
    for tap in trace.stations.iter().filter_map(|station| station.tap.as_ref()) {
        if !taps.contains(tap) {
            taps.push(tap.clone());
        }
    }
    // The probe only confirms a fault that the look has found.
    let patience = if trace.outcome == Outcome::Stopped { patience.min(CONFIRMATION) } else { patience };
    let evidence = match probe::send(origin, &flow, (from, transport), taps.clone(), patience) {
        Err(err) if matches!(origin, Origin::Link(_)) => {
            match await_real(&flow, (from, transport), taps, patience, &err)? {
                Ok(evidence) => evidence,
                // The look is returned, with a station that says what is missing.
                Err(text) => {
                    trace.stations.push(Station::new(Way::Out, HOST, "probe", Verdict::Unknown, text));
                    trace.outcome = station::outcome(&trace.stations);
                    return Ok(trace);
                }
            }
        }
        sent => sent?,
    };
    walk.begin_again();
    walk.untracked = walk.untracking(&evidence.matched);
    follow(&mut walk, sender, &flow)?;
    let hooked = walk.nft.hooked_chains().unwrap_or_default();
    trace.stations = walk.stations;
    trace.outcome = probe::join(&mut trace.stations, flow.to, &evidence, &hooked);
    if trace.outcome == Outcome::Answered {
        trace.answer = evidence.answer.or(Some("port unreachable: nothing listens there"));
    }
    Ok(trace)
}

/// Waits for a packet that the sender outside sends itself, because none could be made in its place for the reason `why`.
/// Tells the user of the wait. Returns the text about both failures if none comes.
fn await_real(
    flow: &Flow,
    (from, transport): (IpAddr, Transport),
    taps: Vec<Tap>,
    patience: Duration,
    why: &Error,
) -> Result<Result<Evidence, String>, Error> {
    let limit = REAL_PATIENCE.max(patience);
    let seconds = limit.as_secs();
    let packet = match flow.to_port {
        0 => format!("{from} to {}", flow.to),
        port => format!("{from} to {} port {port}/{}", flow.to, flow.protocol),
    };
    let text = format!("no packet from outside could be made, which takes Linux 5.12 ({why})");
    log::warn!("{text}: waiting {seconds} s for one of {packet}");
    let found = probe::await_real(flow, (from, transport), taps, limit, patience)?;
    Ok(found.ok_or_else(|| {
        format!("{text}, and within {seconds} s none of {packet} came: have it send one meanwhile")
    }))
}

/// Returns whether the pod is in the host's own network namespace.
///
/// # Errors
/// Fails if the pod's namespace can't be opened.
pub fn is_in_host_network(pod: &NamedPod) -> Result<bool, Error> {
    NetNs::open(&pod.netns)?.same_as(&NetNs::current()?)
}

/// Returns the gateway of the pod's default route for this family. It returns `None` without one.
///
/// # Errors
/// Fails if the pod can't be looked into.
pub fn gateway(pod: &NamedPod, v4: bool) -> Result<Option<IpAddr>, Error> {
    next_hop(&mut Netlink::open_in(&NetNs::open(&pod.netns)?)?, v4)
}

/// Returns the MTU of the link by which the pod sends to `to`. That is the size of its largest packets.
///
/// # Errors
/// Fails if the pod can't be looked into, or has no route to `to`.
pub fn link_mtu(pod: &NamedPod, to: IpAddr) -> Result<u32, Error> {
    let flow = Flow { from: None, to, protocol: Protocol::Icmp, from_port: 0, to_port: 0, size: None };
    let mut net = Netlink::open_in(&NetNs::open(&pod.netns)?)?;
    let route = net.choose_route(&flow.packet(None))?;
    Ok(net.link_at(route.index)?.mtu)
}

/// Returns the gateway of the host's default route for this family. It returns `None` without one.
///
/// # Errors
/// Fails if the kernel can't be asked.
pub fn internet(v4: bool) -> Result<Option<IpAddr>, Error> {
    next_hop(&mut Netlink::open()?, v4)
}

/// Returns the gateway of the default route with the lowest metric that has one.
fn next_hop(net: &mut Netlink, v4: bool) -> Result<Option<IpAddr>, Error> {
    let routes = net.routes_by_protocol()?.into_iter().map(|(route, _)| route);
    let mut defaults: Vec<_> =
        routes.filter(|route| route.dst.prefix() == 0 && route.dst.is_ipv4() == v4).collect();
    defaults.sort_by_key(|route| route.priority.unwrap_or(0));
    Ok(defaults.into_iter().find_map(|route| route.via))
}

/// Follows the packet and its answer. Returns the source address. The stations are in `walk` afterwards.
fn follow(walk: &mut Walk<'_>, sender: Sender<'_>, flow: &Flow) -> Result<Option<IpAddr>, Error> {
    let mut from = flow.from;
    let walked = match sender {
        Sender::Pod(pod) => walk_both(walk, pod, flow, &mut from),
        Sender::Outside => walk.walk_inwards(flow),
    };
    match walked {
        Ok(()) | Err(Halt::Ended) => {}
        // A link or a namespace can vanish while it is looked at.
        Err(Halt::Failed(err)) if err.is_missing() => {
            walk.unknown(HOST, "look", format!("it changed while it was looked at: {err}"));
        }
        Err(Halt::Failed(err)) => return Err(err),
    }
    Ok(from)
}

/// Follows a pod's packet to its receiver, and the answer back. Writes the chosen source into `from`.
fn walk_both(walk: &mut Walk<'_>, pod: &NamedPod, flow: &Flow, from: &mut Option<IpAddr>) -> Step<()> {
    let Some(mut departure) = walk.leave_pod(pod, flow)? else { return Ok(()) };
    let flow = departure.flow;
    *from = flow.from;
    let mut masqueraded = None;
    let receiver = match walk.cross(&departure)? {
        Crossed::Pod(mut end) => {
            walk.enter_pod(&mut end, &flow)?;
            Receiver::Pod(end)
        }
        Crossed::Host(arrival) => match walk.pass_host(&arrival, &flow)? {
            Exit::Local => Receiver::Host { vrf: walk.vrf_of(&arrival)? },
            Exit::Link(link, next_hop) => {
                let receiver = walk.deliver(link, next_hop, &flow)?;
                if matches!(receiver, Receiver::Pod(_)) {
                    let vrf = walk.vrf_of(&arrival)?;
                    masqueraded = walk.masqueraded_source(&departure.end, &flow, vrf.as_ref());
                }
                receiver
            }
        },
        Crossed::Outside(link) => {
            walk.report_network(&link, &flow);
            walk.way = Way::Back;
            let Some(source) = flow.from else { return Ok(()) };
            return walk.enter_pod(&mut departure.end, &flow.answer(source));
        }
    };
    if let Receiver::Outside(link) = &receiver {
        walk.check_masquerading(&departure.end, &flow);
        walk.report_network(&link.name, &flow);
    }
    let Some(source) = flow.from else { return Ok(()) };
    walk.way = Way::Back;
    walk_back(walk, receiver, &flow.answer(source), masqueraded)
}

/// Follows the answer. A receiver outside has its own routes. A pod answers to the address that it saw, which is
/// `masqueraded` if the packet was. The host translates it back before its routes are asked.
fn walk_back(walk: &mut Walk<'_>, receiver: Receiver, flow: &Flow, masqueraded: Option<IpAddr>) -> Step<()> {
    let exit = match receiver {
        Receiver::Host { vrf } => walk.leave_host(flow, vrf.as_ref())?,
        Receiver::Outside(link) => walk.pass_host(&link, flow)?,
        Receiver::Pod(end) => {
            let other =
                NamedPod { name: end.name, netns: end.netns, entries: end.entry.into_iter().collect() };
            let seen = Flow { to: masqueraded.unwrap_or(flow.to), ..*flow };
            let Some(departure) = walk.leave_pod(&other, &seen)? else { return Ok(()) };
            match walk.cross(&departure)? {
                Crossed::Pod(mut end) => return walk.enter_pod(&mut end, flow),
                Crossed::Outside(_) => return Ok(()),
                Crossed::Host(arrival) => walk.pass_host(&arrival, flow)?,
            }
        }
    };
    match exit {
        Exit::Local => Ok(()),
        Exit::Link(link, next_hop) => walk.deliver(link, next_hop, flow).map(|_| ()),
    }
}
