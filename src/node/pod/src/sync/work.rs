use std::future::Future;
use std::net::IpAddr;
use std::sync::Arc;

use crate::PodId;

/// A pod that is wanted.
pub trait Wanted: Send + Sync + 'static {
    /// The ID of the pod.
    fn id(&self) -> &PodId;
    /// Tells it from another pod that has had this name.
    fn uid(&self) -> &str;
}

/// Why a pod is looked at.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Cause {
    /// It is new, or its manifest has changed.
    Config,
    /// An earlier attempt failed.
    Retry,
    /// It ends soon: it keeps a network that it has. Without one the work fails.
    Ending,
    /// It is time for a check; the number of failed checks in a row.
    Check(u32),
    /// Its sandbox is broken.
    Lost {
        /// The ID of the sandbox.
        sandbox: String,
        /// The part that is gone.
        what: String,
    },
}

/// Why something can't be done, as the pod's condition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Condition {
    /// One word, for programs: `FailedCreatePodSandBox`.
    pub reason: &'static str,
    /// A sentence, for people.
    pub message: String,
}

/// A pod that has its network.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Up {
    /// The ID of the sandbox.
    pub sandbox: String,
    /// Its addresses; none for a pod in the host's network.
    pub ips: Vec<IpAddr>,
}

/// The operations on pods that the loop orders. It never orders two at once for one pod.
pub trait Work: Send + Sync + 'static {
    /// A pod that is wanted.
    type Pod: Wanted;

    /// Brings the pod up, or verifies that it is up. Does only the missing steps.
    fn up(&self, pod: &Arc<Self::Pod>, cause: &Cause) -> impl Future<Output = Result<Up, Condition>> + Send;

    /// Takes the pod down, all of it; having nothing to do is success.
    fn down(&self, pod: &PodId) -> impl Future<Output = Result<(), Condition>> + Send;

    /// The loop's pods with something left of them. Returns why that can't be told. Nothing else is done until it can.
    fn existing(&self) -> impl Future<Output = Result<Vec<PodId>, String>> + Send;

    /// Pods with a sandbox that broke since the last call.
    fn lost(&self) -> impl Future<Output = Vec<(PodId, Cause)>> + Send;

    /// Cleans up what belongs to no pod, when nothing else is going on.
    fn clean(&self) -> impl Future<Output = Result<(), String>> + Send;
}
