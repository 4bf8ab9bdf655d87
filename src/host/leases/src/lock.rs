//! The lock of a network's directory: `flock(2)` on its file `lock`, as the reference's plugins take it.

use std::cell::RefCell;
use std::fs::File;
use std::io;
use std::mem::ManuallyDrop;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::path::Path;

use nix::errno::Errno;
use nix::fcntl::{AtFlags, Flock, FlockArg};
use nix::sys::stat::{FileStat, fstat, fstatat, stat};

use cnimble_cni::Error;
use cnimble_os::child::signal;

use crate::files::Identity;

/// The name of the file that is locked.
pub const LOCK: &str = "lock";

/// The device and the inode of a file.
type Place = (u64, u64);

fn place(stat: &FileStat) -> Place {
    Identity::from_stat(stat).place
}

thread_local! {
    /// The locks that this thread holds. It has no destructor, because that would cost system calls.
    static HELD: ManuallyDrop<RefCell<Vec<Place>>> = const { ManuallyDrop::new(RefCell::new(Vec::new())) };
}

/// The lock, which is held until the value is dropped.
#[derive(Debug)]
pub struct Lock {
    id: Place,
    /// `None` if this thread held the lock already. So the panic hook can undo an ADD that still has its own lock.
    flock: Option<Flock<File>>,
}

/// Why the lock was not taken.
pub enum LockError {
    Io(io::Error),
    /// A termination signal came while it was waited for.
    Stopped(Error),
}

impl Lock {
    /// Waits for the lock on `file`, until it is free or a termination signal comes. If this thread holds the lock
    /// already, returns at once.
    pub fn wait(mut file: File) -> Result<Self, LockError> {
        let id = place(&fstat(&file).map_err(|err| LockError::Io(err.into()))?);
        if HELD.with(|held| held.borrow().contains(&id)) {
            return Ok(Lock { id, flock: None });
        }
        loop {
            signal::check().map_err(LockError::Stopped)?;
            match Flock::lock(file, FlockArg::LockExclusive) {
                Ok(flock) => {
                    HELD.with(|held| held.borrow_mut().push(id));
                    return Ok(Lock { id, flock: Some(flock) });
                }
                Err((again, Errno::EINTR)) => file = again,
                Err((_, err)) => return Err(LockError::Io(err.into())),
            }
        }
    }

    /// Returns whether this thread held the lock already.
    pub fn is_nested(&self) -> bool {
        self.flock.is_none()
    }

    /// Returns whether the locked file is still the one in `dir`, and `dir` is still the directory at `path`. Otherwise
    /// another process has removed them, and the lock protects nothing.
    pub fn guards(&self, dir: BorrowedFd<'_>, path: &Path) -> bool {
        let file = fstatat(dir.as_fd(), LOCK, AtFlags::AT_SYMLINK_NOFOLLOW);
        let (own, named) = (fstat(dir), stat(path));
        file.is_ok_and(|file| place(&file) == self.id)
            && own.is_ok_and(|own| named.is_ok_and(|named| place(&own) == place(&named)))
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        let Some(flock) = self.flock.take() else {
            return;
        };
        // The panic hook may run this at any moment, also while `HELD` is borrowed.
        let _ = HELD.try_with(|held| {
            if let Ok(mut held) = held.try_borrow_mut() {
                held.retain(|other| *other != self.id);
            }
        });
        // A `Flock` that can't be unlocked, as on a network file system, would panic when it is dropped. Closing the
        // file unlocks as well.
        if let Err((flock, _)) = flock.unlock() {
            let fd = flock.as_raw_fd();
            std::mem::forget(flock);
            let _ = nix::unistd::close(fd);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whether a process that comes now would have to wait.
    fn is_locked(path: &Path) -> bool {
        Flock::lock(File::open(path).unwrap(), FlockArg::LockExclusiveNonblock).is_err()
    }

    /// The undo of an ADD takes the lock that the ADD has just let go.
    #[test]
    fn a_thread_that_locks_again_has_the_lock() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(LOCK);
        File::create(&path).unwrap();
        let lock = || Lock::wait(File::open(&path).unwrap()).ok().unwrap();
        for _ in 0..2 {
            let first = lock();
            assert!(is_locked(&path));
            // Further down on the same stack: it doesn't wait for itself, nor let go of the other.
            assert!(lock().is_nested() && !first.is_nested());
            assert!(is_locked(&path));
            drop(first);
            assert!(!is_locked(&path));
        }
    }
}
