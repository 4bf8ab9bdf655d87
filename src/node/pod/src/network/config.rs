//! Reads the configuration directory, and keeps its last state. As under the kubelet the first usable network by file
//! name is the default one. Its file must make sense, and its plugins must exist and speak its version. If no file is
//! usable, but the default network's still exists (being edited), its former content stays in use.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;

use cnimble_cni::{NetworkList, json};
use cnimble_runtime::{ConfDir, Invoker, Listing, Network, find_plugin};

/// The time limit for a plugin's answer to VERSION or STATUS.
pub(super) const PROBE: Duration = Duration::from_secs(10);

/// The networks as they were read last.
#[derive(Debug, Default, Clone)]
pub(super) struct LoadedNetworks {
    pub(super) default: Option<Arc<Network>>,
    pub(super) networks: Vec<Arc<Network>>,
    pub(super) problems: Vec<String>,
    print: Fingerprint,
}

impl LoadedNetworks {
    /// Returns the file and the name of the default network, or `None` without one.
    pub(super) fn default_name(&self) -> Option<(&Path, &str)> {
        self.default.as_ref().map(|of| (of.path.as_path(), of.list.name.as_str()))
    }
}

/// The facts about networks and plugins of which one must change before the plugins are asked again.
#[derive(Debug, Default, Clone, PartialEq)]
struct Fingerprint {
    networks: Vec<(PathBuf, Value)>,
    problems: Vec<String>,
    plugins: Vec<Option<(PathBuf, u64, i64, i64)>>,
}

/// Returns the plugin directories for a network: `/opt/TYPE/bin` of its plugins if they exist, as containerd has it,
/// and then the usual directories.
pub(super) fn plugin_path(network: &NetworkList, usual: &[PathBuf]) -> Vec<PathBuf> {
    let mut path: Vec<PathBuf> = types(network).filter_map(find_vendor_dir).collect();
    path.extend_from_slice(usual);
    path
}

/// Returns `/opt/TYPE/bin` if it exists.
fn find_vendor_dir(name: &str) -> Option<PathBuf> {
    let plain = !name.is_empty() && !name.starts_with('.') && !name.contains(['/', '\0', ':']);
    let dir = Path::new("/opt").join(name).join("bin");
    (plain && dir.is_dir()).then_some(dir)
}

/// Returns the types of the network's plugins, also of its IPAM plugins.
fn types(network: &NetworkList) -> impl Iterator<Item = &str> {
    network.plugins.iter().flat_map(|plugin| {
        let ipam = json::get(&plugin.document, "ipam").and_then(|ipam| json::get(ipam, "type"));
        std::iter::once(plugin.plugin_type.as_str()).chain(ipam.and_then(Value::as_str))
    })
}

/// Reads the networks, and asks the plugins of each for VERSION until one is usable. It returns `None` if nothing has
/// changed since `before` and there is a default network.
pub(super) async fn read(
    dir: &ConfDir,
    invoker: &Invoker,
    before: &LoadedNetworks,
) -> Option<LoadedNetworks> {
    let (networks, mut problems) = match dir.list_by_name() {
        Ok(Listing { networks, problems, .. }) => {
            (networks, problems.iter().map(ToString::to_string).collect::<Vec<_>>())
        }
        Err(err) => (Vec::new(), vec![err.to_string()]),
    };
    let paths: Vec<Vec<PathBuf>> = networks.iter().map(|of| plugin_path(&of.list, invoker.path())).collect();
    let print = Fingerprint {
        networks: networks.iter().map(|of| (of.path.clone(), of.list.document.clone())).collect(),
        problems: problems.clone(),
        plugins: networks
            .iter()
            .zip(&paths)
            .flat_map(|(of, path)| types(&of.list).map(|name| identity(name, path)))
            .collect(),
    };
    // Without a default network the plugins are asked again, because their failure may have passed.
    if print == before.print && before.default.is_some() {
        return None;
    }
    let mut state = LoadedNetworks { print, ..LoadedNetworks::default() };
    for (network, path) in networks.into_iter().zip(paths) {
        let network = Arc::new(network);
        state.networks.push(Arc::clone(&network));
        if state.default.is_some() {
            continue;
        }
        let invoker = invoker.clone().with_path(path).with_time_limit(PROBE);
        match invoker.validate(&network.list).await {
            Ok(_) => state.default = Some(network),
            Err(err) => problems.push(format!("{}: {err}", network.path.display())),
        }
    }
    if state.default.is_none()
        && let Some(last) = before.default.as_ref().filter(|last| last.path.exists())
    {
        problems.push(format!("network {} is used as it was before", last.list.name));
        state.default = Some(Arc::clone(last));
    }
    state.problems = problems;
    Some(state)
}

/// Returns what changes when the plugin's file is replaced. It returns `None` without the plugin.
fn identity(name: &str, path: &[PathBuf]) -> Option<(PathBuf, u64, i64, i64)> {
    let file = find_plugin(name, path).ok()?;
    let meta = std::fs::metadata(&file).ok()?;
    Some((file, meta.ino(), meta.mtime(), meta.mtime_nsec()))
}
