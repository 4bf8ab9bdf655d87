//! Checks the order of plugins, and their capabilities.

use super::sizes;
use crate::entry::PluginEntry;
use crate::page::{Role, page};
use crate::shape::{self, Shape};
use crate::walk::nearest;
use crate::{Data, Findings, Node, Rule};

/// Returns the role of an entry's plugin, or `None` for an unknown plugin.
fn role_of(entry: &PluginEntry<'_>) -> Option<Role> {
    page(entry.plugin).map(|page| page.role)
}

/// Checks the whole chain. All entries must be valid, because an invalid one could be any plugin.
pub(crate) fn check(entries: &[PluginEntry<'_>], found: &mut Findings) {
    for (n, entry) in entries.iter().enumerate() {
        let (before, after) = entries.split_at(n);
        let mut tell = |message: String| {
            found.error(Rule::ChainOrder, &entry.place, message);
        };
        match role_of(entry) {
            // An unknown plugin may make an interface.
            Some(Role::Chained) if before.iter().all(|other| role_of(other) == Some(Role::Chained)) => {
                let main = after.iter().find(|other| role_of(other) == Some(Role::Main));
                tell(match main {
                    Some(main) => format!(
                        "{} stands before {}: it works on the interface that {} makes",
                        entry.plugin, main.plugin, main.plugin
                    ),
                    None => format!(
                        "{} needs a plugin in front of it: it works on the interface that another has made",
                        entry.plugin
                    ),
                });
            }
            Some(Role::Ipam) => tell(format!(
                "{} gives addresses: it belongs into the `ipam` of another plugin",
                entry.plugin
            )),
            Some(Role::Main) => {
                let other = before.iter().find(|other| makes_interface(other.plugin));
                if let Some(other) =
                    other.filter(|_| makes_interface(entry.plugin) && entry.plugin != "ipvlan")
                {
                    tell(format!("{} and {} both make the pod's interface", other.plugin, entry.plugin));
                }
            }
            _ => {}
        }
        if ["portmap", "firewall", "bandwidth"].contains(&entry.plugin)
            && before.iter().any(|other| other.plugin == entry.plugin)
        {
            let message = format!("{} is listed twice: the second does what the first did", entry.plugin);
            found.warning(Rule::ChainOrder, &entry.place, message);
        }
        match entry.plugin {
            "firewall" => policy(entry, before, found),
            "tuning" => sizes::tuning(entry, before, found),
            "bandwidth" => sizes::bandwidth(entry, before, found),
            _ => {}
        }
        capabilities(entry, entries, found);
    }
}

/// Returns whether a plugin makes the pod's interface. loopback does not, because it configures an existing one.
fn makes_interface(plugin: &str) -> bool {
    plugin != "loopback" && page(plugin).is_some_and(|page| page.role == Role::Main)
}

/// Checks firewall's policy. It separates pods only by their ends on the host, which bridge and ptp make.
fn policy(entry: &PluginEntry<'_>, before: &[PluginEntry<'_>], found: &mut Findings) {
    let Some(policy) = entry.node.get("ingressPolicy") else { return };
    let main = before.iter().find(|other| makes_interface(other.plugin));
    let Some(main) = main.filter(|main| !["bridge", "ptp"].contains(&main.plugin)) else { return };
    if policy.text().is_some_and(|policy| policy != "open") {
        let message = format!(
            "ingressPolicy: {} has no interface on the host, and only open goes with that",
            main.plugin
        );
        found.error(Rule::Conflict, &policy.range, message);
    }
}

/// Returns the capabilities that a plugin reads. It returns `None` for an unknown plugin, or with an unknown IPAM
/// plugin.
fn taken<'a>(entry: &'a PluginEntry<'_>) -> Option<Vec<&'a str>> {
    match shape::find_shape(entry.shape.as_ref()?, "runtimeConfig") {
        Some(Shape::Object(fields)) => Some(fields.keys().map(String::as_str).collect()),
        Some(_) => None,
        None => Some(Vec::new()),
    }
}

/// Checks that the plugin reads each capability that its entry declares.
fn capabilities(entry: &PluginEntry<'_>, entries: &[PluginEntry<'_>], found: &mut Findings) {
    let Some(taken) = taken(entry) else { return };
    for member in entry.node.get("capabilities").map(Node::members).unwrap_or_default() {
        let on = matches!(member.value.data, Data::Bool(true));
        // Capabilities are names and not keys for Go's decoder, so their case matters.
        if !on || taken.contains(&member.key.as_str()) {
            continue;
        }
        let message = format!("{} doesn't take the capability {}", entry.plugin, member.key.escape_debug());
        let other = entries
            .iter()
            .find(|other| self::taken(other).is_some_and(|keys| keys.contains(&member.key.as_str())));
        let hint = match (nearest(&member.key, taken.iter().copied()), other, taken.as_slice()) {
            (Some(near), ..) => format!(": did you mean {near}?"),
            (None, Some(other), _) => format!(": {} does", other.plugin),
            (None, None, []) => ": it takes none".to_owned(),
            (None, None, keys) => format!(": it takes {}", keys.join(", ")),
        };
        found.warning(Rule::Capability, &member.range, message + &hint);
    }
}
