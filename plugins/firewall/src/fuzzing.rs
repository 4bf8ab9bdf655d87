//! The reader of the configuration, for fuzzers.

use cnimble::spec::PluginConfig;

/// Takes any configuration.
pub fn config(config: &PluginConfig) {
    let _ = crate::config::Config::read(config);
}
