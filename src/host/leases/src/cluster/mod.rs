//! A cluster's addresses, of which a node owns a share: blocks, and single addresses.
//!
//! The plugin cluster-local gives addresses from the [`share`], a file in the network's directory beside the
//! leases. A program of its own claims and returns parts of it in etcd. Both read the same configuration
//! ([`config`]) and the same file, so that both are here, where there is no client of etcd.

pub mod config;
pub mod share;

pub use crate::range::{address, number};
