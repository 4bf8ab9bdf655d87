//! Why a lock wasn't taken.

use std::io;
use std::path::PathBuf;

/// A lock that wasn't taken.
#[derive(Debug, thiserror::Error)]
pub enum LockError {
    /// Others didn't let go of it in time.
    #[error("{what} is locked by {holders}; gave up after {seconds} s ({})", path.display())]
    Busy {
        /// What is locked.
        what: String,
        /// The file.
        path: PathBuf,
        /// How long was waited.
        seconds: u64,
        /// The processes that hold it.
        holders: String,
    },
    /// The file or its directory can't be used.
    #[error("{doing} {}: {source}", path.display())]
    File {
        /// What was being done.
        doing: &'static str,
        /// Where.
        path: PathBuf,
        /// The system's reason.
        source: io::Error,
    },
}

impl LockError {
    pub(super) fn file(doing: &'static str, path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> LockError {
        let path = path.into();
        move |source| LockError::File { doing, path, source }
    }
}
