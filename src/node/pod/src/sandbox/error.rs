use std::fmt;
use std::io;
use std::path::PathBuf;

use cnimble_netlink as netlink;
use cnimble_runtime::locks::LockError;

use crate::PodId;
use crate::network::{BandwidthError, NetworkError, NetworkNotReady, in_order};

/// One thing that went wrong with one sandbox.
#[derive(Debug, thiserror::Error)]
pub enum Cause {
    #[error(transparent)]
    NotReady(#[from] NetworkNotReady),
    #[error(transparent)]
    Bandwidth(#[from] BandwidthError),
    /// A sandbox of this attempt is ready.
    #[error("attempt {attempt} has a sandbox that is ready: {id}")]
    Exists { id: String, attempt: u32 },
    #[error("the caller gave up")]
    Cancelled,
    #[error(transparent)]
    Network(Box<NetworkError>),
    #[error(transparent)]
    Namespace(#[from] netlink::Error),
    #[error("{doing} {}: {source}", path.display())]
    File { doing: &'static str, path: PathBuf, source: io::Error },
    #[error("checkpoint {}: {reason}", path.display())]
    Corrupt { path: PathBuf, reason: String },
    #[error("pause process {program}: {source}")]
    Process { program: String, source: io::Error },
    #[error(transparent)]
    Locked(#[from] LockError),
}

impl From<NetworkError> for Cause {
    fn from(error: NetworkError) -> Self {
        Cause::Network(Box::new(error))
    }
}

impl Cause {
    /// Returns a function for `map_err` that adds the operation and the path.
    pub(super) fn file(doing: &'static str, path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> Cause {
        let path = path.into();
        move |source| Cause::File { doing, path, source }
    }
}

/// The kinds of operations on a sandbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SandboxOperation {
    Run,
    Stop,
    Remove,
    Inspect,
}

impl fmt::Display for SandboxOperation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            SandboxOperation::Run => "create",
            SandboxOperation::Stop => "stop",
            SandboxOperation::Remove => "remove",
            SandboxOperation::Inspect => "inspect",
        })
    }
}

/// An operation on sandboxes that failed.
#[derive(Debug, thiserror::Error)]
pub enum SandboxError {
    /// An operation on one pod failed. Failures of the undo follow the first cause.
    #[error("failed to {action} sandbox of pod {pod}: {}", in_order(causes))]
    Pod { action: SandboxOperation, pod: PodId, causes: Vec<Cause> },
    #[error("there is no sandbox \"{id}\"")]
    Unknown { id: String },
    /// The directories are unusable, or the clean-up is incomplete.
    #[error("sandboxes: {}", in_order(causes))]
    Node { causes: Vec<Cause> },
}

impl SandboxError {
    /// Returns the causes in order. An unknown sandbox has none.
    pub fn causes(&self) -> &[Cause] {
        match self {
            SandboxError::Pod { causes, .. } | SandboxError::Node { causes } => causes,
            SandboxError::Unknown { .. } => &[],
        }
    }
}

impl From<Cause> for SandboxError {
    fn from(cause: Cause) -> Self {
        Causes::from(cause).into()
    }
}

/// Failures that are collected while an operation goes on.
#[derive(Debug, Default)]
pub(super) struct Causes(Vec<Cause>);

impl From<Cause> for Causes {
    fn from(cause: Cause) -> Self {
        Causes(vec![cause])
    }
}

impl Causes {
    /// Keeps the causes of a failure, so that the work can go on.
    pub(super) fn add<C: Into<Causes>>(&mut self, outcome: Result<(), C>) {
        self.0.extend(outcome.err().into_iter().flat_map(|causes| causes.into().0));
    }

    /// Fails with the causes, if there are any.
    pub(super) fn into_result(self) -> Result<(), Causes> {
        if self.0.is_empty() { Ok(()) } else { Err(self) }
    }

    /// Returns the error of an action on a pod.
    pub(super) fn into_error(self, action: SandboxOperation, pod: &PodId) -> SandboxError {
        SandboxError::Pod { action, pod: pod.clone(), causes: self.0 }
    }
}

impl From<Causes> for SandboxError {
    fn from(causes: Causes) -> Self {
        SandboxError::Node { causes: causes.0 }
    }
}

impl From<SandboxError> for Causes {
    fn from(error: SandboxError) -> Self {
        match error {
            SandboxError::Pod { causes, .. } | SandboxError::Node { causes } => Causes(causes),
            SandboxError::Unknown { .. } => Causes::default(),
        }
    }
}
