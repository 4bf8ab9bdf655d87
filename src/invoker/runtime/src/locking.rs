//! Operations and the locks of their networks.

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
    /// Runs plugins while the lock is held. It takes no locks itself.
    pub fn invoker(&self) -> &Invoker {
        &self.invoker
    }

    /// Releases the lock and removes its files. Requires the lock on the whole node.
    pub fn clear(self) {
        if let Some((locks, held)) = self.held {
            locks.clear(held);
        }
    }
}

impl Invoker {
    /// Waits until no operation on this network goes on, or on any if it is `None`, and lets none begin. Only cnimble's
    /// operations take locks.
    ///
    /// # Errors
    /// There was no such moment in time; the locks can't be used.
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

    /// Together with other operations on this network, after a dropped ADD of this attachment is undone.
    pub(super) async fn together(&self, network: &str, attach: &Attach) -> Result<Option<Held>, Error> {
        let undone = self.abandoned.wait(network, attach);
        match self.exec.deadline {
            // From then on no plugin is started, so nothing runs beside the undo.
            Some(deadline) => _ = timeout_at(deadline.at, undone).await,
            None => undone.await,
        }
        match self.patient() {
            None => Ok(None),
            Some(locks) => Ok(Some(locks.shared(network).await?)),
        }
    }

    /// Waits no longer than the operation may take.
    fn patient(&self) -> Option<Locks> {
        let locks = self.locks.clone()?;
        let deadline = self.exec.deadline.map(|deadline| deadline.remaining());
        let limits = [Some(locks.limit()), self.operation_limit, deadline];
        let limit: Duration = limits.into_iter().flatten().min().unwrap_or_default();
        Some(locks.with_limit(limit))
    }
}
