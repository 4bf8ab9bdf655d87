//! The reach of a repair, and its outcome for each finding.

use cnimble_cni::Error;

/// The outcome of a repair.
#[derive(Debug, Clone)]
pub enum Repair {
    /// The finding is repaired, or it no longer exists.
    Done,
    /// The finding was not repaired, for this reason.
    Doubt(String),
    /// The fault is in the pod, and only the host was to be repaired.
    NotAsked,
    /// The repair failed with this error.
    Failed(Error),
}

/// The extent of a repair of living pods.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reach {
    /// Repairs the host, but not the pods' namespaces.
    Host,
    /// Repairs the pods' namespaces, too.
    Pods,
}
