//! Errors of files in the configuration directory.

use std::io;
use std::path::{Path, PathBuf};

use cnimble_cni as cni;

/// A configuration that can't be used.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)] // of fields: their names say what they are
#[non_exhaustive]
pub enum ConfError {
    /// The directory can't be listed.
    #[error("can't list the configuration directory {}: {source}", dir.display())]
    #[non_exhaustive]
    Dir { dir: PathBuf, source: io::Error },
    /// The file can't be read.
    #[error("{}: can't be read: {source}", path.display())]
    #[non_exhaustive]
    Read { path: PathBuf, source: io::Error },
    /// The file is no JSON.
    #[error("{}:{line}:{column}: {reason}", path.display())]
    #[non_exhaustive]
    Syntax { path: PathBuf, line: usize, column: usize, reason: String },
    /// The file is JSON, but no network. The reason has the path to the bad value.
    #[error("{}: {reason}", path.display())]
    #[non_exhaustive]
    Invalid { path: PathBuf, reason: cni::Error },
    /// No usable file has this network.
    #[error("no network \"{name}\" in {}; there is {}{}", dir.display(), list_others(known), skipped(bad))]
    NoNetwork { dir: PathBuf, name: String, known: Vec<String>, bad: Vec<ConfError> },
}

impl ConfError {
    /// Returns the error of a file that is JSON, but no network.
    pub(crate) fn invalid(path: &Path, reason: cni::Error) -> Self {
        ConfError::Invalid { path: path.to_owned(), reason }
    }
}

fn list_others(known: &[String]) -> String {
    if known.is_empty() { "none at all".to_owned() } else { known.join(", ") }
}

fn skipped(bad: &[ConfError]) -> String {
    bad.iter().map(|bad| format!("; skipped {bad}")).collect()
}
