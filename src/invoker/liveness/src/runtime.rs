//! The container runtime as a source of evidence, by its list of sandboxes.
//!
//! The runtime is asked after the objects were listed, as all evidence is. A sandbox in its list, in any state, is
//! evidence for every object with its ID. A missing sandbox proves nothing, because another runtime may have made it.

use std::fmt::Debug;
use std::net::IpAddr;
use std::path::PathBuf;

use cnimble_cni::Error;

/// A container runtime that can be asked.
pub trait Runtime: Debug + Send + Sync {
    /// All sandboxes of the runtime, in any state.
    ///
    /// # Errors
    /// Fails if the runtime does not answer.
    fn sandboxes(&self) -> Result<Vec<Sandbox>, Error>;

    /// A sandbox in detail; `None` if it is gone.
    ///
    /// # Errors
    /// Fails if the runtime does not answer.
    fn sandbox(&self, id: &str) -> Result<Option<Detail>, Error>;
}

/// The sandbox of a pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sandbox {
    /// Its ID, which is the plugins' container ID.
    pub id: String,
    /// The pod as `NAMESPACE/NAME`.
    pub pod: String,
    /// Whether it is Ready.
    pub ready: bool,
}

/// A sandbox in detail.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Detail {
    /// Whether it is Ready.
    pub ready: bool,
    /// Its addresses, as the runtime knows them.
    pub ips: Vec<IpAddr>,
    /// Its network namespace, if the runtime tells.
    pub netns: Option<PathBuf>,
    /// Whether it uses the node's network.
    pub host_network: bool,
}
