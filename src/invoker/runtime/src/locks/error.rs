//! The error of a lock.

use std::io;
use std::path::PathBuf;

/// A lock that wasn't taken.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)] // of fields: their names say what they are
#[non_exhaustive]
pub enum LockError {
    /// Other processes held it until the time limit.
    #[error("{what} is locked by {holders}; gave up after {seconds} s ({})", path.display())]
    #[non_exhaustive]
    Busy { what: String, path: PathBuf, seconds: u64, holders: String },
    /// The file or its directory can't be used.
    #[error("{doing} {}: {source}", path.display())]
    #[non_exhaustive]
    File { doing: &'static str, path: PathBuf, source: io::Error },
}

impl LockError {
    /// Returns a function for `map_err` that adds the operation and the path.
    pub(super) fn file(doing: &'static str, path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> LockError {
        let path = path.into();
        move |source| LockError::File { doing, path, source }
    }
}
