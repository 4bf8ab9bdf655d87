//! The reach of a repair, and its outcome for each finding.

use cnimble_cni::Error;

/// The outcome of a repair.
#[derive(Debug, Clone)]
pub enum Repair {
    /// The finding is repaired, by its own repair or by another one of the same call.
    Done,
    /// Nothing was done, because the finding no longer exists: another program has removed or changed the object.
    Gone,
    /// The finding was not repaired, for the reason `why`. [`Finding::passing`](crate::Finding::passing) explains
    /// `passing`.
    Doubt {
        why: String,
        passing: bool,
    },
    /// The finding is inside a pod, and only the host was to be repaired.
    NotAsked,
    Failed(Error),
}

/// The extent of a repair of living pods.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reach {
    /// Only what is on the host.
    Host,
    /// Also what is inside the pods.
    Pods,
}
