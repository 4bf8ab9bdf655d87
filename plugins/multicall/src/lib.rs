//! The list of the plugins in the binary `cnimble-plugins`.

use cnimble_plugin::Plugin;

/// All plugins of Cargo.toml, sorted by name.
pub static PLUGINS: &[&dyn Plugin] = include!(concat!(env!("OUT_DIR"), "/plugins.rs"));
