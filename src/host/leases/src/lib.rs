//! Lease files, as the IPAM plugin host-local keeps them: one for each address, in a directory for each network.
//!
//! Read [`holder`] for the content of a lease file, then [`store`] for the files of a network. [`files`] creates and
//! reads them, under a [`lock`]. An extended attribute marks the boot of a lease ([`boot`]). Many leases have an index
//! ([`index`]). The configuration names the ranges of addresses ([`config`], [`range`]). [`cluster`] has a node's share
//! of a cluster's addresses.
//!
//! The doctor and the report of a node's addresses read leases, too. The plugin `ipam/host-local` writes them.

pub mod boot;
pub mod cluster;
pub mod config;
pub mod files;
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
pub mod holder;
pub mod index;
pub mod lock;
pub mod range;
pub mod store;

use std::net::IpAddr;

/// Begins the names of unfinished files. It names no address, and the reference passes over it.
pub const TEMPORARY: &str = ".cnimble-new-";

/// The name of the index beside the leases. It is no address, and the Go plugin finds no lease in the file.
pub const INDEX: &str = ".cnimble-index";

/// The addresses that pods had (`keepFor`). The reference finds no lease in it.
pub const KEPT: &str = ".cnimble-kept";

/// Whether `name` is a file of a killed writer.
pub fn is_temporary(name: &str) -> bool {
    name.starts_with(TEMPORARY)
}

/// The address in a lease's file name. Only names as Go and Rust write them count.
pub fn address(name: &str) -> Option<IpAddr> {
    let ip: IpAddr = name.parse().ok()?;
    (ip.to_string() == name).then_some(ip)
}

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
