//! The DHCPv4 part of a [`Client`]: RFC 2131, section 4.4.
//! ```text
//! Selecting ─OFFER→ Requesting ─ACK→ Probing ─no reply→ Bound, Renewing, Rebinding
//!     ↑                │ NAK            │ DECLINE              │ NAK, or the end of the lease
//!     └────────────────┴────────────────┴──────────────────────┘
//! ```
//! The link is probed for an address from its offer on.

use std::net::Ipv4Addr;

use cnimble_netlink::link::Mac;

use super::lease::Lease;
use super::message::{Question, ServerMessage, To, Type, code};
use crate::client::{Client, ClientAction, ClientState, Protocol, REST, random};

/// The first pause before a repetition, in milliseconds. Each next one is twice as long, up to
/// [`Client::longest_pause`].
const FIRST_PAUSE: u64 = 1000;
/// The number of requests to a server that has made an offer, before the client searches again.
const REQUESTS: u32 = 4;
/// The largest message that a server may send, in bytes. It fits in a frame.
const LARGEST_MESSAGE: u16 = 1500;

/// The properties by which servers know the client.
#[derive(Debug, Clone)]
pub(crate) struct ClientIdentity {
    pub(crate) mac: Mac,
    /// Whether servers are asked to broadcast their answers, because the interface would not receive others.
    pub(crate) broadcast: bool,
    /// The options of every message: the client ID and the configured ones.
    pub(crate) own: Vec<(u8, Vec<u8>)>,
    /// The codes of the options that a server is asked for.
    pub(crate) request: Vec<u8>,
}

/// The state of one exchange.
#[derive(Debug)]
pub(crate) struct Dhcp4 {
    pub(crate) identity: ClientIdentity,
    /// The transaction ID, which answers have to repeat.
    xid: u32,
    /// The time at which the exchange began.
    begun: u64,
    /// The number of times that the present message was sent.
    tries: u32,
}

impl Dhcp4 {
    pub(crate) fn new(identity: ClientIdentity) -> Self {
        Dhcp4 { identity, xid: 0, begun: 0, tries: 0 }
    }

    /// Returns a message to all servers. `address` is the client's present one, or 0.0.0.0.
    fn message(&self, now: u64, kind: Type, address: Ipv4Addr, mut options: Vec<(u8, Vec<u8>)>) -> Question {
        let ClientIdentity { mac, broadcast, own, request } = &self.identity;
        match kind {
            // Table 5 of RFC 2131 allows neither requested parameters nor a host name here.
            Type::Decline | Type::Release => {
                options.extend(own.iter().filter(|(code, _)| *code == code::CLIENT_ID).cloned());
            }
            _ => {
                options.push((code::LARGEST_MESSAGE, LARGEST_MESSAGE.to_be_bytes().to_vec()));
                options.extend(own.iter().cloned());
                if !request.is_empty() {
                    options.push((code::REQUEST_LIST, request.clone()));
                }
            }
        }
        let seconds = u16::try_from(now.saturating_sub(self.begun) / 1000).unwrap_or(u16::MAX);
        let broadcast = *broadcast && address.is_unspecified();
        Question { kind, to: To::Everybody, xid: self.xid, seconds, broadcast, address, mac: *mac, options }
    }

    /// Returns a message to all servers about the address that this one has offered. It names the server that is meant.
    fn choice(&self, now: u64, kind: Type, server: Ipv4Addr, address: Ipv4Addr) -> ClientAction<Dhcp4> {
        let options = vec![
            (code::REQUESTED_ADDRESS, address.octets().to_vec()),
            (code::SERVER, server.octets().to_vec()),
        ];
        ClientAction::Send(self.message(now, kind, Ipv4Addr::UNSPECIFIED, options))
    }
}

/// A step to a lease.
#[derive(Debug, Default)]
pub(crate) enum AcquiringStep {
    /// The client searches for servers.
    #[default]
    Selecting,
    /// The client asks this server for the address that it has offered.
    Requesting {
        server: Ipv4Addr,
        address: Ipv4Addr,
        /// The time at which the link was probed for the address.
        probed: u64,
        /// Another host that uses the address.
        holder: Option<Mac>,
    },
}

impl Protocol for Dhcp4 {
    type Lease = Lease;
    type Message = Question;
    type Step = AcquiringStep;

    const SEARCH: &'static str = "DISCOVER";

    fn name(message: &Question) -> &'static str {
        message.kind.word()
    }

    fn requested(step: &AcquiringStep) -> Option<Ipv4Addr> {
        match step {
            AcquiringStep::Selecting => None,
            AcquiringStep::Requesting { address, .. } => Some(*address),
        }
    }

    fn begin(&mut self, now: u64) {
        (self.xid, self.begun, self.tries) = (random(), now, 0);
    }

    fn advance(client: &mut Client<Self>, now: u64) -> Vec<ClientAction<Self>> {
        match client.state {
            ClientState::Acquiring(AcquiringStep::Requesting { server, address, .. })
                if client.protocol.tries < REQUESTS =>
            {
                vec![client.request(now, server, address)]
            }
            ClientState::Acquiring(AcquiringStep::Requesting { .. }) => {
                client.start(now, now);
                vec![client.discover(now)]
            }
            _ => vec![client.discover(now)],
        }
    }

    fn extend(client: &mut Client<Self>, now: u64, lease: &Lease) -> Question {
        let to = match client.state {
            ClientState::Rebinding => To::Everybody,
            _ => To::Server(lease.server, lease.mac()),
        };
        Question { to, ..client.protocol.message(now, Type::Request, lease.address, Vec::new()) }
    }

    fn release(client: &mut Client<Self>, now: u64, lease: &Lease) -> Question {
        let options = vec![(code::SERVER, lease.server.octets().to_vec())];
        let to = To::Server(lease.server, lease.mac());
        Question { to, ..client.protocol.message(now, Type::Release, lease.address, options) }
    }
}

impl Client<Dhcp4> {
    /// Takes an answer that came from the hardware address `from`. Ignores answers to earlier messages, and those that
    /// do not fit the state, such as one of a server that was not chosen.
    pub(crate) fn answer(&mut self, now: u64, from: Mac, answer: &ServerMessage) -> Vec<ClientAction<Dhcp4>> {
        if answer.xid != self.protocol.xid {
            return Vec::new();
        }
        let server = answer.address_of(code::SERVER);
        if let Some(server) = server {
            self.tally.answered(server.to_string());
        }
        match (&self.state, answer.kind) {
            (ClientState::Acquiring(AcquiringStep::Selecting), Type::Offer) => {
                self.offered(now, from, answer)
            }
            (
                ClientState::Acquiring(AcquiringStep::Requesting {
                    server: chosen,
                    address,
                    holder: Some(holder),
                    ..
                }),
                Type::Ack,
            ) if server == Some(*chosen) => {
                let (server, address, holder) = (*chosen, *address, *holder);
                self.decline(now, server, address, holder)
            }
            (
                ClientState::Acquiring(AcquiringStep::Requesting { server: chosen, address, probed, .. }),
                Type::Ack,
            ) if server == Some(*chosen) => {
                let probed = (*address, *probed);
                self.acknowledged(now, from, answer, Some(probed))
            }
            (ClientState::Acquiring(AcquiringStep::Requesting { server: chosen, .. }), Type::Nak)
                if server == Some(*chosen) =>
            {
                self.start(now, now + REST);
                vec![self.note_refusal(refusal(answer))]
            }
            (ClientState::Renewing | ClientState::Rebinding, Type::Ack) => {
                self.acknowledged(now, from, answer, None)
            }
            (ClientState::Renewing, Type::Nak) if server != self.lease.as_ref().map(|lease| lease.server) => {
                Vec::new()
            }
            (ClientState::Renewing | ClientState::Rebinding, Type::Nak) => {
                let mut actions = vec![self.note_refusal(refusal(answer))];
                actions.extend(self.lose(now, "the server has taken it back"));
                // The same server may offer another address, so the client searches again at once.
                self.next = now;
                actions
            }
            _ => Vec::new(),
        }
    }

    /// Learns that the host `mac` uses the address that is probed. Declines a lease that the server has acknowledged
    /// already. Does nothing if `mac` is this client's own, or if no address is probed.
    ///
    /// Before the acknowledgement, the host is only noted. A server may offer one address to two clients, and then this
    /// one may not get it.
    pub(crate) fn conflict(&mut self, now: u64, mac: Mac) -> Vec<ClientAction<Dhcp4>> {
        if mac == self.protocol.identity.mac {
            return Vec::new();
        }
        match &mut self.state {
            ClientState::Acquiring(AcquiringStep::Requesting { holder, .. }) => {
                *holder = Some(mac);
                Vec::new()
            }
            ClientState::Probing(lease) => {
                let (server, address) = (lease.server, lease.address);
                self.decline(now, server, address, mac)
            }
            _ => Vec::new(),
        }
    }

    /// Tells the server that another host has its address, and searches again after a pause.
    fn decline(
        &mut self,
        now: u64,
        server: Ipv4Addr,
        address: Ipv4Addr,
        holder: Mac,
    ) -> Vec<ClientAction<Dhcp4>> {
        let decline = self.protocol.choice(now, Type::Decline, server, address);
        self.preferred = None;
        self.start(now, now + REST);
        vec![self.note_refusal(format!("{address} is declined: {holder} has it")), decline]
    }

    /// Probes and requests the offered address, without waiting for other offers. An offer that is not usable is only
    /// noted, and the client waits for another.
    fn offered(&mut self, now: u64, from: Mac, answer: &ServerMessage) -> Vec<ClientAction<Dhcp4>> {
        let lease = match Lease::from_answer(answer, now, from, None) {
            Ok(lease) => lease,
            Err(why) => {
                return vec![self.note_refusal(format!("an offer of {} is unusable: {why}", answer.address))];
            }
        };
        let (server, address) = (lease.server, lease.address);
        self.state =
            ClientState::Acquiring(AcquiringStep::Requesting { server, address, probed: now, holder: None });
        self.protocol.tries = 0;
        vec![ClientAction::Probe(address), self.request(now, server, address)]
    }

    /// Takes the lease that the server has acknowledged, new or extended. If it is not usable, the client only logs
    /// that and asks again in time.
    fn acknowledged(
        &mut self,
        now: u64,
        from: Mac,
        answer: &ServerMessage,
        probed: Option<(Ipv4Addr, u64)>,
    ) -> Vec<ClientAction<Dhcp4>> {
        match Lease::from_answer(answer, now, from, self.lease.as_ref()) {
            Err(why) => {
                vec![
                    self.note_refusal(format!("an acknowledgement of {} is unusable: {why}", answer.address)),
                ]
            }
            Ok(lease) => self.take_lease(now, lease, probed),
        }
    }

    /// Notes why there is no lease, for the error of ADD, and returns the line for the log.
    fn note_refusal(&mut self, why: String) -> ClientAction<Dhcp4> {
        self.tally.note_refusal(why.clone());
        ClientAction::log(why)
    }

    /// Returns a message that searches for servers, and plans its repetition.
    fn discover(&mut self, now: u64) -> ClientAction<Dhcp4> {
        self.tally.search();
        self.pause(now);
        let preferred = self.preferred.map(|address| (code::REQUESTED_ADDRESS, address.octets().to_vec()));
        let options = preferred.into_iter().collect();
        ClientAction::Send(self.protocol.message(now, Type::Discover, Ipv4Addr::UNSPECIFIED, options))
    }

    /// Returns a request for an offered address, and plans its repetition.
    fn request(&mut self, now: u64, server: Ipv4Addr, address: Ipv4Addr) -> ClientAction<Dhcp4> {
        self.pause(now);
        self.protocol.choice(now, Type::Request, server, address)
    }

    /// Counts a message and plans its repetition. Each pause is twice as long as the last one, plus or minus a quarter.
    fn pause(&mut self, now: u64) {
        let pause =
            FIRST_PAUSE.checked_shl(self.protocol.tries.min(16)).unwrap_or(u64::MAX).min(self.longest_pause);
        let pause = pause - pause / 4 + u64::from(random()) % (pause / 2).max(1);
        self.protocol.tries = self.protocol.tries.saturating_add(1);
        self.next = now.saturating_add(pause);
    }
}

/// Returns a text about a NAK: the server's address, and its words, cut to 80 characters and escaped.
fn refusal(answer: &ServerMessage) -> String {
    let server = answer.address_of(code::SERVER).unwrap_or(Ipv4Addr::UNSPECIFIED);
    let why = answer.option(code::MESSAGE).map(String::from_utf8_lossy).unwrap_or_default();
    let why: String = why.chars().take(80).flat_map(char::escape_debug).collect();
    format!("{server} refuses: \"{why}\"")
}

#[cfg(test)]
mod tests;
