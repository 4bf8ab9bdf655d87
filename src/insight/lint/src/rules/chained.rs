//! Checks for keys of chained plugins that exclude each other.

use std::collections::BTreeMap;

use crate::entry::PluginEntry;
use crate::{Findings, Node, Rule};

/// Checks keys of portmap that exclude each other, and that it can get ports.
pub(super) fn portmap(entry: &PluginEntry<'_>, found: &mut Findings) {
    let node = entry.node;
    let chain = node.member("externalSetMarkChain").filter(|chain| chain.value.text().is_some());
    if let (Some(chain), Some(_)) = (chain, node.get("markMasqBit")) {
        found.error(Rule::Conflict, &chain.range, "externalSetMarkChain and markMasqBit exclude each other");
    }
    let ports = node.path(&["runtimeConfig", "portMappings"]).is_some();
    if !ports && !entry.declares("portMappings") {
        let message = "portmap publishes no ports: its capabilities don't have \"portMappings\": true";
        found.warning(Rule::Capability, &entry.place, message);
    }
}

pub(super) fn bandwidth(entry: &PluginEntry<'_>, found: &mut Findings) {
    let node = entry.node;
    let mut limits = false;
    for place in [Some(node), node.path(&["runtimeConfig", "bandwidth"])].into_iter().flatten() {
        for (rate, burst) in [("ingressRate", "ingressBurst"), ("egressRate", "egressBurst")] {
            match check_limit(place, rate, burst) {
                Ok(has_limit) => limits |= has_limit,
                Err((key, message)) => found.error(Rule::Conflict, &entry.range_of(place, key), message),
            }
        }
        if let Some(member) = place.member("unshapedSubnets")
            && has_elements(place, "shapedSubnets")
            && has_elements(place, "unshapedSubnets")
        {
            let message = "shapedSubnets and unshapedSubnets exclude each other";
            found.error(Rule::Conflict, &member.range, message);
        }
    }
    let told = ["ingressRate", "egressRate", "ingressBurst", "egressBurst"]
        .iter()
        .any(|key| node.get(key).is_some());
    if !limits && !told && !entry.declares("bandwidth") {
        let message =
            "bandwidth limits nothing: it has no rates, and its capabilities don't have \"bandwidth\": true";
        found.warning(Rule::Capability, &entry.place, message);
    }
}

/// Returns whether there is a limit. Fails with the key that is at fault, and what is wrong.
fn check_limit<'k>(place: &Node, rate: &'k str, burst: &'k str) -> Result<bool, (&'k str, String)> {
    match (nonzero(place, rate), nonzero(place, burst)) {
        (Some(_), None) => Err((rate, format!("{rate} needs {burst}"))),
        (None, Some(_)) => Err((burst, format!("{burst} needs {rate}"))),
        (Some(of), Some(_)) if (1..8).contains(&of) => {
            Err((rate, format!("{rate}: {of} bits per second are less than a byte")))
        }
        (Some(_), Some(of)) if (1..8).contains(&of) => {
            Err((burst, format!("{burst}: {of} bits are less than a byte")))
        }
        (Some(_), Some(of)) if of / 8 >= i128::from(u32::MAX) => {
            Err((burst, format!("{burst}: {of} bits are more than 4 GB")))
        }
        (Some(_), Some(_)) => Ok(true),
        (None, None) => Ok(false),
    }
}

/// Returns the number at this key, or `None` for 0, which stands for no limit.
fn nonzero(place: &Node, key: &str) -> Option<i128> {
    place.get(key).and_then(Node::integer).filter(|number| *number != 0)
}

fn has_elements(place: &Node, key: &str) -> bool {
    place.get(key).is_some_and(|list| !list.elements().is_empty())
}

pub(super) fn tuning(entry: &PluginEntry<'_>, found: &mut Findings) {
    let mut seen: BTreeMap<String, &str> = BTreeMap::new();
    for member in entry.node.get("sysctl").map(Node::members).unwrap_or_default() {
        let path = file_of(&member.key);
        let parts = || path.split('/');
        if parts().next() != Some("net")
            || parts().count() < 2
            || parts().any(|part| matches!(part, "" | "." | ".."))
        {
            let message = format!(
                "sysctl: \"{}\" isn't below net, and only such can be set for a pod",
                member.key.escape_debug()
            );
            found.error(Rule::InvalidValue, &member.range, message);
        }
        // The comparison with the shape reports a repeated key.
        if let Some(other) = seen.insert(path, &member.key).filter(|other| *other != member.key) {
            let message = format!("sysctl: {} and {other} are the same key", member.key);
            found.error(Rule::DuplicateKey, &member.range, message);
        }
    }
}

/// Returns the path of a key below /proc/sys. The first separator decides about its form, as with sysctl(8).
fn file_of(key: &str) -> String {
    let written = key.strip_prefix('/').unwrap_or(key);
    match written.find(['.', '/']).and_then(|at| written.get(at..)) {
        Some(rest) if rest.starts_with('/') => written.to_owned(),
        _ => written.replace('.', "/"),
    }
}

/// Checks the gateways of sbr: at most one of each family, and none that is unspecified or multicast.
pub(super) fn sbr(entry: &PluginEntry<'_>, found: &mut Findings) {
    let list = entry.node.get("gateways").map(Node::elements).unwrap_or_default();
    let addresses = list.iter().filter_map(|node| Some((node, cnimble_cni::cidr::parse_ip(node.text()?)?)));
    let (mut four, mut six) = (false, false);
    for (node, address) in addresses {
        let seen = if address.is_ipv4() { &mut four } else { &mut six };
        if std::mem::replace(seen, true) {
            let message = format!("gateways: {address} is the second of its family");
            found.error(Rule::Conflict, &node.range, message);
        }
        if address.is_unspecified() || address.is_multicast() {
            found.error(Rule::InvalidValue, &node.range, format!("gateways: {address} can't be a gateway"));
        }
    }
}
