//! Pods the kubelet's way: from a manifest to a network, and back.
//! - [`manifest`]: Pod objects, read from YAML or JSON and judged.
//! - [`source`]: where pods come from, a directory, a URL or an API server, and their merger.
//! - [`network`]: the network plugin layer. It knows the default network, tells plugins about a pod, one operation at a
//!   time for each, and whether the network is ready (NetworkReady of a CRI server).
//! - [`leases`]: how full the address ranges of a network are.
//! - [`sandbox`]: a network namespace for each pod, and its record on disk.
//! - [`sync`]: the loop that makes existing pods match the wanted ones.
//!
//! Everything is async on tokio, without state outside the values you make.

#[cfg(feature = "fuzzing")]
pub mod fuzzing;
mod id;
pub mod leases;
pub mod manifest;
pub mod network;
pub mod sandbox;
pub mod source;
pub mod sync;
pub mod watch;

pub use id::PodId;

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
