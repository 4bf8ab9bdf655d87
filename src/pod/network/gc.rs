//! Cleaning up after pods that are gone, in all networks.

use std::collections::{BTreeMap, BTreeSet};

use crate::runtime::{Cache, Entry, Error};
use crate::spec::{Attachment, NetworkList};

use super::{INTERFACE, NetworkError, NetworkPlugin};

impl NetworkPlugin {
    /// Cleans up in all networks, those of the directory and those that only the cache
    /// remembers: what belongs neither to one of the sandboxes in `valid` nor to another
    /// runtime's container ([`NetworkOptions::shared_caches`](super::NetworkOptions)) goes.
    /// Waits until no operation is going on, and lets none begin. Goes on past failures.
    ///
    /// # Errors
    /// All failures together.
    pub async fn gc(&self, valid: &[String]) -> Result<(), NetworkError> {
        let _alone = self.inner.everything.write().await;
        let own = self.inner.options.invoker.cache();
        let cache_failed =
            |cause| NetworkError::Gc { failures: vec![Error::Cache { cause, rollback: Vec::new() }] };
        let entries = own.list().map_err(cache_failed)?;
        let valid_ids: BTreeSet<&str> = valid.iter().map(String::as_str).collect();
        let mut attachments: BTreeSet<(String, String)> = BTreeSet::new();
        for id in valid {
            attachments.insert((id.clone(), INTERFACE.to_owned()));
        }
        let of_ours = entries.iter().filter(|entry| valid_ids.contains(entry.container_id.as_str()));
        attachments.extend(of_ours.map(key));
        for dir in self.inner.options.shared_caches.iter().filter(|dir| *dir != own.dir()) {
            // Not to know what is others' would mean to clean it away.
            let theirs = Cache::new(dir).list().map_err(cache_failed)?;
            attachments.extend(theirs.iter().map(key));
        }
        let attachments: Vec<Attachment> = attachments
            .into_iter()
            .map(|(container_id, ifname)| Attachment { container_id, ifname })
            .collect();
        let mut failures = Vec::new();
        for list in self.all_networks(&entries).values() {
            failures.extend(self.invoker(list).gc(list, Some(&attachments)).await.err());
        }
        if failures.is_empty() { Ok(()) } else { Err(NetworkError::Gc { failures }) }
    }

    /// The networks of the directory, and those that the cache knows besides, by name.
    fn all_networks(&self, entries: &[Entry]) -> BTreeMap<String, NetworkList> {
        let mut networks = BTreeMap::new();
        // The first of a name counts.
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

fn key(entry: &Entry) -> (String, String) {
    (entry.container_id.clone(), entry.ifname.clone())
}
