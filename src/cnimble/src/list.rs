//! `plugins` and `networks`: list the installed plugins and networks.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::Duration;

use futures::StreamExt;
use serde::Serialize;

use cnimble_cni::Version;
use cnimble_runtime::{PluginError, Stderr, Versions, all_plugins};

use super::Session;
use super::output::View;
use super::report::{Exit, Report};
use super::style::{Paint, table};

/// The time for a plugin to report its versions. It is short, as the directory may contain programs that never end.
const LIMIT: Duration = Duration::from_secs(5);

/// Lists the installed plugins with the versions that each reports. It runs the programs in the plugins' directories
/// with VERSION, and fails if there are none.
pub(super) async fn plugins(session: &Session) -> Result<(), Report> {
    let path = session.invoker.path();
    let found = all_plugins(&harmless(path));
    let invoker = session.invoker.clone().with_time_limit(LIMIT).with_stderr(Stderr::Capture);
    let invoker = &invoker;
    let probes = found.into_iter().map(|(name, file)| async move {
        let answer = invoker.versions_of(&file).await;
        (name, file, answer)
    });
    let answers: Vec<_> = futures::stream::iter(probes).buffered(8).collect().await;
    if answers.is_empty() {
        let dirs: Vec<String> = path.iter().map(|dir| dir.display().to_string()).collect();
        return Err(Report::because(
            Exit::Execution,
            "there are no plugins",
            format!("looked in {}", dirs.join(" ")),
        )
        .hint("name their directories with --cni-path or CNI_PATH"));
    }
    session.show(&Plugins(answers.into_iter().map(Plugin::new).collect()))
}

/// The programs that were asked.
#[derive(Serialize)]
struct Plugins(Vec<Plugin>);

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Plugin {
    name: String,
    path: PathBuf,
    #[serde(flatten)]
    answer: VersionAnswer,
    /// The cell of the table for the answer.
    #[serde(skip)]
    words: String,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
enum VersionAnswer {
    SupportedVersions(Vec<String>),
    Error(String),
}

impl Plugin {
    fn new((name, path, answer): (String, PathBuf, Result<Versions, PluginError>)) -> Self {
        let words = match &answer {
            Ok(versions) => span(&versions.supported),
            Err(PluginError::TimeLimit { .. }) => "no answer".to_owned(),
            Err(PluginError::Start { source, .. }) => source.to_string(),
            Err(_) => "not a CNI plugin?".to_owned(),
        };
        let answer = match answer {
            Ok(versions) => VersionAnswer::SupportedVersions(versions.supported),
            Err(err) => VersionAnswer::Error(err.to_string()),
        };
        Plugin { name, path, answer, words }
    }
}

impl View for Plugins {
    fn text(&self, paint: Paint) -> String {
        let lines =
            self.0.iter().map(|of| vec![of.name.clone(), of.words.clone(), of.path.display().to_string()]);
        table(&["PLUGIN", "CNI VERSIONS", "PATH"], &lines.collect::<Vec<_>>(), paint)
    }
}

/// Returns the directories but those of ordinary programs, and logs the others. No program there may be run to find
/// plugins: /usr/sbin has poweroff.
fn harmless(path: &[PathBuf]) -> Vec<PathBuf> {
    const ORDINARY: [&str; 6] =
        ["/bin", "/sbin", "/usr/bin", "/usr/sbin", "/usr/local/bin", "/usr/local/sbin"];
    let own = std::env::var_os("PATH").unwrap_or_default();
    let ordinary: Vec<PathBuf> =
        std::env::split_paths(&own).chain(ORDINARY.map(PathBuf::from)).map(|dir| real(&dir)).collect();
    let (left_out, harmless): (Vec<&PathBuf>, Vec<&PathBuf>) =
        path.iter().partition(|dir| ordinary.contains(&real(dir)));
    for dir in left_out {
        log::warn!("{} has ordinary programs (it is in PATH), so its files are not run", dir.display());
    }
    harmless.into_iter().cloned().collect()
}

/// Returns the path without links, or as it is if the directory is not found.
fn real(dir: &Path) -> PathBuf {
    dir.canonicalize().unwrap_or_else(|_| dir.to_owned())
}

/// Returns the versions as text. Three or more consecutive ones become `0.1.0 to 1.1.0`.
fn span(supported: &[String]) -> String {
    let known: Vec<&str> = Version::ALL.iter().map(|version| version.as_str()).collect();
    match (supported.first(), supported.last()) {
        (Some(first), Some(last))
            if supported.len() > 2 && known.windows(supported.len()).any(|run| run == supported) =>
        {
            format!("{first} to {last}")
        }
        _ => supported.join(" "),
    }
}

/// Lists the networks of the configuration directory. It fails if there is none, and after the list if a file is
/// unusable.
pub(super) fn networks(session: &Session) -> Result<(), Report> {
    let what = "can't list the networks";
    let listing = session.conf.list().map_err(|err| Report::conf(what, &err))?;
    if listing.networks.is_empty() && listing.problems.is_empty() {
        return Err(Report::because(
            Exit::Config,
            "there are no networks",
            format!("{} has no configuration", session.conf.dir().display()),
        )
        .hint(
            "`cnimble init bridge NAME` writes one there; --conf-dir or NETCONFPATH names another directory",
        ));
    }
    let mut seen = BTreeSet::new();
    let networks = listing.networks.into_iter().map(|network| Network {
        hidden: !seen.insert(network.list.name.clone()),
        plugins: network.list.plugins.into_iter().map(|plugin| plugin.plugin_type).collect(),
        name: network.list.name,
        cni_version: network.list.version.as_str(),
        file: network.path,
    });
    let problems = listing.problems.iter().map(ToString::to_string).collect();
    let view = Networks { networks: networks.collect(), problems };
    session.show(&view)?;
    session.judge(Exit::Config, "some files can't be used", &view.problems)
}

/// The networks of the configuration directory, and its unusable files.
#[derive(Serialize)]
struct Networks {
    networks: Vec<Network>,
    problems: Vec<String>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Network {
    name: String,
    cni_version: &'static str,
    plugins: Vec<String>,
    file: PathBuf,
    /// An earlier file has a network of the same name.
    hidden: bool,
}

impl View for Networks {
    fn text(&self, paint: Paint) -> String {
        if self.networks.is_empty() {
            return String::new();
        }
        let lines = self.networks.iter().map(|of| {
            let hidden = if of.hidden { " (hidden by the one of this name above)" } else { "" };
            let file = format!("{}{hidden}", of.file.display());
            vec![of.name.clone(), of.cni_version.to_owned(), of.plugins.join(" "), file]
        });
        table(&["NETWORK", "CNI", "PLUGINS", "FILE"], &lines.collect::<Vec<_>>(), paint)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans() {
        let texts = |list: &[&str]| list.iter().map(|&text| text.to_owned()).collect::<Vec<_>>();
        assert_eq!(span(&texts(&["0.3.1", "0.4.0", "1.0.0"])), "0.3.1 to 1.0.0");
        assert_eq!(span(&texts(&["0.1.0", "0.2.0"])), "0.1.0 0.2.0");
        assert_eq!(span(&texts(&["0.1.0", "1.0.0", "1.1.0"])), "0.1.0 1.0.0 1.1.0");
        assert_eq!(span(&[]), "");
    }
}
