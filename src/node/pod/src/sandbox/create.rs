//! Makes a sandbox beside others of its pod, for callers that count attempts themselves.

use std::future::Future;
use std::pin::{Pin, pin};

use crate::network::Bandwidth;

use super::Sandboxes;
use super::config::{Sandbox, SandboxConfig};
use super::error::{Cause, Causes, SandboxError, SandboxOperation};

impl Sandboxes {
    /// Makes a sandbox for CRI's RunPodSandbox. Sandboxes of other attempts or UIDs stay. A useless one of the same
    /// attempt (unfinished, stopped, from before a reboot) is taken down first. **Cancellation.** `cancelled` ends it
    /// and undoes what was made; prefer that to dropping the future ([`Sandboxes::run`]). Fails with [`Cause::Exists`]
    /// if one is ready, or with every failure, the cause first.
    pub async fn create(
        &self,
        config: &SandboxConfig,
        attempt: u32,
        cancelled: impl Future<Output = ()>,
    ) -> Result<Sandbox, SandboxError> {
        let mut cancelled = pin!(cancelled);
        let lock = tokio::select! {
            lock = self.lock(&config.pod) => lock,
            () = cancelled.as_mut() => Err(Cause::Cancelled.into()),
        };
        let _lock = lock.map_err(|causes| causes.into_error(SandboxOperation::Run, &config.pod))?;
        let created = self.create_locked(config, attempt, cancelled).await;
        created.map_err(|causes| causes.into_error(SandboxOperation::Run, &config.pod))
    }

    async fn create_locked(
        &self,
        config: &SandboxConfig,
        attempt: u32,
        cancelled: Pin<&mut impl Future<Output = ()>>,
    ) -> Result<Sandbox, Causes> {
        Bandwidth::from_annotations(&config.annotations).map_err(Cause::from)?;
        let present = self.inner.store.of_pod(&config.pod)?;
        for old in present.iter().filter(|of| of.config.uid == config.uid && of.attempt == attempt) {
            if self.fault(old).is_none() {
                return Err(Cause::Exists { id: old.id.clone(), attempt }.into());
            }
            self.remove_locked(old).await?;
        }
        self.make_new(config, attempt, cancelled).await
    }
}
