//! The client's side of the protocol for one interface: RFC 8415, section 18.2, without I/O.
//!
//! ```text
//! Soliciting ─Advertise→ Requesting ─Reply→ Probing ─free→ Bound ─T1→ Renewing ─T2→ Rebinding ─end→ Soliciting
//!     ↑  │                 │            ↑      │ taken       ↑          │ Reply        │ Reply  (the lease is lost)
//!     │  └─Reply (rapid)───│────────────┘  Declining         └──────────┴──────────────┘
//!     └────────────────────┴──────────────────┘
//! ```
//!
//! It is driven like [`client`](crate::client): by [`Client::tick`] when the time of [`Client::next`] has come, and by
//! the messages that arrive. It sends no Confirm, because a pod's interface does not move to another link. Messages are
//! multicast to all servers of the link, and name the server that is meant.

mod answers;

use std::net::Ipv6Addr;

use super::lease::Lease;
use super::message::{Question, Type};
use super::pause::{self, Pace, Pauses};
use crate::client::random;
use crate::tally::Tally;

/// The pause after a Decline and after a refusal.
const REST: u64 = 1000;
/// The shortest pause between two messages that extend a lease.
const SHORTEST_PAUSE: u64 = 1000;

/// The client's identity. It stays the same for the life of an interface.
#[derive(Debug, Clone)]
pub(crate) struct Identity {
    pub(crate) duid: Vec<u8>,
    pub(crate) iaid: u32,
}

/// An action for the driver of the client.
#[derive(Debug)]
pub(crate) enum Action {
    Send(Box<Question>),
    /// Send a neighbour solicitation for the address.
    Probe(Ipv6Addr),
    /// The client has a lease: a new one, or a renewed one.
    Bound(Box<Lease>),
    /// The lease has ended, for this reason.
    Lost(Box<Lease>, &'static str),
    /// Write a line to the log.
    Tell(String),
}

/// The offer in a server's Advertise.
#[derive(Debug)]
struct Offer {
    server: Vec<u8>,
    preference: u8,
    address: Ipv6Addr,
}

#[derive(Debug)]
enum State {
    /// Contains the best offer so far.
    Soliciting(Option<Offer>),
    /// `probed` is when the link was probed for the address.
    Requesting {
        server: Vec<u8>,
        address: Ipv6Addr,
        probed: u64,
    },
    Probing(Box<Lease>),
    Declining {
        server: Vec<u8>,
        address: Ipv6Addr,
    },
    Bound,
    Renewing,
    Rebinding,
}

/// The DHCPv6 client of one interface. See the module.
#[derive(Debug)]
pub(crate) struct Client {
    identity: Identity,
    state: State,
    lease: Option<Lease>,
    /// The address that the client asks servers for.
    wished: Option<Ipv6Addr>,
    xid: u32,
    /// When the current exchange began.
    begun: u64,
    pauses: Pauses,
    next: u64,
    /// The lease daemon's limit of a pause, and the server's limit for Solicits.
    longest_pause: u64,
    solicit_pause: Option<u64>,
    tally: Tally,
}

impl Client {
    /// Returns a client without a lease.
    pub(crate) fn new(identity: Identity, longest_pause: u64, now: u64) -> Client {
        Client {
            identity,
            state: State::Soliciting(None),
            lease: None,
            wished: None,
            xid: transaction(),
            begun: now,
            pauses: Pauses::default(),
            next: now,
            longest_pause: longest_pause.max(pause::SOLICIT.first),
            solicit_pause: None,
            tally: Tally::default(),
        }
    }

    /// Returns a client that resumes with a lease from a file.
    pub(crate) fn with(identity: Identity, longest_pause: u64, now: u64, lease: Lease) -> Client {
        let mut client = Client::new(identity, longest_pause, now);
        client.next = lease.renew;
        client.wished = Some(lease.address);
        client.state = State::Bound;
        client.lease = Some(lease);
        client
    }

    pub(crate) fn lease(&self) -> Option<&Lease> {
        self.lease.as_ref()
    }

    /// The attempts since the client last had a lease.
    pub(crate) fn tally(&self) -> &Tally {
        &self.tally
    }

    /// The identity that the client shows to servers.
    pub(crate) fn identity(&self) -> &Identity {
        &self.identity
    }

    /// When the client next has something to do.
    pub(crate) fn next(&self) -> u64 {
        let Some(lease) = &self.lease else { return self.next };
        let end = if matches!(self.state, State::Renewing) { lease.rebind } else { lease.expires };
        self.next.min(end)
    }

    /// Whether the client expects an answer.
    pub(crate) fn listens(&self) -> bool {
        !matches!(self.state, State::Bound)
    }

    /// The address that is being probed.
    pub(crate) fn probed(&self) -> Option<Ipv6Addr> {
        match &self.state {
            State::Requesting { address, .. } if !self.has(*address) => Some(*address),
            State::Probing(lease) => Some(lease.address),
            _ => None,
        }
    }

    fn has(&self, address: Ipv6Addr) -> bool {
        self.lease.as_ref().is_some_and(|lease| lease.address == address)
    }

    /// Does everything that is due at `now`.
    pub(crate) fn tick(&mut self, now: u64) -> Vec<Action> {
        if now < self.next() {
            return Vec::new();
        }
        if self.lease.as_ref().is_some_and(|lease| now >= lease.expires) {
            return self.lose(now, "it has expired");
        }
        match &mut self.state {
            State::Soliciting(offer) => match offer.take() {
                Some(offer) => self.choose(now, offer),
                None => vec![self.solicit(now)],
            },
            State::Requesting { .. } if self.pauses.is_over(pause::REQUEST) => {
                self.start(now);
                vec![self.solicit(now)]
            }
            State::Requesting { server, address, .. } => {
                let (server, address) = (server.clone(), *address);
                vec![self.request(now, server, address)]
            }
            State::Probing(lease) => {
                let lease = lease.clone();
                vec![self.bind(*lease)]
            }
            State::Declining { .. } if self.pauses.is_over(pause::DECLINE) => {
                self.start(now + REST);
                Vec::new()
            }
            State::Declining { server, address } => {
                let (server, address) = (server.clone(), *address);
                vec![self.decline(now, server, address)]
            }
            State::Bound | State::Renewing | State::Rebinding => self.keep(now),
        }
    }

    /// Renews a lease that is due, or ends one that has expired.
    fn keep(&mut self, now: u64) -> Vec<Action> {
        let Some(lease) = self.lease.clone() else {
            self.start(now);
            return Vec::new();
        };
        let mut actions = Vec::new();
        if now >= lease.rebind && !matches!(self.state, State::Rebinding) {
            self.enter(State::Rebinding, now);
            actions.push(Action::Tell(format!("rebinding {}: any server may prolong it", lease.address)));
        } else if matches!(self.state, State::Bound) {
            self.enter(State::Renewing, now);
            actions.push(Action::Tell(format!("renewing {}", lease.address)));
        }
        let (kind, server, end) = match self.state {
            State::Rebinding => (Type::Rebind, None, lease.expires),
            _ => (Type::Renew, Some(lease.server_id), lease.rebind),
        };
        actions.push(self.send(now, kind, pause::RENEW, server, Some(lease.address)));
        // The first pauses of the RFC may be longer than a short lease.
        self.next = self.next.min(now + (end.saturating_sub(now) / 2).max(SHORTEST_PAUSE));
        actions
    }

    /// Handles a conflict: another host on the link uses `address`.
    pub(crate) fn conflict(&mut self, now: u64, address: Ipv6Addr) -> Vec<Action> {
        if self.probed() != Some(address) {
            return Vec::new();
        }
        let server = match &self.state {
            State::Requesting { server, .. } => server.clone(),
            State::Probing(lease) => lease.server_id.clone(),
            _ => return Vec::new(),
        };
        self.wished = self.wished.filter(|wished| *wished != address);
        self.tally.refused(format!("another host has {address}"));
        self.enter(State::Declining { server: server.clone(), address }, now);
        let decline = self.decline(now, server, address);
        vec![Action::Tell(format!("{address} is declined: another host has it")), decline]
    }

    /// Releases the lease. The message is sent only once, because the sender is about to exit.
    pub(crate) fn release(&mut self, now: u64) -> Option<Action> {
        let held = match &self.state {
            State::Probing(lease) => Some(lease.as_ref().clone()),
            _ => None,
        };
        let lease = self.lease.take().or(held)?;
        self.start(now);
        Some(self.send(now, Type::Release, pause::DECLINE, Some(lease.server_id), Some(lease.address)))
    }

    fn bind(&mut self, lease: Lease) -> Action {
        self.enter(State::Bound, lease.renew);
        self.wished = Some(lease.address);
        self.lease = Some(lease.clone());
        self.tally.clear();
        Action::Bound(Box::new(lease))
    }

    fn lose(&mut self, now: u64, why: &'static str) -> Vec<Action> {
        self.start(now);
        self.lease.take().map(|lease| Action::Lost(Box::new(lease), why)).into_iter().collect()
    }

    /// Starts over at `next`.
    fn start(&mut self, next: u64) {
        self.enter(State::Soliciting(None), next);
    }

    /// Enters a state with a new transaction. The client has something to do at `next`.
    fn enter(&mut self, state: State, next: u64) {
        self.state = state;
        self.xid = transaction();
        self.pauses = Pauses::default();
        self.next = next;
    }

    fn solicit(&mut self, now: u64) -> Action {
        self.tally.search();
        // The RFC's limit of an hour is too long for a pod if its server has returned. A server may still set such a
        // limit.
        let longest = self.solicit_pause.unwrap_or(self.longest_pause);
        self.send(now, Type::Solicit, Pace { longest, ..pause::SOLICIT }, None, self.wished)
    }

    fn request(&mut self, now: u64, server: Vec<u8>, address: Ipv6Addr) -> Action {
        let longest = pause::REQUEST.longest.min(self.longest_pause);
        self.send(now, Type::Request, Pace { longest, ..pause::REQUEST }, Some(server), Some(address))
    }

    fn decline(&mut self, now: u64, server: Vec<u8>, address: Ipv6Addr) -> Action {
        self.send(now, Type::Decline, pause::DECLINE, Some(server), Some(address))
    }

    /// Builds a message. The elapsed time of the first message of an exchange is 0.
    fn send(
        &mut self,
        now: u64,
        kind: Type,
        pace: Pace,
        server: Option<Vec<u8>>,
        address: Option<Ipv6Addr>,
    ) -> Action {
        if self.pauses.sent == 0 {
            self.begun = now;
        }
        self.next = now.saturating_add(self.pauses.next(pace, random()));
        let elapsed = u16::try_from(now.saturating_sub(self.begun) / 10).unwrap_or(u16::MAX);
        let Identity { duid, iaid } = self.identity.clone();
        Action::Send(Box::new(Question { kind, xid: self.xid, elapsed, duid, server, iaid, address }))
    }
}

/// Returns a number of 24 bits that a host cannot guess unless it sees the client's messages.
fn transaction() -> u32 {
    random() >> 8
}

#[cfg(test)]
mod tests;
