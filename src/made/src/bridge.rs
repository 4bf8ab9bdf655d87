//! Bridges that pods are joined to.

use serde_json::Value;

use cnimble_cni::list::ListEntry;
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

/// The plugin that another one hands the pod to, as flannel does: its key `delegate` is that one's configuration.
/// flannel has it be a bridge, and a gateway, unless it says otherwise.
pub fn delegated(plugin: &ListEntry) -> Option<ListEntry> {
    let mut document = json::get(&plugin.document, "delegate")?.as_object()?.clone();
    let kind = document.get("type").and_then(Value::as_str).filter(|kind| !kind.is_empty());
    let plugin_type = kind.unwrap_or(PLUGIN).to_owned();
    if plugin_type == PLUGIN {
        document.entry("isGateway").or_insert(Value::Bool(true));
    }
    Some(ListEntry { plugin_type, capabilities: Vec::new(), document: Value::Object(document) })
}
