//! The errors of a store.

use std::io;
use std::path::PathBuf;

use cnimble_cni::{Code, Error};

/// Why an operation on a network's directory failed.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    #[error("{what} {}: {source}", path.display())]
    Io { what: &'static str, path: PathBuf, source: io::Error },
    /// Other processes kept removing and making it, so that it could not be locked.
    #[error("{} appears and disappears; other programs write to it without its lock", .0.display())]
    Unsettled(PathBuf),
    /// A termination signal came while the lock was waited for.
    #[error("waiting for the lock of the store: {0}")]
    Stopped(Error),
}

impl From<StoreError> for Error {
    fn from(err: StoreError) -> Self {
        let msg = err.to_string();
        match err {
            StoreError::Io { .. } => Error::new(Code::IO, msg),
            StoreError::Unsettled(_) => Error::new(Code::TRY_AGAIN_LATER, msg),
            StoreError::Stopped(err) => err.context("waiting for the lock of the store"),
        }
    }
}

impl StoreError {
    /// Returns whether another try may succeed, because another process has just removed the directory or a file in it.
    pub(crate) fn is_passing(&self) -> bool {
        match self {
            StoreError::Io { source, .. } => source.kind() == io::ErrorKind::NotFound,
            StoreError::Unsettled(_) => true,
            StoreError::Stopped(_) => false,
        }
    }

    /// Returns whether the disk can't read a block (EIO).
    pub fn is_bad_block(&self) -> bool {
        matches!(self, StoreError::Io { source, .. } if source.raw_os_error() == Some(libc::EIO))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_may_pass_is_told_from_what_may_not() {
        let io = |errno| StoreError::Io {
            what: "reading",
            path: "x".into(),
            source: io::Error::from_raw_os_error(errno),
        };
        let stopped = StoreError::Stopped(Error::new(Code::TRY_AGAIN_LATER, "stopped"));
        for (err, passing, bad_block, code) in [
            (io(libc::ENOENT), true, false, Code::IO),
            (io(libc::EIO), false, true, Code::IO),
            (io(libc::EACCES), false, false, Code::IO),
            (StoreError::Unsettled("x".into()), true, false, Code::TRY_AGAIN_LATER),
            (stopped, false, false, Code::TRY_AGAIN_LATER),
        ] {
            assert_eq!((err.is_passing(), err.is_bad_block()), (passing, bad_block), "{err}");
            assert_eq!(Error::from(err).code, code);
        }
    }
}
