//! `create`: checks and completes a network that podman is about to store.

use serde_json::{Map, Value, json};

use cnimble_cni::NetworkList;
use cnimble_lint::{Document, File, Finding, Level};
use cnimble_netavark::input::Network;
use cnimble_netavark::options::{COPY, NETWORK, Options};
use cnimble_netavark::{Failure, said};

use super::{described, named};
use crate::report::Report;

/// Returns the network as podman is to store it. Fields that this driver does not know stay as they are, and
/// `dns_enabled` becomes false.
///
/// Fails if the document is no network of podman's, or has the option that only this driver may set ([`COPY`]). Fails
/// as well if the CNI network that it names or describes can't be used ([`named::create`], [`described::create`]).
pub(super) async fn create(document: Value) -> Result<Value, Failure> {
    let network: Network = serde_json::from_value(document.clone())
        .map_err(|err| Failure::Said(format!("podman's network: {err}")))?;
    let Value::Object(mut document) = document else { return said("podman's network: expected an object") };
    let given = Options::new(network.options.as_ref());
    if given.get(COPY).is_some() {
        return said(format!("the option {COPY} is the driver's own; name a network with {NETWORK}=NAME"));
    }
    if network.network_dns_servers.as_ref().is_some_and(|servers| !servers.is_empty()) {
        return said(
            "--dns is for netavark's name server, which serves netavark's own bridges only; \
             give a container its name servers by `podman run --dns`",
        );
    }
    match given.get(NETWORK) {
        Some(name) => named::create(&mut document, &network, name).await?,
        None => described::create(&mut document, network).await?,
    }
    // netavark starts its name server for its own bridges only.
    document.insert("dns_enabled".into(), false.into());
    Ok(Value::Object(document))
}

/// Sets a key of an object of texts in podman's network, which may be absent or `null`.
pub(super) fn set_text(document: &mut Map<String, Value>, object: &str, key: &str, value: &str) {
    let entry = document.entry(object).or_insert(Value::Null);
    if !entry.is_object() {
        *entry = json!({});
    }
    if let Some(map) = entry.as_object_mut() {
        map.insert(key.to_owned(), value.into());
    }
}

/// Returns the configuration as the checks read it. `path` names it in their messages.
pub(super) fn parse(path: &str, text: String) -> Result<Document, Failure> {
    Document::parse(File { path: path.to_owned(), text })
        .map_err(|failed| Failure::Said(format!("{path}: {}", failed.1.message)))
}

/// Fails if a check has found more than a note.
pub(super) fn must_be_faultless(what: &str, findings: &[Finding]) -> Result<(), Failure> {
    let wrong: Vec<&str> = findings
        .iter()
        .filter(|finding| finding.level > Level::Note)
        .map(|finding| finding.message.as_str())
        .collect();
    if wrong.is_empty() { Ok(()) } else { said(format!("{what}: {}", wrong.join("; "))) }
}

/// The plugins that put an interface of the host into a container, or make one on it.
const ON_HOST_INTERFACES: &[&str] = &["macvlan", "ipvlan", "vlan", "host-device"];

/// Fails if a plugin needs what rootless podman has not.
pub(super) fn must_work_rootless(network: &NetworkList) -> Result<(), Failure> {
    let mut types = network.plugins.iter().map(|plugin| plugin.plugin_type.as_str());
    match types.find(|name| ON_HOST_INTERFACES.contains(name)) {
        None => Ok(()),
        Some(name) => said(format!(
            "the plugin {name} needs an interface of the host, which the network namespace of rootless podman lacks"
        )),
    }
}

/// Converts a report of the command.
pub(super) fn failed(report: &Report) -> Failure {
    Failure::Said(report.line())
}
