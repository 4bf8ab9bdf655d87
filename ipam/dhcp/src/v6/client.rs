//! The DHCPv6 part of a [`Client`]: RFC 8415, section 18.2.
//! ```text
//! Soliciting ─Advertise→ Requesting ─Reply→ Probing ─no reply→ Bound, Renewing, Rebinding
//!     ↑  │                 │            ↑      │ taken           │ the end of the lease
//!     │  └─Reply (rapid)───│────────────┘  Declining             │
//!     └────────────────────┴──────────────────┴──────────────────┘
//! ```
//! It sends no Confirm, because a pod's interface stays on its link. All messages are multicast, and name the server
//! that is meant.

use std::net::Ipv6Addr;

use super::lease::Lease;
use super::message::{Question, Type};
use super::pause::{self, Pace, Pauses};
use crate::client::{Client, ClientAction, ClientState, Protocol, REST, random};

/// The properties by which servers know the client.
#[derive(Debug, Clone)]
pub(crate) struct ClientIdentity {
    /// The DUID of the client.
    pub(crate) duid: Vec<u8>,
    /// The number of its IA.
    pub(crate) iaid: u32,
}

/// The state of one exchange.
#[derive(Debug)]
pub(crate) struct Dhcp6 {
    pub(crate) identity: ClientIdentity,
    /// The transaction ID of 24 bits.
    pub(super) xid: u32,
    /// The time at which the exchange sent its first message.
    begun: u64,
    /// The pauses of the exchange so far.
    pub(super) pauses: Pauses,
    /// The longest pause between two Solicits that a server has set (SOL_MAX_RT), in milliseconds.
    pub(super) solicit_pause: Option<u64>,
}

impl Dhcp6 {
    pub(crate) fn new(identity: ClientIdentity) -> Self {
        Dhcp6 { identity, xid: 0, begun: 0, pauses: Pauses::default(), solicit_pause: None }
    }
}

/// The offer of a server.
#[derive(Debug)]
pub(crate) struct Offer {
    /// The DUID of the server.
    pub(super) server: Vec<u8>,
    /// How much the server wants to be chosen. The highest one is taken.
    pub(super) preference: u8,
    pub(super) address: Ipv6Addr,
}

/// A step to a lease.
#[derive(Debug)]
pub(crate) enum AcquiringStep {
    /// The client searches for servers, and has this best offer until now.
    Soliciting(Option<Offer>),
    /// The client asks this server for the address. The link was probed for it at `probed`.
    Requesting { server: Vec<u8>, address: Ipv6Addr, probed: u64 },
    /// The client tells the server that another host has the address, until the server confirms that.
    Declining { server: Vec<u8>, address: Ipv6Addr },
}

impl Default for AcquiringStep {
    fn default() -> Self {
        AcquiringStep::Soliciting(None)
    }
}

impl Protocol for Dhcp6 {
    type Lease = Lease;
    type Message = Question;
    type Step = AcquiringStep;

    const SEARCH: &'static str = "Solicit";

    fn name(message: &Question) -> &'static str {
        message.kind.word()
    }

    fn requested(step: &AcquiringStep) -> Option<Ipv6Addr> {
        match step {
            AcquiringStep::Requesting { address, .. } => Some(*address),
            AcquiringStep::Soliciting(_) | AcquiringStep::Declining { .. } => None,
        }
    }

    fn begin(&mut self, _now: u64) {
        (self.xid, self.pauses) = (random() >> 8, Pauses::default());
    }

    fn advance(client: &mut Client<Self>, now: u64) -> Vec<ClientAction<Self>> {
        let ClientState::Acquiring(step) = &mut client.state else { return Vec::new() };
        match step {
            AcquiringStep::Soliciting(offer) => match offer.take() {
                Some(offer) => client.choose(now, offer),
                None => vec![client.solicit(now)],
            },
            AcquiringStep::Requesting { .. } if client.protocol.pauses.is_over(pause::REQUEST) => {
                client.start(now, now);
                vec![client.solicit(now)]
            }
            AcquiringStep::Requesting { server, address, .. } => {
                let (server, address) = (server.clone(), *address);
                vec![ClientAction::Send(client.message(now, Type::Request, Some(server), Some(address)))]
            }
            AcquiringStep::Declining { .. } if client.protocol.pauses.is_over(pause::DECLINE) => {
                client.start(now, now + REST);
                Vec::new()
            }
            AcquiringStep::Declining { server, address } => {
                let (server, address) = (server.clone(), *address);
                vec![ClientAction::Send(client.message(now, Type::Decline, Some(server), Some(address)))]
            }
        }
    }

    fn extend(client: &mut Client<Self>, now: u64, lease: &Lease) -> Question {
        let (kind, server) = match client.state {
            ClientState::Rebinding => (Type::Rebind, None),
            _ => (Type::Renew, Some(lease.server_id.clone())),
        };
        client.message(now, kind, server, Some(lease.address))
    }

    fn release(client: &mut Client<Self>, now: u64, lease: &Lease) -> Question {
        client.message(now, Type::Release, Some(lease.server_id.clone()), Some(lease.address))
    }
}

impl Client<Dhcp6> {
    /// Learns that another host uses `address`. Does nothing unless the link is probed for it. Otherwise declines it,
    /// and searches again when the server has confirmed that or has left all attempts without an answer.
    pub(crate) fn conflict(&mut self, now: u64, address: Ipv6Addr) -> Vec<ClientAction<Dhcp6>> {
        if self.probed() != Some(address) {
            return Vec::new();
        }
        let server = match &self.state {
            ClientState::Acquiring(AcquiringStep::Requesting { server, .. }) => server.clone(),
            ClientState::Probing(lease) => lease.server_id.clone(),
            _ => return Vec::new(),
        };
        self.preferred = self.preferred.filter(|preferred| *preferred != address);
        self.tally.note_refusal(format!("another host has {address}"));
        self.enter(
            now,
            ClientState::Acquiring(AcquiringStep::Declining { server: server.clone(), address }),
            now,
        );
        let decline = ClientAction::Send(self.message(now, Type::Decline, Some(server), Some(address)));
        vec![ClientAction::log(format!("{address} is declined: another host has it")), decline]
    }

    /// Returns a message that searches for servers, and plans its repetition.
    fn solicit(&mut self, now: u64) -> ClientAction<Dhcp6> {
        self.tally.search();
        ClientAction::Send(self.message(now, Type::Solicit, None, self.preferred))
    }

    /// Returns a message, counts it, and plans its repetition. `server` is the one that is meant, or `None` for all.
    /// The elapsed time of the first message of an exchange is 0.
    pub(super) fn message(
        &mut self,
        now: u64,
        kind: Type,
        server: Option<Vec<u8>>,
        address: Option<Ipv6Addr>,
    ) -> Question {
        let pace = self.pace(kind);
        let Dhcp6 { identity, xid, begun, pauses, .. } = &mut self.protocol;
        if pauses.sent == 0 {
            *begun = now;
        }
        self.next = now.saturating_add(pauses.next(pace, random()));
        let elapsed = u16::try_from(now.saturating_sub(*begun) / 10).unwrap_or(u16::MAX);
        let ClientIdentity { duid, iaid } = identity.clone();
        Question { kind, xid: *xid, elapsed, duid, server, iaid, address }
    }

    /// Returns the pauses for a kind of message.
    fn pace(&self, kind: Type) -> Pace {
        match kind {
            // The RFC's limit of an hour is too long for a pod whose server has come back. A server may still set it.
            Type::Solicit => {
                let longest = self.protocol.solicit_pause.unwrap_or(self.longest_pause);
                Pace { longest, ..pause::SOLICIT }
            }
            Type::Request => {
                Pace { longest: pause::REQUEST.longest.min(self.longest_pause), ..pause::REQUEST }
            }
            Type::Decline | Type::Release => pause::DECLINE,
            _ => pause::RENEW,
        }
    }
}

#[cfg(test)]
mod tests;
