//! Completes operations that a crash has interrupted.

use std::collections::BTreeSet;

use futures::stream::{self, StreamExt};

use crate::PodId;

use super::Sandboxes;
use super::config::{Sandbox, SandboxState};
use super::error::{Causes, SandboxError, SandboxOperation};

impl Sandboxes {
    /// Removes sandboxes with a set-up that a crash interrupted, and finishes interrupted stops, for `parallel` pods at
    /// once. Waits for concurrent operations. Goes on past failures, which the next call for the sandbox tries again.
    pub async fn finish_interrupted(&self, parallel: usize) -> Result<(), SandboxError> {
        let listing = self.list()?;
        let unsettled = listing.sandboxes.into_iter().filter(is_unsettled);
        let pods: BTreeSet<PodId> = unsettled.map(|of| of.config.pod).collect();
        // A closure with a lifetime would make the future not `Send`.
        let settled = stream::iter(pods.into_iter().map(|pod| (self.clone(), pod)))
            .map(|(sandboxes, pod)| async move { sandboxes.settle_pod(&pod).await })
            .buffer_unordered(parallel.max(1));
        let mut causes = Causes::default();
        settled.collect::<Vec<_>>().await.into_iter().for_each(|outcome| causes.add(outcome));
        Ok(causes.into_result()?)
    }

    async fn settle_pod(&self, pod: &PodId) -> Result<(), SandboxError> {
        let lock = self.lock(pod).await;
        let _lock = lock.map_err(|causes| causes.into_error(SandboxOperation::Remove, pod))?;
        let mut causes = Causes::default();
        let sandboxes = self.inner.store.of_pod(pod);
        for mut sandbox in
            sandboxes.map_err(|cause| Causes::from(cause).into_error(SandboxOperation::Remove, pod))?
        {
            causes.add(match sandbox.state {
                SandboxState::SettingUp => self.remove_locked(&sandbox).await,
                SandboxState::Stopping => self.stop_on_record(&mut sandbox).await,
                SandboxState::Ready | SandboxState::Stopped => Ok(()),
            });
        }
        causes.into_result().map_err(|causes| causes.into_error(SandboxOperation::Remove, pod))
    }
}

/// Returns whether an operation on the sandbox was interrupted, or is running.
fn is_unsettled(sandbox: &Sandbox) -> bool {
    matches!(sandbox.state, SandboxState::SettingUp | SandboxState::Stopping)
}
