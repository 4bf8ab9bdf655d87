//! The locks that operations on networks take.

use std::time::Duration;

use tokio::time::timeout_at;

use crate::locks::{Held, Locks};

use super::{Attach, Error, Invoker};

/// An exclusive lock on one network, or on all networks of the node. Released on drop.
#[derive(Debug)]
pub struct Alone {
    invoker: Invoker,
    held: Option<(Locks, Held)>,
}

impl Alone {
    /// Returns an invoker to run plugins while the lock is held. It takes no locks itself, because it would wait for
    /// this one.
    pub fn invoker(&self) -> &Invoker {
        &self.invoker
    }

    /// Releases the lock and removes the lock files of all networks. The lock must be that of the whole node.
    pub fn clear(self) {
        if let Some((locks, held)) = self.held {
            locks.clear(held);
        }
    }
}

impl Invoker {
    /// Waits until no operation of cnimble runs on this network, or on any network for `None`. None begins while the
    /// result exists. Runtimes other than cnimble take no locks. Without [`Invoker::with_locks`] this locks nothing.
    ///
    /// # Errors
    /// Fails if others held the lock until the time limit, or if the lock files can't be used.
    pub async fn alone(&self, network: Option<&str>) -> Result<Alone, Error> {
        let mut held = None;
        if let Some(locks) = self.patient() {
            let lock = match network {
                Some(network) => locks.alone(network).await?,
                None => locks.node_alone().await?,
            };
            held = Some((locks, lock));
        }
        Ok(Alone { invoker: Invoker { locks: None, ..self.clone() }, held })
    }

    /// Takes the lock that operations on attachments of this network share. Before that it waits until a dropped ADD of
    /// this attachment is undone. Returns `None` if the invoker has no locks.
    pub(super) async fn together(&self, network: &str, attach: &Attach) -> Result<Option<Held>, Error> {
        let undone = self.abandoned.wait(network, attach);
        match self.exec.deadline {
            // After the deadline no plugin is started, so no plugin of this operation runs beside the undo.
            Some(deadline) => _ = timeout_at(deadline.at, undone).await,
            None => undone.await,
        }
        match self.patient() {
            None => Ok(None),
            Some(locks) => Ok(Some(locks.shared(network).await?)),
        }
    }

    /// Returns the locks with a limit for waiting that is no longer than the operation may take. It returns `None`
    /// without locks.
    fn patient(&self) -> Option<Locks> {
        let locks = self.locks.clone()?;
        let deadline = self.exec.deadline.map(|deadline| deadline.remaining());
        let limits = [Some(locks.limit()), self.operation_limit, deadline];
        let limit: Duration = limits.into_iter().flatten().min().unwrap_or_default();
        Some(locks.with_limit(limit))
    }
}
