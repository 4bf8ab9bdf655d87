//! Where a client talks: an interface, in a namespace that is held open. It can say good-bye when its pod has died.

use std::cell::Cell;
use std::io;
use std::os::fd::BorrowedFd;
use std::path::Path;

use cnimble_cni::{Code, Error};
use cnimble_netlink::link::{Link, Mac};
use cnimble_netlink::netns::Identity;
use cnimble_netlink::{NetNs, Netlink};

use super::flags::Flags;
use crate::held::Held;
use crate::talk::Wanted;

/// An Ethernet frame's, and jumbo ones.
pub(super) const LARGEST_PACKET: usize = 9216;
/// Packets that are read in one go; the rest waits for the others.
const BURST: usize = 32;

/// An interface.
pub(super) struct Place {
    pub(super) netns: NetNs,
    pub(super) ifname: String,
    pub(super) index: u32,
    pub(super) mac: Mac,
    path: String,
    watch: Watch,
}

/// How the death of a pod is noticed.
enum Watch {
    /// The path that the runtime named leads to another namespace, or to none.
    Path,
    /// `/proc` no longer shows the namespace of this identity, which no path leads to.
    Proc(Identity, Cell<Sight>),
}

/// What `/proc` has shown of a namespace. A daemon in a PID namespace may never see it.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Sight {
    Never,
    Seen,
    /// Once missed: a process may have started another one and ended while `/proc` was read.
    Missed,
}

impl Place {
    /// Finds the interface, in a namespace that a verb has `sent`, or else by what `wanted` tells of it.
    ///
    /// # Errors
    /// Code 8 without the namespace, code 3 without the interface, code 11 if a namespace that had been sent is not to
    /// be found again; the kernel's.
    pub(super) fn find(flags: &Flags, wanted: &Wanted, sent: Option<NetNs>) -> Result<(Place, Link), Error> {
        let (netns, watch) = match (sent, wanted.sent) {
            (sent, Some(identity)) => {
                let seen = NetNs::by_identity(identity)?;
                let sight = if seen.is_some() { Sight::Seen } else { Sight::Never };
                let netns = sent.or(seen).ok_or_else(|| unseen(&wanted.netns))?;
                (netns, Watch::Proc(identity, Cell::new(sight)))
            }
            (_, None) => (at_path(&flags.on_host(&wanted.netns))?, Watch::Path),
        };
        let ifname = &wanted.whose.ifname;
        let link = Netlink::open_in(&netns)?.find_link(ifname)?;
        let link = link.ok_or_else(|| missing(ifname, &wanted.netns))?;
        let mac = link.mac.ok_or_else(|| {
            Error::new(Code::UNSUPPORTED_FIELD, format!("interface {ifname} has no hardware address"))
                .details("DHCP needs Ethernet")
        })?;
        let (ifname, path) = (ifname.clone(), wanted.netns.clone());
        Ok((Place { netns, ifname, index: link.index, mac, path, watch }, link))
    }

    /// A socket of the namespace, and the interface there.
    ///
    /// # Errors
    /// Code 3 without the interface; the kernel's.
    pub(super) fn inside(&self) -> Result<(Netlink, Link), Error> {
        let mut inside = Netlink::open_in(&self.netns)?;
        let link = inside.find_link(&self.ifname)?.filter(|link| link.index == self.index);
        Ok((inside, link.ok_or_else(|| self.missing())?))
    }

    /// Runs `open` in the namespace.
    ///
    /// # Errors
    /// Its own, and those of entering.
    pub(super) fn open<T>(&self, open: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
        self.netns.enter(open).map_err(|err| io::Error::other(err.to_string()))?
    }

    /// Whether the namespace is gone from where it was. A failure that says nothing about it (no descriptor is left) is no
    /// death.
    pub(super) fn has_died(&self, flags: &Flags) -> bool {
        if let Watch::Proc(identity, sight) = &self.watch {
            return is_gone(*identity, sight);
        }
        match NetNs::find(&flags.on_host(&self.path)) {
            Ok(Some(there)) => there.same_as(&self.netns).is_ok_and(|same| !same),
            Ok(None) => true,
            Err(_) => false,
        }
    }

    /// Whether the path leads to the same namespace as `path`.
    pub(super) fn is_in(&self, path: &Path) -> bool {
        self.netns.is_at(path)
    }

    /// That the interface isn't there.
    pub(super) fn missing(&self) -> Error {
        missing(&self.ifname, &self.path)
    }
}

fn at_path(path: &Path) -> Result<NetNs, Error> {
    NetNs::find(path)?.ok_or_else(|| {
        let why = format!("failed to open netns \"{}\"", path.display());
        Error::new(Code::INVALID_NETNS, why).details("no network namespace is there")
    })
}

fn unseen(netns: &str) -> Error {
    let msg = format!("no process in /proc is in the network namespace {netns}");
    Error::new(Code::TRY_AGAIN_LATER, msg)
        .details("its path leads there in the runtime's mount namespace alone")
}

/// Whether a namespace that `/proc` has shown is missing twice in a row.
fn is_gone(identity: Identity, sight: &Cell<Sight>) -> bool {
    let next = match (NetNs::by_identity(identity), sight.get()) {
        (Ok(Some(_)), _) => Sight::Seen,
        (Ok(None), Sight::Missed) => return true,
        (Ok(None), Sight::Seen) => Sight::Missed,
        (Ok(None), Sight::Never) | (Err(_), _) => return false,
    };
    sight.set(next);
    false
}

fn missing(ifname: &str, netns: &str) -> Error {
    Error::new(Code::UNKNOWN_CONTAINER, format!("there is no interface {ifname} in {netns}"))
}

/// What a client means to the keeper.
pub(super) enum Event {
    /// There is a lease: a new one, or the same for longer.
    Bound(Held),
    /// There is none any more.
    Lost(Held, &'static str),
    /// For the log.
    Tell(String),
}

/// A family's client with its sockets.
pub(super) trait Speaker {
    /// When something is to be done.
    fn next(&self) -> u64;
    /// The lease, if there is one.
    fn lease(&self) -> Option<Held>;
    /// What was tried since there is no lease, in words.
    fn tried(&self) -> String;
    /// What to poll for.
    fn sockets(&self) -> Vec<BorrowedFd<'_>>;
    /// Reads what has come.
    fn hear(&mut self, place: &Place, now: u64) -> Vec<Event>;
    /// Time has passed.
    fn tick(&mut self, place: &Place, now: u64) -> Vec<Event>;
    /// Gives the lease back, if there is one: its words, and whether the server could be told.
    fn release(&mut self, place: &Place, now: u64) -> Option<(String, io::Result<()>)>;
}

/// Reads what has come from a socket, one `receive` after another. A socket that fails is closed: the next message opens
/// it anew.
pub(super) fn drain<S>(socket: &mut Option<S>, mut receive: impl FnMut(&S) -> io::Result<bool>) {
    let Some(open) = socket else { return };
    for _ in 0..BURST {
        match receive(open) {
            Ok(true) => {}
            Ok(false) => return,
            // ENETDOWN: the interface was down for a moment.
            Err(err) if err.raw_os_error() == Some(libc::ENETDOWN) => return,
            Err(_) => {
                *socket = None;
                return;
            }
        }
    }
}

/// What could not be done, for the log.
pub(super) fn told(what: &str, outcome: io::Result<()>) -> Option<Event> {
    outcome.err().map(|err| Event::Tell(format!("{what}: {err}")))
}
