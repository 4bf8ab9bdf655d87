//! Blocks of a cluster's addresses in etcd or in Kubernetes (`docs/CLUSTER.md` has the protocol). A [`Task`] of a node,
//! of its agent or of an operator works on a store. Each session checks that the store is still the one that was set
//! up.

mod boots;
mod claim;
mod error;
mod etcd;
mod file;
mod kubernetes;
mod look;
mod node;
mod operator;
mod record;
mod restored;
mod store;
mod task;
mod tend;
mod vanished;
mod watch;

pub use error::BlocksError;
pub use task::{Setup, Task};
pub use tend::Asked;
pub use vanished::Cleared;

/// The result of a request to the store.
pub type Result<T, E = BlocksError> = std::result::Result<T, E>;
