//! DEL from the cache alone, for callers that don't know the network any more.

use super::{Attach, ConfError, Error, Invoker, Key};

impl Invoker {
    /// Takes an attachment back with what the cache knows of its ADD: configuration,
    /// arguments, capability arguments and namespace. Whether there was an entry; a corrupt
    /// one is none.
    ///
    /// Right when the network's file has changed or gone since; [`Invoker::del`] goes by
    /// the configuration that it is given.
    ///
    /// # Errors
    /// As [`Invoker::del`]; the entry can't be read, or has no configuration that can be
    /// used (libcni before 0.8 kept none).
    pub async fn del_recorded(&self, key: Key<'_>) -> Result<bool, Error> {
        let found = self.cache.get(key).map_err(|cause| Error::Cache { cause, rollback: Vec::new() })?;
        let Some(entry) = found.entry() else {
            return Ok(false);
        };
        let network = entry
            .network_list()
            .map_err(|reason| ConfError::Invalid { path: self.cache.path(key), reason })?;
        self.del(&network, &Attach::from_entry(&entry)).await?;
        Ok(true)
    }
}
