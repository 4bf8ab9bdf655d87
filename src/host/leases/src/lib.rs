//! Lease files, as the IPAM plugin host-local keeps them: one for each address, in a
//! directory for each network.
//!
//! The format is the Go plugins', to the byte ([`holder`], [`store`]), and so is the lock ([`lock`]).
//! An extended attribute marks the boot of a lease ([`boot`]). Many leases have an index ([`index`]). The configuration
//! names the ranges of addresses ([`config`], [`range`]).
//!
//! It is here rather than in the plugin because the doctor and the report of a node's addresses read
//! leases, too. The plugin `ipam/host-local` decides which address an attachment gets, and writes it.
//!
//! Read [`holder`] for the content of a lease file, then [`store`] for the files of a network. [`files`] creates and
//! reads them. [`cluster`] has a node's share of a cluster's addresses.

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

/// The beginning of the name of a file that isn't finished yet. It names no address, and the
/// reference passes over it.
pub const TEMPORARY: &str = ".cnimble-new-";

/// The index beside many leases. It names no address, and the reference finds no lease in it; see
/// [`index`].
pub const INDEX: &str = ".cnimble-index";

/// Whether `name` is a file that was being written when its writer was killed.
pub fn is_temporary(name: &str) -> bool {
    name.starts_with(TEMPORARY)
}

/// The address that a file of this name is the lease of. Only names as Go and Rust write them
/// count.
pub fn address(name: &str) -> Option<IpAddr> {
    let ip: IpAddr = name.parse().ok()?;
    (ip.to_string() == name).then_some(ip)
}

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
