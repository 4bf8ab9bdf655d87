//! cnimble: container networking for Linux hosts.
//!
//! One library under two kinds of program. The **plugins** (`plugins/`, `ipam/`) use
//! [`spec`], [`net`] and [`plugin`]; the **invoker** (the command `cnimble`) uses
//! [`spec`], [`runtime`] and [`pod`]. Dependencies point one way:
//!
//! ```text
//! plugin crate → veth, leases → plugin (skeleton), rules → net → spec ← runtime ← pod, doctor ← the command
//! ```
//!
//! The feature `invoker` (on by default) adds `runtime` and `pod`, and with them tokio; the
//! plugins are built without it.

#[cfg(feature = "invoker")]
pub mod doctor;
pub mod files;
pub mod leases;
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
