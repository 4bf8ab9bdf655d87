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

/// The beginning of the names of unfinished files. It is no address, so the Go plugin ignores these files.
pub const TEMPORARY: &str = ".cnimble-new-";

/// The name of the index beside the leases. It is no address, so the Go plugin takes it for no lease.
pub const INDEX: &str = ".cnimble-index";

/// The name of the file with the addresses that pods had (`keepFor`). The Go plugin takes it for no lease.
pub const KEPT: &str = ".cnimble-kept";

/// Returns whether `name` is that of an unfinished file. Under the lock, it is from a killed process.
pub fn is_temporary(name: &str) -> bool {
    name.starts_with(TEMPORARY)
}

/// Returns the address in the name of a lease file. Only names as Go and Rust write them count.
pub fn address(name: &str) -> Option<IpAddr> {
    let ip: IpAddr = name.parse().ok()?;
    (ip.to_string() == name).then_some(ip)
}

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
