//! The further facts in verbose answers, as JSON with the keys of containerd.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use cnimble_pod::network::{INTERFACE, NetworkPlugin};
use cnimble_pod::sandbox::{Sandbox, Sandboxes};

/// Returns the verbose information for Status: directories, the default network and what is wrong with them.
pub(crate) fn runtime(network: &NetworkPlugin) -> BTreeMap<String, String> {
    let (conf_dir, plugin_dirs) = network.dirs();
    let networks: Vec<Value> = network
        .default_network()
        .iter()
        .map(|of| {
            let plugins =
                of.list.plugins.iter().map(|plugin| json!({"Network": {"type": plugin.plugin_type}}));
            json!({
                "Config": {
                    "Name": of.list.name,
                    "CNIVersion": of.list.version.as_str(),
                    "Plugins": plugins.collect::<Vec<_>>(),
                    "File": of.path,
                },
                "IFName": INTERFACE,
            })
        })
        .collect();
    let cni = json!({"PluginConfDir": conf_dir, "PluginDirs": plugin_dirs, "Networks": networks});
    let cidrs: Vec<String> = network.pod_cidrs().iter().map(ToString::to_string).collect();
    let mut problems = network.problems();
    // A directory without files has no file with a problem.
    if problems.is_empty()
        && network.default_network().is_none()
        && let Err(why) = network.ready()
    {
        problems = why.details;
    }
    let loaded = if problems.is_empty() { "OK".to_owned() } else { problems.join("; ") };
    BTreeMap::from([
        ("cniconfig".to_owned(), cni.to_string()),
        ("lastCNILoadStatus".to_owned(), json!(loaded).to_string()),
        ("podCIDRs".to_owned(), json!(cidrs).to_string()),
    ])
}

/// Returns the verbose information about a sandbox for PodSandboxStatus. Looks into its namespace.
pub(crate) async fn sandbox(sandboxes: &Sandboxes, of: &Sandbox) -> BTreeMap<String, String> {
    let looked = sandboxes.inspect(&of.id).await;
    let (fault, ips) = match looked {
        Ok(looked) => (looked.fault.map(|fault| fault.to_string()), looked.ips),
        Err(err) => (Some(err.to_string()), Vec::new()),
    };
    let namespaces: Vec<Value> =
        of.netns.iter().map(|path| json!({"type": "network", "path": path})).collect();
    let info = json!({
        "pid": of.process.map(|process| process.pid),
        "runtimeSpec": {"linux": {"namespaces": namespaces}},
        "cniResult": sandboxes.result_of(of),
        "checkpoint": of,
        "fault": fault,
        "addresses": ips,
    });
    BTreeMap::from([("info".to_owned(), info.to_string())])
}
