//! Errors of calls to plugins, in three layers: [`ConfError`] is about files in the configuration directory,
//! [`PluginError`] about one execution of one plugin, and [`Error`] about an operation on a network. An operation may
//! fail in several plugins at once. [`Error::to_spec`] turns each of them into the JSON error of the specification.

mod conf;
mod failures;
mod plugin;

use std::io;
use std::path::PathBuf;

use crate::locks::LockError;
use cnimble_cni::{self as cni, Code, Verb, Version};

pub use conf::ConfError;
pub use failures::{Failure, Failures};
pub use plugin::PluginError;

/// The cache of results can't be used.
#[derive(Debug, thiserror::Error)]
#[error("result cache: {doing} {}: {source}", path.display())]
#[non_exhaustive]
pub struct CacheError {
    /// The operation.
    pub doing: &'static str,
    /// The file or directory.
    pub path: PathBuf,
    /// The reason of the system.
    pub source: io::Error,
}

impl CacheError {
    /// Returns a function for `map_err` that adds the operation and the path.
    pub(crate) fn at(doing: &'static str, path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> CacheError {
        let path = path.into();
        move |source| CacheError { doing, path, source }
    }
}

/// An operation on a network that failed.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)] // of fields: their names say what they are
#[non_exhaustive]
pub enum Error {
    /// The network's configuration can't be loaded.
    #[error(transparent)]
    Conf(#[from] ConfError),
    /// A container ID, interface name or argument that the specification forbids. No plugin was called.
    #[error("{0}")]
    Parameter(cni::Error),
    /// The network is locked. No plugin was called.
    #[error(transparent)]
    Locked(#[from] LockError),
    /// The liveness of the node's attachments is unknown. No plugin was called.
    #[error("can't tell what lives: {0}")]
    Node(cni::Error),
    /// One or more plugins failed.
    #[error(transparent)]
    Plugins(#[from] Box<Failures>),
    /// The network's version of the protocol lacks the verb.
    #[error("network {network} has CNI version {version}, and {verb} exists from {since} on")]
    #[non_exhaustive]
    Unsupported { network: String, verb: Verb, version: Version, since: Version },
    /// CHECK has nothing to compare with.
    #[error("CHECK of {ifname} of {container_id} in network {network}: {reason}")]
    NoResult { network: String, container_id: String, ifname: String, reason: String },
    /// The cache can't be used. After an ADD, all plugins had succeeded, but the result could not be recorded. The ADD
    /// was rolled back, with these failures, unless the cache knew the attachment before. Otherwise there are none: GC
    /// could not list the cache, or a DEL by the record could not read or remove the entry.
    #[error("{cause}{}", then(rollback))]
    #[non_exhaustive]
    Cache { cause: CacheError, rollback: Vec<Failure> },
}

fn then(failures: &[Failure]) -> String {
    failures.iter().map(|failure| format!("; then {failure}")).collect()
}

impl From<Failures> for Error {
    fn from(failures: Failures) -> Self {
        Error::Plugins(Box::new(failures))
    }
}

/// Returns an error with all failures, or `Ok` if there are none.
pub(super) fn outcome(failures: Vec<Failure>) -> Result<(), Error> {
    Failures::from_list(failures).map_or(Ok(()), |failures| Err(failures.into()))
}

impl From<CacheError> for Error {
    fn from(cause: CacheError) -> Self {
        Error::Cache { cause, rollback: Vec::new() }
    }
}

impl Error {
    /// Converts the error into one of the specification. The code and text of the first plugin that failed are kept.
    /// Later failures are in the details.
    pub fn to_spec(&self) -> cni::Error {
        let code = match self {
            Error::Parameter(error) => return error.clone(),
            Error::Node(error) => return error.clone().context("can't tell what lives"),
            Error::Plugins(failures) => return failures.to_spec(),
            Error::Conf(ConfError::Invalid { reason, .. }) => reason.code,
            Error::Conf(ConfError::Syntax { .. }) => Code::DECODE,
            Error::Conf(ConfError::NoNetwork { .. }) => Code::INVALID_CONFIG,
            Error::Locked(LockError::Busy { .. }) => Code::TRY_AGAIN_LATER,
            Error::Conf(_) | Error::Cache { .. } | Error::Locked(_) => Code::IO,
            Error::Unsupported { .. } => Code::INCOMPATIBLE_VERSION,
            Error::NoResult { .. } => Code::CHECK_FAILED,
        };
        cni::Error::new(code, self.to_string())
    }
}
