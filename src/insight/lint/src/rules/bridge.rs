//! Checks for keys of bridge that exclude each other.

use cnimble_cni::names;

use crate::entry::PluginEntry;
use crate::{Findings, Rule};

/// Checks keys of bridge that exclude each other, and the name of the vlan's gateway.
pub(super) fn check(entry: &PluginEntry<'_>, found: &mut Findings) {
    let node = entry.node;
    if node.is_true("hairpinMode") && node.is_true("promiscMode") {
        found.error(
            Rule::Conflict,
            &entry.range_of(node, "promiscMode"),
            "hairpinMode and promiscMode exclude each other",
        );
    }
    if node.is_true("disableContainerInterface") && entry.ipam.is_some() {
        let message = "disableContainerInterface: addresses need an interface that is up, and there is ipam";
        found.error(Rule::Conflict, &entry.range_of(node, "disableContainerInterface"), message);
    }
    let vlan = node.get("vlan").and_then(crate::Node::integer).filter(|vlan| *vlan > 0);
    let gateway = node.is_true("isGateway") || node.is_true("isDefaultGateway");
    if let Some(vlan) = vlan.filter(|_| gateway) {
        let name = format!("{}.{vlan}", node.text_of("bridge").unwrap_or("cni0"));
        if let Some(why) = names::new_interface_problem(&name) {
            let message = format!("the vlan's gateway would be the interface \"{name}\": {why}");
            found.error(Rule::Conflict, &entry.range_of(node, "vlan"), message);
        }
    }
    trunk(entry, found);
}

/// Checks the ranges of VLAN IDs in `vlanTrunk`.
fn trunk(entry: &PluginEntry<'_>, found: &mut Findings) {
    let items = entry.node.get("vlanTrunk").map(crate::Node::elements).unwrap_or_default();
    for (n, item) in items.iter().enumerate() {
        let min = item.get("minID").and_then(crate::Node::integer);
        let max = item.get("maxID").and_then(crate::Node::integer);
        let message = match (min, max) {
            (Some(min), Some(max)) if max < min => format!("minID {min} is greater than maxID {max}"),
            (Some(_), None) => "minID without maxID".to_owned(),
            (None, Some(_)) => "maxID without minID".to_owned(),
            _ => continue,
        };
        let message = format!("vlanTrunk[{n}]: {message}");
        found.error(Rule::Conflict, &item.range, message);
    }
}
