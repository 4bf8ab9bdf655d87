//! The client of one interface, without I/O: the part that DHCPv4 and DHCPv6 share.
//! ```text
//! Acquiring ─answer→ Probing ─no reply→ Bound ─T1→ Renewing ─T2→ Rebinding ─end→ Acquiring
//!     ↑                 │ reply           ↑           │ answer       │ answer   (the lease is lost)
//!     └─────────────────┘                 └───────────┴──────────────┘
//! ```
//! A [`Protocol`] adds the steps to a lease, the messages and the pauses. The driver calls [`Client::tick`] at the time
//! of [`Client::next`], and passes messages on. Times are as in [`lease`](crate::v4::lease).

use std::fmt::{Debug, Display};
use std::hash::{BuildHasher, RandomState};
use std::net::{Ipv4Addr, Ipv6Addr};

use crate::held::Held;
use crate::tally::Tally;
use crate::{v4, v6};

/// The time to wait for answers to a probe, in milliseconds. On one link they take less than one.
const PROBE: u64 = 100;
/// The pause after a declined address or a refusal, in milliseconds.
pub(crate) const REST: u64 = 1000;
/// The shortest limit of a pause, and the shortest pause between messages that extend a lease.
const SHORTEST_PAUSE: u64 = 1000;
/// No server has extended the lease in time.
pub(crate) const EXPIRED: &str = "it has expired";

#[derive(Debug, Clone, Copy)]
pub(crate) struct Timer {
    pub(crate) renew: u64,
    pub(crate) rebind: u64,
    pub(crate) expires: u64,
}

pub(crate) trait Lease: Clone + Debug + Sized {
    type Address: Copy + Debug + Display + PartialEq;

    fn address(&self) -> Self::Address;

    fn timer(&self) -> Timer;

    fn held(self) -> Held;

    fn from_held(held: Held) -> Option<Self>;
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

            fn held(self) -> Held {
                Held::$variant(self)
            }

            fn from_held(held: Held) -> Option<Self> {
                if let Held::$variant(lease) = held { Some(lease) } else { None }
            }
        }
    };
}

lease!(v4::lease::Lease, Ipv4Addr, Four);
lease!(v6::lease::Lease, Ipv6Addr, Six);

pub(crate) type Address<P> = <<P as Protocol>::Lease as Lease>::Address;

pub(crate) trait Protocol: Debug + Sized {
    type Lease: Lease;
    type Message: Debug;
    type Step: Debug + Default;

    const SEARCH: &'static str;

    fn name(message: &Self::Message) -> &'static str;

    fn requested(step: &Self::Step) -> Option<Address<Self>>;

    /// Starts a new exchange, with a new transaction ID.
    fn begin(&mut self, now: u64);

    /// The work of the current step at `now`.
    fn advance(client: &mut Client<Self>, now: u64) -> Vec<Action<Self>>;

    /// May set `client.next` to an earlier time than that of [`Client`].
    fn extend(client: &mut Client<Self>, now: u64, lease: &Self::Lease) -> Self::Message;

    fn release(client: &mut Client<Self>, now: u64, lease: &Self::Lease) -> Self::Message;
}

#[derive(Debug)]
pub(crate) enum State<P: Protocol> {
    Acquiring(P::Step),
    /// The link is probed for the lease's address.
    Probing(Box<P::Lease>),
    Bound,
    Renewing,
    Rebinding,
}

#[derive(Debug)]
pub(crate) enum Action<P: Protocol> {
    Send(P::Message),
    Probe(Address<P>),
    Report(Event),
}

impl<P: Protocol> Action<P> {
    pub(crate) fn log(line: String) -> Self {
        Action::Report(Event::Log(line))
    }
}

#[derive(Debug)]
pub(crate) enum Event {
    /// The lease is new or renewed.
    Bound(Held),
    /// The lease has ended, for this reason.
    Lost(Held, &'static str),
    Log(String),
}

#[derive(Debug)]
pub(crate) struct Client<P: Protocol> {
    pub(crate) protocol: P,
    pub(crate) state: State<P>,
    pub(crate) lease: Option<P::Lease>,
    /// The client asks servers for it.
    pub(crate) preferred: Option<Address<P>>,
    pub(crate) next: u64,
    /// The daemon's option `-resendmax`.
    pub(crate) longest_pause: u64,
    /// What the client has tried since it last had a lease.
    pub(crate) tally: Tally,
}

impl<P: Protocol> Client<P> {
    pub(crate) fn new(mut protocol: P, longest_pause: u64, now: u64) -> Self {
        protocol.begin(now);
        Client {
            protocol,
            state: State::Acquiring(P::Step::default()),
            lease: None,
            preferred: None,
            next: now,
            longest_pause: longest_pause.max(SHORTEST_PAUSE),
            tally: Tally::default(),
        }
    }

    /// Resumes a lease from a file.
    pub(crate) fn resume(self, lease: P::Lease) -> Self {
        let (next, preferred) = (lease.timer().renew, Some(lease.address()));
        Client { state: State::Bound, next, preferred, lease: Some(lease), ..self }
    }

    pub(crate) fn next(&self) -> u64 {
        let Some(timer) = self.lease.as_ref().map(Lease::timer) else { return self.next };
        let end = if matches!(self.state, State::Renewing) { timer.rebind } else { timer.expires };
        self.next.min(end)
    }

    pub(crate) fn listens(&self) -> bool {
        !matches!(self.state, State::Bound)
    }

    pub(crate) fn probed(&self) -> Option<Address<P>> {
        match &self.state {
            State::Acquiring(step) => P::requested(step).filter(|address| !self.has(*address)),
            State::Probing(lease) => Some(lease.address()),
            _ => None,
        }
    }

    pub(crate) fn has(&self, address: Address<P>) -> bool {
        self.lease.as_ref().is_some_and(|lease| lease.address() == address)
    }

    pub(crate) fn tick(&mut self, now: u64) -> Vec<Action<P>> {
        if now < self.next() {
            return Vec::new();
        }
        if self.lease.as_ref().is_some_and(|lease| now >= lease.timer().expires) {
            return self.lose(now, EXPIRED);
        }
        match &self.state {
            State::Acquiring(_) => P::advance(self, now),
            State::Probing(lease) => {
                let lease = lease.clone();
                vec![self.bind(now, *lease)]
            }
            State::Bound | State::Renewing | State::Rebinding => self.extend(now),
        }
    }

    fn extend(&mut self, now: u64) -> Vec<Action<P>> {
        let Some(lease) = self.lease.clone() else {
            self.start(now, now);
            return Vec::new();
        };
        let (address, timer) = (lease.address(), lease.timer());
        let mut actions = Vec::new();
        if now >= timer.rebind && !matches!(self.state, State::Rebinding) {
            self.enter(now, State::Rebinding, now);
            actions.push(Action::log(format!("rebinding {address}: any server may prolong it")));
        } else if matches!(self.state, State::Bound) {
            self.enter(now, State::Renewing, now);
            let server = lease.clone().held().server();
            actions.push(Action::log(format!("renewing {address} at {server}")));
        }
        let end = if matches!(self.state, State::Rebinding) { timer.expires } else { timer.rebind };
        self.next = u64::MAX;
        actions.push(Action::Send(P::extend(self, now, &lease)));
        // RFC 2131, section 4.4.5: half of what remains. The first pauses of RFC 8415 may be longer than a short lease.
        self.next = self.next.min(now + (end.saturating_sub(now) / 2).max(SHORTEST_PAUSE));
        actions
    }

    /// Takes the lease, unless another host answers for its address. `probed` is the address of the last probe, and its
    /// time.
    pub(crate) fn take(
        &mut self,
        now: u64,
        lease: P::Lease,
        probed: Option<(Address<P>, u64)>,
    ) -> Vec<Action<P>> {
        if self.has(lease.address()) {
            return vec![self.bind(now, lease)];
        }
        let mut actions = Vec::new();
        // The probe was sent before the server's answer.
        let since = match probed {
            Some((address, since)) if address == lease.address() => since,
            _ => {
                actions.push(Action::Probe(lease.address()));
                now
            }
        };
        self.enter(now, State::Probing(Box::new(lease)), since + PROBE);
        actions.extend(self.tick(now));
        actions
    }

    pub(crate) fn bind(&mut self, now: u64, lease: P::Lease) -> Action<P> {
        self.enter(now, State::Bound, lease.timer().renew);
        self.preferred = Some(lease.address());
        self.lease = Some(lease.clone());
        self.tally.clear();
        Action::Report(Event::Bound(lease.held()))
    }

    /// The lease ends, and the client starts over.
    pub(crate) fn lose(&mut self, now: u64, why: &'static str) -> Vec<Action<P>> {
        self.start(now, now);
        let lost = self.lease.take().map(|lease| Action::Report(Event::Lost(lease.held(), why)));
        lost.into_iter().collect()
    }

    /// The message is sent only once.
    pub(crate) fn release(&mut self, now: u64) -> Option<(Address<P>, P::Message)> {
        let probed = match &self.state {
            State::Probing(lease) => Some(lease.as_ref().clone()),
            _ => None,
        };
        let lease = self.lease.take().or(probed)?;
        self.start(now, now);
        Some((lease.address(), P::release(self, now, &lease)))
    }

    pub(crate) fn start(&mut self, now: u64, next: u64) {
        self.enter(now, State::Acquiring(P::Step::default()), next);
    }

    /// A new exchange. The client's next action is at `next`.
    pub(crate) fn enter(&mut self, now: u64, state: State<P>, next: u64) {
        self.protocol.begin(now);
        self.state = state;
        self.next = next;
    }
}

/// Returns a number that only a host that sees the client's messages can know.
pub(crate) fn random() -> u32 {
    // The standard library's keys come from the kernel.
    (RandomState::new().hash_one(0) & u64::from(u32::MAX)) as u32
}

#[cfg(test)]
pub(crate) mod tests {
    use super::{Action, Event, Protocol};

    pub(crate) fn words<P: Protocol>(
        actions: &[Action<P>],
        sent: impl Fn(&P::Message) -> String,
    ) -> Vec<String> {
        let word = |action: &Action<P>| match action {
            Action::Send(message) => sent(message),
            Action::Probe(address) => format!("probe {address}"),
            Action::Report(Event::Bound(lease)) => format!("bound {}", lease.address()),
            Action::Report(Event::Lost(lease, why)) => format!("lost {}: {why}", lease.address()),
            Action::Report(Event::Log(_)) => "log".to_owned(),
        };
        actions.iter().map(word).collect()
    }
}
