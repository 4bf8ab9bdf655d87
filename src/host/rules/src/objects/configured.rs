//! Tells from the configurations of a network's plugins what packet rules its pods have.

use ipnetwork::IpNetwork;
use serde_json::Value;

use crate::hand_over::Settings;
use crate::masquerade;
use crate::nat::Traffic;
use crate::portmap::Forward;
pub use crate::portmap::{Mapping, shadowed_by};
use cnimble_cni::capability::PortMapping;
use cnimble_cni::{NetworkList, json};

/// The plugin that lets the host forward pods' packets.
pub const ACCEPTING: &str = "firewall";
/// The plugins whose pods send through the rules of the host's namespace.
const FORWARDED: [&str; 2] = ["bridge", "ptp"];
/// The plugin that publishes ports.
pub const PUBLISHING: &str = "portmap";

/// Returns the settings that are needed to hand over the rules of the network's pods to the Go plugins.
pub fn settings(list: &NetworkList) -> Settings {
    let mut settings = Settings::default();
    for plugin in &list.plugins {
        match plugin.plugin_type.as_str() {
            PUBLISHING => {
                let bit = json::get(&plugin.document, "markMasqBit").and_then(Value::as_u64);
                settings.portmap_backend = read_text(&plugin.document, "backend");
                settings.mark_bit = bit.and_then(|bit| u8::try_from(bit).ok()).filter(|bit| *bit < 32);
            }
            ACCEPTING => settings.admin_chain = read_text(&plugin.document, "iptablesAdminChainName"),
            _ => {}
        }
    }
    settings
}

/// Returns the text of a key. Returns `None` if it is empty, missing or no text.
fn read_text(document: &Value, key: &str) -> Option<String> {
    let text = json::get(document, key).and_then(Value::as_str);
    text.filter(|text| !text.is_empty()).map(str::to_owned)
}

/// Returns whether packets of the network's pods pass the rules of the host's namespace.
pub fn meet_rules(list: &NetworkList) -> bool {
    list.plugins.iter().any(|plugin| FORWARDED.contains(&plugin.plugin_type.as_str()))
}

/// Returns the packets that rules of the network's plugins would translate. These are packets from a pod's masqueraded
/// addresses, and packets to its published `ports`. A plugin whose settings are invalid masquerades nothing.
pub fn translated(list: &NetworkList, addrs: &[IpNetwork], ports: &[PortMapping]) -> Vec<Traffic> {
    let mut found = Vec::new();
    for plugin in list.plugins.iter().filter(|plugin| FORWARDED.contains(&plugin.plugin_type.as_str())) {
        let Ok(settings) = masquerade::Settings::of_document(&plugin.document) else { continue };
        if settings.wanted {
            found.extend(settings.for_addresses(addrs.iter().copied()).sources().traffic());
        }
    }
    let mappings = ports.iter().filter_map(Mapping::from_entry).collect();
    found.extend(Forward { mappings, addrs: addrs.to_vec(), ..Forward::default() }.traffic());
    found
}

/// Returns whether portmap of this network lets published ports pass (`acceptPublished`).
pub fn accepts_published(list: &NetworkList) -> bool {
    list.plugins.iter().any(|plugin| {
        plugin.plugin_type == PUBLISHING
            && json::get(&plugin.document, "acceptPublished").and_then(Value::as_bool) == Some(true)
    })
}

/// Returns whether packets of the network's pods are forwarded, and no plugin of the network accepts them. Then rules
/// of others decide about them.
pub fn need_others(list: &NetworkList) -> bool {
    meet_rules(list) && !list.plugins.iter().any(|plugin| plugin.plugin_type == ACCEPTING)
}
