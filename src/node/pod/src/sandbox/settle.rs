//! Finishing what a crash has interrupted.

use std::collections::BTreeSet;

use futures::stream::{self, StreamExt};

use crate::PodId;

use super::Sandboxes;
use super::config::{Sandbox, State};
use super::error::{Action, Cause, SandboxError};

impl Sandboxes {
    /// Finishes interrupted operations, for `parallel` pods at once. Removes sandboxes with an interrupted set-up, and
    /// stops those with an interrupted stop. Waits for concurrent operations and keeps their outcome. Goes on past
    /// failures.
    ///
    /// # Errors
    /// Everything that went wrong. It is tried again by the next call for the sandbox.
    pub async fn settle(&self, parallel: usize) -> Result<(), SandboxError> {
        let listing = self.list()?;
        let unsettled = listing.sandboxes.into_iter().filter(is_unsettled);
        let pods: BTreeSet<PodId> = unsettled.map(|of| of.config.pod).collect();
        // Values, for a closure with a lifetime keeps the future from being `Send`.
        let settled = stream::iter(pods.into_iter().map(|pod| (self.clone(), pod)))
            .map(|(sandboxes, pod)| async move { sandboxes.settle_pod(&pod).await })
            .buffer_unordered(parallel.max(1));
        let outcomes: Vec<_> = settled.collect().await;
        let failures = outcomes.into_iter().filter_map(Result::err);
        let causes: Vec<Cause> = failures.flat_map(SandboxError::into_causes).collect();
        if causes.is_empty() { Ok(()) } else { Err(SandboxError::Node { causes }) }
    }

    async fn settle_pod(&self, pod: &PodId) -> Result<(), SandboxError> {
        let failed = |causes| SandboxError::Pod { action: Action::Remove, pod: pod.clone(), causes };
        let _lock = self.lock(pod).await.map_err(|cause| failed(vec![cause]))?;
        let mut causes = Vec::new();
        for mut sandbox in self.inner.store.of_pod(pod).map_err(|cause| failed(vec![cause]))? {
            let outcome = match sandbox.state {
                State::SettingUp => self.remove_locked(&sandbox).await,
                State::Stopping => self.stop_on_record(&mut sandbox).await,
                State::Ready | State::Stopped => Ok(()),
            };
            causes.extend(outcome.err().into_iter().flatten());
        }
        if causes.is_empty() { Ok(()) } else { Err(failed(causes)) }
    }
}

fn is_unsettled(sandbox: &Sandbox) -> bool {
    matches!(sandbox.state, State::SettingUp | State::Stopping)
}
