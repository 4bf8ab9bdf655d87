//! Sends a real packet, captures it on the links of its way, and traces it through nf_tables.
//!
//! The kernel removes sockets and tables with the process. Neighbour entries stay as after a ping. [`send`] deletes the
//! entries of connection tracking that the probe made, in each namespace in which it was captured. After a kill they
//! expire, as those of any other packet do.

mod conditions;
mod drops;
mod inject;
mod join;
mod neighbours;
mod packet;
mod real;

use std::collections::BTreeSet;
use std::fs::File;
use std::io::Read;
use std::net::IpAddr;
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use cnimble_liveness::named::NamedPod;
use cnimble_netlink::conntrack::{self, FirstPacket};
use cnimble_netlink::nft::{DROPPING_CHAIN, Family, Nft, TraceMonitor, TraceStep};
use cnimble_netlink::packet::{Direction, Pattern, Socket, SocketPurpose};
use cnimble_netlink::raw::{RawSocket, Transport};
use cnimble_netlink::{Errno, Error, NetNs};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use super::flow::Flow;
use super::station::Tap;

use inject::Injector;
pub(crate) use join::join;
use packet::{Probe, Sighting};
pub(crate) use real::await_real;

/// The time after which the probe is sent again. The first one may be lost while the kernel asks for a neighbour.
const AGAIN: Duration = Duration::from_millis(1000);
/// How many bytes of a captured packet are read. An error of ICMP quotes a header and eight bytes at least.
const LONGEST: usize = 256;
/// How many packets are read from one link at once, so that a flood does not keep the process from other work.
const AT_ONCE: usize = 64;
/// How many steps through rules are kept. One packet has some hundred where kube-proxy has many services.
const MOST_STEPS: usize = 4096;
/// The first source port of probes. The kernel does not choose ports from here on for others by default
/// (net.ipv4.ip_local_port_range).
const FIRST_PORT: u16 = 61_100;

/// A captured link, and whether the probe and its answer were seen on it.
struct Watched {
    tap: Tap,
    socket: Socket,
    /// The direction in which an answer reaches the sender by this link: into the pod that has sent the probe, or out
    /// of the node. It is `None` for the other links.
    to_sender: Option<Direction>,
    probe: bool,
    answer: bool,
}

/// The findings of a probe.
#[derive(Debug, Default)]
pub(crate) struct Evidence {
    /// The captured links, each with whether the probe and its answer were seen there.
    pub(crate) sights: Vec<(Tap, bool, bool)>,
    /// The answer, if it came back to the sender, or as far as to the link that leads to a sender outside.
    pub(crate) answer: Option<&'static str>,
    /// The error that a router or the receiver reported, with its sender.
    pub(crate) error: Option<(IpAddr, &'static str)>,
    /// The rules that dropped the probe or its answer.
    pub(crate) drops: Vec<drops::Drop>,
    /// The rules that dropped packets by which the sender and its neighbours find each other.
    pub(crate) neighbour_drops: Vec<drops::Drop>,
    /// Why the probe could not be sent.
    pub(crate) unsent: Option<Error>,
    /// The parts of the evidence that are missing, as texts.
    pub(crate) missing: Vec<String>,
    /// The rules of the host that matched the probe on its way: family, table, chain and handle.
    pub(crate) matched: BTreeSet<(Family, String, String, u64)>,
    pub(crate) waited: Duration,
    /// The probe as it was seen, with the namespace. `None` is the host's.
    seen: BTreeSet<(Option<PathBuf>, FirstPacket)>,
}

impl Evidence {
    /// Records once that a part is missing.
    fn miss(&mut self, what: &str) {
        if !self.missing.iter().any(|known| known == what) {
            self.missing.push(what.to_owned());
        }
    }
}

/// Where the probe comes from.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Origin<'a> {
    Pod(&'a NamedPod),
    /// The probe arrives at this link of the host.
    Link(u32),
}

/// The means to send the probe.
enum Transmitter {
    Pod(RawSocket),
    Link(Injector),
}

impl Transmitter {
    fn open(origin: Origin<'_>, probe: &Probe) -> Result<Self, Error> {
        let (transport, is_v4) = (probe.transport, probe.flow.to.is_ipv4());
        Ok(match origin {
            Origin::Pod(pod) => {
                let ns = NetNs::open(&pod.netns)?;
                let socket = ns.enter(|| RawSocket::open(transport, is_v4))??;
                if probe.flow.size.is_some() {
                    socket.forbid_fragments(is_v4)?;
                }
                Transmitter::Pod(socket)
            }
            Origin::Link(index) => Transmitter::Link(Injector::new(index, probe)?),
        })
    }

    fn send(&self, probe: &Probe) -> Result<(), Error> {
        match self {
            Transmitter::Pod(socket) => socket.send(&probe.bytes(), probe.flow.to),
            Transmitter::Link(injector) => injector.send(&probe.packet(&probe.bytes())),
        }
    }

    /// Ends the connection that a receiver has begun. Otherwise it would repeat its answer to a SYN for half a minute.
    fn reset(&self, probe: &Probe) {
        // In a pod the kernel resets the connection, because no program waits for the answer.
        let Transmitter::Link(injector) = self else { return };
        if probe.transport == Transport::Tcp
            && let Err(err) = injector.send(&probe.packet(&probe.reset()))
        {
            log::debug!("the receiver waits for the end of the connection: {err}");
        }
    }
}

/// Sends a probe, and waits at most `patience` for its answer.
///
/// # Errors
/// Fails if a namespace can't be entered, and for a probe from outside if the answer could not be held back.
pub(crate) fn send(
    origin: Origin<'_>,
    flow: &Flow,
    (from, transport): (IpAddr, Transport),
    taps: Vec<Tap>,
    patience: Duration,
) -> Result<Evidence, Error> {
    let number = random()?;
    let mut flow = *flow;
    if transport != Transport::Icmp {
        flow.from_port = FIRST_PORT + u16::try_from(number % 4000).unwrap_or(0);
    }
    let probe = Probe { flow, from, transport, number };
    let mut evidence = Evidence::default();
    let sender = match origin {
        Origin::Pod(pod) => Some(&pod.netns),
        Origin::Link(_) => None,
    };
    let mut watched = watch(taps, sender, probe.pattern(), &mut evidence)?;
    let mut tracer = trace_rules(&probe, origin, &mut evidence)?;
    let transmitter = Transmitter::open(origin, &probe)?;
    // A program at the pod's link can drop the probe before it is captured, so it counts as seen there.
    let sent = probe.first_packet(&probe.packet(&probe.bytes()));
    evidence.seen.extend(sent.map(|first| (sender.cloned(), first)));
    let begun = Instant::now();
    let mut steps = Vec::new();
    for deadline in [AGAIN.min(patience), patience] {
        if let Err(err) = transmitter.send(&probe) {
            evidence.unsent = Some(err);
            break;
        }
        if wait(&probe, &mut watched, &mut tracer, &mut steps, &mut evidence, begun + deadline)? {
            break;
        }
    }
    evidence.waited = begun.elapsed();
    transmitter.reset(&probe);
    forget(&evidence.seen);
    evidence.drops = drops::find(&steps, &probe);
    evidence.neighbour_drops = drops::of_neighbours(&steps, &probe);
    evidence.matched = drops::matched(&steps, &probe);
    evidence.sights = watched.into_iter().map(|of| (of.tap, of.probe, of.answer)).collect();
    Ok(evidence)
}

/// Deletes the entries of connection tracking that the probe made. One that stays expires, so a failure is only logged.
///
/// A packet that a rule drops has no entry: the kernel keeps an entry only when the packet leaves the namespace or
/// reaches its receiver there.
fn forget(seen: &BTreeSet<(Option<PathBuf>, FirstPacket)>) {
    for (netns, first) in seen {
        let forgotten = match netns {
            None => conntrack::forget_connection(first),
            Some(netns) => NetNs::open(netns)
                .and_then(|ns| ns.enter(|| conntrack::forget_connection(first)))
                .and_then(|outcome| outcome),
        };
        if let Err(err) = forgotten {
            log::debug!("the tracked connection of the probe stays until it expires: {err}");
        }
    }
}

/// Returns a random number.
fn random() -> Result<u32, Error> {
    let mut bytes = [0; 4];
    File::open("/dev/urandom")
        .and_then(|mut file| file.read_exact(&mut bytes))
        .map_err(|err| Error::io("read a random number", &err))?;
    Ok(u32::from_ne_bytes(bytes))
}

/// Opens a capture on each link. A link on which that fails is reported as missing. Fails if a namespace can't be
/// entered.
fn watch(
    taps: Vec<Tap>,
    sender: Option<&PathBuf>,
    pattern: Pattern,
    evidence: &mut Evidence,
) -> Result<Vec<Watched>, Error> {
    let mut watched = Vec::new();
    for tap in taps {
        let open = || Socket::open(SocketPurpose::Ip(pattern), tap.index);
        let socket = match &tap.netns {
            None => open(),
            Some(netns) => NetNs::open(netns)?.enter(open)?,
        };
        match socket {
            Ok(socket) => {
                let is_sender = sender.is_some() && tap.netns.as_ref() == sender;
                let to_sender = is_sender.then_some(Direction::Received);
                watched.push(Watched { tap, socket, to_sender, probe: false, answer: false });
            }
            Err(err) => {
                evidence.missing.push(format!("nothing was captured on link number {}: {err}", tap.index));
            }
        }
    }
    Ok(watched)
}

/// The monitor of the trace, and the socket that owns the tables. It is `None` if the kernel can't trace.
type Tracer = Option<(TraceMonitor, Nft)>;

/// Begins to trace the probe and its answer through nf_tables. The answer to a probe from outside is dropped when it leaves
/// the host, because the sender knows nothing of the probe.
///
/// # Errors
/// Fails only for a probe from outside, which must not be sent then.
fn trace_rules(probe: &Probe, origin: Origin<'_>, evidence: &mut Evidence) -> Result<Tracer, Error> {
    match (begin_trace(probe, origin), origin) {
        (Ok(tracer), _) => Ok(Some(tracer)),
        (Err(err), Origin::Link(_)) => Err(err),
        (Err(err), Origin::Pod(_)) => {
            evidence.missing.push(format!("rules were not traced, which takes Linux 5.12: {err}"));
            Ok(None)
        }
    }
}

/// Opens the monitor, and makes the rules that mark the probe, and drop its answer to a sender outside.
fn begin_trace(probe: &Probe, origin: Origin<'_>) -> Result<(TraceMonitor, Nft), Error> {
    let monitor = TraceMonitor::open()?;
    let mut nft = Nft::open_here()?;
    let name = table_name();
    match origin {
        Origin::Pod(_) => {
            let neighbours = neighbours::conditions(probe.from);
            nft.trace_packets(&name, &[probe.conditions(), neighbours].concat())?;
        }
        Origin::Link(_) => {
            let answers = probe.answer_conditions();
            nft.trace_packets(&name, &[probe.conditions(), answers.clone()].concat())?;
            nft.drop_traced(&name, &answers)?;
        }
    }
    Ok((monitor, nft))
}

/// Returns the name of this process's table, whose rules mark the probe for the trace.
fn table_name() -> String {
    format!("cnimble-trace-{}", std::process::id())
}

/// Takes the answer that the probe's own table has dropped when it left the host.
fn take_held_answer(steps: &[TraceStep], probe: &Probe, evidence: &mut Evidence) {
    let table = table_name();
    let dropped = steps.iter().filter(|step| step.dropped && step.table == table);
    // The kernel sends the headers with the first step of each chain.
    for held in dropped.filter(|step| step.chain == DROPPING_CHAIN) {
        let of_packet = steps.iter().filter(|step| step.id == held.id);
        let sightings = of_packet.filter_map(|step| probe.recognize_held(&step.transport));
        for sighting in sightings {
            match sighting {
                Sighting::Answer(text) => evidence.answer = Some(text),
                Sighting::Error { text, .. } => evidence.error = Some((probe.flow.to, text)),
                Sighting::Probe => {}
            }
        }
    }
}

/// Reads until the answer has come, an error was reported, a rule has dropped the probe, or the deadline has passed.
/// Returns whether there is nothing more to wait for.
fn wait(
    probe: &Probe,
    watched: &mut [Watched],
    tracer: &mut Tracer,
    steps: &mut Vec<TraceStep>,
    evidence: &mut Evidence,
    deadline: Instant,
) -> Result<bool, Error> {
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let ready = ready(watched, tracer, left)?;
        for of in watched.iter_mut() {
            read_packets(probe, of, evidence);
        }
        if let Some((monitor, _)) = tracer {
            match monitor.read() {
                Ok(found) if steps.len() + found.len() <= MOST_STEPS => steps.extend(found),
                Ok(_) => evidence.miss("another program traces so many packets that some were left out"),
                Err(err) if err.is(Errno::ENOBUFS) => {
                    evidence.miss("some messages about rules were lost");
                }
                Err(err) => return Err(err),
            }
        }
        take_held_answer(steps, probe, evidence);
        let decided =
            evidence.answer.is_some() || evidence.error.is_some() || !drops::find(steps, probe).is_empty();
        if decided && !ready {
            return Ok(true);
        }
        if left.is_zero() {
            return Ok(decided);
        }
    }
}

/// Waits until a socket can be read, for 50 ms at most. Returns false if none can.
fn ready(watched: &[Watched], tracer: &Tracer, left: Duration) -> Result<bool, Error> {
    let mut descriptors: Vec<PollFd<'_>> =
        watched.iter().map(|of| PollFd::new(of.socket.as_fd(), PollFlags::POLLIN)).collect();
    if let Some((monitor, _)) = tracer {
        descriptors.push(PollFd::new(monitor.as_fd(), PollFlags::POLLIN));
    }
    let moment = left.min(Duration::from_millis(50));
    let timeout = PollTimeout::try_from(moment).unwrap_or(PollTimeout::ZERO);
    match poll(&mut descriptors, timeout) {
        Ok(count) => Ok(count > 0),
        Err(Errno::EINTR) => Ok(true),
        Err(errno) => Err(Error::new("wait for the probe", errno)),
    }
}

/// Reads the packets that were captured on one link, and records what they show.
fn read_packets(probe: &Probe, watched: &mut Watched, evidence: &mut Evidence) {
    let mut buffer = [0; LONGEST];
    for _ in 0..AT_ONCE {
        // A link that goes down returns one error.
        let Ok(Some((direction, packet))) = watched.socket.capture(&mut buffer) else { return };
        record_packet(probe, watched, direction, packet, evidence);
    }
}

/// Records what a captured packet shows.
fn record_packet(
    probe: &Probe,
    watched: &mut Watched,
    direction: Direction,
    packet: &[u8],
    evidence: &mut Evidence,
) {
    // A bridge floods frames for an address that it does not know, and a pod drops them.
    if watched.tap.netns.is_some() && direction == Direction::Foreign {
        return;
    }
    let reaches_sender = watched.to_sender == Some(direction);
    match probe.recognize(packet) {
        Some(Sighting::Probe) => {
            watched.probe = true;
            let first = probe.first_packet(packet);
            evidence.seen.extend(first.map(|first| (watched.tap.netns.clone(), first)));
        }
        Some(Sighting::Answer(text)) => {
            watched.answer = true;
            if reaches_sender {
                evidence.answer = Some(text);
            }
        }
        Some(Sighting::Error { from, text }) if reaches_sender => evidence.error = Some((from, text)),
        Some(Sighting::Error { .. }) | None => {}
    }
}
