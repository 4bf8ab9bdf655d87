//! Waits for a packet that a host outside sends itself, where no probe can be sent in its place. It is captured on the
//! links of its way as a probe is. Nothing is changed, so the connection goes on.

use std::collections::VecDeque;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use cnimble_netlink::Error;
use cnimble_netlink::packet::{Direction, Pattern};
use cnimble_netlink::raw::Transport;

use super::packet::Probe;
use super::{AT_ONCE, Evidence, LONGEST, Watched, ready, record_packet, wait, watch};
use crate::flow::Flow;
use crate::station::Tap;

/// How many packets of each link are kept until the awaited one has come. It may be read later than its own successors
/// on other links.
const KEPT: usize = 256;

/// The latest packets of one link.
type Kept = VecDeque<(Direction, Vec<u8>)>;

/// Waits at most `limit` until the sender's first packet of a connection arrives at the first of the links, and then at
/// most `patience` for its answer. Returns `None` if no packet has come.
///
/// # Errors
/// Fails if a namespace can't be entered.
pub(crate) fn await_real(
    flow: &Flow,
    (from, transport): (IpAddr, Transport),
    taps: Vec<Tap>,
    limit: Duration,
    patience: Duration,
) -> Result<Option<Evidence>, Error> {
    let pattern = match transport {
        Transport::Icmp => Pattern::Icmp,
        Transport::Tcp => Pattern::AnyTcpHandshake,
        Transport::Udp => Pattern::AnyUdp,
    };
    let mut evidence = Evidence::default();
    evidence.missing.push("rules were not traced, because the packet is not a probe".to_owned());
    let mut watched = watch(taps, None, pattern, &mut evidence)?;
    let Some(uplink) = watched.first_mut() else { return Ok(None) };
    uplink.to_sender = Some(Direction::Sent);
    let mut kept: Vec<Kept> = watched.iter().map(|_| Kept::new()).collect();
    let deadline = Instant::now() + limit;
    let found = loop {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Ok(None);
        }
        ready(&watched, &None, left)?;
        for (link, kept) in watched.iter().zip(&mut kept) {
            keep_packets(link, kept);
        }
        let arrived = kept.first().into_iter().flatten();
        let mut received = arrived.filter(|(direction, _)| *direction == Direction::Received);
        if let Some(found) = received.find_map(|(_, packet)| Probe::adopt(flow, from, transport, packet)) {
            break found;
        }
    };
    for (link, kept) in watched.iter_mut().zip(kept) {
        for (direction, packet) in kept {
            record_packet(&found, link, direction, &packet, &mut evidence);
        }
    }
    let begun = Instant::now();
    wait(&found, &mut watched, &mut None, &mut Vec::new(), &mut evidence, begun + patience)?;
    evidence.waited = begun.elapsed();
    evidence.sights = watched.into_iter().map(|of| (of.tap, of.probe, of.answer)).collect();
    Ok(Some(evidence))
}

/// Reads what was captured on a link. The oldest packets go first if there are too many.
fn keep_packets(link: &Watched, kept: &mut Kept) {
    let mut buffer = [0; LONGEST];
    for _ in 0..AT_ONCE {
        let Ok(Some((direction, packet))) = link.socket.capture(&mut buffer) else { return };
        if kept.len() == KEPT {
            kept.pop_front();
        }
        kept.push_back((direction, packet.to_vec()));
    }
}
