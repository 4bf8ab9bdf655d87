//! GC and STATUS, the verbs about a network rather than one container.

use cnimble_cni::list::Injection;
use cnimble_cni::{Attachment, NetworkList, Verb, Version};

use super::error::{Error, Failure, Failures, outcome};
use super::{Attach, Entry, Invoker, check_names};

impl Invoker {
    /// Cleans up what belongs to no attachment in `valid`. First runs DEL for each invalid attachment of this network
    /// in the cache, as [`Invoker::del`] does. From version 1.1.0 on it then runs GC of each plugin. It also runs GC of
    /// plugins that only a record of an ADD names, for which the version of that record counts. Goes on past failures.
    /// Does nothing if the network says `disableGC`.
    ///
    /// `None` is *no list*: the valid attachments are unknown. Nothing is deleted, and the plugins get no list either.
    /// With an empty list no attachment is valid, and all are deleted. libcni deletes all in both cases.
    ///
    /// Holds the network's lock, so no other locked operation runs meanwhile. Other runtimes take no lock, so the list
    /// must include the attachments of their running ADDs.
    ///
    /// # Errors
    /// Fails with the failures of all plugins together, for a locked network, and if the cache can't be listed. Fails
    /// after the work if a record of the network can't be read: its attachment got no DEL.
    pub async fn gc(&self, network: &NetworkList, valid: Option<&[Attachment]>) -> Result<(), Error> {
        if network.disable_gc {
            return Ok(());
        }
        let alone = self.alone(Some(&network.name)).await?;
        alone.invoker().gc_alone(network, valid).await
    }

    /// Does the same as [`gc`](Self::gc) for a network that is locked.
    ///
    /// # Errors
    /// Fails as [`gc`](Self::gc) does.
    #[doc(hidden)]
    pub async fn gc_alone(&self, network: &NetworkList, valid: Option<&[Attachment]>) -> Result<(), Error> {
        if network.disable_gc {
            return Ok(());
        }
        let (mut entries, mut unread) = self.cache.list_with_unread()?;
        entries.retain(|entry| entry.network == network.name);
        // The file's name begins with that of the network. A longer name of another network can begin with it, too.
        let prefix = format!("{}-", network.name);
        unread.retain(|err| {
            err.path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(&prefix))
        });
        // This comes before the DELs, which remove the records.
        let recorded = self.recorded_plugins(network, &entries);
        let mut failures = self.del_stale(network, &entries, valid).await?;
        let file = network.plugins.iter().filter(|_| network.version >= Version::V1_1_0);
        let file = file.map(|plugin| (network, plugin));
        let this = self.begin();
        for (network, plugin) in file.chain(recorded.iter().map(|(network, plugin)| (network, plugin))) {
            if self.is_over_after(&failures) {
                break;
            }
            // The list is under the specification's key, and under the one that plugins knew before.
            failures.extend(this.call(Verb::Gc, network, plugin, None, Injection::gc(valid)).await.err());
        }
        outcome(failures)?;
        match unread.into_iter().next() {
            Some(cause) => Err(Error::Cache { cause, rollback: Vec::new() }),
            None => Ok(()),
        }
    }

    /// Runs DEL of the attachments of `entries` that aren't in `valid`, and returns the failures. Without a list it
    /// does nothing.
    async fn del_stale(
        &self,
        network: &NetworkList,
        entries: &[Entry],
        valid: Option<&[Attachment]>,
    ) -> Result<Vec<Failure>, Error> {
        let Some(valid) = valid else { return Ok(Vec::new()) };
        let (mut failures, mut changed) = (Vec::new(), Vec::new());
        for attach in entries.iter().map(Attach::from_entry).filter(|of| !valid.contains(&of.attachment())) {
            if self.is_over_after(&failures) {
                break;
            }
            if let Err(err) = check_names(&network.name, &attach) {
                // No plugin takes such names, so this attachment was never added.
                log::warn!("result cache: skipped an entry of {}: {err}", network.name);
                continue;
            }
            let _together = self.together(&network.name, &attach).await?;
            let recorded = self.recorded(network, &attach);
            changed.extend(recorded.configuration.difference.clone());
            if let Some(why) = &recorded.configuration.unusable {
                log::warn!("{why}; DEL goes by the configuration that GC was given");
            }
            match self.del_unlocked(recorded, &attach).await {
                Ok(()) => {}
                Err(Error::Plugins(failed)) => {
                    let Failures { first, others, .. } = *failed;
                    failures.extend(std::iter::once(first).chain(others).map(|mut failure| {
                        failure.attachment = Some(attach.attachment());
                        failure
                    }));
                }
                Err(err) => return Err(err),
            }
        }
        // One line tells of all: there may be hundreds.
        match changed.as_slice() {
            [] => {}
            [difference] => log::warn!(
                "network {} is not configured as at the ADD of an attachment: {difference}; DEL goes by its record",
                network.name
            ),
            [first, ..] => log::warn!(
                "network {} is not configured as at the ADDs of {} attachments, for one of them: {first}; DEL goes by \
                 their records",
                network.name,
                changed.len()
            ),
        }
        Ok(failures)
    }

    /// Returns whether the deadline has passed, and a failure says so already. Reports the timeout once instead of once
    /// for each remaining entry.
    fn is_over_after(&self, failures: &[Failure]) -> bool {
        !failures.is_empty() && self.exec.is_over()
    }

    /// Asks every plugin whether it could serve ADD now. Below version 1.1.0 it asks none and succeeds.
    ///
    /// # Errors
    /// Fails with the first plugin's failure and its code: 50 is "not available", and 51 adds that existing containers
    /// may have limited connectivity.
    pub async fn status(&self, network: &NetworkList) -> Result<(), Error> {
        if network.version < Version::V1_1_0 {
            return Ok(());
        }
        let this = self.begin();
        for plugin in &network.plugins {
            let answer = this.call(Verb::Status, network, plugin, None, Injection::status()).await;
            answer.map_err(Failures::from_one)?;
        }
        Ok(())
    }
}
