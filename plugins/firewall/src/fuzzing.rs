//! The reader of the configuration, for fuzzers.

use cnimble_cni::PluginConfig;

/// Takes any configuration.
pub fn config(config: &PluginConfig) {
    let _ = crate::config::Config::read(config);
}
