//! Verbs for attachments whose configuration is known from the cache alone.

use cnimble_cni::list::{Injection, ListEntry};
use cnimble_cni::{NetworkList, Verb};

use super::error::{PluginError, outcome};
use super::{Attach, ConfError, Entry, Error, Invoker, Key};

impl Invoker {
    /// Runs DEL with what the cache knows of the ADD: configuration, arguments, capability arguments and namespace. It
    /// needs no file of the network. Returns false if the cache has no good entry, and then does nothing.
    ///
    /// # Errors
    /// Fails as [`Invoker::del`] does, if the entry can't be read, and if it has no configuration (libcni before 0.8).
    pub async fn del_recorded(&self, key: Key<'_>) -> Result<bool, Error> {
        let found = self.cache.get(key)?;
        let Some(entry) = found.entry() else {
            return Ok(false);
        };
        let network = self.network_of(&entry)?;
        self.del(&network, &Attach::from_entry(&entry)).await?;
        Ok(true)
    }

    /// Runs DEL of an entry that has been read. With `with_result` it does what [`Invoker::del_recorded`] does. Without
    /// it the plugins get no result, which could lead them to objects of others.
    ///
    /// Returns false if the cache has no such entry any more, so that no DEL has run.
    ///
    /// # Errors
    /// Fails as [`Invoker::del_recorded`] does.
    #[doc(hidden)]
    pub async fn del_entry(&self, entry: &Entry, with_result: bool) -> Result<bool, Error> {
        if with_result {
            return self.del_recorded(entry.key()).await;
        }
        let network = self.network_of(entry)?;
        let attach = Attach::from_entry(entry);
        let _together = self.together(&network.name, &attach).await?;
        if self.cache.get(entry.key())?.entry().as_ref() != Some(entry) {
            return Ok(false);
        }
        outcome(self.del_chain(&network, &network.plugins, &attach, None).await)?;
        self.cache.remove(entry.key())?;
        Ok(true)
    }

    /// Returns the network as the entry recorded it.
    fn network_of(&self, entry: &Entry) -> Result<NetworkList, ConfError> {
        entry
            .network_list()
            .map_err(|reason| ConfError::Invalid { path: self.cache.path(entry.key()), reason })
    }

    /// Runs one verb of one plugin of an entry's network, with the entry's result as `prevResult`. It takes no lock, so
    /// the caller holds that of [`Invoker::alone`]. It does not change the cache.
    ///
    /// # Errors
    /// Fails if the plugin fails.
    #[doc(hidden)]
    pub async fn replay(
        &self,
        verb: Verb,
        entry: &Entry,
        network: &NetworkList,
        plugin: &ListEntry,
    ) -> Result<(), PluginError> {
        let attach = Attach::from_entry(entry);
        let injection = Injection::attachment(entry.result.as_ref(), &attach.capability_args);
        let answer = self.call(verb, network, plugin, Some(&attach), injection).await;
        answer.map(drop).map_err(|failure| failure.cause)
    }
}
