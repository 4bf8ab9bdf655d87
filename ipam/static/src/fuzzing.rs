//! The reader of the configuration, for fuzzers.

use cnimble_cni::{CniArgs, PluginConfig};

/// Takes any configuration and arguments.
pub fn config(config: &PluginConfig, args: &CniArgs) {
    let _ = crate::config::Config::read(config, args);
}
