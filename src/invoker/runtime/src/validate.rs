//! Checks whether a network can work, as far as that is known without changing anything.

use std::collections::BTreeSet;

use serde_json::Value;

use cnimble_cni::list::ListEntry;
use cnimble_cni::{NetworkList, json};

use super::chain::failure;
use super::error::outcome;
use super::{Error, Invoker, PluginError, Verb, find_plugin};

impl Invoker {
    /// Checks that all plugins of the network, and the IPAM plugins in their configurations, exist and support its
    /// version. It runs VERSION of each. Returns the capabilities that the network declares, sorted.
    ///
    /// # Errors
    /// Fails with the problems of all plugins together.
    pub async fn validate(&self, network: &NetworkList) -> Result<Vec<String>, Error> {
        let mut seen = BTreeSet::new();
        let types = network.plugins.iter().flat_map(types).filter(|name| seen.insert(*name));
        let probes = types.map(|name| async move { (name, self.supports(network, name).await) });
        let outcomes = futures::future::join_all(probes).await;
        let failures = outcomes
            .into_iter()
            .filter_map(|(name, outcome)| Some(failure(network, name, Verb::Version, outcome.err()?)));
        outcome(failures.collect())?;
        let capabilities: BTreeSet<&String> =
            network.plugins.iter().flat_map(|plugin| &plugin.capabilities).collect();
        Ok(capabilities.into_iter().cloned().collect())
    }

    /// Fails if the plugin is missing, does not answer, or does not support the network's version.
    async fn supports(&self, network: &NetworkList, name: &str) -> Result<(), PluginError> {
        let file = find_plugin(name, &self.path)?;
        let versions = self.versions_of(&file).await?;
        if versions.has(network.version) {
            return Ok(());
        }
        Err(PluginError::Version { path: file, wanted: network.version, supported: versions.supported })
    }
}

/// Returns the type of the plugin, and that of its IPAM plugin if it has one.
fn types(entry: &ListEntry) -> impl Iterator<Item = &str> {
    let ipam = json::get(&entry.document, "ipam").and_then(|ipam| json::get(ipam, "type"));
    let ipam = ipam.and_then(Value::as_str).filter(|name| !name.is_empty());
    std::iter::once(entry.plugin_type.as_str()).chain(ipam)
}
