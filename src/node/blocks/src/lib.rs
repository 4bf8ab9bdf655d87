//! Blocks of a cluster's addresses in etcd. Nodes claim, confirm and return them. Operators list and release them.
//!
//! `docs/CLUSTER.md` has the protocol. [`node`] is what the program `cluster-local-etcd` does for the
//! plugin, [`operator`] what the command does, [`watch`] what the agent follows. All speak by a [`session::Session`], which has looked whether
//! etcd still is what it was.

mod claim;
mod error;
mod keys;
pub mod node;
pub mod operator;
mod record;
pub mod session;
pub mod tend;
mod trust;
pub mod watch;

pub use error::BlocksError;

/// A result of this crate.
pub type Result<T, E = BlocksError> = std::result::Result<T, E>;
