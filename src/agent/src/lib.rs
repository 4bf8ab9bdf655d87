//! What a node of a cluster needs of its network, made from what an API server, or etcd, tells of its nodes: the runtime's
//! configuration ([`conflist`]), routes to the other nodes' pods ([`routes`]), and masquerading of what leaves
//! the cluster ([`masquerade`]).
//!
//! [`plan`] decides what is to be there, from the nodes and from what the host has; it changes nothing, and
//! refuses what an API server should not have said. [`Agent`] makes it so, again and again.

mod agent;
mod bridge;
pub mod conflist;
mod follow;
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
pub mod masquerade;
mod node;
pub mod plan;
pub mod routes;
pub mod shares;
mod template;
mod uplink;
mod watch;

pub use agent::{Agent, Options, Report, remove};
pub use follow::{Follower, Known, Shared};
pub use node::{Node, Nodes};
pub use uplink::addresses as uplink_addresses;
pub use watch::disturbances;

/// A larger file, in bytes, is none of the agent's.
const LIMIT: usize = 1 << 20;

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
