//! `cnimble cri status`: shows the conditions of the runtime and the network that it has loaded.

use serde_json::{Value, json};

use cnimble_cri::{Client, Cni, Status};
use cnimble_pod::network::{NetworkOptions, NetworkPlugin};
use cnimble_runtime::Network;

use super::report;
use crate::report::{Exit, Report};
use crate::style::rows;
use crate::{Session, print, print_json};

/// The network that cnimble would choose: the first usable file, like a kubelet with its own CNI support.
struct Choice {
    /// The directory that was searched.
    dir: String,
    network: Option<std::sync::Arc<Network>>,
    problems: Vec<String>,
}

pub(super) async fn status(session: &Session, client: &Client) -> Result<(), Report> {
    let what = "can't ask for the runtime's status";
    let status = client.status().await.map_err(|err| report(what, &err))?;
    let choice = choice(session, status.cni.as_ref()).await;
    let differ = differ(&status, &choice);
    let unready: Vec<&str> = status
        .conditions
        .iter()
        .filter(|of| is_main(&of.kind) && !of.holds)
        .map(|of| of.kind.as_str())
        .collect();
    if session.json {
        print_json(&document(client, &status, &choice, differ.as_deref()))?;
    } else {
        print(&text(session, client, &status, &choice, differ.as_deref()))?;
    }
    match (unready.is_empty(), &differ) {
        (true, None) => Ok(()),
        _ => Err(Report::new(Exit::Found, "")),
    }
}

/// Whether a kubelet looks at this condition.
fn is_main(kind: &str) -> bool {
    matches!(kind, "RuntimeReady" | "NetworkReady")
}

/// Chooses in the runtime's directories if the runtime names them and no other directory was given.
async fn choice(session: &Session, cni: Option<&Cni>) -> Choice {
    let told = cni.and_then(|cni| cni.conf_dir.clone()).filter(|_| !session.own_conf);
    let dir = told.unwrap_or_else(|| session.conf.dir().to_owned());
    let plugins = cni.map(|cni| cni.plugin_dirs.clone()).filter(|dirs| !dirs.is_empty() && !session.own_path);
    let mut invoker = session.invoker.clone();
    if let Some(plugins) = plugins {
        invoker = invoker.with_path(plugins);
    }
    let network = NetworkPlugin::open(NetworkOptions::new(&dir, invoker)).await;
    Choice {
        dir: dir.display().to_string(),
        network: network.default_network(),
        problems: network.problems(),
    }
}

/// Returns how the runtime's choice differs from `choice`, if the runtime reports its own.
fn differ(status: &Status, choice: &Choice) -> Option<String> {
    let loaded = &status.cni.as_ref()?.networks;
    let first = loaded.first();
    match (first, &choice.network) {
        (None, None) => None,
        (Some(loaded), None) => {
            Some(format!("the runtime uses {}, and no file in {} can be used now", loaded.name, choice.dir))
        }
        (None, Some(ours)) => {
            Some(format!("the runtime has loaded none, though {} can be used", ours.path.display()))
        }
        (Some(loaded), Some(ours)) if loaded.name != ours.list.name => Some(format!(
            "the runtime uses {}, and the first that can be used is {}",
            loaded.name, ours.list.name
        )),
        (Some(loaded), Some(ours)) => {
            let types: Vec<&str> = ours.list.plugins.iter().map(|of| of.plugin_type.as_str()).collect();
            let same = loaded.plugins == types && loaded.version == ours.list.version.as_str();
            (!same).then(|| format!("{} has changed since the runtime read it", ours.path.display()))
        }
    }
}

fn text(
    session: &Session,
    client: &Client,
    status: &Status,
    choice: &Choice,
    differ: Option<&str>,
) -> String {
    let paint = session.paint;
    let version = client.version();
    let mut lines = vec![
        ("socket", client.socket().display().to_string()),
        ("runtime", format!("{} {} (CRI {})", version.name, version.version, version.api)),
    ];
    for of in &status.conditions {
        let mut text = format!("{}={}", of.kind, of.holds);
        for (name, words) in [("reason", &of.reason), ("message", &of.message)] {
            if !words.is_empty() {
                text.push_str(&format!(" {name}: {words}"));
            }
        }
        let bad = is_main(&of.kind) && !of.holds;
        lines.push(("condition", if bad { paint.bad(&text) } else { text }));
    }
    match &status.cni {
        None => lines.push(("loaded", "the runtime doesn't tell which network it has loaded".to_owned())),
        Some(cni) => {
            for of in &cni.networks {
                lines.push((
                    "loaded",
                    format!("{} ({}, {}) as {}", of.name, of.version, of.plugins.join(" "), of.ifname),
                ));
            }
            if cni.networks.is_empty() {
                lines.push(("loaded", "no network".to_owned()));
            }
            lines.extend(cni.load_error.iter().map(|why| ("not loaded", why.clone())));
        }
    }
    lines.push((
        "cnimble's",
        match &choice.network {
            Some(ours) => {
                let types: Vec<&str> = ours.list.plugins.iter().map(|of| of.plugin_type.as_str()).collect();
                format!(
                    "{} ({}, {}) from {}",
                    ours.list.name,
                    ours.list.version,
                    types.join(" "),
                    ours.path.display()
                )
            }
            None => format!("none: no file in {} can be used", choice.dir),
        },
    ));
    lines.extend(choice.problems.iter().map(|why| ("skipped", why.clone())));
    lines.extend(differ.map(|how| ("differs", paint.bad(how))));
    let state = match status.conditions.iter().all(|of| !is_main(&of.kind) || of.holds) {
        true => paint.good("ready"),
        false => paint.bad("not ready"),
    };
    format!("{} is {state}\n{}", paint.bold(&version.name), rows(&lines, paint))
}

fn document(client: &Client, status: &Status, choice: &Choice, differ: Option<&str>) -> Value {
    let version = client.version();
    let conditions = status
        .conditions
        .iter()
        .map(|of| json!({"type": of.kind, "status": of.holds, "reason": of.reason, "message": of.message}));
    let loaded = status.cni.as_ref().map(|cni| {
        let networks = cni.networks.iter().map(|of| {
            json!({"name": of.name, "cniVersion": of.version, "plugins": of.plugins, "ifname": of.ifname})
        });
        json!({"confDir": cni.conf_dir, "pluginDirs": cni.plugin_dirs, "networks": networks.collect::<Value>(), "error": cni.load_error})
    });
    let ours = choice.network.as_ref().map(|ours| {
        let types: Vec<&str> = ours.list.plugins.iter().map(|of| of.plugin_type.as_str()).collect();
        json!({"name": ours.list.name, "cniVersion": ours.list.version.as_str(), "plugins": types, "file": ours.path})
    });
    json!({
        "socket": client.socket(),
        "runtime": {"name": version.name, "version": version.version, "cri": version.api},
        "conditions": conditions.collect::<Value>(),
        "loaded": loaded,
        "choice": ours,
        "skipped": choice.problems,
        "differs": differ,
    })
}
