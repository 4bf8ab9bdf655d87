//! Locks between processes of cnimble, and the order in which they are taken.
//!
//! Work on attachments shares a network with other such work; a clean-up has it alone. There are two levels: the node,
//! which all work shares except a clean-up of an unknown network, and each network. The files are in one place, so
//! `cnimble add`, `cnimble pod` and `cnimble run` meet there.
//!
//! **The order**, first to last; a process never waits for a lock while it holds a later one:
//!
//! 1. `run.lock` in a state directory: one `cnimble run` or `cnimble serve`.
//! 2. `everything` in a run directory: work on pods shares it, a clean-up of pods has it alone.
//! 3. The pod's own, in the same directory.
//! 4. The node's ([`Locks`]).
//! 5. The network's ([`Locks`]).
//! 6. Locks of the plugins, which the doctor takes too: a directory of leases, iptables.
//!
//! **Plugins take none of the first five.** A runtime that isn't cnimble knows nothing of them. The evidence that
//! `cnimble_liveness` uses protects a running ADD of such a runtime.
//!
//! Locks are flock(2)'s: the kernel releases them when a process dies. Only root can open the files (0600, in
//! directories of mode 0700). Every wait is bounded; after a second its log names the holders, and at the bound it is
//! an error.

mod error;
mod file;
mod holders;
mod turn;

use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::time::Instant;

use cnimble_cni::hash::sha512_hex;

pub use error::LockError;
#[doc(hidden)]
pub use file::{FileLock, LockMode, Wait, private_dir};

/// The usual directory of the locks of node and networks.
pub const DEFAULT_DIR: &str = "/run/cnimble/locks";

/// How long to wait for the lock of a network: more than an ADD takes, less than runtimes wait.
pub const LIMIT: Duration = Duration::from_secs(120);

/// The longest network name in a file's name.
const NAME_LIMIT: usize = 200;

/// The locks of the node and its networks.
#[derive(Debug, Clone)]
pub struct Locks {
    dir: PathBuf,
    limit: Duration,
}

/// The locks of one operation. They are released on drop.
#[derive(Debug)]
pub struct Held(#[expect(dead_code, reason = "held, not read")] Vec<FileLock>);

impl Locks {
    /// Uses the lock files in this directory, which is made when the first lock is taken.
    pub fn new(dir: impl Into<PathBuf>) -> Self {
        Locks { dir: dir.into(), limit: LIMIT }
    }

    /// Sets another limit for a wait.
    #[must_use]
    pub fn with_limit(mut self, limit: Duration) -> Self {
        self.limit = limit;
        self
    }

    /// Returns the directory of the lock files.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Returns the limit for a wait.
    pub fn limit(&self) -> Duration {
        self.limit
    }

    /// Takes the lock for work on an attachment in this network, which other such work shares. If the files can't be
    /// made for lack of permission or space, this logs a warning and holds no lock. The operation is then as safe as
    /// that of any other runtime.
    ///
    /// # Errors
    /// Fails if a clean-up of the network did not end in time, or if the files can't be used for another reason.
    pub async fn shared(&self, network: &str) -> Result<Held, LockError> {
        match self.take_both(network, LockMode::Shared).await {
            Err(LockError::File { doing, path, source }) if is_unmakable(&source) => {
                log::warn!("{doing} {}: {source}; going on without a lock", path.display());
                Ok(Held(Vec::new()))
            }
            outcome => outcome,
        }
    }

    /// Takes the exclusive lock for cleaning this network up.
    ///
    /// # Errors
    /// Fails if other work on the network did not end in time, or if the files can't be used.
    pub async fn alone(&self, network: &str) -> Result<Held, LockError> {
        self.take_both(network, LockMode::Alone).await
    }

    /// Takes the exclusive lock on all networks of the node, for cleaning up objects of an unknown network.
    ///
    /// # Errors
    /// Fails as [`Locks::alone`] does.
    pub async fn node_alone(&self) -> Result<Held, LockError> {
        private_dir(&self.dir)?;
        let end = Instant::now() + self.limit;
        Ok(Held(vec![self.take_lock("node", "this node's networks", LockMode::Alone, end).await?]))
    }

    /// Removes all lock files and the directory, and then releases `held`. The caller holds the node exclusively. A
    /// waiting process makes a new file.
    pub fn clear(&self, held: Held) {
        for entry in std::fs::read_dir(&self.dir).into_iter().flatten().flatten() {
            let _ = std::fs::remove_file(entry.path());
        }
        let _ = std::fs::remove_dir(&self.dir);
        drop(held);
    }

    /// Takes the lock of the node, always shared, and then that of the network.
    async fn take_both(&self, network: &str, kind: LockMode) -> Result<Held, LockError> {
        private_dir(&self.dir)?;
        let end = Instant::now() + self.limit;
        let node = self.take_lock("node", "this node's networks", LockMode::Shared, end).await?;
        let what = format!("network {network}");
        let network = self.take_lock(&format!("net-{}", file_name(network)), &what, kind, end).await?;
        Ok(Held(vec![network, node]))
    }

    /// Takes the lock in the file `name`, through its turnstile. `what` names the locked object in messages.
    async fn take_lock(
        &self,
        name: &str,
        what: &str,
        kind: LockMode,
        end: Instant,
    ) -> Result<FileLock, LockError> {
        let turn = self.dir.join(format!("turn-{name}"));
        let wait = Wait { what, limit: self.limit, end };
        loop {
            match turn::take_lock(&self.dir.join(name), &turn, kind, wait).await {
                // A concurrent `clear` has removed the directory.
                Err(LockError::File { source, .. })
                    if source.kind() == std::io::ErrorKind::NotFound && Instant::now() < end =>
                {
                    private_dir(&self.dir)?;
                }
                outcome => return outcome,
            }
        }
    }
}

/// Returns whether there is no permission or space to make a file. A lock that a clean-up holds has a file already, so
/// going on without a lock can't ignore a clean-up for lack of space.
fn is_unmakable(err: &std::io::Error) -> bool {
    use std::io::ErrorKind::{PermissionDenied, QuotaExceeded, ReadOnlyFilesystem, StorageFull};
    matches!(err.kind(), PermissionDenied | QuotaExceeded | ReadOnlyFilesystem | StorageFull)
}

/// Returns the name for use in a file's name. A long name, or one with other characters, becomes a hash.
fn file_name(network: &str) -> String {
    if !network.is_empty() && network.len() <= NAME_LIMIT && network.bytes().all(is_plain) {
        return network.to_owned();
    }
    format!("#{}", sha512_hex(network, 32))
}

fn is_plain(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"._-".contains(&byte)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn locks(dir: &tempfile::TempDir) -> Locks {
        Locks::new(dir.path().join("locks")).with_limit(Duration::from_millis(50))
    }

    #[tokio::test]
    async fn work_shares_a_network_and_cleaning_up_has_it_alone() {
        let dir = tempfile::tempdir().unwrap();
        let locks = locks(&dir);
        let work = (locks.shared("a").await.unwrap(), locks.shared("a").await.unwrap());
        let err = locks.alone("a").await.unwrap_err().to_string();
        assert!(err.contains("network a") && err.contains(&std::process::id().to_string()), "{err}");
        // Other networks don't wait, the node as a whole does.
        drop(locks.alone("b").await.unwrap());
        assert!(locks.node_alone().await.is_err());
        drop(work);
        let cleaning = locks.alone("a").await.unwrap();
        assert!(locks.shared("a").await.is_err());
        assert!(locks.alone("a").await.is_err());
        drop((locks.shared("b").await.unwrap(), cleaning));
        let node = locks.node_alone().await.unwrap();
        assert!(locks.shared("a").await.is_err());
        drop(node);
        drop(locks.shared("a").await.unwrap());
    }

    #[tokio::test]
    async fn locks_that_are_cleared_leave_no_file_and_can_be_taken_again() {
        let dir = tempfile::tempdir().unwrap();
        let locks = locks(&dir);
        drop(locks.shared("a").await.unwrap());
        let node = locks.node_alone().await.unwrap();
        let patient = locks.clone().with_limit(LIMIT);
        let (waited, ()) = tokio::join!(patient.shared("a"), async {
            tokio::task::yield_now().await;
            locks.clear(node);
        });
        assert!(locks.alone("a").await.is_err(), "who has waited holds the new file");
        drop(waited.unwrap());
        locks.clear(locks.node_alone().await.unwrap());
        assert!(!locks.dir().exists());
    }

    #[test]
    fn names_of_files_stay_in_the_directory() {
        assert_eq!(file_name("pods-1.a_b"), "pods-1.a_b");
        for strange in ["", "../x", "a/b", &"n".repeat(300)] {
            let name = file_name(strange);
            assert!(name.starts_with('#') && name.len() == 65, "{name}");
        }
    }
}
