use std::fmt;

use cnimble_netlink as netlink;
use cnimble_runtime as runtime;

use super::BandwidthError;
use crate::PodId;

/// Why pods cannot be set up now. The first part is what `kubectl describe node` shows under a kubelet with containerd.
/// The details follow it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{}{}", self.condition(), details.iter().map(|detail| format!("; {detail}")).collect::<String>())]
pub struct NetworkNotReady {
    pub message: String,
    /// Further facts, one each.
    pub details: Vec<String>,
}

impl NetworkNotReady {
    /// The reason in the condition NetworkReady.
    pub const REASON: &str = "NetworkPluginNotReady";

    /// Returns the text of the node's condition.
    pub fn condition(&self) -> String {
        format!(
            "container runtime network not ready: NetworkReady=false reason:{} message:{}",
            Self::REASON,
            self.message
        )
    }
}

/// The kinds of operations on a pod's network.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operation {
    SetUp,
    TearDown,
    Check,
    Status,
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Operation::SetUp => "set up",
            Operation::TearDown => "tear down",
            Operation::Check => "check",
            Operation::Status => "read the status of",
        })
    }
}

/// An operation on a pod's network that failed.
#[derive(Debug, thiserror::Error)]
pub enum NetworkError {
    #[error(transparent)]
    NotReady(#[from] NetworkNotReady),
    #[error("pod {pod}: {source}")]
    Bandwidth { pod: PodId, source: BandwidthError },
    /// All failures in order. Failures of the undo follow those of the set-up.
    #[error("failed to {operation} network for sandbox \"{sandbox}\" of pod {pod}: {}", in_order(failures))]
    Plugins { operation: Operation, pod: PodId, sandbox: String, failures: Vec<runtime::Error> },
    #[error(
        "failed to {operation} network for sandbox \"{sandbox}\" of pod {pod}: {source}{}",
        then(rollback)
    )]
    Namespace {
        operation: Operation,
        pod: PodId,
        sandbox: String,
        source: netlink::Error,
        rollback: Vec<runtime::Error>,
    },
    /// Until the time limit there was no moment without an operation on a pod's network.
    #[error(
        "networks were not cleaned up: for {limit:?} there was no moment without work on a pod's network"
    )]
    Busy { limit: std::time::Duration },
    #[error("failed to clean up networks: {}", in_order(failures))]
    Gc { failures: Vec<runtime::Error> },
}

impl NetworkError {
    /// Returns whether a failed set-up has left nothing behind, as far as the plugins say. If false, call
    /// [`NetworkPlugin::tear_down`](super::NetworkPlugin::tear_down).
    pub fn is_clean(&self) -> bool {
        match self {
            NetworkError::NotReady(_) | NetworkError::Bandwidth { .. } => true,
            NetworkError::Plugins { failures, .. } => match failures.as_slice() {
                [runtime::Error::Plugins(of)] => of.others.is_empty() && of.note.is_none(),
                [runtime::Error::Cache { rollback, .. }] => rollback.is_empty(),
                [_] => true,
                _ => false,
            },
            NetworkError::Namespace { rollback, .. } => rollback.is_empty(),
            NetworkError::Busy { .. } | NetworkError::Gc { .. } => false,
        }
    }
}

/// Returns the texts of failures, in the order in which they happened.
pub(crate) fn in_order<T: fmt::Display>(failures: &[T]) -> String {
    failures.iter().map(T::to_string).collect::<Vec<_>>().join("; then ")
}

fn then<T: fmt::Display>(failures: &[T]) -> String {
    failures.iter().map(|failure| format!("; then {failure}")).collect()
}
