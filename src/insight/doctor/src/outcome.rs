//! The reach of a repair, and its outcome for each finding.

use cnimble_cni::Error;

#[derive(Debug, Clone)]
pub enum Repair {
    /// The finding is repaired, or it no longer exists.
    Done,
    /// The finding was not repaired, for this reason.
    Doubt(String),
    NotAsked,
    Failed(Error),
}

/// The extent of a repair of living pods.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reach {
    Host,
    Pods,
}
