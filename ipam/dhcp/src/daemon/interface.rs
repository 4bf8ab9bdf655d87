//! The interface of a client. Its namespace is held open, so that a lease can be released after its pod has died.

use std::cell::Cell;
use std::io;
use std::path::Path;

use cnimble_cni::{Code, Error};
use cnimble_netlink::link::{Link, Mac};
use cnimble_netlink::netns::Identity;
use cnimble_netlink::{IfPresent, NetNs, Netlink};

use super::flags::Flags;
use crate::held::AnyLease;
use crate::ipc::LeaseRequest;

/// The interface of a client in the namespace of its pod.
pub(super) struct Interface {
    pub(super) netns: NetNs,
    pub(super) ifname: String,
    pub(super) index: u32,
    pub(super) mac: Mac,
    /// The kind of the link (IFLA_INFO_KIND), such as `ipvlan`.
    pub(super) kind: String,
    /// The path of the namespace, as the runtime sees it.
    path: String,
    watch: Watch,
}

/// The way in which the daemon learns that the pod has died.
enum Watch {
    /// The pod is dead when the runtime's path leads to another namespace, or to none.
    Path,
    /// No path leads to the namespace. The pod is dead when `/proc` no longer shows a process in it.
    Proc(Identity, Cell<Sight>),
}

/// The result of a search in `/proc`. A daemon in a PID namespace may never find the namespace.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Sight {
    /// `/proc` has not shown the namespace yet, so its absence proves nothing.
    Never,
    /// The last search has found the namespace.
    Seen,
    /// The last search has not found it. One failed search is no proof: a process may have started another one and
    /// exited during the search.
    Missed,
}

impl Interface {
    /// Finds the interface in the namespace that a verb has `sent`, or in that of `wanted`.
    ///
    /// Fails with code 8 without the namespace, with code 3 without the interface, and with code 2 if it has no
    /// hardware address. Fails with code 11 if a namespace that was sent to an earlier daemon cannot be found again.
    pub(super) fn find_interface(
        flags: &Flags,
        wanted: &LeaseRequest,
        sent: Option<NetNs>,
    ) -> Result<Interface, Error> {
        let (netns, watch) = match (sent, wanted.sent) {
            (sent, Some(identity)) => {
                let seen = NetNs::by_identity(identity)?;
                let sight = if seen.is_some() { Sight::Seen } else { Sight::Never };
                let netns = sent.or(seen).ok_or_else(|| unseen(&wanted.netns))?;
                (netns, Watch::Proc(identity, Cell::new(sight)))
            }
            (_, None) => (at_path(&flags.on_host(&wanted.netns))?, Watch::Path),
        };
        let ifname = &wanted.owner.ifname;
        let link = Netlink::open_in(&netns)?.find_link(ifname)?;
        let link = link.ok_or_else(|| missing(ifname, &wanted.netns))?;
        let mac = link.mac.ok_or_else(|| {
            Error::new(Code::UNSUPPORTED_FIELD, format!("interface {ifname} has no hardware address"))
                .details("DHCP needs Ethernet")
        })?;
        let (ifname, path) = (ifname.clone(), wanted.netns.clone());
        Ok(Interface { netns, ifname, index: link.index, mac, kind: link.kind, path, watch })
    }

    /// Opens a socket in the namespace and finds the interface there, also after a rename. Fails with code 3 without
    /// the interface.
    pub(super) fn inside(&self) -> Result<(Netlink, Link), Error> {
        let mut inside = Netlink::open_in(&self.netns)?;
        // A pod can give the index to another link, so the name or the hardware address has to agree as well.
        let link = inside.link_at(self.index).if_present()?;
        let link = link.filter(|link| link.name == self.ifname || link.mac == Some(self.mac));
        Ok((inside, link.ok_or_else(|| self.missing())?))
    }

    /// Returns true if the interface has the address of this lease. This proves that it is the interface of the lease,
    /// even if its hardware address has changed since.
    pub(super) fn has(&self, lease: Option<&AnyLease>) -> Result<bool, Error> {
        let (mut inside, link) = self.inside()?;
        Ok(inside.addrs(link.index)?.iter().any(|addr| lease.is_some_and(|lease| lease.net() == addr.net)))
    }

    /// Calls `open` in the namespace of the interface. Fails if the namespace cannot be entered, or if `open` fails.
    pub(super) fn open<T>(&self, open: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
        self.netns.enter(open).map_err(|err| io::Error::other(err.to_string()))?
    }

    /// Returns true if the pod has died ([`Watch`]). False if that is unknown, for example for a lack of descriptors. A
    /// namespace that is watched in `/proc` has to be missed by two calls in a row.
    pub(super) fn has_died(&self, flags: &Flags) -> bool {
        if let Watch::Proc(identity, sight) = &self.watch {
            return is_gone(*identity, sight);
        }
        match NetNs::find(&flags.on_host(&self.path)) {
            Ok(Some(found)) => found.same_as(&self.netns).is_ok_and(|same| !same),
            Ok(None) => true,
            Err(_) => false,
        }
    }

    /// Returns true if the interface's namespace is the one at `path`, which may be another path than the first.
    pub(super) fn is_in(&self, path: &Path) -> bool {
        self.netns.is_at(path)
    }

    /// Returns the error for the interface if it is missing, with code 3.
    pub(super) fn missing(&self) -> Error {
        missing(&self.ifname, &self.path)
    }
}

/// Opens the namespace at `path`. Fails with code 8.
fn at_path(path: &Path) -> Result<NetNs, Error> {
    NetNs::find(path)?.ok_or_else(|| {
        let why = format!("failed to open netns \"{}\"", path.display());
        Error::new(Code::INVALID_NETNS, why).details("the path does not lead to a network namespace")
    })
}

/// Returns the error for a namespace that `/proc` does not show, with code 11.
fn unseen(netns: &str) -> Error {
    let msg = format!("no process in /proc is in the network namespace {netns}");
    Error::new(Code::TRY_AGAIN_LATER, msg)
        .details("its path is a mount that only the runtime sees; hint: a pod that runs can be created again")
}

/// Returns true if `/proc` has shown the namespace before, and has now missed it twice in a row.
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

/// Returns the error for an interface that is missing, with code 3.
fn missing(ifname: &str, netns: &str) -> Error {
    Error::new(Code::UNKNOWN_CONTAINER, format!("network namespace {netns} has no interface {ifname}"))
}
