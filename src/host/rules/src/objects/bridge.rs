//! Bridges with pods as ports.

use serde_json::Value;

use cnimble_cni::list::ListEntry;
use cnimble_cni::{NetworkList, json};

/// As in `type`.
const PLUGIN: &str = "bridge";

pub const DEFAULT_NAME: &str = "cni0";

pub fn configured(list: &NetworkList) -> impl Iterator<Item = String> {
    list.plugins.iter().filter(|plugin| plugin.plugin_type == PLUGIN).map(|plugin| {
        let name = json::get(&plugin.document, "bridge").and_then(|name| name.as_str());
        name.filter(|name| !name.is_empty()).unwrap_or(DEFAULT_NAME).to_owned()
    })
}

/// The plugin that another one delegates the pod to, as flannel does by its key `delegate`.
pub fn delegated(plugin: &ListEntry) -> Option<ListEntry> {
    let mut document = json::get(&plugin.document, "delegate")?.as_object()?.clone();
    let kind = document.get("type").and_then(Value::as_str).filter(|kind| !kind.is_empty());
    if kind.is_none_or(|kind| kind == PLUGIN) {
        document.insert("type".to_owned(), PLUGIN.into());
        document.entry("isGateway").or_insert(Value::Bool(true));
    }
    let mut entry = ListEntry::from_value(Value::Object(document), "").ok()?;
    entry.capabilities.clear();
    Some(entry)
}
