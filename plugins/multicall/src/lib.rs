//! The plugins that the binary `cnimble-plugins` is made of.

use cnimble_plugin::Plugin;

/// Every plugin that Cargo.toml names, in the order of the names.
pub static PLUGINS: &[&dyn Plugin] = include!(concat!(env!("OUT_DIR"), "/plugins.rs"));
