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

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reach {
    Host,
    Pods,
}
