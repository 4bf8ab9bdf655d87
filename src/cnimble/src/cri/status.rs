//! `cnimble cri status`: shows the conditions of the runtime and the network that it has loaded.

use std::path::PathBuf;

use serde::Serialize;
use serde_json::Value;

use cnimble_cri::{Client, Cni, Condition, Loaded, Version};
use cnimble_pod::network::{NetworkOptions, NetworkPlugin};

use super::report;
use crate::Session;
use crate::output::View;
use crate::report::{Exit, Report, fail_with};
use crate::style::{Paint, rows};

/// The state of the runtime, and the network that cnimble would choose.
#[derive(Serialize)]
struct Status {
    socket: PathBuf,
    runtime: Version,
    conditions: Vec<Condition>,
    /// It is `None` if the runtime doesn't report its networks.
    loaded: Option<Cni>,
    /// The network that cnimble would choose, or `None` if no file can be used.
    choice: Option<Choice>,
    /// The directory of the choice.
    #[serde(skip)]
    dir: String,
    /// Why other files can't be used.
    skipped: Vec<String>,
    /// How the loaded network differs from the choice.
    differs: Option<String>,
}

/// The first usable file of a directory, which a kubelet with its own CNI support would choose, too.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Choice {
    name: String,
    cni_version: &'static str,
    /// The file's `cniVersion`. A runtime that doesn't know `cniVersions` has loaded the network with it.
    #[serde(skip)]
    without_list: Option<String>,
    plugins: Vec<String>,
    file: PathBuf,
}

/// Prints the state of the runtime. It fails with [`Exit::Found`] if the runtime isn't ready, or if its network differs
/// from cnimble's choice.
pub(super) async fn status(session: &Session, client: &Client) -> Result<(), Report> {
    let what = "can't ask for the runtime's status";
    let status = client.status().await.map_err(|err| report(what, &err))?;
    let (dir, choice, skipped) = choice(session, status.cni.as_ref()).await;
    let loaded = status.cni;
    let differs = loaded.as_ref().and_then(|loaded| differ(loaded.networks.first(), choice.as_ref(), &dir));
    let view = Status {
        socket: client.socket().to_owned(),
        runtime: client.version().clone(),
        conditions: status.conditions,
        loaded,
        choice,
        dir,
        skipped,
        differs,
    };
    session.show(&view)?;
    let is_well = view.is_ready() && view.differs.is_none();
    fail_with((!is_well).then_some(Exit::Found))
}

/// Chooses a network as cnimble would. Returns the directory, the choice, and why other files can't be used.
///
/// The directories of networks and plugins are those that the runtime names, unless the user has named others.
async fn choice(session: &Session, cni: Option<&Cni>) -> (String, Option<Choice>, Vec<String>) {
    let told = cni.and_then(|cni| cni.conf_dir.clone()).filter(|_| !session.own_conf);
    let dir = told.unwrap_or_else(|| session.conf.dir().to_owned());
    let plugins = cni.map(|cni| cni.plugin_dirs.clone()).filter(|dirs| !dirs.is_empty() && !session.own_path);
    let mut invoker = session.invoker.clone();
    if let Some(plugins) = plugins {
        invoker = invoker.with_path(plugins);
    }
    let network = NetworkPlugin::open(NetworkOptions::new(&dir, invoker)).await;
    let choice = network.default_network().map(|ours| Choice {
        name: ours.list.name.clone(),
        cni_version: ours.list.version.as_str(),
        without_list: ours.list.document.get("cniVersion").and_then(Value::as_str).map(str::to_owned),
        plugins: ours.list.plugins.iter().map(|of| of.plugin_type.clone()).collect(),
        file: ours.path.clone(),
    });
    (dir.display().to_string(), choice, network.problems())
}

/// Returns how the runtime's network differs from cnimble's choice, or `None` if they agree or both are missing.
fn differ(loaded: Option<&Loaded>, choice: Option<&Choice>, dir: &str) -> Option<String> {
    match (loaded, choice) {
        (None, None) => None,
        (Some(loaded), None) => {
            Some(format!("the runtime uses {}, but no file in {dir} can be used now", loaded.name))
        }
        (None, Some(ours)) => {
            Some(format!("the runtime has loaded no network, but {} can be used", ours.file.display()))
        }
        (Some(loaded), Some(ours)) if loaded.name != ours.name => {
            Some(format!("the runtime uses {}, but the first usable network is {}", loaded.name, ours.name))
        }
        (Some(loaded), Some(ours)) => {
            let versions = [Some(ours.cni_version), ours.without_list.as_deref()];
            let same = loaded.plugins == ours.plugins && versions.contains(&Some(loaded.version.as_str()));
            (!same).then(|| format!("{} has changed since the runtime read it", ours.file.display()))
        }
    }
}

/// Returns whether a kubelet regards the runtime as not ready because of this condition.
fn is_bad(condition: &Condition) -> bool {
    !condition.holds && matches!(condition.kind.as_str(), "RuntimeReady" | "NetworkReady")
}

fn text(condition: &Condition) -> String {
    let parts = [("reason", &condition.reason), ("message", &condition.message)];
    let parts = parts.iter().filter(|(_, words)| !words.is_empty());
    let parts: String = parts.map(|(name, words)| format!(" {name}: {words}")).collect();
    format!("{}={}{parts}", condition.kind, condition.holds)
}

impl Status {
    fn is_ready(&self) -> bool {
        !self.conditions.iter().any(is_bad)
    }

    /// Returns the rows about the networks of the runtime.
    fn loaded(&self) -> Vec<(&'static str, String)> {
        let Some(loaded) = &self.loaded else {
            return vec![("loaded", "the runtime does not report its networks".to_owned())];
        };
        let words =
            |of: &Loaded| format!("{} ({}, {}) as {}", of.name, of.version, of.plugins.join(" "), of.ifname);
        let mut lines: Vec<_> = loaded.networks.iter().map(|of| ("loaded", words(of))).collect();
        if lines.is_empty() {
            lines.push(("loaded", "no network".to_owned()));
        }
        lines.extend(loaded.load_error.iter().map(|why| ("not loaded", why.clone())));
        lines
    }
}

impl View for Status {
    fn text(&self, paint: Paint) -> String {
        let Version { name, version, api } = &self.runtime;
        let mut lines = vec![
            ("socket", self.socket.display().to_string()),
            ("runtime", format!("{name} {version} (CRI {api})")),
        ];
        lines.extend(
            self.conditions
                .iter()
                .map(|of| ("condition", if is_bad(of) { paint.bad(&text(of)) } else { text(of) })),
        );
        lines.extend(self.loaded());
        let choice = match &self.choice {
            Some(Choice { name, cni_version, plugins, file, .. }) => {
                format!("{name} ({cni_version}, {}) from {}", plugins.join(" "), file.display())
            }
            None => format!("none: no file in {} can be used", self.dir),
        };
        lines.push(("cnimble's", choice));
        lines.extend(self.skipped.iter().map(|why| ("skipped", why.clone())));
        lines.extend(self.differs.iter().map(|how| ("differs", paint.bad(how))));
        let state = if self.is_ready() { paint.good("ready") } else { paint.bad("not ready") };
        format!("{} is {state}\n{}", paint.bold(name), rows(&lines, paint))
    }
}
