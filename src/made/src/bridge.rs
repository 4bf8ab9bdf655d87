//! Bridges that pods are joined to.

use cnimble_cni::{NetworkList, json};

/// The plugin that makes them, as `type` names it.
const PLUGIN: &str = "bridge";

/// The name of a bridge whose configuration gives none.
pub const DEFAULT_NAME: &str = "cni0";

/// The bridges that a network's configuration names.
pub fn configured(list: &NetworkList) -> impl Iterator<Item = String> {
    list.plugins.iter().filter(|plugin| plugin.plugin_type == PLUGIN).map(|plugin| {
        let name = json::get(&plugin.document, "bridge").and_then(|name| name.as_str());
        name.filter(|name| !name.is_empty()).unwrap_or(DEFAULT_NAME).to_owned()
    })
}
