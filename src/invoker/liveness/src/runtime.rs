//! The container runtime as a source of evidence, by its list of sandboxes. A sandbox in the list, in any state, is
//! evidence for every object with its ID. A missing sandbox proves nothing, because another runtime may have made it.

use std::fmt::Debug;
use std::net::IpAddr;
use std::path::PathBuf;

use cnimble_cni::Error;

/// A container runtime that can be asked.
pub trait Runtime: Debug + Send + Sync {
    /// Lists the sandboxes in any state.
    fn sandboxes(&self) -> Result<Vec<Sandbox>, Error>;

    /// Asks for one sandbox by its complete ID. Returns `None` if it is gone.
    fn sandbox(&self, id: &str) -> Result<Option<Detail>, Error>;
}

/// A sandbox in the runtime's list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sandbox {
    pub id: String,
    /// The pod as `NAMESPACE/NAME`.
    pub pod: String,
    pub ready: bool,
}

/// A runtime's report on one sandbox.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Detail {
    /// Whether the runtime calls it ready. A stopped sandbox is not.
    pub ready: bool,
    pub ips: Vec<IpAddr>,
    /// The path of its network namespace, or `None` if the runtime does not report it.
    pub netns: Option<PathBuf>,
    pub host_network: bool,
}
