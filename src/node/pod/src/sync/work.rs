use std::future::Future;
use std::net::IpAddr;
use std::sync::Arc;

use crate::PodId;
use crate::sandbox::SandboxConfig;

/// Why a pod is worked on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Cause {
    /// The wanted configuration of the pod is new or has changed.
    Config,
    /// The last work failed.
    Retry,
    /// The pod is ending and keeps its network. Without a network the work fails.
    Ending,
    /// A check is due. This is the number of failed checks in a row.
    Check(u32),
    /// The sandbox of the pod is broken.
    Lost { sandbox: String, what: String },
}

/// Why work failed, as the pod's condition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Condition {
    /// One word, such as `FailedCreatePodSandBox`.
    pub reason: &'static str,
    pub message: String,
}

/// A pod that is up.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Up {
    pub sandbox: String,
    /// The pod's addresses. The list is empty for a pod in the host's network.
    pub ips: Vec<IpAddr>,
}

/// The loop's work on pods. The loop never runs two operations at once for one pod.
pub trait Work: Send + Sync + 'static {
    /// Brings a pod up, by only the steps that are missing.
    fn up(
        &self,
        pod: &Arc<SandboxConfig>,
        cause: &Cause,
    ) -> impl Future<Output = Result<Up, Condition>> + Send;

    /// Takes a pod down completely. It is success if nothing is left of it.
    fn down(&self, pod: &PodId) -> impl Future<Output = Result<(), Condition>> + Send;

    /// Returns the pods of which anything exists. While this fails, the loop does nothing else.
    fn existing(&self) -> impl Future<Output = Result<Vec<PodId>, String>> + Send;

    /// Returns the pods whose sandboxes broke since the last call.
    fn lost(&self) -> impl Future<Output = Vec<(PodId, Cause)>> + Send;

    /// Removes objects without a pod. It is called when no pod is busy.
    fn clean(&self) -> impl Future<Output = Result<(), String>> + Send;
}
