//! The container runtime as a witness: which sandboxes it has.
//!
//! A runtime is asked after what is judged was listed, as every witness is. What it says only ever
//! saves: a sandbox that it lists, in whatever state, speaks for everything that bears its ID.
//! One that it doesn't list is no more dead for that: another runtime may have made it.

use std::fmt::Debug;
use std::net::IpAddr;
use std::path::PathBuf;

use cnimble_cni::Error;

/// A container runtime that can be asked.
pub trait Runtime: Debug + Send + Sync {
    /// All its sandboxes, in whatever state.
    ///
    /// # Errors
    /// It doesn't answer.
    fn sandboxes(&self) -> Result<Vec<Sandbox>, Error>;

    /// A sandbox in detail; `None` if it is gone.
    ///
    /// # Errors
    /// It doesn't answer.
    fn sandbox(&self, id: &str) -> Result<Option<Detail>, Error>;
}

/// A pod's sandbox.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sandbox {
    /// Its ID, which is the plugins' container ID.
    pub id: String,
    /// The pod, `NAMESPACE/NAME`.
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
