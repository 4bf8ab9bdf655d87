//! Packet rules of pods, according to the configurations of their plugins.

use ipnetwork::IpNetwork;
use serde_json::Value;

use crate::hand_over::Settings;
use crate::masquerade;
use crate::nat::Traffic;
use crate::portmap::Forward;
pub use crate::portmap::{Mapping, shadowed_by};
use cnimble_cni::capability::PortMapping;
use cnimble_cni::{NetworkList, json};

pub const ACCEPTING: &str = "firewall";
/// The plugins whose pods send through the host's rules.
const FORWARDED: [&str; 2] = ["bridge", "ptp"];
/// The plugin that publishes ports.
pub const PUBLISHING: &str = "portmap";

/// The settings in a network's configuration that are needed to hand over the rules of its pods to the Go plugins.
pub fn settings(list: &NetworkList) -> Settings {
    let mut settings = Settings::default();
    for plugin in &list.plugins {
        let text = |key: &str| {
            let text = json::get(&plugin.document, key).and_then(Value::as_str);
            text.filter(|text| !text.is_empty()).map(str::to_owned)
        };
        match plugin.plugin_type.as_str() {
            PUBLISHING => {
                let bit = json::get(&plugin.document, "markMasqBit").and_then(Value::as_u64);
                settings.portmap_backend = text("backend");
                settings.mark_bit = bit.and_then(|bit| u8::try_from(bit).ok()).filter(|bit| *bit < 32);
            }
            ACCEPTING => settings.admin_chain = text("iptablesAdminChainName"),
            _ => {}
        }
    }
    settings
}

/// Returns true if the pods of a network send through the host's rules.
pub fn meet_rules(list: &NetworkList) -> bool {
    list.plugins.iter().any(|plugin| FORWARDED.contains(&plugin.plugin_type.as_str()))
}

/// Returns the packets that rules of a network's plugins would translate: those that masqueraded addresses of a pod
/// send, and those that come for its published `ports`. Settings that no plugin can read count as none.
pub fn translated(list: &NetworkList, addrs: &[IpNetwork], ports: &[PortMapping]) -> Vec<Traffic> {
    let mut found = Vec::new();
    for plugin in list.plugins.iter().filter(|plugin| FORWARDED.contains(&plugin.plugin_type.as_str())) {
        let Ok(settings) = masquerade::Settings::of_document(&plugin.document) else { continue };
        if settings.wanted {
            found.extend(settings.of(addrs.iter().copied()).sources().traffic());
        }
    }
    let mappings = ports.iter().filter_map(Mapping::of).collect();
    found.extend(Forward { mappings, addrs: addrs.to_vec(), ..Forward::default() }.traffic());
    found
}

/// Returns true if portmap lets the published ports of a network pass.
pub fn accepts_published(list: &NetworkList) -> bool {
    let accepts = |document| json::get(document, "acceptPublished").and_then(Value::as_bool) == Some(true);
    list.plugins.iter().any(|plugin| plugin.plugin_type == PUBLISHING && accepts(&plugin.document))
}

/// Returns true if they do, and none of the network's plugins accepts these packets.
pub fn need_others(list: &NetworkList) -> bool {
    meet_rules(list) && !list.plugins.iter().any(|plugin| plugin.plugin_type == ACCEPTING)
}
