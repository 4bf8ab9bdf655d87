//! The addresses of a cluster, of which a node owns a share: blocks, and single addresses.
//!
//! The plugin cluster-local gives addresses from the [`share`]. The node's agent claims and returns parts of it in
//! etcd. Both read the same configuration ([`config`]) and file, so both are here, where there is no client of etcd.

pub mod config;
pub mod share;

pub use crate::range::{address, number};
