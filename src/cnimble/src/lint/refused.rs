//! Checks configurations with the plugins' own readers, which this command contains. So it works on any machine,
//! without the plugins' files.

use std::path::Path;

use cnimble_cni::list::Injection;
use cnimble_cni::{NetworkList, PluginConfig, json};
use cnimble_leases::config::awaits_ranges;
use cnimble_lint::{Document, Finding, Level, NamedPlugin, Rule, meant, named};
use cnimble_plugin::{Call, Command, Plugin, Role};
use cnimble_plugins::PLUGINS;

use super::ask;
use super::files::TextKind;

/// The name of the pod's interface, which some keys contain.
const IFNAME: &str = "eth0";

/// Returns what the plugins refuse in entries without an error in `found`. The versions of the plugins are compared
/// only if `offline` is set. Otherwise the installed files, which may be others, are asked.
pub(super) fn find_refusals(
    document: &Document,
    kind: TextKind,
    found: &[Finding],
    offline: bool,
) -> Vec<Finding> {
    let Some(network) = ask::network(document, kind) else { return Vec::new() };
    let mut findings = Vec::new();
    for plugin in named(document) {
        let range = plugin.entry.1.clone();
        let is_told =
            |finding: &Finding| finding.level == Level::Error && range.contains(&finding.range.start);
        if !found.iter().chain(&findings).any(is_told) {
            findings.extend(of_plugin(document, &network, &plugin, offline));
        }
    }
    findings
}

/// Returns what one plugin refuses, or `None` for a plugin that is not in this command.
fn of_plugin(
    document: &Document,
    network: &NetworkList,
    named: &NamedPlugin,
    offline: bool,
) -> Option<Finding> {
    let plugin = PLUGINS.iter().find(|plugin| plugin.name() == named.name)?;
    if offline && !plugin.versions().contains(&network.version) {
        let versions: Vec<&str> = plugin.versions().iter().map(|version| version.as_str()).collect();
        let message = format!("{} speaks {}, and not {}", named.name, versions.join(", "), network.version);
        return Some(Finding::error(Rule::Version, named.place.clone(), message));
    }
    let err = read(*plugin, network, named.entry.0)?;
    let place = meant(document, named.entry.0, &err.msg).unwrap_or_else(|| named.place.clone());
    Some(Finding::error(Rule::InvalidValue, place, format!("{} refuses it: {err}", named.name)))
}

/// Returns the error of the reader that ADD uses, or `None`.
///
/// An error is ignored if the runtime may give what is missing with each attachment. A main plugin that is not the
/// first of its network is not checked.
fn read(plugin: &dyn Plugin, network: &NetworkList, at: usize) -> Option<cnimble_cni::Error> {
    let entry = network.plugins.get(at)?;
    // A main plugin in a chain takes interface and addresses from a result that only ADD has.
    let is_chained = plugin.role() == Role::Main && at > 0;
    let is_called = !is_chained && (entry.plugin_type == plugin.name() || plugin.role() == Role::Helper);
    let bytes = network.configuration(entry, &Injection::status()).to_string().into_bytes();
    let config = PluginConfig::parse(&bytes).ok().filter(|_| is_called)?;
    let of_runtime = match plugin.name() {
        "host-local" | "cluster-local" => awaits_ranges(&config).unwrap_or(false),
        "host-device" => entry.capabilities.iter().any(|key| key == "deviceID"),
        _ => false,
    };
    let mut call = Call::new(Command::Add, config, bytes);
    call.ifname = IFNAME.to_owned();
    plugin.read_config(&call).err().filter(|_| !of_runtime)
}

/// Returns what is wrong with the files that ADD reads. Elsewhere than on the node it only notes that they were not
/// read.
pub(super) fn files(document: &Document, kind: TextKind, offline: bool) -> Vec<Finding> {
    let Some(network) = ask::network(document, kind) else { return Vec::new() };
    let is_node = !offline && kind != TextKind::Manifest;
    let mut findings = Vec::new();
    for plugin in
        named(document).iter().filter(|plugin| ["host-local", "cluster-local"].contains(&&*plugin.name))
    {
        let key = "ipam.resolvConf";
        let entry = network.plugins.get(plugin.entry.0);
        let ipam = entry.and_then(|entry| json::get(&entry.document, "ipam"));
        let path = ipam.and_then(|ipam| json::get(ipam, "resolvConf")?.as_str());
        let (Some(path), Some(place)) =
            (path.filter(|path| !path.is_empty()), meant(document, plugin.entry.0, key))
        else {
            continue;
        };
        if !is_node {
            let message = format!("{key}: ADD reads {path} on the node, which was not looked at");
            findings.push(Finding::note(Rule::InvalidValue, place, message));
        } else if let Err(err) = cnimble_host_local::read_resolv_conf(Path::new(path)) {
            findings.push(Finding::error(Rule::InvalidValue, place, format!("ADD fails: {err}")));
        }
    }
    findings
}
