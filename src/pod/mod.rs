//! Pods the kubelet's way: from a manifest to a network, and back.
//!
//! - [`network`]: the network plugin layer. Which network is the default one, what plugins are
//!   told about a pod, one operation at a time for each pod.
//! - [`sandbox`]: a network namespace for each pod, and the record on disk by which a later
//!   process finds it again.
//!
//! Everything is async on tokio, without state outside the values you make.

mod id;
pub mod network;
pub mod sandbox;
pub mod watch;

pub use id::PodId;
