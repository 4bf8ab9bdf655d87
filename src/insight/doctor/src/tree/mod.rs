//! The node's networks as a picture: network → bridge → port → pod → addresses, routes, rules.
//!
//! [`read()`] asks the kernel by netlink, in the host's namespace and in every pod's. Two records name the owners: the
//! result cache of libcni and [`cnimble_runtime`], and the aliases and comments of our plugins on links and rules.
//! [`text()`] and [`svg()`] draw the outcome, and [`Tree`] serialises to JSON. The same state always gives the same picture.
//!
//! ```no_run
//! use cnimble_runtime::Cache;
//! use cnimble_doctor::tree::{Look, Notes, Sources};
//!
//! let cache = Cache::new("/var/lib/cni");
//! let tree = cnimble_doctor::tree::read(&Sources { caches: &[cache], configured: &[], netns_dirs: &[], notes: &Notes::default() })?;
//! print!("{}", cnimble_doctor::tree::text(&tree, Look::default()));
//! # Ok::<(), cnimble_doctor::tree::TreeError>(())
//! ```
//!
//! Loopback interfaces aren't drawn, and neither are links that no pod has to do with.

mod label;
mod model;
mod pods;
mod read;
mod svg;
#[cfg(test)]
mod tests;
mod text;

pub use model::{HostLink, Network, Place, Pod, PodInterface, Port, Tree};
pub use pods::{given_addresses, kubernetes_name};
pub use read::{Notes, Sources, TreeError, read};
pub use svg::svg;
pub use text::{Look, text};
