//! Carries out the requests of verbs.

use std::os::fd::OwnedFd;
use std::path::Path;

use cnimble_cni::{Code, Error};
use cnimble_netlink::NetNs;

use super::Daemon;
use super::pod::Pod;
use crate::ipc::{Family, LeaseOwner, LeaseRequest, Reply, Request};

impl Daemon {
    /// Carries out a request of the connection `number`. Returns the reply, or `None` if it follows later: an ADD is
    /// answered when there is a lease. `sent` is the descriptor of the namespace.
    pub(super) fn handle(
        &mut self,
        number: u64,
        now: u64,
        request: Request,
        sent: Option<OwnedFd>,
    ) -> Option<Reply> {
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

    /// Returns the lease that the interface already has, or starts a client for it. `None` means that the reply
    /// follows. Any other client with this key is ended first, and its lease is released.
    fn add(
        &mut self,
        number: u64,
        now: u64,
        mut wanted: LeaseRequest,
        sent: Option<OwnedFd>,
    ) -> Result<Option<Reply>, Error> {
        let key = wanted.key();
        let path = self.flags.on_host(&wanted.netns);
        // A runtime may have mounted the namespace where only its own processes see it. Only then the sent descriptor
        // counts.
        let sent = sent.map(NetNs::from_fd).transpose()?.filter(|sent| !sent.is_at(&path));
        wanted.sent = sent.as_ref().map(NetNs::identity).transpose()?;
        // As in the Go daemon, an interface with a lease keeps it. A new interface of that name has none yet.
        if let Some(pod) = self.pods.get(&key)
            && is_in(pod, sent.as_ref(), &path)
            && pod.interface.inside().is_ok()
            && let Some(lease) = pod.speaker.lease()
        {
            return Ok(Some(Reply::Lease(lease)));
        }
        self.release(&key, now, "it is asked for anew").checked()?;
        let until = now.saturating_add(self.flags.limit(&wanted));
        let mut pod = Pod::find_pod(&self.flags, wanted, now, None, sent)?;
        pod.waiting = Some((number, until));
        self.pods.insert(key, pod);
        Ok(None)
    }

    /// Returns the lease. Without a valid one it returns an error with code 103 if there is a client, or else
    /// [`Reply::Nothing`]. A lease whose pod could not be examined yet counts.
    fn check(&self, key: &str, now: u64) -> Reply {
        if let Some(pod) = self.pods.get(key) {
            return pod.checked(now).map_or_else(Reply::from, Reply::Lease);
        }
        let record =
            self.unresolved.iter().map(|(record, _)| record).find(|record| record.wanted.key() == key);
        record.and_then(|record| record.lease.clone()).map_or(Reply::Nothing, Reply::Lease)
    }

    /// Releases the leases of both families. Returns the more important reply: an error, before success, before
    /// nothing.
    fn release_all(&mut self, owner: &LeaseOwner, now: u64) -> Reply {
        let replies = Family::ALL.map(|family| self.release(&owner.key(family), now, "its verb has come"));
        replies.into_iter().max_by_key(importance).unwrap_or(Reply::Nothing)
    }

    /// Ends the client with this key. Removes the file, then the address from the interface, and then tells the server.
    /// A waiting ADD fails with code 11.
    ///
    /// Returns [`Reply::Nothing`] without such a client, and an error only if the file cannot be removed. Then nothing
    /// is changed.
    pub(super) fn release(&mut self, key: &str, now: u64, why: &str) -> Reply {
        if let Err(err) = self.store.remove(key) {
            return Error::new(Code::IO, format!("removing the lease {key}: {err}")).into();
        }
        self.unresolved.retain(|(record, _)| record.wanted.key() != key);
        let Some(mut pod) = self.pods.remove(key) else { return Reply::Nothing };
        let owner = pod.wanted.owner.words();
        // The address is removed before the release, because another host may get it right afterwards.
        if let Err(err) = pod.remove_lease() {
            self.journal.log(&format!("{owner}: removing its address failed: {err}"));
        }
        if let Some((address, sent)) = pod.speaker.release(&pod.interface, now) {
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

    /// Releases all leases of the network that are not `valid`, except those for which an ADD still waits. Stops at the
    /// first file that cannot be removed.
    ///
    /// An ADD that was answered and is not finished is not spared. So `valid` must name the attachments of running
    /// ADDs.
    fn gc(&mut self, network: &str, valid: &[(String, String)], now: u64) -> Reply {
        // A lease that an ADD still waits for is not in the runtime's list yet.
        let all = self
            .pods
            .iter()
            .filter(|(_, pod)| pod.waiting.is_none() && is_stale(&pod.wanted.owner, network, valid));
        let keys = all.map(|(key, _)| key.clone());
        let unresolved =
            self.unresolved.iter().filter(|(record, _)| is_stale(&record.wanted.owner, network, valid));
        let keys: Vec<String> = keys.chain(unresolved.map(|(record, _)| record.wanted.key())).collect();
        for key in keys {
            let reply = self.release(&key, now, "it is not valid any more");
            if matches!(reply, Reply::Error { .. }) {
                return reply;
            }
        }
        Reply::Done
    }
}

/// Returns true if the pod's namespace is the one that was `sent`, or without one the one at `path`.
fn is_in(pod: &Pod, sent: Option<&NetNs>, path: &Path) -> bool {
    match sent {
        Some(sent) => pod.interface.netns.same_as(sent).unwrap_or(false),
        None => pod.interface.is_in(path),
    }
}

/// Returns how much a reply counts among those of several families: an error most, and nothing least.
fn importance(reply: &Reply) -> u8 {
    match reply {
        Reply::Error { .. } => 2,
        Reply::Nothing => 0,
        _ => 1,
    }
}

/// Returns true if the lease is of this network and its attachment is not `valid`.
fn is_stale(owner: &LeaseOwner, network: &str, valid: &[(String, String)]) -> bool {
    owner.network == network
        && !valid.iter().any(|(id, ifname)| (id, ifname) == (&owner.container, &owner.ifname))
}
