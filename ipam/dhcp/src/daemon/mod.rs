//! The lease daemon: one process that obtains and renews leases for all pods of a node.
//!
//! It is `dhcp daemon`, started by systemd, by hand, or by the first ADD. While it runs, it holds the lock of its
//! leases' directory, so that each socket has only one daemon. A single thread serves verbs, answers and timers, and
//! never blocks on one of them. Before an ADD is answered, all state is in the files ([`store`]). The daemon may thus
//! be killed at any moment, and the next one resumes.

mod apply;
mod cgroup;
mod connections;
mod flags;
mod four;
mod interface;
mod journal;
mod pod;
mod six;
mod speaker;
mod start;
pub(crate) mod store;

use std::collections::BTreeMap;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixListener;
use std::time::Duration;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use cnimble_cni::{Code, Error};
use cnimble_netlink::NetNs;
use cnimble_netlink::link::Mac;
use cnimble_plugin::signal;

use crate::client::Event;
use crate::held::Held;
use crate::ipc::{Family, LeaseOwner, Reply, Request, Wanted};
use connections::{Connections, Incoming};
use flags::Flags;
use journal::Journal;
use pod::Pod;
use store::{Record, Store};

pub(crate) use start::{NO_SOCKET, READY, TAKEN, program};

/// The interval between two checks for pods that have died, in milliseconds.
const ROUND: u64 = 5000;
/// How many milliseconds a lease daemon without leases waits before it exits.
const IDLE: u64 = 1000;

/// Returns the time in milliseconds since the machine's boot.
fn now() -> u64 {
    use nix::time::{ClockId, clock_gettime};
    let time = clock_gettime(ClockId::CLOCK_BOOTTIME).map_or(Duration::ZERO, Duration::from);
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

struct Daemon {
    flags: Flags,
    journal: Journal,
    store: Store,
    listener: UnixListener,
    connections: Connections,
    /// The pods by the names of their leases.
    pods: BTreeMap<String, Pod>,
    /// Leases of the previous daemon with pods that could not be examined yet, each with the reason.
    unresolved: Vec<(Record, String)>,
    next_round: u64,
    last_busy: u64,
}

impl Daemon {
    /// Returns a daemon that resumes the leases in the store.
    fn new(flags: Flags, journal: Journal, store: Store, listener: UnixListener) -> std::io::Result<Daemon> {
        let now = now();
        let unresolved = store.load()?.into_iter().map(|record| (record, String::new())).collect();
        let (connections, pods) = (Connections::default(), BTreeMap::new());
        let (next_round, last_busy) = (now + ROUND, now);
        let mut daemon =
            Daemon { flags, journal, store, listener, connections, pods, unresolved, next_round, last_busy };
        daemon.adopt(now);
        Ok(daemon)
    }

    /// Takes over the leases of the previous daemon. If a pod cannot be examined now, its lease is kept and tried
    /// again. If a namespace cannot be found again, its lease is kept until it expires.
    fn adopt(&mut self, now: u64) {
        for (record, before) in std::mem::take(&mut self.unresolved) {
            let owner = record.wanted.owner.words();
            let key = record.wanted.key();
            let known = Some((Mac(record.mac), record.lease.clone()));
            let found = match Pod::find(&self.flags, record.wanted.clone(), now, known, None) {
                Ok(pod) => {
                    self.pods.insert(key, pod);
                    continue;
                }
                Err(err) => err,
            };
            let expired = record.lease.as_ref().is_none_or(|lease| lease.expires() <= now);
            let gone = match found.code {
                Code::INVALID_NETNS | Code::UNKNOWN_CONTAINER => true,
                Code::TRY_AGAIN_LATER => expired,
                _ => false,
            };
            if gone && self.store.remove(&key).is_ok() {
                self.journal.log(&format!("{owner}: its pod is gone, and its lease is dropped: {found}"));
                continue;
            }
            let why = found.to_string();
            if why != before {
                self.journal.log(&format!("{owner}: its lease is kept, and cannot be extended now: {why}"));
            }
            self.unresolved.push((record, why));
        }
    }

    /// Runs until the last lease has ended, or until a signal arrives. The lock is still held afterwards.
    fn run(mut self) -> Store {
        while signal::check().is_ok() {
            let now = now();
            if !self.pods.is_empty() || !self.unresolved.is_empty() || !self.connections.is_empty() {
                self.last_busy = now;
            } else if self.flags.once && now >= self.last_busy + IDLE {
                break;
            }
            self.wait(now);
            let now = self::now();
            self.connections.accept(&self.listener, now);
            let (requests, closed) = self.connections.serve(now);
            for number in closed {
                self.disconnected(number, now);
            }
            for Incoming { number, request, sent } in requests {
                let reply = match request {
                    Ok(request) => self.handle(number, now, request, sent),
                    Err(why) => {
                        Some(Error::new(Code::DECODE, format!("reading a request failed: {why}")).into())
                    }
                };
                if let Some(reply) = reply {
                    self.connections.reply(number, now, &reply);
                }
            }
            self.hear(now);
            self.tick(now);
        }
        self.store
    }

    /// Waits for the next event.
    fn wait(&self, now: u64) {
        let idle =
            if self.pods.is_empty() && self.unresolved.is_empty() { u64::MAX } else { self.next_round };
        let times = self
            .pods
            .values()
            .flat_map(|pod| [pod.speaker.next(), pod.waiting.map_or(u64::MAX, |(_, until)| until)]);
        let exit = if self.flags.once && self.pods.is_empty() { self.last_busy + IDLE } else { u64::MAX };
        let next = times.chain([idle, exit, self.connections.next()]).min().unwrap_or(u64::MAX);
        // One millisecond more, because the clock is rounded down.
        let remaining = next.saturating_sub(now).min(60_000);
        let timeout = PollTimeout::try_from(remaining).unwrap_or(PollTimeout::MAX);
        let mut descriptors = Vec::new();
        if self.connections.has_room() {
            descriptors.push(PollFd::new(self.listener.as_fd(), PollFlags::POLLIN));
        }
        for (descriptor, writes) in self.connections.descriptors() {
            let more = if writes { PollFlags::POLLOUT } else { PollFlags::empty() };
            descriptors.push(PollFd::new(descriptor, PollFlags::POLLIN | more));
        }
        for socket in self.pods.values().flat_map(|pod| pod.speaker.sockets()) {
            descriptors.push(PollFd::new(socket, PollFlags::POLLIN));
        }
        // A signal also ends the wait. All descriptors are read in any case.
        let _ = poll(&mut descriptors, timeout);
    }

    /// Handles the request of a verb. Returns `None` if the reply follows later.
    fn handle(&mut self, number: u64, now: u64, request: Request, sent: Option<OwnedFd>) -> Option<Reply> {
        match request {
            Request::Status => Some(Reply::Done),
            Request::Add(wanted) | Request::Add6(wanted) => {
                self.add(number, now, wanted, sent).unwrap_or_else(|err| Some(err.into()))
            }
            Request::Check(owner) => Some(self.check(&owner.key(Family::Ipv4), now)),
            Request::Check6(owner) => Some(self.check(&owner.key(Family::Ipv6), now)),
            Request::Del(owner) => Some(self.release_all(&owner, now)),
            Request::Gc { network, valid } => Some(self.gc(&network, &valid, now)),
        }
    }

    fn add(
        &mut self,
        number: u64,
        now: u64,
        mut wanted: Wanted,
        sent: Option<OwnedFd>,
    ) -> Result<Option<Reply>, Error> {
        let key = wanted.key();
        let path = self.flags.on_host(&wanted.netns);
        // A runtime may have mounted the namespace where only its own processes see it.
        let sent = sent.map(NetNs::from_fd).transpose()?.filter(|sent| !sent.is_at(&path));
        wanted.sent = sent.as_ref().map(NetNs::identity).transpose()?;
        let is_same = |pod: &Pod| match &sent {
            Some(sent) => pod.interface.netns.same_as(sent).unwrap_or(false),
            None => pod.interface.is_in(&path),
        };
        // As in the Go daemon, an interface with a lease keeps it.
        if let Some(pod) = self.pods.get(&key)
            && is_same(pod)
            && let Some(lease) = pod.speaker.lease()
        {
            return Ok(Some(Reply::Lease(lease)));
        }
        self.release(&key, now, "it is asked for anew").checked()?;
        let until = now.saturating_add(self.flags.limit(&wanted));
        let mut pod = Pod::find(&self.flags, wanted, now, None, sent)?;
        pod.waiting = Some((number, until));
        self.pods.insert(key, pod);
        Ok(None)
    }

    fn check(&self, key: &str, now: u64) -> Reply {
        if let Some(pod) = self.pods.get(key) {
            return pod.checked(now).map_or_else(Reply::from, Reply::Lease);
        }
        let record =
            self.unresolved.iter().map(|(record, _)| record).find(|record| record.wanted.key() == key);
        record.and_then(|record| record.lease.clone()).map_or(Reply::Nothing, Reply::Lease)
    }

    /// Releases all leases of an interface.
    fn release_all(&mut self, owner: &LeaseOwner, now: u64) -> Reply {
        let replies = Family::ALL.map(|family| self.release(&owner.key(family), now, "its verb has come"));
        let weight = |reply: &Reply| match reply {
            Reply::Error { .. } => 2,
            Reply::Nothing => 0,
            _ => 1,
        };
        replies.into_iter().max_by_key(weight).unwrap_or(Reply::Nothing)
    }

    /// Releases a lease.
    fn release(&mut self, key: &str, now: u64, why: &str) -> Reply {
        if let Err(err) = self.store.remove(key) {
            return Error::new(Code::IO, format!("removing the lease {key}: {err}")).into();
        }
        self.unresolved.retain(|(record, _)| record.wanted.key() != key);
        let Some(mut pod) = self.pods.remove(key) else { return Reply::Nothing };
        let owner = pod.wanted.owner.words();
        // The address is removed first: another host may get it as soon as it is released.
        if let Err(err) = pod.remove_lease() {
            self.journal.log(&format!("{owner}: removing its address failed: {err}"));
        }
        if let Some((address, sent)) = pod.release(now) {
            match sent {
                Ok(()) => self.journal.log(&format!("{owner}: {address} is released: {why}")),
                Err(err) => self.journal.log(&format!(
                    "{owner}: {address} is dropped: {why}; the server could not be told: {err}"
                )),
            }
        }
        if let Some((number, _)) = pod.waiting {
            let msg = format!("the lease of {owner} was given back while ADD waited for it");
            let err = Error::new(Code::TRY_AGAIN_LATER, msg);
            self.connections.reply(number, now, &err.into());
        }
        Reply::Done
    }

    fn gc(&mut self, network: &str, valid: &[(String, String)], now: u64) -> Reply {
        let stale = |owner: &LeaseOwner| {
            owner.network == network
                && !valid.iter().any(|(id, ifname)| (id, ifname) == (&owner.container, &owner.ifname))
        };
        // A lease that is still being requested is not in the runtime's list yet.
        let all = self.pods.iter().filter(|(_, pod)| pod.waiting.is_none() && stale(&pod.wanted.owner));
        let keys = all.map(|(key, _)| key.clone());
        let unresolved = self.unresolved.iter().filter(|(record, _)| stale(&record.wanted.owner));
        let keys: Vec<String> = keys.chain(unresolved.map(|(record, _)| record.wanted.key())).collect();
        for key in keys {
            let reply = self.release(&key, now, "it is not valid any more");
            if matches!(reply, Reply::Error { .. }) {
                return reply;
            }
        }
        Reply::Done
    }

    /// Ends the lease of a verb that has disconnected before its answer, because its caller does not know of the lease.
    fn disconnected(&mut self, number: u64, now: u64) {
        let of = |pod: &Pod| pod.waiting.is_some_and(|(waiting, _)| waiting == number);
        let key = self.pods.iter().find(|(_, pod)| of(pod)).map(|(key, _)| key.clone());
        if let Some(key) = key {
            self.release(&key, now, "its verb is gone");
        }
    }

    fn hear(&mut self, now: u64) {
        let hears = |pod: &Pod| !pod.speaker.sockets().is_empty();
        let keys: Vec<String> =
            self.pods.iter().filter(|(_, pod)| hears(pod)).map(|(key, _)| key.clone()).collect();
        for key in keys {
            let events = self.pods.get_mut(&key).map(|pod| pod.hear(now)).unwrap_or_default();
            self.act(&key, now, events);
        }
    }

    /// Does everything that is due at `now`.
    fn tick(&mut self, now: u64) {
        let keys: Vec<String> = self.pods.keys().cloned().collect();
        let round = now >= self.next_round;
        if round {
            self.next_round = now + ROUND;
            self.adopt(now);
        }
        for key in keys {
            let Some(pod) = self.pods.get_mut(&key) else { continue };
            if round && pod.interface.has_died(&self.flags) {
                self.release(&key, now, "its pod has died");
                continue;
            }
            if round && let Err(err) = pod.set_lifetime(now) {
                self.journal.log(&format!(
                    "{}: setting the lifetime of its address failed: {err}",
                    pod.wanted.owner.words()
                ));
            }
            if let Some((number, until)) = pod.waiting
                && now >= until
            {
                pod.waiting = None;
                let err = without_lease(pod, self.flags.limit(&pod.wanted));
                self.release(&key, now, "no server has given one in time");
                self.connections.reply(number, now, &err.into());
                continue;
            }
            let events = pod.tick(now);
            self.act(&key, now, events);
        }
    }

    fn act(&mut self, key: &str, now: u64, events: Vec<Event>) {
        for event in events {
            let Some(pod) = self.pods.get_mut(key) else { return };
            let owner = pod.wanted.owner.words();
            let outcome = match event {
                Event::Log(line) => Err(line),
                Event::Bound(lease) => self.bound(key, now, &lease),
                Event::Lost(lease, why) => self.lost(key, &lease, why),
            };
            if let Err(line) = outcome {
                self.journal.log(&format!("{owner}: {line}"));
            }
        }
    }

    /// Handles a new or renewed lease: writes it to disk, then answers the verb or changes the interface.
    fn bound(&mut self, key: &str, now: u64, lease: &Held) -> Result<(), String> {
        let Some(pod) = self.pods.get_mut(key) else { return Ok(()) };
        let (owner, address) = (pod.wanted.owner.words(), lease.address());
        let seconds = lease.expires().saturating_sub(now) / 1000;
        self.journal.log(&format!("{owner}: {address} from {} for {seconds} s", lease.server()));
        let written = self.store.write(&pod.wanted, pod.interface.mac.0, Some(lease));
        match pod.waiting.take() {
            Some((number, _)) => {
                pod.returned(lease);
                let reply = match written {
                    Ok(()) => Reply::Lease(lease.clone()),
                    Err(err) => {
                        self.release(key, now, "its file cannot be written");
                        Error::new(Code::IO, format!("writing the lease of {address} failed: {err}")).into()
                    }
                };
                self.connections.reply(number, now, &reply);
                Ok(())
            }
            None => {
                let changed = pod.renewed(lease, now);
                if let Some(change) =
                    changed.map_err(|err| format!("following to {address} failed: {err}"))?
                {
                    self.journal.log(&format!("{owner}: {change}"));
                }
                written.map_err(|err| format!("writing the lease of {address} failed: {err}"))
            }
        }
    }

    fn lost(&mut self, key: &str, lease: &Held, why: &'static str) -> Result<(), String> {
        let Some(pod) = self.pods.get_mut(key) else { return Ok(()) };
        let (owner, address) = (pod.wanted.owner.words(), lease.address());
        self.journal.log(&format!("{owner}: {address} is taken away: {why}"));
        let removed = pod.lose(lease, why).map_err(|err| format!("removing {address} failed: {err}"));
        let written = self.store.write(&pod.wanted, pod.interface.mac.0, None);
        removed.and(written.map_err(|err| format!("writing the loss of {address} failed: {err}")))
    }
}

/// Returns the error of an ADD that has waited for `limit` milliseconds.
fn without_lease(pod: &Pod, limit: u64) -> Error {
    let (ifname, word) = (&pod.interface.ifname, pod.wanted.family.word());
    let time = if limit.is_multiple_of(1000) { format!("{} s", limit / 1000) } else { format!("{limit} ms") };
    let msg = format!("no {word} server has given an address to {ifname} within {time}");
    Error::new(Code::TRY_AGAIN_LATER, msg).details(pod.speaker.tried())
}
