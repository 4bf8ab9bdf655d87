//! The client's side of the protocol for one interface: RFC 8415, section 18.2, without I/O.
//!
//! ```text
//! Soliciting ─Advertise→ Requesting ─Reply→ Probing ─free→ Bound ─T1→ Renewing ─T2→ Rebinding ─end→ Soliciting
//!     ↑  │                 │            ↑      │ taken       ↑          │ Reply        │ Reply  (the lease is lost)
//!     │  └─Reply (rapid)───│────────────┘  Declining         └──────────┴──────────────┘
//!     └────────────────────┴──────────────────┘
//! ```
//!
//! It is driven as [`client`](crate::client) is: [`Client::tick`] when [`Client::next`] has come, and what arrives.
//! There is no Confirm: a pod's interface doesn't move to another link. Messages go to all servers of the link,
//! by multicast, and name the one that is meant.

mod answers;

use std::net::Ipv6Addr;

use super::lease::Lease;
use super::message::{Question, Type};
use super::pause::{self, Pace, Pauses};
use crate::client::random;
use crate::tally::Tally;

/// Behind a Decline and a refusal.
const REST: u64 = 1000;
/// Between two messages that prolong a lease.
const SHORTEST_PAUSE: u64 = 1000;

/// What stays the same for an interface.
#[derive(Debug, Clone)]
pub(crate) struct Identity {
    pub(crate) duid: Vec<u8>,
    pub(crate) iaid: u32,
}

/// What is to be done.
#[derive(Debug)]
pub(crate) enum Action {
    /// Send a message to all servers of the link.
    Send(Box<Question>),
    /// Ask the link who has the address.
    Probe(Ipv6Addr),
    /// There is a lease: a new one, or the same for longer.
    Bound(Box<Lease>),
    /// There is none any more.
    Lost(Box<Lease>, &'static str),
    /// For the log.
    Tell(String),
}

/// What a server has advertised.
#[derive(Debug)]
struct Offer {
    server: Vec<u8>,
    preference: u8,
    address: Ipv6Addr,
}

#[derive(Debug)]
enum State {
    /// With the best offer so far.
    Soliciting(Option<Offer>),
    /// `probed` is when the link was asked who has the address.
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

/// See the module.
#[derive(Debug)]
pub(crate) struct Client {
    identity: Identity,
    state: State,
    lease: Option<Lease>,
    /// The address that servers are asked for.
    wished: Option<Ipv6Addr>,
    xid: u32,
    /// When this exchange began.
    begun: u64,
    pauses: Pauses,
    next: u64,
    /// The keeper's limit of a pause, and the server's for Solicits.
    longest_pause: u64,
    solicit_pause: Option<u64>,
    tally: Tally,
}

impl Client {
    /// One that has nothing yet.
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

    /// One that has a lease, as it stood in a file.
    pub(crate) fn with(identity: Identity, longest_pause: u64, now: u64, lease: Lease) -> Client {
        let mut client = Client::new(identity, longest_pause, now);
        client.next = lease.renew;
        client.wished = Some(lease.address);
        client.state = State::Bound;
        client.lease = Some(lease);
        client
    }

    /// The lease, if there is one.
    pub(crate) fn lease(&self) -> Option<&Lease> {
        self.lease.as_ref()
    }

    /// What was tried since there is no lease.
    pub(crate) fn tally(&self) -> &Tally {
        &self.tally
    }

    /// Who it is to servers.
    pub(crate) fn identity(&self) -> &Identity {
        &self.identity
    }

    /// When something is to be done.
    pub(crate) fn next(&self) -> u64 {
        let Some(lease) = &self.lease else { return self.next };
        let end = if matches!(self.state, State::Renewing) { lease.rebind } else { lease.expires };
        self.next.min(end)
    }

    /// An answer may come.
    pub(crate) fn listens(&self) -> bool {
        !matches!(self.state, State::Bound)
    }

    /// The address that is being probed for.
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

    /// Time has passed.
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

    /// What is to be done about a lease whose time has come.
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
        // The first pauses are longer than a short lease.
        self.next = self.next.min(now + (end.saturating_sub(now) / 2).max(SHORTEST_PAUSE));
        actions
    }

    /// Somebody on the link has `address`.
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

    /// Gives the lease back. The message is sent once: who sends it is about to go.
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

    /// From the beginning, at `next`.
    fn start(&mut self, next: u64) {
        self.enter(State::Soliciting(None), next);
    }

    /// Another state, in which something is to be done at `next`, by messages of their own.
    fn enter(&mut self, state: State, next: u64) {
        self.state = state;
        self.xid = transaction();
        self.pauses = Pauses::default();
        self.next = next;
    }

    fn solicit(&mut self, now: u64) -> Action {
        self.tally.search();
        // An hour, as in the RFC, is too long for a pod whose server is back. A server may say so all the same.
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

    /// A message. The first of an exchange has waited for nothing yet.
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

/// A number of 24 bits that a host which doesn't see our messages can't know.
fn transaction() -> u32 {
    random() >> 8
}

#[cfg(test)]
mod tests;
