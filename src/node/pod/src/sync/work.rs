use std::future::Future;
use std::net::IpAddr;
use std::sync::Arc;

use crate::PodId;
use crate::sandbox::SandboxConfig;

/// Why a pod is looked at.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Cause {
    Config,
    Retry,
    /// A pod that ends soon keeps its network. Without one the work fails.
    Ending,
    /// The number of failed checks in a row.
    Check(u32),
    Lost {
        sandbox: String,
        what: String,
    },
}

/// Why something can't be done, as the pod's condition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Condition {
    /// One word, such as `FailedCreatePodSandBox`.
    pub reason: &'static str,
    pub message: String,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Up {
    pub sandbox: String,
    /// None for a pod in the host's network.
    pub ips: Vec<IpAddr>,
}

/// The loop never orders two operations at once for one pod.
pub trait Work: Send + Sync + 'static {
    /// Does only the missing steps.
    fn up(
        &self,
        pod: &Arc<SandboxConfig>,
        cause: &Cause,
    ) -> impl Future<Output = Result<Up, Condition>> + Send;

    /// Having nothing to do is success.
    fn down(&self, pod: &PodId) -> impl Future<Output = Result<(), Condition>> + Send;

    /// Pods of which something is left. Nothing else is done while this fails.
    fn existing(&self) -> impl Future<Output = Result<Vec<PodId>, String>> + Send;

    /// Pods with a sandbox that broke since the last call.
    fn lost(&self) -> impl Future<Output = Vec<(PodId, Cause)>> + Send;

    /// Called when nothing else is going on.
    fn clean(&self) -> impl Future<Output = Result<(), String>> + Send;
}
