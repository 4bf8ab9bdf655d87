//! cnimble: container networking for Linux hosts.
//!
//! One library under two kinds of program. The **plugins** (`plugins/`, `ipam/`) use
//! [`plugin`] and what is below it; the **invoker** (the command `cnimble`) uses [`runtime`] and
//! [`pod`]. Dependencies point one way:
//!
//! ```text
//! plugin crates → veth, leases → plugin (skeleton), rules → net → spec
//! the command → doctor, pod → life → runtime → locks, spec
//! ```
//!
//! The feature `invoker` (on by default) adds `runtime`, `pod`, `tree`, `life`, `locks` and `doctor`,
//! and with them tokio; the plugins are built without it. docs/ARCHITECTURE.md has the whole picture.

#[cfg(feature = "invoker")]
pub mod doctor;
pub mod files;
pub mod leases;
#[cfg(feature = "invoker")]
pub mod life;
#[cfg(feature = "invoker")]
pub mod locks;
pub mod net;
pub mod plugin;
#[cfg(feature = "invoker")]
pub mod pod;
pub mod rules;
#[cfg(feature = "invoker")]
pub mod runtime;
pub mod spec;
#[cfg(feature = "invoker")]
pub mod tree;
pub mod veth;
