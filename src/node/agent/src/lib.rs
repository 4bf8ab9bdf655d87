//! Configures the network of a cluster's node from the nodes that an API server or etcd lists: the runtime's
//! configuration ([`conflist`]), routes ([`routes`]) and masquerading ([`masquerade`]). [`plan`] decides without
//! changes, and refuses invalid data. [`Agent`] applies the plan repeatedly.

mod agent;
mod bridge;
pub mod conflist;
mod earlier;
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

/// The largest file that is read, in bytes.
const LIMIT: usize = 1 << 20;

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
