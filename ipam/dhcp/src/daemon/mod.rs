//! The lease daemon: one process that obtains and renews leases for all pods of a node. It is `dhcp daemon`, started by
//! systemd, by hand, or by a verb that needs it. It holds the lock of its leases' directory, so each socket has only
//! one daemon.
//!
//! A single thread serves verbs, answers and timers, and never blocks. All state is in the files ([`store`]) before an
//! ADD is answered. So after a kill the next daemon resumes.

mod apply;
mod cgroup;
mod connections;
mod flags;
mod four;
mod interface;
mod journal;
mod pod;
mod requests;
mod six;
mod speaker;
mod start;
pub(crate) mod store;

use std::collections::BTreeMap;
use std::os::fd::AsFd;
use std::os::unix::net::UnixListener;
use std::time::Duration;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use cnimble_cni::{Code, Error};
use cnimble_netlink::link::Mac;
use cnimble_plugin::signal;

use crate::client::Event;
use crate::held::AnyLease;
use crate::ipc::Reply;
use connections::{Connections, Incoming};
use flags::Flags;
use journal::Journal;
use pod::Pod;
use store::{LeaseDirectory, LeaseRecord};

pub(crate) use start::{NO_SOCKET, READY, TAKEN, program};

/// The time between two checks for pods that have died, in milliseconds.
const ROUND: u64 = 5000;
/// The time after which a lease daemon with `-once` exits if it has nothing to do, in milliseconds.
const IDLE: u64 = 1000;

/// Returns the time since the machine's boot, in milliseconds. It also counts the time in suspension.
fn now() -> u64 {
    use nix::time::{ClockId, clock_gettime};
    let time = clock_gettime(ClockId::CLOCK_BOOTTIME).map_or(Duration::ZERO, Duration::from);
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

/// The state of the daemon.
struct Daemon {
    flags: Flags,
    journal: Journal,
    store: LeaseDirectory,
    listener: UnixListener,
    connections: Connections,
    /// The interfaces with a client, by the key of their lease.
    pods: BTreeMap<String, Pod>,
    /// Leases of the previous daemon whose pods could not be examined yet, with the reasons. Nobody extends them.
    unresolved: Vec<(LeaseRecord, String)>,
    /// The time of the next check for pods that have died.
    next_round: u64,
    /// The last time at which the daemon had something to do.
    last_busy: u64,
}

impl Daemon {
    /// Makes the daemon and resumes the leases in `store`. Fails if they cannot be read.
    fn new(
        flags: Flags,
        journal: Journal,
        store: LeaseDirectory,
        listener: UnixListener,
    ) -> std::io::Result<Daemon> {
        let now = now();
        let unresolved = store.load()?.into_iter().map(|record| (record, String::new())).collect();
        let (connections, pods) = (Connections::default(), BTreeMap::new());
        let (next_round, last_busy) = (now + ROUND, now);
        let mut daemon =
            Daemon { flags, journal, store, listener, connections, pods, unresolved, next_round, last_busy };
        daemon.adopt(now);
        Ok(daemon)
    }

    /// Resumes the unresolved leases. A lease is dropped if its pod or interface is gone. If its namespace cannot be
    /// found (code 11), it is kept until it expires. After any other failure it is tried again in the next round.
    fn adopt(&mut self, now: u64) {
        for (record, before) in std::mem::take(&mut self.unresolved) {
            let owner = record.wanted.owner.words();
            let key = record.wanted.key();
            let known = Some((Mac(record.mac), record.lease.clone()));
            let found = match Pod::find_pod(&self.flags, record.wanted.clone(), now, known, None) {
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

    /// Serves until a signal arrives, or with `-once` until the last lease has ended. Returns the store, whose lock is
    /// still held.
    fn run(mut self) -> LeaseDirectory {
        while signal::check().is_ok() {
            let now = now();
            if self.is_busy() {
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
            self.read_packets(now);
            self.tick(now);
        }
        self.store
    }

    /// Returns true if there is a lease, an ADD or a connection, which keeps the daemon from its exit.
    fn is_busy(&self) -> bool {
        !self.pods.is_empty() || !self.unresolved.is_empty() || !self.connections.is_empty()
    }

    /// Returns the time at which something is due, unless something arrives before.
    fn next(&self) -> u64 {
        let idle =
            if self.pods.is_empty() && self.unresolved.is_empty() { u64::MAX } else { self.next_round };
        let times = self
            .pods
            .values()
            .flat_map(|pod| [pod.speaker.next(), pod.waiting.map_or(u64::MAX, |(_, until)| until)]);
        let exit = if self.flags.once && !self.is_busy() { self.last_busy + IDLE } else { u64::MAX };
        times.chain([idle, exit, self.connections.next()]).min().unwrap_or(u64::MAX)
    }

    /// Waits until something arrives or is due, or a signal comes.
    fn wait(&self, now: u64) {
        let next = self.next();
        // The clock is rounded down to milliseconds.
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
        // A signal ends the wait, too. The outcome does not matter, because all descriptors are read in any case.
        let _ = poll(&mut descriptors, timeout);
    }

    /// Releases the lease of a verb that has disconnected before its answer. Its caller does not know of the lease, so
    /// nobody would release it.
    fn disconnected(&mut self, number: u64, now: u64) {
        let mut pods = self.pods.iter();
        let found = pods.find(|(_, pod)| pod.waiting.is_some_and(|(waiting, _)| waiting == number));
        if let Some(key) = found.map(|(key, _)| key.clone()) {
            self.release(&key, now, "its verb is gone");
        }
    }

    /// Passes packets that have arrived to the clients, and carries out what follows.
    fn read_packets(&mut self, now: u64) {
        let listening = self.pods.iter().filter(|(_, pod)| !pod.speaker.sockets().is_empty());
        let keys: Vec<String> = listening.map(|(key, _)| key.clone()).collect();
        for key in keys {
            let pod = self.pods.get_mut(&key);
            let events = pod.map(|pod| pod.speaker.read_packets(&pod.interface, now)).unwrap_or_default();
            self.act(&key, now, events);
        }
    }

    /// Does everything that is due at `now`: the clients' timers and the limits of waiting verbs. Once in a round, also
    /// checks all pods and tries unresolved leases again.
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
            let events = pod.speaker.tick(&pod.interface, now);
            self.act(&key, now, events);
        }
    }

    /// Carries out what a client reports. Failures are logged.
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

    /// Takes a new or renewed lease. It is written to disk before the verb is answered or the interface is changed.
    ///
    /// An ADD whose lease cannot be written fails, and the lease is released. Returns the line for the log if a renewal
    /// could not be written or applied.
    fn bound(&mut self, key: &str, now: u64, lease: &AnyLease) -> Result<(), String> {
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

    /// Removes the addresses and routes of a lost lease, and notes in its file that the client looks for another.
    /// Returns a failure for the log.
    fn lost(&mut self, key: &str, lease: &AnyLease, why: &'static str) -> Result<(), String> {
        let Some(pod) = self.pods.get_mut(key) else { return Ok(()) };
        let (owner, address) = (pod.wanted.owner.words(), lease.address());
        self.journal.log(&format!("{owner}: {address} is taken away: {why}"));
        let removed = pod.lose(lease, why).map_err(|err| format!("removing {address} failed: {err}"));
        let written = self.store.write(&pod.wanted, pod.interface.mac.0, None);
        removed.and(written.map_err(|err| format!("writing the loss of {address} failed: {err}")))
    }
}

/// Returns the error of an ADD that got no lease within `limit` milliseconds, with code 11.
fn without_lease(pod: &Pod, limit: u64) -> Error {
    let (ifname, word) = (&pod.interface.ifname, pod.wanted.family.word());
    let time = if limit.is_multiple_of(1000) { format!("{} s", limit / 1000) } else { format!("{limit} ms") };
    let msg = format!("no {word} server has given an address to {ifname} within {time}");
    Error::new(Code::TRY_AGAIN_LATER, msg).details(pod.speaker.tried())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// It would wake up each second, to find that it must not exit.
    #[test]
    fn a_lease_that_can_not_be_extended_now_waits_for_the_next_round() {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("dhcp.sock");
        let flags = Flags { once: true, socket: socket.clone(), ..Flags::default() };
        let store = LeaseDirectory::open(&socket).unwrap().unwrap();
        let listener = UnixListener::bind(&socket).unwrap();
        let mut daemon = Daemon::new(flags, Journal::system(), store, listener).unwrap();
        assert_eq!(daemon.next(), daemon.last_busy + IDLE);
        let record = r#"{"boot":"","wanted":{"whose":{"network":"lan","container":"c1","ifname":"eth0"},"netns":"/x",
            "provide":[],"request":[],"priority":null},"mac":[2,0,0,0,0,9],"lease":null}"#;
        daemon.unresolved.push((serde_json::from_str(record).unwrap(), String::new()));
        assert_eq!(daemon.next(), daemon.next_round);
        assert!(daemon.next_round > daemon.last_busy + IDLE);
    }
}
