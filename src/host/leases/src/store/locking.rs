//! Locks a directory: makes it if it is missing, opens it, locks it, and checks that it is still there.
//!
//! An ADD that fails removes the directory that it made. A concurrent ADD may wait for a lock in it, which then has no
//! name. [`Lock::guards`] finds that, and the ADD begins again.

use std::fs::File;
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;

use nix::errno::Errno;
use nix::fcntl::{OFlag, openat};
use nix::sys::stat::Mode;

use super::{Directory, Result, Store, StoreError};
use crate::lock::{LOCK, Lock, LockError};

/// Notes which directories and locks an ADD has made, so that its undo can remove them.
pub trait Noted {
    /// Called after a directory was made, for each of its missing parents first.
    fn made_directory(&self, path: &Path);
    /// Called after the lock file was made.
    fn made_lock(&self);
}

/// The number of tries while another process removes the directory before it is locked.
const TRIES: u32 = 100;

impl Store {
    /// Waits for the lock of the directory. Returns `None` if the directory is missing.
    pub fn lock(path: &Path) -> Result<Option<Self>> {
        Self::lock_with(path, None)
    }

    /// Waits for the lock of the directory, and makes the directory if it is missing.
    pub fn lock_or_create(path: &Path, noted: &dyn Noted) -> Result<Self> {
        Self::lock_with(path, Some(noted))?.ok_or_else(|| StoreError::Unsettled(path.to_owned()))
    }

    fn lock_with(path: &Path, noted: Option<&dyn Noted>) -> Result<Option<Self>> {
        let mut outcome = Self::try_lock(path, noted);
        for _ in 1..TRIES {
            match &outcome {
                Err(err) if err.is_passing() => outcome = Self::try_lock(path, noted),
                _ => break,
            }
        }
        outcome
    }

    fn try_lock(path: &Path, noted: Option<&dyn Noted>) -> Result<Option<Self>> {
        if let Some(noted) = noted {
            make_directories(path, noted)?;
        }
        let dir = match (Directory::open(path)?, noted) {
            (Some(dir), _) => dir,
            (None, Some(_)) => return Err(StoreError::Unsettled(path.to_owned())),
            (None, None) => return Ok(None),
        };
        let lock = Lock::wait(open_lock(&dir, noted)?).map_err(|err| match err {
            LockError::Stopped(err) => StoreError::Stopped(err),
            LockError::Io(err) => dir.failed("locking", LOCK, err),
        })?;
        if !lock.guards(dir.fd(), path) {
            return Err(StoreError::Unsettled(path.to_owned()));
        }
        Ok(Some(Store { dir, lock }))
    }
}

/// Makes `path` and what is missing above it, as `mkdir -p` does. If another process removes it at once, this is no
/// error.
fn make_directories(path: &Path, noted: &dyn Noted) -> Result<()> {
    let missing: Vec<&Path> = path
        .ancestors()
        .filter(|path| !path.as_os_str().is_empty())
        .take_while(|path| matches!(path.metadata(), Err(err) if err.kind() == io::ErrorKind::NotFound))
        .collect();
    for path in missing.into_iter().rev() {
        match std::fs::DirBuilder::new().mode(0o755).create(path) {
            Ok(()) => noted.made_directory(path),
            Err(err) if err.kind() == io::ErrorKind::AlreadyExists => {}
            Err(source) => {
                return Err(StoreError::Io { what: "making directory", path: path.to_owned(), source });
            }
        }
    }
    match path.metadata() {
        Ok(meta) if !meta.is_dir() => {
            Err(StoreError::Io { what: "opening", path: path.to_owned(), source: Errno::ENOTDIR.into() })
        }
        Err(source) if source.kind() != io::ErrorKind::NotFound => {
            Err(StoreError::Io { what: "opening", path: path.to_owned(), source })
        }
        _ => Ok(()),
    }
}

/// Opens the lock file, and makes it if it is missing.
fn open_lock(dir: &Directory, noted: Option<&dyn Noted>) -> Result<File> {
    let flags = OFlag::O_RDONLY | OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK | OFlag::O_CLOEXEC;
    match openat(dir.fd(), LOCK, flags, Mode::empty()) {
        Ok(file) => return Ok(file.into()),
        Err(Errno::ENOENT) => {}
        Err(err) => return Err(dir.failed("opening", LOCK, err)),
    }
    let mode = Mode::from_bits_truncate(0o750);
    match openat(dir.fd(), LOCK, flags | OFlag::O_CREAT | OFlag::O_EXCL, mode) {
        Ok(file) => {
            if let Some(noted) = noted {
                noted.made_lock();
            }
            Ok(file.into())
        }
        // Another process has made it meanwhile.
        Err(Errno::EEXIST) => Err(StoreError::Unsettled(dir.path().join(LOCK))),
        Err(err) => Err(dir.failed("making", LOCK, err)),
    }
}
