//! A runtime's answers in plain types. Every text in them is safe to print on a terminal.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::PathBuf;

use prost::Message;
use serde::Serialize;
use serde_json::Value;

use crate::clean::{clean, is_hostile};
use crate::{CriError, wire};

/// How many sandboxes an answer may have.
const MAX_SANDBOXES: usize = 20_000;

/// The name and the version of a runtime, as its Version call returns them.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Version {
    pub name: String,
    pub version: String,
    /// The version of CRI, such as `v1`.
    #[serde(rename = "cri")]
    pub api: String,
}

/// A condition of the runtime.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Condition {
    /// `RuntimeReady`, `NetworkReady` or another.
    #[serde(rename = "type")]
    pub kind: String,
    #[serde(rename = "status")]
    pub holds: bool,
    pub reason: String,
    /// The reason in the runtime's words.
    pub message: String,
}

/// The answer to a Status call.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Status {
    pub conditions: Vec<Condition>,
    /// The runtime's networks. It is `None` if the runtime does not report them as containerd does.
    pub cni: Option<Cni>,
}

/// A runtime's report on its networks. Runtimes report different parts of it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Cni {
    pub conf_dir: Option<PathBuf>,
    pub plugin_dirs: Vec<PathBuf>,
    /// The networks that it has loaded, without loopback.
    pub networks: Vec<Loaded>,
    /// Why the runtime could not load a network. It is `None` if it could, or does not say.
    #[serde(rename = "error")]
    pub load_error: Option<String>,
    /// The template from which the runtime writes a configuration when it receives the pods' addresses.
    #[serde(skip)]
    pub conf_template: Option<PathBuf>,
}

/// A network that the runtime has loaded.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Loaded {
    pub name: String,
    #[serde(rename = "cniVersion")]
    pub version: String,
    pub plugins: Vec<String>,
    pub ifname: String,
}

/// The sandbox of a pod, as a list of sandboxes shows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sandbox {
    /// The sandbox's ID, which is the plugins' container ID.
    pub id: String,
    pub name: String,
    pub namespace: String,
    pub uid: String,
    /// How many sandboxes the pod has had before this one.
    pub attempt: u32,
    pub ready: bool,
    /// The time at which it was made, in seconds since 1970.
    pub created: u64,
}

/// The answer to a PodSandboxStatus call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SandboxStatus {
    pub sandbox: Sandbox,
    /// The pod's addresses. The list is empty on the node's network.
    pub ips: Vec<IpAddr>,
    pub host_network: bool,
    /// The path of the network namespace, or `None` if the runtime does not report it.
    pub netns: Option<PathBuf>,
    /// The process of the sandbox, or `None` if the runtime does not report it.
    pub pid: Option<u32>,
}

impl Sandbox {
    /// Returns `NAMESPACE/NAME`.
    pub fn pod(&self) -> String {
        format!("{}/{}", self.namespace, self.name)
    }

    /// Returns the state in the words of crictl.
    pub fn state(&self) -> &'static str {
        if self.ready { "Ready" } else { "NotReady" }
    }

    fn new(
        method: &'static str,
        id: String,
        metadata: Option<wire::PodSandboxMetadata>,
        state: i32,
        created_at: i64,
    ) -> Result<Self, CriError> {
        let metadata = metadata.unwrap_or_default();
        Ok(Sandbox {
            id: self::id(method, id)?,
            name: clean(&metadata.name),
            namespace: clean(&metadata.namespace),
            uid: clean(&metadata.uid),
            attempt: metadata.attempt,
            ready: state == 0,
            created: u64::try_from(created_at / 1_000_000_000).unwrap_or(0),
        })
    }
}

/// Checks a sandbox's ID. It is compared with IDs in leases and links, so it is not cleaned: an invalid one makes the
/// whole answer invalid.
pub(crate) fn id(method: &'static str, id: String) -> Result<String, CriError> {
    let fits = !id.is_empty() && id.len() <= 256;
    if fits && !id.contains(|letter| is_hostile(letter) || letter == '/' || letter == ' ') {
        Ok(id)
    } else {
        Err(CriError::Answer { method, why: format!("{:.64} is not a valid sandbox ID", clean(&id)) })
    }
}

/// Reads a list of sandboxes, sorted by pod, the latest attempt first.
pub(crate) fn sandboxes(answer: &wire::ListPodSandboxResponse) -> Result<Vec<Sandbox>, CriError> {
    let method = "ListPodSandbox";
    if answer.items.len() > MAX_SANDBOXES {
        let why = format!("{} sandboxes are more than {MAX_SANDBOXES}", answer.items.len());
        return Err(CriError::Answer { method, why });
    }
    let parsed = answer.items.iter().map(|item| {
        let item = wire::PodSandbox::decode(item.as_ref())
            .map_err(|err| CriError::Answer { method, why: err.to_string() })?;
        Sandbox::new(method, item.id, item.metadata, item.state, item.created_at)
    });
    let mut all = parsed.collect::<Result<Vec<_>, _>>()?;
    all.sort_by_cached_key(|of| (of.pod(), std::cmp::Reverse(of.attempt), of.id.clone()));
    Ok(all)
}

/// Reads the status of a sandbox. An address that is none is left out, and missing metadata gives empty texts. Fails
/// without a valid ID.
pub(crate) fn sandbox(answer: wire::PodSandboxStatusResponse) -> Result<SandboxStatus, CriError> {
    let method = "PodSandboxStatus";
    let status = answer.status.unwrap_or_default();
    let network = status.network.unwrap_or_default();
    let ips = std::iter::once(network.ip).chain(network.additional_ips.into_iter().map(|of| of.ip));
    let options = status.linux.and_then(|linux| linux.namespaces?.options);
    let info: Option<Value> = answer.info.get("info").and_then(|info| serde_json::from_str(info).ok());
    let pid = info.as_ref().and_then(|info| u32::try_from(info.get("pid")?.as_u64()?).ok());
    Ok(SandboxStatus {
        sandbox: Sandbox::new(method, status.id, status.metadata, status.state, status.created_at)?,
        ips: ips.filter_map(|ip| ip.parse().ok()).collect(),
        host_network: options.is_some_and(|options| options.network == wire::NODE),
        netns: info.as_ref().and_then(netns),
        pid: pid.filter(|pid| *pid > 0),
    })
}

/// Returns the path of the network namespace from the OCI configuration that the runtime shows.
fn netns(info: &Value) -> Option<PathBuf> {
    let namespaces = info.pointer("/runtimeSpec/linux/namespaces")?.as_array()?;
    let network = namespaces.iter().find(|of| of.get("type").and_then(Value::as_str) == Some("network"))?;
    path(network.get("path")?)
}

/// Returns an absolute path. It returns `None` for another text, and for one with control characters.
fn path(value: &Value) -> Option<PathBuf> {
    let path = value.as_str()?;
    (path.starts_with('/') && !path.contains(is_hostile)).then(|| PathBuf::from(path))
}

/// Reads the status of the runtime.
pub(crate) fn status(answer: wire::StatusResponse) -> Status {
    let conditions = answer.status.unwrap_or_default().conditions.into_iter().map(|of| Condition {
        kind: clean(&of.kind),
        holds: of.status,
        reason: clean(&of.reason),
        message: clean(&of.message),
    });
    Status { conditions: conditions.collect(), cni: cni(&answer.info) }
}

/// Returns what containerd reports about its networks in a verbose Status: what go-cni has loaded without loopback, and
/// parts of its own configuration. It returns `None` for a runtime that reports nothing readable.
fn cni(info: &BTreeMap<String, String>) -> Option<Cni> {
    let shown = parse_info(info, "cniconfig")?;
    let loaded = list_at(&shown, "Networks").iter().filter_map(|network| {
        let config = network.get("Config")?;
        let plugins = list_at(config, "Plugins");
        let types = plugins.iter().filter_map(|plugin| plugin.pointer("/Network/type")?.as_str().map(clean));
        Some(Loaded {
            name: text_at(config, "Name")?,
            version: text_at(config, "CNIVersion").unwrap_or_default(),
            plugins: types.collect(),
            ifname: text_at(network, "IFName").unwrap_or_default(),
        })
    });
    let template = parse_info(info, "config").and_then(|config| {
        let template = config.pointer("/cni/confTemplate")?;
        path(template)
    });
    let load_error = ["lastCNILoadStatus", "lastCNILoadStatus.default"]
        .iter()
        .find_map(|key| info.get(*key))
        .map(|text| clean(text.trim_matches('"')))
        .filter(|text| text != "OK");
    Some(Cni {
        conf_dir: shown.get("PluginConfDir").and_then(path),
        plugin_dirs: list_at(&shown, "PluginDirs").iter().filter_map(path).collect(),
        networks: loaded.filter(|network| network.plugins != ["loopback"]).collect(),
        load_error,
        conf_template: template,
    })
}

/// Parses one of the JSON documents in a verbose Status. Returns `None` if it is missing or no JSON.
fn parse_info(info: &BTreeMap<String, String>, key: &str) -> Option<Value> {
    serde_json::from_str(info.get(key)?).ok()
}

fn text_at(value: &Value, key: &str) -> Option<String> {
    value.get(key).and_then(Value::as_str).map(clean)
}

/// Returns the list at a key, which is empty if there is none.
fn list_at<'v>(value: &'v Value, key: &str) -> &'v [Value] {
    value.get(key).and_then(Value::as_array).map_or(&[], Vec::as_slice)
}
