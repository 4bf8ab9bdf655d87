//! Errors of one execution of one plugin.

use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;
use std::time::Duration;

use cnimble_cni::{self as cni, Code, Version};

/// An execution of a plugin that didn't end well.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)] // of fields: their names say what they are
#[non_exhaustive]
pub enum PluginError {
    /// The type can't be a file name: it would lead out of the plugin directories.
    #[error("invalid plugin type \"{}\": expected the name of a file, without /", name.escape_default())]
    #[non_exhaustive]
    BadName { name: String },
    /// No directory of CNI_PATH has the file.
    #[error("no plugin \"{name}\" in CNI_PATH [{}]", list(dirs))]
    #[non_exhaustive]
    Missing { name: String, dirs: Vec<PathBuf> },
    /// The kernel won't execute the file.
    #[error("{}: can't be executed: {source}", path.display())]
    #[non_exhaustive]
    Start { path: PathBuf, source: io::Error },
    /// Writing to the running plugin, reading from it or waiting for it failed. It was killed.
    #[error("{}: {doing}: {source}", path.display())]
    #[non_exhaustive]
    Io { path: PathBuf, doing: &'static str, source: io::Error },
    /// The plugin took longer than allowed and was stopped, or there was no time left to start it.
    #[error("{}: no answer within {limit:?}; killed{}", path.display(), said(stderr))]
    #[non_exhaustive]
    TimeLimit { path: PathBuf, limit: Duration, stderr: String },
    /// The caller dropped the future of the ADD, and the plugin was stopped.
    #[error("{}: ended, because the ADD was dropped{}", path.display(), said(stderr))]
    #[non_exhaustive]
    Dropped { path: PathBuf, stderr: String },
    /// The plugin wrote more than a result can be. If it still ran, it was killed.
    #[error("{}: wrote more than {limit} bytes to stdout{}", path.display(), said(stderr))]
    #[non_exhaustive]
    TooLong { path: PathBuf, limit: usize, stderr: String },
    /// The plugin exited with a failure and printed a CNI error.
    #[error("{error} (code {}){}", error.code, said(stderr))]
    #[non_exhaustive]
    Refused { path: PathBuf, error: cni::Error, stderr: String },
    /// The plugin failed and printed something that is no CNI error.
    #[error("{}: failed ({status}) without a CNI error{}{}", path.display(), began(output), said(stderr))]
    #[non_exhaustive]
    NoError { path: PathBuf, status: ExitStatus, output: String, stderr: String },
    /// The plugin succeeded, but what it printed can't be used.
    #[error("{}: succeeded, but its output can't be used: {reason}{}", path.display(), began(output))]
    #[non_exhaustive]
    BadOutput { path: PathBuf, reason: cni::Error, output: String },
    /// The plugin doesn't speak the network's version of the protocol.
    #[error("{}: supports CNI versions {}, but the network is {wanted}", path.display(), supported.join(", "))]
    #[non_exhaustive]
    Version { path: PathBuf, wanted: Version, supported: Vec<String> },
}

impl PluginError {
    /// Returns the error of a file that the kernel won't execute.
    pub(crate) fn start(file: &Path, source: io::Error) -> Self {
        PluginError::Start { path: file.to_owned(), source }
    }

    /// Returns the code of the plugin's own error if it printed one. Otherwise it is the nearest code of the
    /// specification.
    pub fn code(&self) -> Code {
        match self {
            PluginError::BadName { .. } => Code::INVALID_CONFIG,
            PluginError::Refused { error, .. } => error.code,
            PluginError::Io { .. } => Code::IO,
            PluginError::BadOutput { .. } => Code::DECODE,
            PluginError::Version { .. } => Code::INCOMPATIBLE_VERSION,
            PluginError::TimeLimit { .. } | PluginError::Dropped { .. } => Code::TRY_AGAIN_LATER,
            PluginError::Missing { .. }
            | PluginError::Start { .. }
            | PluginError::TooLong { .. }
            | PluginError::NoError { .. } => Code::DELEGATE,
        }
    }

    /// Returns whether an ADD that ended with this error needs a DEL. Our own plugins undo their changes, but others
    /// may not. A conflict needs none: the older object may belong to this very attachment, and must stay.
    pub(crate) fn may_leave_something(&self) -> bool {
        match self {
            PluginError::BadName { .. } | PluginError::Missing { .. } | PluginError::Start { .. } => false,
            PluginError::Refused { error, .. } => error.code != Code::CONFLICT,
            _ => true,
        }
    }

    /// Returns true if the plugin itself reported a CNI error, and false for all other failures.
    pub fn is_refusal(&self) -> bool {
        matches!(self, PluginError::Refused { .. })
    }
}

fn list(dirs: &[PathBuf]) -> String {
    dirs.iter().map(|dir| dir.display().to_string()).collect::<Vec<_>>().join(" ")
}

fn began(output: &str) -> String {
    match output {
        "" => "; stdout was empty".to_owned(),
        line => format!("; stdout began \"{line}\""),
    }
}

fn said(stderr: &str) -> String {
    match stderr.trim() {
        "" => String::new(),
        text => format!("; stderr: {text}"),
    }
}
