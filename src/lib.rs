//! cnimble: container networking for Linux hosts.
//!
//! One library under two kinds of program. The **plugins** (`plugins/`, `ipam/`) use
//! [`spec`], [`net`] and [`plugin`]; the **invoker** (the command `cnimble`) uses
//! [`spec`] and [`runtime`]. Dependencies point one way:
//!
//! ```text
//! plugin crate → veth → plugin (skeleton), rules → net → spec ← runtime ← the command
//! ```
//!
//! The feature `invoker` (on by default) adds `runtime` and with it tokio; the plugins
//! are built without it.

pub mod net;
pub mod plugin;
pub mod rules;
#[cfg(feature = "invoker")]
pub mod runtime;
pub mod spec;
pub mod veth;
