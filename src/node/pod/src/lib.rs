//! Makes pods as a kubelet does, from a manifest to a network. [`manifest`] reads Pod objects, and [`source`] merges
//! those of a directory, a URL and an API server. [`network`] passes a pod to plugins. [`sandbox`] has a network
//! namespace and a record for each pod. [`sync`] makes existing pods match the wanted ones.

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
