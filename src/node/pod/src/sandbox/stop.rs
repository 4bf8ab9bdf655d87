use std::path::PathBuf;

use cnimble_os::files::IfPresent;

use crate::PodId;
use crate::network::Sandboxed;

use super::config::{Sandbox, SandboxState};
use super::error::{Cause, Causes, SandboxError, SandboxOperation};
use super::{Sandboxes, netns, process};

impl Sandboxes {
    /// Stops a sandbox, whose record stays. It can be repeated, also without the namespace. The namespace stays until
    /// the network is down, because plugins may need it.
    ///
    /// # Errors
    /// Fails for an unknown ID, and with all failures. The caller then calls it again.
    pub async fn stop(&self, id: &str) -> Result<(), SandboxError> {
        let Some(known) = self.get(id)? else {
            return Err(SandboxError::Unknown { id: id.to_owned() });
        };
        let pod = &known.config.pod;
        let lock = self.lock(pod).await;
        let _lock = lock.map_err(|causes| causes.into_error(SandboxOperation::Stop, pod))?;
        // The sandbox may have changed during the wait for the lock.
        let Some(mut sandbox) = self.get(id)? else {
            return Ok(());
        };
        let stopped = self.stop_on_record(&mut sandbox).await;
        stopped.map_err(|causes| causes.into_error(SandboxOperation::Stop, pod))
    }

    /// Stops a sandbox and records that. The caller holds the lock.
    pub(super) async fn stop_on_record(&self, sandbox: &mut Sandbox) -> Result<(), Causes> {
        if sandbox.state == SandboxState::Stopped {
            return Ok(());
        }
        self.stop_locked(sandbox).await?;
        sandbox.state = SandboxState::Stopped;
        sandbox.process = None;
        Ok(self.amend(sandbox).await?)
    }

    /// Stops a sandbox and removes its record. A missing one is success. After a failure the record stays.
    pub async fn remove(&self, id: &str) -> Result<(), SandboxError> {
        let Some(known) = self.get(id)? else {
            return Ok(());
        };
        let pod = &known.config.pod;
        let lock = self.lock(pod).await;
        let _lock = lock.map_err(|causes| causes.into_error(SandboxOperation::Remove, pod))?;
        let Some(sandbox) = self.get(id)? else {
            return Ok(());
        };
        let removed = self.remove_locked(&sandbox).await;
        removed.map_err(|causes| causes.into_error(SandboxOperation::Remove, pod))
    }

    /// Stops and removes all sandboxes of a pod, also those with unreadable records. Returns false if there were none.
    /// Goes on past failures, and returns all.
    pub async fn down(&self, pod: &PodId) -> Result<bool, SandboxError> {
        let lock = self.lock(pod).await;
        let _lock = lock.map_err(|causes| causes.into_error(SandboxOperation::Remove, pod))?;
        let sandboxes = self.inner.store.of_pod(pod);
        let sandboxes =
            sandboxes.map_err(|cause| Causes::from(cause).into_error(SandboxOperation::Remove, pod))?;
        let mut causes = Causes::default();
        for sandbox in &sandboxes {
            causes.add(self.remove_locked(sandbox).await);
        }
        causes.into_result().map_err(|causes| causes.into_error(SandboxOperation::Remove, pod))?;
        Ok(!sandboxes.is_empty())
    }

    /// Removes sandboxes from before a reboot, pinned namespaces without a record, and their remains in networks
    /// ([`NetworkPlugin::gc`](crate::network::NetworkPlugin::gc)). For the last two it waits for a quiet moment of all
    /// processes. Goes on past failures.
    pub async fn gc(&self) -> Result<(), SandboxError> {
        let mut causes = Causes::default();
        // They are removed one by one under their own locks, so that other pods don't wait for slow plugins.
        for sandbox in self.list()?.sandboxes.iter().filter(|sandbox| self.is_stale(sandbox)) {
            causes.add(self.remove(&sandbox.id).await);
        }
        let _alone = self.lock_everything().await?;
        let listing = self.list()?;
        // A pod with an unreadable record may live.
        let unreadable = listing.problems.into_iter().map(|(id, _)| id);
        let valid: Vec<String> =
            unreadable.chain(listing.sandboxes.into_iter().map(|sandbox| sandbox.id)).collect();
        let dirs = [self.inner.options.netns_dir(), self.inner.options.pods_dir()];
        let paths = lost(&dirs, &valid)?;
        let lost = paths.iter().filter_map(|path| Some(path.file_name()?.to_str()?.to_owned())).collect();
        causes.add(self.inner.network.gc(&Sandboxed { valid, lost }).await.map_err(Cause::from));
        for path in paths {
            causes.add(if path.is_dir() {
                std::fs::remove_dir_all(&path).map_err(Cause::file("removing", path))
            } else {
                netns::remove(&path).map_err(Cause::from)
            });
        }
        Ok(causes.into_result()?)
    }

    /// Stops a sandbox under its lock. The network comes first, because its plugins may need the namespace.
    async fn stop_locked(&self, sandbox: &Sandbox) -> Result<(), Causes> {
        if sandbox.state == SandboxState::Stopped {
            return Ok(());
        }
        if sandbox.state == SandboxState::Ready {
            // A crash from here on must not leave a ready record. A full disk must not keep a sandbox from being
            // stopped.
            let stopping = Sandbox { state: SandboxState::Stopping, ..sandbox.clone() };
            if let Err(cause) = self.amend(&stopping).await {
                log::warn!("sandbox {}: that it is being stopped is not on record: {cause}", sandbox.id);
            }
        } else {
            process::end_orphans(&sandbox.id).await;
        }
        if !sandbox.config.host_network {
            let mut pod = sandbox.network();
            pod.netns = self.netns_path(&sandbox.id);
            self.inner.network.tear_down(&pod).await.map_err(Cause::from)?;
        }
        self.release(sandbox).await
    }

    /// Stops a sandbox and removes its record. The caller holds the lock.
    pub(super) async fn remove_locked(&self, sandbox: &Sandbox) -> Result<(), Causes> {
        self.stop_locked(sandbox).await?;
        Ok(self.inner.store.remove(sandbox)?)
    }

    /// Removes a sandbox without a network, with its record.
    pub(super) async fn discard(&self, sandbox: &Sandbox) -> Result<(), Causes> {
        self.release(sandbox).await?;
        Ok(self.inner.store.remove(sandbox)?)
    }

    /// Removes everything but the network and the record. Goes on past failures.
    async fn release(&self, sandbox: &Sandbox) -> Result<(), Causes> {
        let mut causes = Causes::default();
        // Process IDs of an earlier boot name other processes now.
        if let Some(process) = sandbox.process.filter(|_| !self.is_stale(sandbox)) {
            process::end(process).await;
        }
        causes.add(netns::remove(&self.netns_path(&sandbox.id)).map_err(Cause::from));
        let dir = self.run_path(&sandbox.id);
        let removed = std::fs::remove_dir_all(&dir).if_present();
        causes.add(removed.map(drop).map_err(Cause::file("removing", dir)));
        causes.into_result()
    }
}

/// Returns the entries of these directories whose names are no valid ID.
fn lost(dirs: &[PathBuf], valid: &[String]) -> Result<Vec<PathBuf>, Cause> {
    let mut lost = Vec::new();
    for dir in dirs {
        let entries = std::fs::read_dir(dir).map_err(Cause::file("listing", dir))?;
        let paths = entries.flatten().map(|entry| entry.path());
        lost.extend(paths.filter(|path| !valid.iter().any(|id| path.ends_with(id))));
    }
    Ok(lost)
}
