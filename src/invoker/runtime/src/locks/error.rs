//! Why a lock wasn't taken.

use std::io;
use std::path::PathBuf;

/// A lock that wasn't taken.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)] // of fields: their names say what they are
#[non_exhaustive]
pub enum LockError {
    /// Others didn't let go of it in time.
    #[error("{what} is locked by {holders}; gave up after {seconds} s ({})", path.display())]
    #[non_exhaustive]
    Busy { what: String, path: PathBuf, seconds: u64, holders: String },
    /// The file or its directory can't be used.
    #[error("{doing} {}: {source}", path.display())]
    #[non_exhaustive]
    File { doing: &'static str, path: PathBuf, source: io::Error },
}

impl LockError {
    pub(super) fn file(doing: &'static str, path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> LockError {
        let path = path.into();
        move |source| LockError::File { doing, path, source }
    }
}
