//! Cleans up after pods that are gone.

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use tokio::sync::RwLockWriteGuard;
use tokio::time::sleep;

use cnimble_cni::{self as cni, Attachment, Code, NetworkList};
use cnimble_liveness::{Evidence, Sight, Verdict, data_dirs};
use cnimble_runtime::{Cache, Deadline, Entry, Error, Invoker};

use super::{INTERFACE, NetworkError, NetworkPlugin};

/// The pause between two tries to be the only operation.
const RETRY: Duration = Duration::from_millis(10);

/// The IDs of this process' sandboxes.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Sandboxed {
    /// Sandboxes whose pods live, or may live.
    pub valid: Vec<String>,
    /// Sandboxes of cnimble whose records are gone, so their pods are dead.
    pub lost: Vec<String>,
}

/// The clean-up of one network.
struct Task<'e> {
    list: NetworkList,
    /// Entries of the cache without a valid sandbox.
    unwanted: Vec<&'e Entry>,
    /// Whether no other runtime adds pods to it.
    is_own: bool,
}

impl NetworkPlugin {
    /// Runs DEL for each cache entry of sandboxes without a record. Another runtime may share the cache, so a possibly
    /// foreign entry stays while evidence for its attachment exists ([`cnimble_liveness`]). Only in
    /// [`NetworkOptions::own_networks`](super::NetworkOptions) plugins also get GC with a list of everything that may
    /// live. In others, no list could have what another runtime adds a moment later.
    ///
    /// Waits until no operation on a pod runs, and pods wait for its end. So it stops the running plugin at its
    /// [limit](super::NetworkOptions::gc_limit), and the next clean-up finds the rest. A sandbox that is set up after
    /// `known` was made would be cleaned up. Goes on past failures, and returns all.
    pub async fn gc(&self, known: &Sandboxed) -> Result<(), NetworkError> {
        let deadline = Deadline::after(self.inner.options.gc_limit);
        let _alone = self.alone(deadline).await?;
        let own = self.inner.options.invoker.cache();
        let cache_failed = |cause| NetworkError::Gc { failures: vec![Error::from(cause)] };
        let entries = own.list().map_err(cache_failed)?;
        let valid: BTreeSet<&str> = known.valid.iter().map(String::as_str).collect();
        let is_own = |name: &str| self.inner.options.own_networks.iter().any(|own| own == name);
        let mut work = Vec::new();
        for (name, list) in self.all_networks(&entries) {
            let of = |entry: &&Entry| entry.network == name && !valid.contains(entry.container_id.as_str());
            let unwanted: Vec<&Entry> = entries.iter().filter(of).collect();
            let is_own = is_own(&name);
            if is_own || !unwanted.is_empty() {
                work.push(Task { list, unwanted, is_own });
            }
        }
        let mut failures = Vec::new();
        let networks = work.len();
        for (done, task) in work.iter().enumerate() {
            // Each gets a share of the time, so that a hanging network does not keep others from being cleaned up.
            let left = deadline.remaining();
            let invoker = self.invoker(&task.list).with_deadline(share(left, networks - done));
            match invoker.alone(Some(&task.list.name)).await {
                Ok(alone) => failures.extend(self.clean(alone.invoker(), task, known).await),
                Err(err) => failures.push(err),
            }
        }
        if failures.is_empty() { Ok(()) } else { Err(NetworkError::Gc { failures }) }
    }

    /// Cleans one network up. `invoker` holds the network's lock.
    async fn clean(&self, invoker: &Invoker, task: &Task<'_>, known: &Sandboxed) -> Vec<Error> {
        let Task { list, unwanted, is_own } = task;
        let mut failures = Vec::new();
        // The evidence is read now, when no other command works on the network.
        let evidence = self.evidence();
        let sight = match tokio::task::spawn_blocking(move || Sight::look(&evidence)).await {
            Ok(Ok(sight)) => sight,
            Ok(Err(err)) => return vec![Error::Node(err)],
            Err(err) => return vec![Error::Node(cni::Error::new(Code::INTERNAL, err.to_string()))],
        };
        let dead = |entry: &&&Entry| {
            let judged = sight.node.entries.iter().find(|judged| judged.own && judged.entry == ***entry);
            known.lost.contains(&entry.container_id)
                || judged.is_some_and(|judged| matches!(judged.verdict, Verdict::Orphan(_)))
        };
        let dead: BTreeSet<(&str, &str)> = unwanted.iter().filter(dead).map(|entry| key(entry)).collect();
        for entry in unwanted.iter().filter(|entry| dead.contains(&key(entry))) {
            let with_result = !sight.node.is_anothers(entry);
            failures.extend(invoker.del_entry(entry, with_result).await.err());
        }
        if !is_own {
            return failures;
        }
        let mut valid = match sight.valid(&list.name) {
            Ok(valid) => valid,
            Err(why) => {
                log::warn!("network {}: its plugins were not asked to clean up: {why}", list.name);
                return failures;
            }
        };
        valid.retain(|of| !dead.contains(&(of.container_id.as_str(), of.ifname.as_str())));
        let ours = known.valid.iter();
        valid.extend(ours.map(|id| Attachment { container_id: id.clone(), ifname: INTERFACE.to_owned() }));
        valid.sort_by(|a, b| (&a.container_id, &a.ifname).cmp(&(&b.container_id, &b.ifname)));
        valid.dedup();
        failures.extend(invoker.gc_alone(list, Some(&valid)).await.err());
        failures
    }

    /// Returns the sources of evidence: the caches and the lease directories of all networks.
    fn evidence(&self) -> Evidence {
        let options = &self.inner.options;
        let mut evidence = Evidence::new(options.invoker.cache().clone());
        evidence.others = options.shared_caches.iter().map(Cache::new).collect();
        evidence.data_dirs.extend(self.state().networks.iter().flat_map(|network| data_dirs(&network.list)));
        evidence
    }

    /// Waits until no operation on a pod runs. It polls, because in a queue later pods would wait behind it for a slow
    /// operation. Fails with [`NetworkError::Busy`] if one still runs at the deadline.
    async fn alone(&self, deadline: Deadline) -> Result<RwLockWriteGuard<'_, ()>, NetworkError> {
        loop {
            if let Ok(guard) = self.inner.everything.try_write() {
                return Ok(guard);
            }
            if deadline.remaining().is_zero() {
                return Err(NetworkError::Busy { limit: deadline.limit() });
            }
            sleep(RETRY).await;
        }
    }

    /// Returns the networks of the configuration directory and, for other names, those of the entries.
    fn all_networks(&self, entries: &[Entry]) -> BTreeMap<String, NetworkList> {
        let mut networks = BTreeMap::new();
        // Of several networks with one name the first counts.
        for network in &self.state().networks {
            networks.entry(network.list.name.clone()).or_insert_with(|| network.list.clone());
        }
        for entry in entries {
            if !networks.contains_key(&entry.network)
                && let Ok(list) = entry.network_list()
            {
                networks.insert(entry.network.clone(), list);
            }
        }
        networks
    }
}

/// Returns a deadline after an equal part of the remaining time. It is rounded up to tenths of a second, because
/// messages show it.
fn share(left: Duration, parts: usize) -> Deadline {
    const TENTH: u128 = 100;
    let parts = u128::try_from(parts).unwrap_or(1).max(1);
    let tenths = (left.as_millis() / parts).div_ceil(TENTH);
    Deadline::after(Duration::from_millis(u64::try_from(tenths * TENTH).unwrap_or(u64::MAX)))
}

fn key(entry: &Entry) -> (&str, &str) {
    (&entry.container_id, &entry.ifname)
}
