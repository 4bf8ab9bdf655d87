//! Determines the maker of each installed plugin file, and the consequences for running pods.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use futures::StreamExt;
use serde::Serialize;
use tokio::io::AsyncReadExt;
use tokio::process::Command;

use cnimble_doctor::Doctor;
use cnimble_doctor::hand_over::Mode;
use cnimble_runtime::find_plugin;

use super::Session;
use super::style::{Paint, part};

/// The time for a file to describe itself. A plugin takes milliseconds, but the file may be another program.
const LIMIT: Duration = Duration::from_secs(5);
/// The number of bytes that are read of such a description.
const ANSWER: u64 = 4096;
/// The number of pods that a consequence names.
const NAMED: usize = 5;

/// Who made a plugin's file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
enum Maker {
    Cnimble,
    Go,
    Other,
}

/// An installed plugin with its maker.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct PluginFile {
    pub(super) name: String,
    pub(super) path: PathBuf,
    maker: Maker,
    /// The version without a `v`. It is `None` for another maker.
    version: Option<String>,
    /// The plugin's own name, which differs from `name` if the file holds another plugin. It is `None` if the file
    /// tells none.
    acts_as: Option<String>,
}

impl PluginFile {
    /// Runs a plugin's file without CNI_COMMAND. A plugin then describes itself on stderr and does nothing.
    async fn read_description(name: &str, path: PathBuf) -> Self {
        let said = if is_program(&path) { about(&path).await } else { String::new() };
        let (maker, version, acts_as) = read(&said);
        PluginFile { name: name.to_owned(), path, maker, version, acts_as }
    }

    /// Returns the maker and the version, such as `cnimble v0.1.0`.
    fn words(&self) -> String {
        let version = self.version.as_deref().unwrap_or_default();
        match self.maker {
            Maker::Cnimble => format!("cnimble v{version}"),
            // A distribution's build often has no version.
            Maker::Go if version == "unknown" => "Go, of unknown version".to_owned(),
            Maker::Go => format!("Go v{version}"),
            Maker::Other if self.acts_as.is_none() => "an unknown maker".to_owned(),
            Maker::Other => "another maker".to_owned(),
        }
    }

    /// Returns a message if the file holds another plugin than its name says, otherwise `None`.
    pub(super) fn misnamed(&self) -> Option<String> {
        let is = self.acts_as.as_ref().filter(|is| **is != self.name)?;
        Some(format!("{} is the plugin {is} ({})", self.path.display(), self.words()))
    }

    /// Returns a message if this is a Go plugin while others of `network` are from cnimble, otherwise `None`.
    pub(super) fn mixed(&self, network: &[PluginFile]) -> Option<String> {
        let ours = network.iter().any(|file| file.maker == Maker::Cnimble);
        (ours && self.maker == Maker::Go).then(|| {
            format!(
                "{} is {}, beside plugins of cnimble: its DEL leaves what cnimble's {} made; `cnimble hand-over --yes` \
                 hands living pods over",
                self.path.display(),
                self.words(),
                self.name
            )
        })
    }
}

/// Returns the maker, the version and the plugin's own name from a plugin's description of itself. Both sets of plugins
/// print a line `CNI <name> plugin <version>`.
fn read(said: &str) -> (Maker, Option<String>, Option<String>) {
    let first = said.lines().find_map(|line| line.strip_prefix("CNI ")?.split_once(" plugin "));
    let Some((name, version)) = first else { return (Maker::Other, None, None) };
    let ours = said.lines().find_map(|line| line.strip_prefix("This is cnimble v")?.split(',').next());
    let version = version.trim().trim_start_matches("version ").trim_start_matches('v');
    let known = cnimble_lint::page(name).is_some();
    match ours {
        Some(version) => (Maker::Cnimble, Some(version.to_owned()), Some(name.to_owned())),
        // Other plugins that use Go's library print the same line, but their names aren't in the reference set.
        None if known => (Maker::Go, Some(version.to_owned()), Some(name.to_owned())),
        None => (Maker::Other, None, Some(name.to_owned())),
    }
}

/// Returns whether the file is an ELF program. A script could do anything when it is called without CNI_COMMAND.
fn is_program(path: &Path) -> bool {
    let mut magic = [0; 4];
    std::fs::File::open(path).and_then(|mut file| file.read_exact(&mut magic)).is_ok() && magic == *b"\x7fELF"
}

/// Runs the program with an empty environment, and returns the first [`ANSWER`] bytes of its stderr. It returns an
/// empty text if it can't be started. The program is killed after twice [`LIMIT`].
async fn about(path: &Path) -> String {
    let mut command = Command::new(path);
    command.env_clear().stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).kill_on_drop(true);
    let Ok(mut child) = command.spawn() else { return String::new() };
    let mut said = Vec::new();
    if let Some(stderr) = child.stderr.take() {
        let _ = tokio::time::timeout(LIMIT, stderr.take(ANSWER).read_to_end(&mut said)).await;
    }
    let _ = tokio::time::timeout(LIMIT, child.wait()).await;
    String::from_utf8_lossy(&said).into_owned()
}

/// Returns the files that a runtime runs under these names. Names without a file are left out.
pub(super) async fn named(session: &Session, names: impl IntoIterator<Item = &str>) -> Vec<PluginFile> {
    let path = session.invoker.path();
    let files = names.into_iter().filter_map(|name| Some((name, find_plugin(name, path).ok()?)));
    futures::stream::iter(files)
        .map(|(name, file)| PluginFile::read_description(name, file))
        .buffered(8)
        .collect()
        .await
}

/// What the installed files mean for pods, and what to do.
#[derive(Serialize)]
struct Consequence {
    what: String,
    remedy: String,
}

/// The installed plugins and what follows from them.
#[derive(Serialize)]
pub(super) struct PluginFiles {
    files: Vec<PluginFile>,
    consequences: Vec<Consequence>,
}

impl PluginFiles {
    /// Looks at the files of all plugins that have a page of keys.
    pub(super) async fn examine_files(session: &Session, doctor: &Doctor<'_>) -> Self {
        let files = named(session, cnimble_lint::pages().iter().map(|page| page.name)).await;
        let mut consequences: Vec<Consequence> = files
            .iter()
            .filter_map(PluginFile::misnamed)
            .map(|what| Consequence {
                what,
                remedy: "install again, with --copies: a write into one of several hard links changes all"
                    .to_owned(),
            })
            .collect();
        let ours = files.iter().filter(|file| file.maker == Maker::Cnimble);
        let ours: BTreeSet<&str> = ours.filter_map(|file| file.version.as_deref()).collect();
        if ours.len() > 1 {
            consequences.push(Consequence {
                what: format!("plugins of several versions: {}", joined(&ours)),
                remedy: "install one version in all directories of CNI_PATH".to_owned(),
            });
        }
        consequences.extend(not_handed_over(session, doctor, &files).await);
        PluginFiles { files, consequences }
    }

    /// Returns whether nothing needs to be done about the files.
    pub(super) fn is_well(&self) -> bool {
        self.consequences.is_empty()
    }

    /// Returns a line for each maker and version with the names of its files, or only their number if there is one
    /// maker. It is empty if there are no files.
    pub(super) fn text(&self, paint: Paint) -> String {
        let mut makes: BTreeMap<(Maker, String), Vec<&PluginFile>> = BTreeMap::new();
        for file in &self.files {
            makes.entry((file.maker, file.words())).or_default().push(file);
        }
        let mut lines = Vec::new();
        for ((_, words), files) in &makes {
            let names: Vec<&str> = files.iter().map(|file| file.name.as_str()).collect();
            let dirs: BTreeSet<_> =
                files.iter().filter_map(|file| Some(file.path.parent()?.to_string_lossy())).collect();
            let dirs = joined(&dirs);
            let names = if makes.len() == 1 {
                format!("all {} with a name of the reference set", names.len())
            } else {
                names.join(", ")
            };
            lines.push(("made by", format!("{words} in {dirs}: {names}")));
        }
        for of in &self.consequences {
            lines.extend([("follows", of.what.clone()), ("try", of.remedy.to_owned())]);
        }
        if lines.is_empty() { String::new() } else { part("plugins", &lines, paint) }
    }
}

fn joined<T: AsRef<str>>(names: &BTreeSet<T>) -> String {
    names.iter().map(AsRef::as_ref).collect::<Vec<_>>().join(", ")
}

/// The plugins whose DEL removes packet rules.
const WITH_RULES: [&str; 4] = ["bridge", "firewall", "portmap", "ptp"];

/// Returns the living pods with rules in cnimble's tables that the DEL of their network's Go plugin does not remove. It
/// returns `None` if there are none, or if the rules can't be read, which is logged.
async fn not_handed_over(
    session: &Session,
    doctor: &Doctor<'_>,
    files: &[PluginFile],
) -> Option<Consequence> {
    let is_go = |name: &str| {
        WITH_RULES.contains(&name) && files.iter().any(|file| file.name == name && file.maker == Maker::Go)
    };
    if !files.iter().any(|file| is_go(&file.name)) {
        return None;
    }
    let report = match doctor.hand_over(Mode::Look).await {
        Ok(report) => report,
        Err(err) => {
            log::warn!("can't find pods with rules that DEL of the Go plugins leaves: {err}");
            return None;
        }
    };
    let entries: Vec<_> =
        session.caches().iter().flat_map(|cache| cache.list().unwrap_or_default()).collect();
    let mut pods = Vec::new();
    for (subject, _) in &report.pods {
        let mut of_network = entries.iter().filter(|entry| Some(&entry.network) == subject.network.as_ref());
        let entry = of_network.find(|entry| Some(&entry.container_id) == subject.container_id.as_ref());
        let list = entry.and_then(|entry| entry.network_list().ok());
        // A pod without an entry may belong to any network.
        if list.is_none_or(|list| list.plugins.iter().any(|plugin| is_go(&plugin.plugin_type))) {
            pods.push(super::finding::describe(subject));
        }
    }
    let more = if pods.len() > NAMED { format!(", and {} more", pods.len() - NAMED) } else { String::new() };
    let named = pods.iter().take(NAMED).cloned().collect::<Vec<_>>().join("; ");
    (!pods.is_empty()).then(|| Consequence {
        what: format!("DEL by the Go plugins may leave packet rules of living pods: {named}{more}"),
        remedy: format!("cnimble hand-over --yes{}", session.directories),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plugin_is_told_by_its_first_lines() {
        let ours = "CNI bridge plugin v1.9.1\nCNI protocol versions supported: 1.1.0\nThis is cnimble v0.1.0, with\n";
        assert_eq!(read(ours), (Maker::Cnimble, Some("0.1.0".to_owned()), Some("bridge".to_owned())));
        let go = "CNI loopback plugin v1.1.1\nCNI protocol versions supported: 0.1.0\n";
        assert_eq!(read(go), (Maker::Go, Some("1.1.1".to_owned()), Some("loopback".to_owned())));
        assert_eq!(read("CNI ptp plugin version unknown\n").1.as_deref(), Some("unknown"));
        assert_eq!(read("CNI flannel plugin v1.5.1\n").0, Maker::Other);
        assert_eq!(read("usage: bridge\n"), (Maker::Other, None, None));
    }

    #[test]
    fn a_file_of_another_plugin_is_told() {
        let file = |name: &str, acts_as: &str, maker| PluginFile {
            name: name.to_owned(),
            path: Path::new("/opt/cni/bin").join(name),
            maker,
            version: Some("1.9.1".to_owned()),
            acts_as: Some(acts_as.to_owned()),
        };
        let overwritten = file("bridge", "loopback", Maker::Go);
        assert_eq!(
            overwritten.misnamed().as_deref(),
            Some("/opt/cni/bin/bridge is the plugin loopback (Go v1.9.1)")
        );
        let (ours, go) = (file("ptp", "ptp", Maker::Cnimble), file("portmap", "portmap", Maker::Go));
        assert_eq!((ours.misnamed(), go.misnamed()), (None, None));
        assert!(go.mixed(&[ours.clone(), go.clone()]).is_some_and(|said| said.contains("hand-over --yes")));
        assert!(go.mixed(std::slice::from_ref(&go)).is_none() && ours.mixed(&[ours.clone(), go]).is_none());
    }
}
