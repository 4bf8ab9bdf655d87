//! The client of one interface, without I/O: the part that DHCPv4 and DHCPv6 share.
//! ```text
//! Acquiring ─answer→ Probing ─no reply→ Bound ─T1→ Renewing ─T2→ Rebinding ─end→ Acquiring
//!     ↑                 │ reply           ↑           │ answer       │ answer   (the lease is lost)
//!     └─────────────────┘                 └───────────┴──────────────┘
//! ```
//! A [`Protocol`] adds the steps to a lease, the messages and the pauses. The driver calls [`Client::tick`] at the time
//! of [`Client::next`], and passes messages on. It carries out the [`ClientAction`]s that each call returns. Times are
//! as in [`lease`](crate::v4::lease).

use std::fmt::{Debug, Display};
use std::hash::{BuildHasher, RandomState};
use std::net::{Ipv4Addr, Ipv6Addr};

use crate::held::AnyLease;
use crate::tally::Tally;
use crate::{v4, v6};

/// The time to wait for answers to a probe, in milliseconds. On one link they take less than one.
const PROBE: u64 = 100;
/// The pause after a declined address or a refusal, in milliseconds.
pub(crate) const REST: u64 = 1000;
/// The shortest value of [`Client::longest_pause`], and the shortest pause between messages that extend a lease. In
/// milliseconds.
const SHORTEST_PAUSE: u64 = 1000;
/// The reason for the end of a lease that no server has extended in time.
pub(crate) const EXPIRED: &str = "it has expired";

/// T1, T2 and the end of a lease.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Timer {
    pub(crate) renew: u64,
    pub(crate) rebind: u64,
    pub(crate) expires: u64,
}

/// A lease of either family.
pub(crate) trait Lease: Clone + Debug + Sized {
    type Address: Copy + Debug + Display + PartialEq;

    fn address(&self) -> Self::Address;

    fn timer(&self) -> Timer;

    /// Returns the lease in the form of answers and files.
    fn held(self) -> AnyLease;

    /// Returns the lease, or `None` if it is of the other family.
    fn from_held(held: AnyLease) -> Option<Self>;
}

macro_rules! lease {
    ($lease:ty, $address:ty, $variant:ident) => {
        impl Lease for $lease {
            type Address = $address;

            fn address(&self) -> $address {
                self.address
            }

            fn timer(&self) -> Timer {
                Timer { renew: self.renew, rebind: self.rebind, expires: self.expires }
            }

            fn held(self) -> AnyLease {
                AnyLease::$variant(self)
            }

            fn from_held(held: AnyLease) -> Option<Self> {
                if let AnyLease::$variant(lease) = held { Some(lease) } else { None }
            }
        }
    };
}

lease!(v4::lease::Lease, Ipv4Addr, Four);
lease!(v6::lease::Lease, Ipv6Addr, Six);

pub(crate) type Address<P> = <<P as Protocol>::Lease as Lease>::Address;

/// DHCPv4 or DHCPv6: the steps to a lease, the messages and the pauses.
pub(crate) trait Protocol: Debug + Sized {
    type Lease: Lease;
    type Message: Debug;
    /// The step while the client has no lease. The default is the search for servers.
    type Step: Debug + Default;

    /// The name of the message that searches for servers.
    const SEARCH: &'static str;

    /// Returns the name of a message in the RFC.
    fn name(message: &Self::Message) -> &'static str;

    /// Returns the address that this step asks a server for. `None` while the client searches.
    fn requested(step: &Self::Step) -> Option<Address<Self>>;

    /// Starts a new exchange, with a new transaction ID. Answers to earlier messages no longer count.
    fn begin(&mut self, now: u64);

    /// Does the work of the present step in [`ClientState::Acquiring`] at `now`. Sets the time of the next action.
    fn advance(client: &mut Client<Self>, now: u64) -> Vec<ClientAction<Self>>;

    /// Returns the message that extends the lease, to its server or when rebinding to all. May set `client.next` to an
    /// earlier time than [`Client`] would.
    fn extend(client: &mut Client<Self>, now: u64, lease: &Self::Lease) -> Self::Message;

    /// Returns the message that gives the lease back.
    fn release(client: &mut Client<Self>, now: u64, lease: &Self::Lease) -> Self::Message;
}

/// The state of a client, as in the drawing of the module.
#[derive(Debug)]
pub(crate) enum ClientState<P: Protocol> {
    /// The client is at this step to a lease. It has none, except after a server of DHCPv6 has forgotten it: the client
    /// then keeps it until its end.
    Acquiring(P::Step),
    /// The server has given this lease, and the link is probed for its address.
    Probing(Box<P::Lease>),
    /// The client has a lease and waits for T1. It listens to nobody.
    Bound,
    /// After T1, the client asks the server of the lease to extend it.
    Renewing,
    /// After T2, the client asks any server to extend the lease.
    Rebinding,
}

/// An action of the client, which the driver carries out.
#[derive(Debug)]
pub(crate) enum ClientAction<P: Protocol> {
    /// Send this message.
    Send(P::Message),
    /// Ask the link which host has this address.
    Probe(Address<P>),
    /// Tell the daemon.
    Report(Event),
}

impl<P: Protocol> ClientAction<P> {
    /// Returns the action that writes a line to the log.
    pub(crate) fn log(line: String) -> Self {
        ClientAction::Report(Event::Log(line))
    }
}

/// A report of the client to the daemon.
#[derive(Debug)]
pub(crate) enum Event {
    /// The lease is new or renewed.
    Bound(AnyLease),
    /// The lease has ended, for this reason.
    Lost(AnyLease, &'static str),
    /// A line for the log.
    Log(String),
}

/// A client of one interface.
#[derive(Debug)]
pub(crate) struct Client<P: Protocol> {
    pub(crate) protocol: P,
    pub(crate) state: ClientState<P>,
    /// The lease, while the client has one. The client keeps it while it renews or rebinds.
    pub(crate) lease: Option<P::Lease>,
    /// The address that the client asks servers for: that of its last lease, unless another host has it.
    pub(crate) preferred: Option<Address<P>>,
    /// The time of the next action, without the times of the lease. [`Client::next`] has both.
    pub(crate) next: u64,
    /// The limit of the pause before a repetition, in milliseconds. It is the smaller of `-timeout` and `-resendmax`.
    pub(crate) longest_pause: u64,
    /// The attempts of the client since it last had a lease.
    pub(crate) tally: Tally,
}

impl<P: Protocol> Client<P> {
    /// Makes a client without a lease, which searches for one at once.
    pub(crate) fn new(mut protocol: P, longest_pause: u64, now: u64) -> Self {
        protocol.begin(now);
        Client {
            protocol,
            state: ClientState::Acquiring(P::Step::default()),
            lease: None,
            preferred: None,
            next: now,
            longest_pause: longest_pause.max(SHORTEST_PAUSE),
            tally: Tally::default(),
        }
    }

    /// Resumes a lease from a file. T1, T2 and the end may be in the past.
    pub(crate) fn resume(self, lease: P::Lease) -> Self {
        let (next, preferred) = (lease.timer().renew, Some(lease.address()));
        Client { state: ClientState::Bound, next, preferred, lease: Some(lease), ..self }
    }

    /// Returns the time at which [`Client::tick`] has something to do. It is `u64::MAX` for an endless lease.
    pub(crate) fn next(&self) -> u64 {
        let Some(timer) = self.lease.as_ref().map(Lease::timer) else { return self.next };
        let end = if matches!(self.state, ClientState::Renewing) { timer.rebind } else { timer.expires };
        self.next.min(end)
    }

    /// Returns true if the client waits for messages. A bound client needs no socket.
    pub(crate) fn listens(&self) -> bool {
        !matches!(self.state, ClientState::Bound)
    }

    /// Returns the address that the link is probed for. `None` if there is none, or if the client has this address
    /// already.
    pub(crate) fn probed(&self) -> Option<Address<P>> {
        match &self.state {
            ClientState::Acquiring(step) => P::requested(step).filter(|address| !self.has(*address)),
            ClientState::Probing(lease) => Some(lease.address()),
            _ => None,
        }
    }

    /// Returns true if the client has a lease of this address.
    pub(crate) fn has(&self, address: Address<P>) -> bool {
        self.lease.as_ref().is_some_and(|lease| lease.address() == address)
    }

    /// Does what is due at `now`: the next step, the end of a probe, an extension, or the end of the lease. Returns
    /// nothing if it is too early.
    pub(crate) fn tick(&mut self, now: u64) -> Vec<ClientAction<P>> {
        if now < self.next() {
            return Vec::new();
        }
        if self.lease.as_ref().is_some_and(|lease| now >= lease.timer().expires) {
            return self.lose(now, EXPIRED);
        }
        match &self.state {
            ClientState::Acquiring(_) => P::advance(self, now),
            ClientState::Probing(lease) => {
                let lease = lease.clone();
                vec![self.bind(now, *lease)]
            }
            ClientState::Bound | ClientState::Renewing | ClientState::Rebinding => self.extend(now),
        }
    }

    /// Renews or rebinds the lease, and plans the next attempt.
    fn extend(&mut self, now: u64) -> Vec<ClientAction<P>> {
        let Some(lease) = self.lease.clone() else {
            self.start(now, now);
            return Vec::new();
        };
        let (address, timer) = (lease.address(), lease.timer());
        let mut actions = Vec::new();
        if now >= timer.rebind && !matches!(self.state, ClientState::Rebinding) {
            self.enter(now, ClientState::Rebinding, now);
            actions.push(ClientAction::log(format!("rebinding {address}: any server may prolong it")));
        } else if matches!(self.state, ClientState::Bound) {
            self.enter(now, ClientState::Renewing, now);
            let server = lease.clone().held().server();
            actions.push(ClientAction::log(format!("renewing {address} at {server}")));
        }
        let end = if matches!(self.state, ClientState::Rebinding) { timer.expires } else { timer.rebind };
        self.next = u64::MAX;
        actions.push(ClientAction::Send(P::extend(self, now, &lease)));
        // The pause is half of what remains (RFC 2131, section 4.4.5). The first pauses of RFC 8415 may be longer than
        // a short lease.
        self.next = self.next.min(now + (end.saturating_sub(now) / 2).max(SHORTEST_PAUSE));
        actions
    }

    /// Takes a lease that a server has given. A lease of a new address is bound only when the probe is over. Another
    /// host that answers until then makes the driver call `conflict`.
    ///
    /// `probed` is the address and the time of the last probe. Without a probe for this address, a new one is sent.
    pub(crate) fn take_lease(
        &mut self,
        now: u64,
        lease: P::Lease,
        probed: Option<(Address<P>, u64)>,
    ) -> Vec<ClientAction<P>> {
        if self.has(lease.address()) {
            return vec![self.bind(now, lease)];
        }
        let mut actions = Vec::new();
        // The probe was sent with the request, so a part of its time is over.
        let since = match probed {
            Some((address, since)) if address == lease.address() => since,
            _ => {
                actions.push(ClientAction::Probe(lease.address()));
                now
            }
        };
        self.enter(now, ClientState::Probing(Box::new(lease)), since + PROBE);
        actions.extend(self.tick(now));
        actions
    }

    /// Takes the lease at once, and returns the report of it.
    pub(crate) fn bind(&mut self, now: u64, lease: P::Lease) -> ClientAction<P> {
        self.enter(now, ClientState::Bound, lease.timer().renew);
        self.preferred = Some(lease.address());
        self.lease = Some(lease.clone());
        self.tally.clear();
        ClientAction::Report(Event::Bound(lease.held()))
    }

    /// Ends the lease, if there is one, and starts over at once. Returns the report with the reason `why`.
    pub(crate) fn lose(&mut self, now: u64, why: &'static str) -> Vec<ClientAction<P>> {
        self.start(now, now);
        let lost = self.lease.take().map(|lease| ClientAction::Report(Event::Lost(lease.held(), why)));
        lost.into_iter().collect()
    }

    /// Ends the lease and returns its address with the message to the server. The message is sent only once. `None` if
    /// the client has no lease, not even one that is probed.
    pub(crate) fn release(&mut self, now: u64) -> Option<(Address<P>, P::Message)> {
        let probed = match &self.state {
            ClientState::Probing(lease) => Some(lease.as_ref().clone()),
            _ => None,
        };
        let lease = self.lease.take().or(probed)?;
        self.start(now, now);
        Some((lease.address(), P::release(self, now, &lease)))
    }

    /// Starts over without a lease, with the first step at `next`.
    pub(crate) fn start(&mut self, now: u64, next: u64) {
        self.enter(now, ClientState::Acquiring(P::Step::default()), next);
    }

    /// Begins a new exchange in this state. The next action of the client is at `next`.
    pub(crate) fn enter(&mut self, now: u64, state: ClientState<P>, next: u64) {
        self.protocol.begin(now);
        self.state = state;
        self.next = next;
    }
}

/// Returns a number that only a host that sees the client's messages can know.
pub(crate) fn random() -> u32 {
    // The keys of the standard library come from the kernel and are random.
    (RandomState::new().hash_one(0) & u64::from(u32::MAX)) as u32
}

#[cfg(test)]
pub(crate) mod tests {
    use super::{ClientAction, Event, Protocol};

    pub(crate) fn words<P: Protocol>(
        actions: &[ClientAction<P>],
        sent: impl Fn(&P::Message) -> String,
    ) -> Vec<String> {
        let word = |action: &ClientAction<P>| match action {
            ClientAction::Send(message) => sent(message),
            ClientAction::Probe(address) => format!("probe {address}"),
            ClientAction::Report(Event::Bound(lease)) => format!("bound {}", lease.address()),
            ClientAction::Report(Event::Lost(lease, why)) => format!("lost {}: {why}", lease.address()),
            ClientAction::Report(Event::Log(_)) => "log".to_owned(),
        };
        actions.iter().map(word).collect()
    }
}
