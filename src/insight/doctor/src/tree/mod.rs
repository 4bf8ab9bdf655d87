//! Draws the node's networks: network → bridge → port → pod → addresses, routes, rules. Only links of pods are drawn,
//! and no loopback. [`read()`] asks the kernel, in the host's namespace and in every pod's. The result cache, and
//! aliases and comments on links and rules, name the owners. The same state always gives the same picture.

mod label;
mod model;
mod pods;
mod read;
mod svg;
#[cfg(test)]
mod tests;
mod text;

pub use model::{HostLink, InterfaceState, Network, Pod, PodGroup, PodInterface, Port, Tree};
pub use pods::{given_addresses, kubernetes_name};
pub use read::{Notes, Sources, TreeError, natural, read};
pub use svg::svg;
pub use text::{TextStyle, text};
