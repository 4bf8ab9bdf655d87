//! One lock file, by flock(2).

use std::fs::{DirBuilder, File, OpenOptions, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};
use tokio::time::{Instant, sleep};

use super::{LockError, holders};

/// How a lock is held.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LockMode {
    /// Shared with other processes.
    Shared,
    /// Exclusively, by one process.
    Alone,
}

/// How long to wait for a lock, and the name of the locked object.
#[derive(Debug, Clone, Copy)]
pub struct Wait<'a> {
    /// The locked object for messages, such as `network pods`.
    pub what: &'a str,
    /// The whole limit, for the error message.
    pub limit: Duration,
    /// The time at which the wait is over.
    pub end: Instant,
}

impl<'a> Wait<'a> {
    /// Describes a wait that begins now.
    pub fn new(what: &'a str, limit: Duration) -> Self {
        Wait { what, limit, end: Instant::now() + limit }
    }
}

/// The time after which a wait is logged.
const TELL: Duration = Duration::from_secs(1);

/// The first and the longest pause between two attempts.
const PAUSE: (Duration, Duration) = (Duration::from_millis(1), Duration::from_millis(16));

/// A file that is locked.
#[derive(Debug)]
pub struct FileLock {
    path: PathBuf,
    lock: Option<Flock<File>>,
    vanishes: bool,
}

impl FileLock {
    /// Waits for the lock. The file is made if it is missing.
    ///
    /// # Errors
    /// Fails with [`LockError::Busy`] if others hold it until the end of the wait, and if the file can't be opened or
    /// made.
    pub async fn take(path: &Path, kind: LockMode, wait: Wait<'_>) -> Result<Self, LockError> {
        let mut waiting = Waiting::new(wait);
        loop {
            match FileLock::attempt(path, kind)? {
                Some(lock) => return Ok(lock),
                None => waiting.pause(path).await?,
            }
        }
    }

    /// Tries once to take the lock. Returns `None` if another process holds it.
    pub(super) fn attempt(path: &Path, kind: LockMode) -> Result<Option<Self>, LockError> {
        let how = match kind {
            LockMode::Shared => FlockArg::LockSharedNonblock,
            LockMode::Alone => FlockArg::LockExclusiveNonblock,
        };
        loop {
            // The file is opened anew each time, because the last holder may have removed it.
            let file = open(path).map_err(LockError::file("opening", path))?;
            match Flock::lock(file, how) {
                Ok(lock) if same(&lock, path) => {
                    return Ok(Some(FileLock { path: path.to_owned(), lock: Some(lock), vanishes: false }));
                }
                Ok(_) => {}
                Err((_, Errno::EWOULDBLOCK)) => return Ok(None),
                Err((_, errno)) => return Err(LockError::file("locking", path)(io::Error::from(errno))),
            }
        }
    }

    /// Removes the file on drop, before the lock is released. This is for exclusive locks of which there are many.
    #[must_use]
    pub fn vanishing(mut self) -> Self {
        self.vanishes = true;
        self
    }
}

impl Drop for FileLock {
    fn drop(&mut self) {
        if self.vanishes {
            let _ = std::fs::remove_file(&self.path);
        }
        self.lock = None;
    }
}

/// A wait in progress, with its pauses.
pub(super) struct Waiting<'a> {
    wait: Wait<'a>,
    begun: Instant,
    pause: Duration,
    told: bool,
}

impl<'a> Waiting<'a> {
    /// Begins to wait: [`lasted`](Self::lasted) counts from now. The end of the wait was fixed earlier, with
    /// [`Wait::end`]. The locks of a node and of a network share one.
    pub(super) fn new(wait: Wait<'a>) -> Self {
        Waiting { wait, begun: Instant::now(), pause: PAUSE.0, told: false }
    }

    /// Returns how long the wait has lasted.
    pub(super) fn lasted(&self) -> Duration {
        self.begun.elapsed()
    }

    /// Pauses before the next attempt at the lock on `path`. After a second it logs the holders, once.
    ///
    /// # Errors
    /// Fails with [`LockError::Busy`] once the wait is over.
    pub(super) async fn pause(&mut self, path: &Path) -> Result<(), LockError> {
        let Wait { what, limit, end } = self.wait;
        if Instant::now() >= end {
            let (what, path) = (what.to_owned(), path.to_owned());
            return Err(LockError::Busy {
                holders: describe_holders(&path),
                what,
                path,
                seconds: limit.as_secs(),
            });
        }
        if !self.told && self.lasted() >= TELL {
            self.told = true;
            let left = end.saturating_duration_since(Instant::now()).as_secs();
            log::warn!(
                "waiting for {what}, which {} has locked; for {left} s more at most",
                describe_holders(path)
            );
        }
        sleep(self.pause).await;
        self.pause = (self.pause * 2).min(PAUSE.1);
        Ok(())
    }
}

/// Returns the text about the processes that hold the lock file. It is empty if the file is gone.
fn describe_holders(path: &Path) -> String {
    std::fs::metadata(path).map(|meta| holders::list_holders(&meta)).unwrap_or_default()
}

/// Opens the lock file, or makes it. Other users get no access, because whoever can open a file can lock it.
fn open(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false).mode(0o600);
    let file = options.custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK).open(path)?;
    if file.metadata()?.mode() & 0o077 != 0 {
        // An earlier release made lock files with another mode.
        file.set_permissions(Permissions::from_mode(0o600))?;
    }
    Ok(file)
}

/// Returns whether the locked file is still the one at `path`. Its last holder may have removed it.
fn same(file: &File, path: &Path) -> bool {
    match (file.metadata(), std::fs::metadata(path)) {
        (Ok(ours), Ok(there)) => (ours.dev(), ours.ino()) == (there.dev(), there.ino()),
        _ => false,
    }
}

/// Makes a directory of mode 0700, or sets that mode if the directory exists.
///
/// # Errors
/// Fails if it can't be made, is a link, or belongs to another user.
pub fn private_dir(dir: &Path) -> Result<(), LockError> {
    make_private_dir(dir).map_err(LockError::file("making", dir))
}

fn make_private_dir(dir: &Path) -> io::Result<()> {
    let handle = match open_dir(dir) {
        Err(err) if err.kind() == io::ErrorKind::NotFound => {
            if let Some(parent) = dir.parent() {
                DirBuilder::new().recursive(true).mode(0o755).create(parent)?;
            }
            match DirBuilder::new().mode(0o700).create(dir) {
                Err(err) if err.kind() != io::ErrorKind::AlreadyExists => return Err(err),
                _ => open_dir(dir)?,
            }
        }
        opened => opened?,
    };
    let meta = handle.metadata()?;
    if meta.uid() != nix::unistd::geteuid().as_raw() {
        return Err(io::Error::other(format!("it belongs to user {}", meta.uid())));
    }
    if meta.mode() & 0o077 != 0 {
        handle.set_permissions(Permissions::from_mode(0o700))?;
    }
    Ok(())
}

/// Opens a directory. It fails for a link to one.
fn open_dir(dir: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.read(true).custom_flags(libc::O_DIRECTORY | libc::O_NOFOLLOW).open(dir)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Duration = Duration::from_secs(60);

    async fn take(path: &Path, kind: LockMode, limit: Duration) -> Result<FileLock, LockError> {
        FileLock::take(path, kind, Wait::new("it", limit)).await
    }

    #[tokio::test(flavor = "current_thread")]
    async fn one_or_many_and_no_file_stays() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("lock");
        let first = take(&path, LockMode::Shared, LIMIT).await.unwrap();
        let second = take(&path, LockMode::Shared, LIMIT).await.unwrap();
        let busy = take(&path, LockMode::Alone, Duration::ZERO).await.unwrap_err();
        assert!(matches!(busy, LockError::Busy { .. }), "{busy}");
        drop((first, second));
        let alone = take(&path, LockMode::Alone, LIMIT).await.unwrap().vanishing();
        assert!(take(&path, LockMode::Shared, Duration::ZERO).await.is_err());
        let waiting = take(&path, LockMode::Alone, LIMIT);
        let (next, ()) = tokio::join!(waiting, async { drop(alone) });
        assert!(path.exists());
        drop(next.unwrap().vanishing());
        assert!(!path.exists());
    }

    #[tokio::test]
    async fn files_and_directories_are_for_their_owner_alone() {
        let dir = tempfile::tempdir().unwrap();
        let below = dir.path().join("run/locks");
        private_dir(&below).unwrap();
        let mode = |path: &Path| std::fs::metadata(path).unwrap().mode() & 0o777;
        assert_eq!((mode(&below), mode(&dir.path().join("run"))), (0o700, 0o755));
        // As an earlier release made them.
        std::fs::set_permissions(&below, Permissions::from_mode(0o755)).unwrap();
        std::fs::write(below.join("lock"), "").unwrap();
        std::fs::set_permissions(below.join("lock"), Permissions::from_mode(0o644)).unwrap();
        private_dir(&below).unwrap();
        let _lock = take(&below.join("lock"), LockMode::Alone, LIMIT).await.unwrap();
        assert_eq!((mode(&below), mode(&below.join("lock"))), (0o700, 0o600));
        std::os::unix::fs::symlink(&below, dir.path().join("link")).unwrap();
        assert!(private_dir(&dir.path().join("link")).is_err());
    }
}
