//! Network namespaces: a handle, and a moment inside.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use super::Result;

/// An open network namespace.
#[derive(Debug)]
pub struct NetNs {
    fd: OwnedFd,
}

impl NetNs {
    /// Opens the namespace at `path` (a bind mount or /proc/PID/ns/net).
    ///
    /// # Errors
    /// ENOENT if nothing is there; EINVAL if what is there is no network namespace
    /// (checked by ioctl NS_GET_NSTYPE, ioctl_ns(2)).
    pub fn open(_path: &Path) -> Result<Self> {
        todo!()
    }

    /// The namespace of this thread.
    ///
    /// # Errors
    /// The kernel's.
    pub fn current() -> Result<Self> {
        todo!()
    }

    /// Runs `inside` with this thread in the namespace, then returns to where it was. The
    /// process must not start threads inside.
    ///
    /// # Errors
    /// If the namespace can't be entered. If it can't be left again the process aborts:
    /// going on in the wrong namespace would be worse.
    pub fn enter<T>(&self, _inside: impl FnOnce() -> T) -> Result<T> {
        todo!()
    }
}

impl AsFd for NetNs {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}
