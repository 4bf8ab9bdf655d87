//! Blocks of a cluster's addresses in etcd or in Kubernetes (`docs/CLUSTER.md` has the protocol). A [`Task`] of a node,
//! of its agent or of an operator works on a store, which checks that it still is what it was.

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

pub type Result<T, E = BlocksError> = std::result::Result<T, E>;
