//! Blocks of a cluster's addresses in etcd (`docs/CLUSTER.md` has the protocol). [`node`] is for the plugin,
//! [`operator`] for the command, [`watch`] for the agent. A [`session::Session`] checks that etcd still is what it was.

mod boots;
mod claim;
mod error;
mod keys;
pub mod node;
pub mod operator;
mod record;
mod release;
mod restored;
pub mod session;
pub mod tend;
mod trust;
mod vanished;
pub mod watch;

pub use error::BlocksError;

pub type Result<T, E = BlocksError> = std::result::Result<T, E>;
