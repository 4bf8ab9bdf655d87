//! Checks for keys of dhcp that exclude each other.

use crate::entry::PluginEntry;
use crate::{Findings, Node, Rule};

/// The keys that affect only DHCPv4.
const OF_IPV4: [&str; 3] = ["provide", "request", "priority"];

pub(super) fn check(entry: &PluginEntry<'_>, found: &mut Findings) {
    let Some(ipam) = entry.node.get("ipam") else { return };
    let families = ipam.get("families").map(Node::elements).unwrap_or_default();
    let names: Vec<&str> = families.iter().filter_map(Node::text).collect();
    for (n, family) in families.iter().enumerate() {
        let Some(name) = family.text() else { continue };
        if families.iter().take(n).any(|earlier| earlier.text() == Some(name)) {
            found.error(Rule::Conflict, &family.range, format!("ipam.families[{n}]: {name} is there twice"));
        }
    }
    if names != ["ipv6"] {
        return;
    }
    for member in OF_IPV4.iter().filter_map(|key| ipam.member(key)) {
        let message = format!("ipam.{} is about IPv4, which ipam.families doesn't have", member.key);
        found.warning(Rule::NoEffect, &member.range, message);
    }
}
