//! The client's side of the protocol for one interface: RFC 2131, section 4.4, without I/O.
//!
//! ```text
//! Selecting ─OFFER→ Requesting ─ACK→ Probing ─nobody has it→ Bound ─T1→ Renewing ─T2→ Rebinding ─end→ Selecting
//!     ↑                │ NAK            │ DECLINE              ↑          │ ACK          │ ACK   (the lease is lost)
//!     └────────────────┴────────────────┘                      └──────────┴──────────────┘
//! ```
//!
//! The driver calls [`Client::tick`] when the time of [`Client::next`] has come, and passes on each message that
//! arrives. Both calls return the actions to carry out. Times are as in [`lease`](crate::lease).

use std::hash::{BuildHasher, RandomState};
use std::net::Ipv4Addr;

use cnimble_netlink::link::Mac;

pub(crate) use crate::action::{Action, Identity, To};
use crate::lease::Lease;
use crate::message::{Answer, Question, Type, code};
use crate::tally::Tally;

/// The first pause before a message is sent again. Each pause is twice as long as the last one, up to the limit
/// that the lease daemon was given (`-resendmax`).
const FIRST_PAUSE: u64 = 1000;
/// How often a REQUEST is sent to a server that has made an offer.
const REQUESTS: u32 = 4;
/// How long other hosts have to answer a probe. On one link they answer within a millisecond.
const PROBE: u64 = 100;
/// The pause after a DECLINE and after a NAK.
const REST: u64 = 1000;
/// The largest message that fits in a frame.
const LARGEST_MESSAGE: u16 = 1500;

#[derive(Debug)]
enum State {
    Selecting,
    Requesting {
        server: Ipv4Addr,
        address: Ipv4Addr,
        probed: u64,
        /// Another host that uses the address.
        holder: Option<Mac>,
    },
    Probing {
        lease: Box<Lease>,
    },
    Bound,
    Renewing,
    Rebinding,
}

/// The DHCPv4 client of one interface. See the module.
#[derive(Debug)]
pub(crate) struct Client {
    identity: Identity,
    state: State,
    lease: Option<Lease>,
    /// The address that the client asks a server for.
    wished: Option<Ipv4Addr>,
    xid: u32,
    /// When the current exchange began.
    begun: u64,
    tries: u32,
    next: u64,
    longest_pause: u64,
    tally: Tally,
}

impl Client {
    /// Returns a client without a lease.
    pub(crate) fn new(identity: Identity, longest_pause: u64, now: u64) -> Client {
        Client {
            identity,
            state: State::Selecting,
            lease: None,
            wished: None,
            xid: random(),
            begun: now,
            tries: 0,
            next: now,
            longest_pause: longest_pause.max(FIRST_PAUSE),
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

    /// When the client next has something to do.
    pub(crate) fn next(&self) -> u64 {
        match (&self.state, &self.lease) {
            (State::Renewing, Some(lease)) => self.next.min(lease.rebind),
            (State::Rebinding, Some(lease)) => self.next.min(lease.expires),
            _ => self.next,
        }
    }

    /// Whether the client expects an answer.
    pub(crate) fn listens(&self) -> bool {
        !matches!(self.state, State::Bound)
    }

    /// Whether an address is being probed for.
    pub(crate) fn probes(&self) -> bool {
        matches!(self.state, State::Requesting { .. } | State::Probing { .. })
    }

    /// Does everything that is due at `now`.
    pub(crate) fn tick(&mut self, now: u64) -> Vec<Action> {
        if now < self.next() {
            return Vec::new();
        }
        match &self.state {
            State::Selecting => vec![self.discover(now)],
            State::Requesting { .. } if self.tries >= REQUESTS => {
                self.start(now, now);
                vec![self.discover(now)]
            }
            State::Requesting { server, address, .. } => {
                let (server, address) = (*server, *address);
                vec![self.request(now, server, address)]
            }
            State::Probing { lease } => {
                let lease = lease.clone();
                vec![self.bind(*lease)]
            }
            State::Bound | State::Renewing | State::Rebinding => self.keep(now),
        }
    }

    /// Renews a lease that is due, or ends one that has expired.
    fn keep(&mut self, now: u64) -> Vec<Action> {
        let Some(lease) = self.lease.clone() else {
            self.start(now, now);
            return Vec::new();
        };
        if now >= lease.expires {
            return self.lose(now, "it has expired");
        }
        let mut actions = Vec::new();
        let mut enter = |client: &mut Client, state: State, what: String| {
            client.state = state;
            client.xid = random();
            client.begun = now;
            actions.push(Action::Tell(what));
        };
        if now >= lease.rebind && !matches!(self.state, State::Rebinding) {
            enter(self, State::Rebinding, format!("rebinding {}: any server may prolong it", lease.address));
        } else if matches!(self.state, State::Bound) {
            enter(self, State::Renewing, format!("renewing {} at {}", lease.address, lease.server));
        }
        let rebinding = matches!(self.state, State::Rebinding);
        let (end, to) = if rebinding {
            (lease.expires, To::Everybody)
        } else {
            (lease.rebind, To::Server(lease.server, lease.mac()))
        };
        // RFC 2131, section 4.4.5: half of what remains.
        self.next = now + (end.saturating_sub(now) / 2).max(FIRST_PAUSE);
        actions.push(self.send(now, Type::Request, lease.address, to, Vec::new()));
        actions
    }

    /// Handles an answer from this hardware address.
    pub(crate) fn answer(&mut self, now: u64, from: Mac, answer: &Answer) -> Vec<Action> {
        if answer.xid != self.xid {
            return Vec::new();
        }
        let server = answer.address_of(code::SERVER);
        if let Some(server) = server {
            self.tally.answered(server.to_string());
        }
        match (&self.state, answer.kind) {
            (State::Selecting, Type::Offer) => self.offered(now, from, answer),
            (State::Requesting { server: chosen, address, holder: Some(holder), .. }, Type::Ack)
                if server == Some(*chosen) =>
            {
                let (server, address, holder) = (*chosen, *address, *holder);
                self.decline(now, server, address, holder)
            }
            (State::Requesting { server: chosen, probed, .. }, Type::Ack) if server == Some(*chosen) => {
                let probed = *probed;
                self.acknowledged(now, from, answer, Some(probed))
            }
            (State::Requesting { server: chosen, .. }, Type::Nak) if server == Some(*chosen) => {
                self.start(now, now + REST);
                vec![self.refused(refusal(answer))]
            }
            (State::Renewing | State::Rebinding, Type::Ack) => self.acknowledged(now, from, answer, None),
            (State::Renewing, Type::Nak) if server != self.lease.as_ref().map(|lease| lease.server) => {
                Vec::new()
            }
            (State::Renewing | State::Rebinding, Type::Nak) => {
                let mut actions = vec![self.refused(refusal(answer))];
                actions.extend(self.lose(now, "the server has taken it back"));
                // The same server may offer another address at once.
                self.next = now;
                actions
            }
            _ => Vec::new(),
        }
    }

    /// Handles a conflict: another host on the link uses the address. Until the server has acknowledged the address,
    /// that host may be its rightful holder, because a server may offer one address to two clients.
    pub(crate) fn conflict(&mut self, now: u64, mac: Mac) -> Vec<Action> {
        if mac == self.identity.mac {
            return Vec::new();
        }
        match &mut self.state {
            State::Requesting { holder, .. } => {
                *holder = Some(mac);
                Vec::new()
            }
            State::Probing { lease } => {
                let (server, address) = (lease.server, lease.address);
                self.decline(now, server, address, mac)
            }
            _ => Vec::new(),
        }
    }

    fn decline(&mut self, now: u64, server: Ipv4Addr, address: Ipv4Addr, holder: Mac) -> Vec<Action> {
        let options = vec![
            (code::REQUESTED_ADDRESS, address.octets().to_vec()),
            (code::SERVER, server.octets().to_vec()),
        ];
        let decline = self.send(now, Type::Decline, Ipv4Addr::UNSPECIFIED, To::Everybody, options);
        self.wished = None;
        self.start(now, now + REST);
        vec![self.refused(format!("{address} is declined: {holder} has it")), decline]
    }

    /// The address that is being probed for.
    pub(crate) fn probed(&self) -> Option<Ipv4Addr> {
        match &self.state {
            State::Requesting { address, .. } => Some(*address),
            State::Probing { lease } => Some(lease.address),
            _ => None,
        }
    }

    /// Releases the lease.
    pub(crate) fn release(&mut self, now: u64) -> Option<Action> {
        let held = match &self.state {
            State::Probing { lease } => Some(lease.as_ref().clone()),
            _ => None,
        };
        let lease = self.lease.take().or(held)?;
        self.xid = random();
        self.begun = now;
        let options = vec![(code::SERVER, lease.server.octets().to_vec())];
        Some(self.send(now, Type::Release, lease.address, To::Server(lease.server, lease.mac()), options))
    }

    fn offered(&mut self, now: u64, from: Mac, answer: &Answer) -> Vec<Action> {
        let lease = match Lease::of(answer, now, from, None) {
            Ok(lease) => lease,
            Err(why) => {
                return vec![self.refused(format!("an offer of {} is of no use: {why}", answer.address))];
            }
        };
        let (server, address) = (lease.server, lease.address);
        self.state = State::Requesting { server, address, probed: now, holder: None };
        self.tries = 0;
        vec![Action::Probe(address), self.request(now, server, address)]
    }

    fn acknowledged(&mut self, now: u64, from: Mac, answer: &Answer, probed: Option<u64>) -> Vec<Action> {
        match Lease::of(answer, now, from, self.lease.as_ref()) {
            Err(why) => {
                vec![self.refused(format!("an acknowledgement of {} is of no use: {why}", answer.address))]
            }
            Ok(lease) => match probed {
                None => vec![self.bind(lease)],
                // The probe was sent while the client waited for the server.
                Some(probed) => {
                    self.next = probed + PROBE;
                    self.state = State::Probing { lease: Box::new(lease) };
                    self.tick(now)
                }
            },
        }
    }

    fn bind(&mut self, lease: Lease) -> Action {
        self.state = State::Bound;
        self.tries = 0;
        self.next = lease.renew;
        self.wished = Some(lease.address);
        self.lease = Some(lease.clone());
        self.tally.clear();
        Action::Bound(Box::new(lease))
    }

    fn lose(&mut self, now: u64, why: &'static str) -> Vec<Action> {
        self.start(now, now);
        self.lease.take().map(|lease| Action::Lost(Box::new(lease), why)).into_iter().collect()
    }

    /// Starts over at `next`.
    fn start(&mut self, now: u64, next: u64) {
        self.state = State::Selecting;
        self.xid = random();
        self.begun = now;
        self.tries = 0;
        self.next = next;
    }

    /// Records a refusal for the error of ADD, and returns its line for the log.
    fn refused(&mut self, why: String) -> Action {
        self.tally.refused(why.clone());
        Action::Tell(why)
    }

    fn discover(&mut self, now: u64) -> Action {
        self.tally.search();
        self.pause(now);
        let wished = self.wished.map(|address| (code::REQUESTED_ADDRESS, address.octets().to_vec()));
        self.send(now, Type::Discover, Ipv4Addr::UNSPECIFIED, To::Everybody, wished.into_iter().collect())
    }

    fn request(&mut self, now: u64, server: Ipv4Addr, address: Ipv4Addr) -> Action {
        self.pause(now);
        let options = vec![
            (code::REQUESTED_ADDRESS, address.octets().to_vec()),
            (code::SERVER, server.octets().to_vec()),
        ];
        self.send(now, Type::Request, Ipv4Addr::UNSPECIFIED, To::Everybody, options)
    }

    /// Schedules the next repetition: each pause is twice as long as the last one, plus or minus a quarter.
    fn pause(&mut self, now: u64) {
        let pause = FIRST_PAUSE.checked_shl(self.tries.min(16)).unwrap_or(u64::MAX).min(self.longest_pause);
        let pause = pause - pause / 4 + u64::from(random()) % (pause / 2).max(1);
        self.tries = self.tries.saturating_add(1);
        self.next = now.saturating_add(pause);
    }

    /// Builds a message. `address` is the client's current address, if it has one.
    fn send(
        &self,
        now: u64,
        kind: Type,
        address: Ipv4Addr,
        to: To,
        mut options: Vec<(u8, Vec<u8>)>,
    ) -> Action {
        let Identity { mac, broadcast, own, request } = &self.identity;
        match kind {
            // RFC 2131, table 5: these messages contain neither requested parameters nor a host name.
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
        let question = Question {
            kind,
            xid: self.xid,
            seconds,
            broadcast: *broadcast && address.is_unspecified(),
            address,
            mac: *mac,
            options,
        };
        Action::Send { question: Box::new(question), from: address, to }
    }
}

fn refusal(answer: &Answer) -> String {
    let server = answer.address_of(code::SERVER).unwrap_or(Ipv4Addr::UNSPECIFIED);
    let why = answer.option(code::MESSAGE).map(String::from_utf8_lossy).unwrap_or_default();
    let why: String = why.chars().take(80).flat_map(char::escape_debug).collect();
    format!("{server} refuses: \"{why}\"")
}

/// Returns a number that a host cannot guess unless it sees the client's messages.
pub(crate) fn random() -> u32 {
    // The lower half is enough: the standard library gets its keys from the kernel.
    (RandomState::new().hash_one(0) & u64::from(u32::MAX)) as u32
}

#[cfg(test)]
#[path = "client_tests.rs"]
mod tests;
