//! Locks between processes: two commands on one pod wait for each other, and clean-up waits
//! for all. The kernel takes a lock from a process that dies.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};
use tokio::time::{Instant, sleep};

use super::error::Cause;

/// A file that is locked, and gone when it is let go if it was ours alone.
#[derive(Debug)]
pub(super) struct FileLock {
    path: PathBuf,
    lock: Option<Flock<File>>,
    alone: bool,
}

impl FileLock {
    /// For us alone. The file goes with the lock.
    pub(super) async fn alone(path: PathBuf, limit: Duration) -> Result<Self, Cause> {
        take(path, FlockArg::LockExclusiveNonblock, limit).await
    }

    /// Together with others who share it.
    pub(super) async fn shared(path: PathBuf, limit: Duration) -> Result<Self, Cause> {
        take(path, FlockArg::LockSharedNonblock, limit).await
    }
}

async fn take(path: PathBuf, kind: FlockArg, limit: Duration) -> Result<FileLock, Cause> {
    let end = Instant::now() + limit;
    let mut pause = Duration::from_millis(1);
    loop {
        // Opened anew each time: the file may have gone with its last holder.
        let file = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(&path);
        let file = file.map_err(Cause::file("locking", &path))?;
        match Flock::lock(file, kind) {
            Ok(lock) if same(&lock, &path) => {
                let alone = matches!(kind, FlockArg::LockExclusiveNonblock);
                return Ok(FileLock { path, lock: Some(lock), alone });
            }
            Ok(_) => continue,
            Err((_, Errno::EWOULDBLOCK)) => {}
            Err((_, errno)) => return Err(Cause::file("locking", path)(io::Error::from(errno))),
        }
        if Instant::now() >= end {
            return Err(Cause::Busy { seconds: limit.as_secs(), lock: path });
        }
        sleep(pause).await;
        pause = (pause * 2).min(Duration::from_millis(100));
    }
}

/// Whether the file that is locked is still the one of this name.
fn same(file: &File, path: &Path) -> bool {
    let identity = |meta: std::fs::Metadata| (meta.dev(), meta.ino());
    match (file.metadata(), std::fs::metadata(path)) {
        (Ok(ours), Ok(there)) => identity(ours) == identity(there),
        _ => false,
    }
}

impl Drop for FileLock {
    fn drop(&mut self) {
        if self.alone {
            let _ = std::fs::remove_file(&self.path);
        }
        self.lock = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Duration = Duration::from_secs(60);

    #[tokio::test(flavor = "current_thread")]
    async fn one_or_many_and_no_file_stays() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("lock");
        let first = FileLock::shared(path.clone(), LIMIT).await.unwrap();
        let second = FileLock::shared(path.clone(), LIMIT).await.unwrap();
        let busy = FileLock::alone(path.clone(), Duration::ZERO).await.unwrap_err();
        assert!(matches!(busy, Cause::Busy { .. }), "{busy}");
        drop((first, second));
        let alone = FileLock::alone(path.clone(), LIMIT).await.unwrap();
        assert!(FileLock::shared(path.clone(), Duration::ZERO).await.is_err());
        let waiting = FileLock::alone(path.clone(), LIMIT);
        let (next, ()) = tokio::join!(waiting, async { drop(alone) });
        assert!(path.exists());
        drop(next);
        assert!(!path.exists());
    }
}
