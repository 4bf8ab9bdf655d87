//! Takes sandboxes down: one, or all that are unused.

use std::io;

use crate::PodId;
use crate::network::Sandboxed;

use super::config::{Sandbox, State};
use super::error::{Action, Cause, SandboxError};
use super::{Sandboxes, netns, process};

impl Sandboxes {
    /// Tears a sandbox's network down, ends its process and unpins its namespace. The record stays. A repeated stop
    /// succeeds, and so does a stop without the namespace.
    ///
    /// # Errors
    /// Returns all failures. The next call tries them again. Until the network is down the namespace stays, because
    /// plugins may need it.
    pub async fn stop(&self, id: &str) -> Result<(), SandboxError> {
        let Some(known) = self.get(id)? else {
            return Err(SandboxError::Unknown { id: id.to_owned() });
        };
        let pod = &known.config.pod;
        let failed = |causes| SandboxError::Pod { action: Action::Stop, pod: pod.clone(), causes };
        let _lock = self.lock(pod).await.map_err(|cause| failed(vec![cause]))?;
        // It may have changed while we waited.
        let Some(mut sandbox) = self.get(id)? else {
            return Ok(());
        };
        self.stop_on_record(&mut sandbox).await.map_err(failed)
    }

    /// Stops a sandbox and says so on its record.
    pub(super) async fn stop_on_record(&self, sandbox: &mut Sandbox) -> Result<(), Vec<Cause>> {
        if sandbox.state == State::Stopped {
            return Ok(());
        }
        self.stop_locked(sandbox).await?;
        sandbox.state = State::Stopped;
        sandbox.process = None;
        self.amend(sandbox).await.map_err(|cause| vec![cause])
    }

    /// Stops a sandbox and forgets it. Not to know it is success.
    ///
    /// # Errors
    /// As [`Sandboxes::stop`]; then it is still known.
    pub async fn remove(&self, id: &str) -> Result<(), SandboxError> {
        let Some(known) = self.get(id)? else {
            return Ok(());
        };
        let pod = &known.config.pod;
        let failed = |causes| SandboxError::Pod { action: Action::Remove, pod: pod.clone(), causes };
        let _lock = self.lock(pod).await.map_err(|cause| failed(vec![cause]))?;
        match self.get(id)? {
            Some(sandbox) => self.remove_locked(&sandbox).await.map_err(failed),
            None => Ok(()),
        }
    }

    /// Removes all sandboxes of a pod, including those with an unreadable record. Returns whether there were any.
    ///
    /// # Errors
    /// As [`Sandboxes::remove`], of all of them together.
    pub async fn down(&self, pod: &PodId) -> Result<bool, SandboxError> {
        let failed = |causes| SandboxError::Pod { action: Action::Remove, pod: pod.clone(), causes };
        let _lock = self.lock(pod).await.map_err(|cause| failed(vec![cause]))?;
        let sandboxes = self.inner.store.of_pod(pod).map_err(|cause| failed(vec![cause]))?;
        let mut causes = Vec::new();
        for sandbox in &sandboxes {
            causes.extend(self.remove_locked(sandbox).await.err().into_iter().flatten());
        }
        if causes.is_empty() { Ok(!sandboxes.is_empty()) } else { Err(failed(causes)) }
    }

    /// Cleans up what is unused: sandboxes from before a reboot, pinned namespaces that are on no
    /// record, and what is left of them in networks
    /// ([`NetworkPlugin::gc`](crate::network::NetworkPlugin::gc)). For the last two it waits until nothing else is going on,
    /// in other processes too, and has the time limit of
    /// [`NetworkPlugin::gc`](crate::network::NetworkPlugin::gc). Goes on past failures.
    ///
    /// # Errors
    /// Everything that went wrong.
    pub async fn gc(&self) -> Result<(), SandboxError> {
        let mut causes = Vec::new();
        // One by one, as pods: others needn't wait for plugins that take their time.
        for sandbox in self.list()?.sandboxes.iter().filter(|sandbox| self.is_stale(sandbox)) {
            if let Err(err) = self.remove(&sandbox.id).await {
                causes.extend(err.into_causes());
            }
        }
        let _alone = self.lock_everything().await?;
        let listing = self.list()?;
        // A record that can't be read: its pod may be alive.
        let unreadable = listing.problems.into_iter().map(|(id, _)| id);
        let valid: Vec<String> =
            unreadable.chain(listing.sandboxes.into_iter().map(|sandbox| sandbox.id)).collect();
        let dirs = [self.inner.options.netns_dir(), self.inner.options.pods_dir()];
        let lost = lost(&dirs, &valid)?;
        let known = Sandboxed { valid, lost };
        causes.extend(self.inner.network.gc(&known).await.err().map(Cause::from));
        for path in &dirs {
            causes.extend(self.sweep(path, &known.valid).err());
        }
        if causes.is_empty() { Ok(()) } else { Err(SandboxError::Node { causes }) }
    }

    /// Removes what is in `dir` under another name than a valid ID.
    fn sweep(&self, dir: &std::path::Path, valid: &[String]) -> Result<(), Cause> {
        for entry in std::fs::read_dir(dir).map_err(Cause::file("listing", dir))?.flatten() {
            let name = entry.file_name();
            if valid.iter().any(|id| name == id.as_str()) {
                continue;
            }
            let path = entry.path();
            if path.is_dir() {
                std::fs::remove_dir_all(&path).map_err(Cause::file("removing", path))?;
            } else {
                netns::remove(&path)?;
            }
        }
        Ok(())
    }

    /// The network goes first, for its plugins may need the namespace.
    async fn stop_locked(&self, sandbox: &Sandbox) -> Result<(), Vec<Cause>> {
        if sandbox.state == State::Stopped {
            return Ok(());
        }
        if sandbox.state == State::Ready {
            // Whoever finds it after a crash knows that its network may be incomplete. A full disk
            // keeps no sandbox from being stopped.
            let stopping = Sandbox { state: State::Stopping, ..sandbox.clone() };
            if let Err(cause) = self.amend(&stopping).await {
                log::warn!("sandbox {}: that it is being stopped is not on record: {cause}", sandbox.id);
            }
        } else {
            process::end_orphans(&sandbox.id).await;
        }
        if !sandbox.config.host_network {
            let mut pod = sandbox.network();
            pod.netns = self.netns_path(&sandbox.id);
            self.inner.network.tear_down(&pod).await.map_err(|err| vec![Cause::from(err)])?;
        }
        self.let_go(sandbox).await
    }

    /// Stops a sandbox and forgets it.
    pub(super) async fn remove_locked(&self, sandbox: &Sandbox) -> Result<(), Vec<Cause>> {
        self.stop_locked(sandbox).await?;
        self.inner.store.remove(sandbox).map_err(|cause| vec![cause])
    }

    /// Forgets a sandbox that has no network.
    pub(super) async fn discard(&self, sandbox: &Sandbox) -> Result<(), Vec<Cause>> {
        self.let_go(sandbox).await?;
        self.inner.store.remove(sandbox).map_err(|cause| vec![cause])
    }

    /// Everything but the network and the record.
    async fn let_go(&self, sandbox: &Sandbox) -> Result<(), Vec<Cause>> {
        let mut causes = Vec::new();
        // IDs of processes begin anew with each boot.
        if let Some(process) = sandbox.process.filter(|_| !self.is_stale(sandbox)) {
            process::end(process).await;
        }
        causes.extend(netns::remove(&self.netns_path(&sandbox.id)).err().map(Cause::from));
        let dir = self.run_path(&sandbox.id);
        match std::fs::remove_dir_all(&dir) {
            Err(err) if err.kind() != io::ErrorKind::NotFound => {
                causes.push(Cause::file("removing", dir)(err));
            }
            _ => {}
        }
        if causes.is_empty() { Ok(()) } else { Err(causes) }
    }
}

/// The entries of these directories without a valid sandbox ID.
fn lost(dirs: &[std::path::PathBuf], valid: &[String]) -> Result<Vec<String>, Cause> {
    let mut lost = Vec::new();
    for dir in dirs {
        let entries = std::fs::read_dir(dir).map_err(Cause::file("listing", dir))?;
        let names = entries.flatten().filter_map(|entry| entry.file_name().into_string().ok());
        lost.extend(names.filter(|name| !valid.contains(name)));
    }
    Ok(lost)
}
