//! Rules that involve several keys, or the order of plugins.

pub(crate) mod addresses;
mod bridge;
pub(crate) mod chain;
mod chained;
mod dhcp;
mod reach;
pub(crate) mod sizes;

use super::entry::PluginEntry;
use super::page::{Role, page};
use super::{Findings, Rule};

/// Checks one entry. `first` says that it is the first in the list.
pub(crate) fn check(entry: &PluginEntry<'_>, first: bool, found: &mut Findings) {
    // The meaning of an unknown plugin's keys is unknown, too.
    if entry.shape.is_none() {
        return;
    }
    mtu(entry, found);
    reach::check(entry, found);
    ipam(entry, first, found);
    exceptions(entry, found);
    match entry.plugin {
        "bridge" => bridge::check(entry, found),
        "portmap" => chained::portmap(entry, found),
        "bandwidth" => chained::bandwidth(entry, found),
        "tuning" => chained::tuning(entry, found),
        "sbr" => chained::sbr(entry, found),
        _ => {}
    }
    match entry.ipam {
        Some("host-local" | "cluster-local") => addresses::host_local(entry, found),
        Some("static") => addresses::fixed(entry, found),
        Some("dhcp") => dhcp::check(entry, found),
        _ => {}
    }
}

/// Checks the MTU. For 0 or a negative number that the plugin accepts, the kernel chooses.
fn mtu(entry: &PluginEntry<'_>, found: &mut Findings) {
    let is_auto = entry.node.is_true("mtuAuto");
    if let Some(member) = entry.node.member("mtuOverhead").filter(|_| !is_auto) {
        found.warning(Rule::NoEffect, &member.range, "mtuOverhead does nothing without mtuAuto");
    }
    let Some(node) = entry.node.get("mtu") else { return };
    if is_auto && node.integer().is_some_and(|mtu| mtu > 0) {
        found.error(Rule::Conflict, &node.range, "mtu and mtuAuto exclude each other");
    }
    if let Some(mtu) = node.integer().filter(|mtu| (1..68).contains(mtu) || *mtu > 65535) {
        found.error(Rule::InvalidValue, &node.range, format!("mtu: {mtu} is outside 68 to 65535"));
    }
    let is_main = page(entry.plugin).is_some_and(|page| page.role == Role::Main);
    if let Some(problem) = sizes::ipv6_problem(node).filter(|_| is_main && addresses::has_ipv6(entry)) {
        found.error(Rule::Conflict, &node.range, format!("mtu: {problem}: ADD can't give the IPv6 address"));
    }
}

/// Checks that keys about masquerading are there only with masquerading.
fn exceptions(entry: &PluginEntry<'_>, found: &mut Findings) {
    let keys = ["ipMasqExclude", "ipMasqAddress"].iter().filter(|_| !entry.node.is_true("ipMasq"));
    for member in keys.filter_map(|key| entry.node.member(key)) {
        found.warning(Rule::NoEffect, &member.range, format!("{} does nothing without ipMasq", member.key));
    }
}

/// Checks that a plugin gets the addresses that it needs, and that addresses have a plugin that assigns them.
fn ipam(entry: &PluginEntry<'_>, first: bool, found: &mut Findings) {
    let Some(page) = page(entry.plugin).filter(|page| page.role == Role::Main) else { return };
    if entry.ipam.is_some() {
        return;
    }
    let node = entry.node.member("ipam").filter(|ipam| !ipam.value.members().is_empty());
    let required = page.keys.iter().any(|key| key.path == "ipam.type" && key.required());
    // ipvlan uses the addresses of the previous plugin.
    let spared = entry.plugin == "ipvlan" && !first;
    match node {
        // The comparison with the shape reports this, because the object lacks the key.
        Some(_) if required => {}
        Some(ipam) => {
            found.error(Rule::MissingKey, &ipam.range, "ipam.type is missing: the network gets no addresses");
        }
        None if required && !spared => {
            found.error(Rule::MissingKey, &entry.place, format!("{} needs ipam.type", entry.plugin));
        }
        None => {}
    }
}
