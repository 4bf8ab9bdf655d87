//! Runs the plugins to check their versions and their configuration (STATUS).

use std::path::Path;

use cnimble_cni::{Code, NetworkList, Version};
use cnimble_lint::{Document, Finding, Level, NamedPlugin, Rule, meant, named};
use cnimble_runtime::{Error, PluginError, Stderr, find_plugin, load_file};

use super::files::TextKind;
use crate::{Session, plugin_files};

/// Asks the plugins of a network, and returns their findings. A plugin whose entry has an error in `found` is not asked
/// about its configuration.
pub(super) async fn ask_plugins(
    session: &Session,
    document: &Document,
    kind: TextKind,
    found: &[Finding],
) -> Vec<Finding> {
    let network = network(document, kind);
    let mut findings = Vec::new();
    let mut silent: Vec<String> = Vec::new();
    let all = named(document);
    let files = plugin_files::named(session, all.iter().map(|plugin| plugin.name.as_str())).await;
    for (plugin, file) in
        all.iter().filter_map(|of| Some((of, files.iter().find(|file| file.name == of.name)?)))
    {
        let (place, rule) = (plugin.place.clone(), Rule::Plugin);
        findings.extend(file.misnamed().map(|said| Finding::error(rule, place.clone(), said)));
        findings.extend(file.mixed(&files).map(|said| Finding::note(rule, place, said)));
    }
    for plugin in all {
        let version = network.as_ref().map(|network| network.version);
        match supported(session, &plugin, kind, version).await {
            Ok(newest) if newest < Version::V1_1_0 => silent.push(plugin.name),
            Ok(_) => {}
            Err(finding) => {
                // Reported once per place.
                findings.push(finding);
                silent.push(plugin.name);
            }
        }
    }
    let Some(network) = network else { return findings };
    let mut last = None;
    for plugin in named(document) {
        let (at, range) = plugin.entry.clone();
        // A plugin reports only its first fault, which may be in `found`, so plugins with a known error are skipped.
        let mut errors = found.iter().filter(|finding| finding.level == Level::Error);
        let told =
            errors.any(|finding| range.contains(&finding.range.start)) || silent.contains(&plugin.name);
        if last == Some(at) || told || !plugin.known {
            last = last.or(told.then_some(at));
            continue;
        }
        last = Some(at);
        findings.extend(status(session, &network, document, &plugin).await);
    }
    findings
}

/// Returns the network as a runtime reads it, or `None` if it is not valid or the document is only an entry.
pub(super) fn network(document: &Document, kind: TextKind) -> Option<NetworkList> {
    let text = document.file.text.as_bytes();
    match document.file.path.as_str() {
        _ if kind == TextKind::Entry => None,
        "-" if document.root.get("plugins").is_some() => NetworkList::parse(text).ok()?.complete().ok(),
        "-" => NetworkList::parse_single(text).ok(),
        path => load_file(Path::new(path)).ok(),
    }
}

/// Returns the newest version that the plugin supports.
///
/// # Errors
/// Returns a finding if the plugin is missing, doesn't answer, or lacks the wanted version.
async fn supported(
    session: &Session,
    plugin: &NamedPlugin,
    kind: TextKind,
    wanted: Option<Version>,
) -> Result<Version, Finding> {
    let invoker = session.invoker.clone().with_stderr(Stderr::Capture);
    let file = find_plugin(&plugin.name, invoker.path()).map_err(|err| match kind {
        // A manifest is for other machines, too.
        TextKind::Manifest => Finding::warning(Rule::Plugin, plugin.place.clone(), err.to_string()),
        TextKind::Network | TextKind::Entry => report_plugin(plugin, &err),
    })?;
    let versions = invoker.versions_of(&file).await.map_err(|err| report_plugin(plugin, &err))?;
    if let Some(wanted) = wanted.filter(|wanted| !versions.has(*wanted)) {
        let message = format!(
            "{} speaks {}, and not {wanted} ({})",
            plugin.name,
            versions.supported.join(", "),
            file.display()
        );
        return Err(Finding::error(Rule::Version, plugin.place.clone(), message));
    }
    let known = Version::ALL.iter().rev().find(|version| versions.has(**version));
    Ok(known.copied().unwrap_or(Version::V0_1_0))
}

/// Returns an error at the plugin's type in the file.
fn report_plugin(plugin: &NamedPlugin, err: &PluginError) -> Finding {
    Finding::error(Rule::Plugin, plugin.place.clone(), err.to_string())
}

/// Returns what the plugin finds wrong with its configuration, or `None`. Whether the plugin could serve now doesn't
/// count.
async fn status(
    session: &Session,
    network: &NetworkList,
    document: &Document,
    plugin: &NamedPlugin,
) -> Option<Finding> {
    let entry = network.plugins.get(plugin.entry.0)?.clone();
    // STATUS needs 1.1.0. The meaning of a configuration doesn't depend on the version.
    let mut alone = network.clone();
    alone.version = Version::V1_1_0;
    alone.plugins = vec![entry];
    let Err(Error::Plugins(failures)) = session.invoker.status(&alone).await else { return None };
    let PluginError::Refused { error, .. } = failures.first.cause else { return None };
    if ![Code::DECODE, Code::INVALID_CONFIG, Code::UNSUPPORTED_FIELD].contains(&error.code) {
        return None;
    }
    let place = meant(document, plugin.entry.0, &error.msg).unwrap_or_else(|| plugin.place.clone());
    Some(Finding::error(Rule::InvalidValue, place, format!("{} refuses it: {error}", plugin.name)))
}
