//! Which pod.

use std::fmt;

use serde::{Deserialize, Serialize};

/// A pod's namespace and name. Shown as `namespace/name`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct PodId {
    /// The Kubernetes namespace (not the network namespace).
    pub namespace: String,
    /// The name in it.
    pub name: String,
}

impl PodId {
    /// A pod's ID.
    pub fn new(namespace: impl Into<String>, name: impl Into<String>) -> Self {
        PodId { namespace: namespace.into(), name: name.into() }
    }
}

impl fmt::Display for PodId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}
