//! GC and STATUS: the verbs about a network rather than one container.

use cnimble_cni::list::Injection;
use cnimble_cni::{Attachment, NetworkList, Verb, Version};

use super::error::{Error, Failure, Failures, outcome};
use super::{Attach, Invoker};

impl Invoker {
    /// Cleans up what belongs to no attachment in `valid`. First runs DEL for each invalid attachment of this network
    /// in the cache. From version 1.1.0 on it then runs GC of each plugin. Goes on past failures. Does nothing if the
    /// network says `disableGC`.
    ///
    /// `None` is *no list*: the valid attachments are unknown. Nothing is deleted, and the plugins get no list either.
    /// With an empty list no attachment is valid, and all are deleted. libcni deletes all in both cases.
    ///
    /// Holds the network's lock, so no other locked operation runs meanwhile. The list must include the running ADDs of
    /// other runtimes, which take no lock.
    ///
    /// # Errors
    /// All failures together; the cache's if it can't be listed.
    pub async fn gc(&self, network: &NetworkList, valid: Option<&[Attachment]>) -> Result<(), Error> {
        if network.disable_gc {
            return Ok(());
        }
        let alone = self.alone(Some(&network.name)).await?;
        alone.invoker().gc_alone(network, valid).await
    }

    /// The same for a network that is locked.
    ///
    /// # Errors
    /// Fails as [`gc`](Self::gc) does.
    #[doc(hidden)]
    pub async fn gc_alone(&self, network: &NetworkList, valid: Option<&[Attachment]>) -> Result<(), Error> {
        if network.disable_gc {
            return Ok(());
        }
        let mut failures = Vec::new();
        // Reports the timeout once instead of once for each remaining entry.
        let over = |failures: &[Failure]| !failures.is_empty() && self.exec.is_over();
        for attach in self.stale(network, valid)? {
            if over(&failures) {
                break;
            }
            match self.del(network, &attach).await {
                Ok(()) => {}
                Err(Error::Plugins(failed)) => {
                    let Failures { first, others, .. } = *failed;
                    failures.extend(std::iter::once(first).chain(others).map(|mut failure| {
                        failure.attachment = Some(attach.attachment());
                        failure
                    }));
                }
                // An entry whose names no plugin would take can't have been added.
                Err(err) => log::warn!("result cache: skipped an entry of {}: {err}", network.name),
            }
        }
        if network.version >= Version::V1_1_0 {
            let this = self.begin();
            for plugin in &network.plugins {
                if over(&failures) {
                    break;
                }
                // Under the specification's key and the one that plugins knew before.
                failures.extend(this.call(Verb::Gc, network, plugin, None, Injection::gc(valid)).await.err());
            }
        }
        outcome(failures)
    }

    /// Asks every plugin whether it could serve ADD now. Below version 1.1.0 the answer is yes.
    ///
    /// # Errors
    /// The first plugin's failure, with its code: 50 is "not now", 51 "and what runs may be impaired".
    pub async fn status(&self, network: &NetworkList) -> Result<(), Error> {
        if network.version < Version::V1_1_0 {
            return Ok(());
        }
        let this = self.begin();
        for plugin in &network.plugins {
            let answer = this.call(Verb::Status, network, plugin, None, Injection::status()).await;
            answer.map_err(Failures::one)?;
        }
        Ok(())
    }

    fn stale(&self, network: &NetworkList, valid: Option<&[Attachment]>) -> Result<Vec<Attach>, Error> {
        let Some(valid) = valid else {
            return Ok(Vec::new());
        };
        let entries = self.cache.list()?;
        let is_valid = |container_id: &str, ifname: &str| {
            valid.iter().any(|of| of.container_id == container_id && of.ifname == ifname)
        };
        Ok(entries
            .iter()
            .filter(|entry| entry.network == network.name && !is_valid(&entry.container_id, &entry.ifname))
            .map(Attach::from_entry)
            .collect())
    }
}
