//! `cnimble cri status`: shows the conditions of the runtime and the network that it has loaded.

use std::path::PathBuf;

use serde::Serialize;

use cnimble_cri::{Client, Cni};
use cnimble_pod::network::{NetworkOptions, NetworkPlugin};

use super::report;
use crate::Session;
use crate::output::View;
use crate::report::{Exit, Report};
use crate::style::{Paint, rows};

#[derive(Serialize)]
struct Status {
    socket: PathBuf,
    runtime: Runtime,
    conditions: Vec<Condition>,
    /// `None` if the runtime doesn't report its networks.
    loaded: Option<Loaded>,
    choice: Option<Choice>,
    #[serde(skip)]
    dir: String,
    skipped: Vec<String>,
    differs: Option<String>,
}

#[derive(Serialize)]
struct Runtime {
    name: String,
    version: String,
    cri: String,
}

#[derive(Serialize)]
struct Condition {
    #[serde(rename = "type")]
    kind: String,
    #[serde(rename = "status")]
    holds: bool,
    reason: String,
    message: String,
}

/// The runtime's directories and networks.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Loaded {
    conf_dir: Option<PathBuf>,
    plugin_dirs: Vec<PathBuf>,
    networks: Vec<Network>,
    error: Option<String>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Network {
    name: String,
    cni_version: String,
    plugins: Vec<String>,
    ifname: String,
}

/// cnimble chooses the first usable file, like a kubelet with its own CNI support.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Choice {
    name: String,
    cni_version: &'static str,
    plugins: Vec<String>,
    file: PathBuf,
}

pub(super) async fn status(session: &Session, client: &Client) -> Result<(), Report> {
    let what = "can't ask for the runtime's status";
    let status = client.status().await.map_err(|err| report(what, &err))?;
    let version = client.version();
    let (dir, choice, skipped) = choice(session, status.cni.as_ref()).await;
    let loaded = status.cni.map(Loaded::new);
    let differs = loaded.as_ref().and_then(|loaded| differ(loaded.networks.first(), choice.as_ref(), &dir));
    let conditions = status.conditions.into_iter().map(|of| Condition {
        kind: of.kind,
        holds: of.holds,
        reason: of.reason,
        message: of.message,
    });
    let (name, version, cri) = (version.name.clone(), version.version.clone(), version.api.clone());
    let view = Status {
        socket: client.socket().to_owned(),
        runtime: Runtime { name, version, cri },
        conditions: conditions.collect(),
        loaded,
        choice,
        dir,
        skipped,
        differs,
    };
    session.show(&view)?;
    match view.is_ready() && view.differs.is_none() {
        true => Ok(()),
        false => Err(Report::new(Exit::Found, "")),
    }
}

impl Loaded {
    fn new(cni: Cni) -> Self {
        let networks = cni.networks.into_iter().map(|of| Network {
            name: of.name,
            cni_version: of.version,
            plugins: of.plugins,
            ifname: of.ifname,
        });
        let networks = networks.collect();
        Loaded { conf_dir: cni.conf_dir, plugin_dirs: cni.plugin_dirs, networks, error: cni.load_error }
    }
}

/// Chooses in the runtime's directories if the runtime names them and no other directory was given. Returns the
/// directory, the choice, and why other files can't be used.
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
        plugins: ours.list.plugins.iter().map(|of| of.plugin_type.clone()).collect(),
        file: ours.path.clone(),
    });
    (dir.display().to_string(), choice, network.problems())
}

/// Returns how the runtime's network differs from cnimble's choice.
fn differ(loaded: Option<&Network>, choice: Option<&Choice>, dir: &str) -> Option<String> {
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
            let same = loaded.plugins == ours.plugins && loaded.cni_version == ours.cni_version;
            (!same).then(|| format!("{} has changed since the runtime read it", ours.file.display()))
        }
    }
}

impl Condition {
    /// A kubelet regards the runtime as not ready because of such a condition.
    fn is_bad(&self) -> bool {
        !self.holds && matches!(self.kind.as_str(), "RuntimeReady" | "NetworkReady")
    }

    fn text(&self) -> String {
        let parts = [("reason", &self.reason), ("message", &self.message)];
        let parts = parts.iter().filter(|(_, words)| !words.is_empty());
        let parts: String = parts.map(|(name, words)| format!(" {name}: {words}")).collect();
        format!("{}={}{parts}", self.kind, self.holds)
    }
}

impl Status {
    fn is_ready(&self) -> bool {
        !self.conditions.iter().any(Condition::is_bad)
    }

    /// Returns the rows about the networks of the runtime.
    fn loaded(&self) -> Vec<(&'static str, String)> {
        let Some(loaded) = &self.loaded else {
            return vec![("loaded", "the runtime does not report its networks".to_owned())];
        };
        let words = |of: &Network| {
            format!("{} ({}, {}) as {}", of.name, of.cni_version, of.plugins.join(" "), of.ifname)
        };
        let mut lines: Vec<_> = loaded.networks.iter().map(|of| ("loaded", words(of))).collect();
        if lines.is_empty() {
            lines.push(("loaded", "no network".to_owned()));
        }
        lines.extend(loaded.error.iter().map(|why| ("not loaded", why.clone())));
        lines
    }
}

impl View for Status {
    fn text(&self, paint: Paint) -> String {
        let Runtime { name, version, cri } = &self.runtime;
        let mut lines = vec![
            ("socket", self.socket.display().to_string()),
            ("runtime", format!("{name} {version} (CRI {cri})")),
        ];
        lines.extend(
            self.conditions
                .iter()
                .map(|of| ("condition", if of.is_bad() { paint.bad(&of.text()) } else { of.text() })),
        );
        lines.extend(self.loaded());
        let choice = match &self.choice {
            Some(Choice { name, cni_version, plugins, file }) => {
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
