//! Pods the kubelet's way: from a manifest to a network, and back.
//!
//! Everything is async on tokio, without state outside the values you make.

mod id;
pub mod watch;

pub use id::PodId;
