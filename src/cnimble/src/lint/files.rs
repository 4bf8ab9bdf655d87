//! Selects the files to check and the networks to compare them with.

use std::io::Read;
use std::path::{Path, PathBuf};

use cnimble_lint::{Document, File, Finding};
use cnimble_os::files::Links;
use cnimble_runtime::{ConfDir, ConfError};

use super::manifest::{self, Embedded, Manifest};
use crate::Session;
use crate::args::config::Validate;
use crate::report::{Exit, Report};

/// The greatest size of a file that is read. Plugins have the same limit for stdin.
const LIMIT: usize = 16 << 20;

/// A text to check.
pub(super) struct Source {
    pub(super) file: File,
    pub(super) kind: TextKind,
    /// The file that the text is a part of, or `None` for a file of its own.
    pub(super) within: Option<Embedded>,
}

/// What a text is.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum TextKind {
    /// The file of a network.
    Network,
    /// A plugin's entry in the folder of a network.
    Entry,
    /// A network in a manifest of Kubernetes.
    Manifest,
}

/// The files to check and the networks around them.
pub(super) struct Sources {
    pub(super) wanted: Vec<Source>,
    /// Networks that must not conflict with these files, in the order of their files.
    pub(super) networks: Vec<Document>,
    /// The manifest with the findings about itself, if the user gave one.
    pub(super) manifest: Option<(File, Vec<Finding>)>,
}

/// Returns what the user wants to check: stdin, a file, a manifest, a network of this name, or all networks.
///
/// With `--offline` the networks are only the wanted ones. Otherwise they include those of the directory.
pub(super) fn sources(session: &Session, given: &Validate) -> Result<Sources, Report> {
    let wanted = match given.network.as_deref() {
        Some("-") => vec![stdin()?],
        Some(path) if is_manifest(path) => return of_manifest(read(Path::new(path))?),
        Some(path) if path.contains('/') => vec![read(Path::new(path))?],
        Some(name) => vec![named(session, name)?],
        None => all(session)?,
    };
    let mut networks = Vec::new();
    if !given.offline {
        let given: Vec<Option<PathBuf>> = wanted.iter().map(real_path).collect();
        let names: Vec<String> = wanted.iter().filter_map(name_of).collect();
        networks.extend(all(session)?.into_iter().filter_map(|other| Document::parse(other).ok()));
        // A file from elsewhere comes after those of the directory and replaces one with the same network name.
        let are_installed =
            wanted.iter().all(|of| networks.iter().any(|other| real_path(&other.file) == real_path(of)));
        if !are_installed {
            networks.retain(|other| {
                let name = other.root.text_of("name").unwrap_or_default();
                !given.contains(&real_path(&other.file)) && !names.iter().any(|of| of == name)
            });
        }
    } else {
        networks.extend(wanted.iter().filter_map(|file| Document::parse(file.clone()).ok()));
    }
    let mut folders = Vec::new();
    for file in &wanted {
        folders.extend(folder(file)?);
    }
    let files = wanted.into_iter().map(|file| Source { file, kind: TextKind::Network, within: None });
    let entries = folders.into_iter().map(|file| Source { file, kind: TextKind::Entry, within: None });
    Ok(Sources { wanted: files.chain(entries).collect(), networks, manifest: None })
}

/// Returns the path of a file without links, or `None` if it is not found.
fn real_path(file: &File) -> Option<PathBuf> {
    std::fs::canonicalize(&file.path).ok()
}

/// Returns whether the path is that of a manifest, by its ending in `yaml` or `yml`.
fn is_manifest(path: &str) -> bool {
    let ending = Path::new(path).extension();
    ending.is_some_and(|ending| ending == "yaml" || ending == "yml")
}

/// Returns the networks of a manifest. They are for the nodes of a cluster, so they are not compared with those of this
/// machine.
fn of_manifest(file: File) -> Result<Sources, Report> {
    let Manifest { sources, findings } = manifest::read(&file);
    if sources.is_empty() && findings.is_empty() {
        log::warn!("{} has no NetworkAttachmentDefinition with a configuration", file.path);
    }
    Ok(Sources { wanted: sources, networks: Vec::new(), manifest: Some((file, findings)) })
}

/// Returns the name of a network, or `None` if the file doesn't parse or has none.
fn name_of(file: &File) -> Option<String> {
    Some(Document::parse(file.clone()).ok()?.root.text_of("name")?.to_owned())
}

/// Reads stdin as the file `-`. What exceeds [`LIMIT`] is cut off.
fn stdin() -> Result<File, Report> {
    let mut text = String::new();
    let outcome = std::io::stdin().take(LIMIT as u64).read_to_string(&mut text);
    outcome.map_err(|err| unreadable("-", &err.to_string()))?;
    Ok(File { path: "-".to_owned(), text })
}

/// Returns the report for an unreadable file.
fn unreadable(path: &str, why: &str) -> Report {
    Report::new(Exit::Config, "can't read the network").row("file", path).row("why", why)
}

/// Reads a file, whose path is kept as the user wrote it.
///
/// # Errors
/// Fails if the file can't be read, exceeds [`LIMIT`] or is no UTF-8.
pub(crate) fn read(path: &Path) -> Result<File, Report> {
    let shown = path.display().to_string();
    let bytes = cnimble_os::files::read(path, LIMIT, Links::Follow);
    let bytes = bytes.map_err(|err| unreadable(&shown, &err.to_string()))?;
    let text = String::from_utf8(bytes).map_err(|err| unreadable(&shown, &err.to_string()))?;
    Ok(File { path: shown, text })
}

/// Returns the file of the first network of this name, even if it is invalid.
fn named(session: &Session, name: &str) -> Result<File, Report> {
    if let Some(file) = all(session)?.into_iter().find(|file| name_of(file).is_some_and(|of| of == name)) {
        return Ok(file);
    }
    let err = session.conf.load(name).err().unwrap_or_else(|| ConfError::NoNetwork {
        dir: session.conf.dir().to_owned(),
        name: name.to_owned(),
        known: Vec::new(),
        bad: Vec::new(),
    });
    Err(Report::conf("can't read the network", &err))
}

/// Returns the files of the configuration directory.
fn all(session: &Session) -> Result<Vec<File>, Report> {
    in_directory(session.conf.dir())
}

/// Returns the files of networks in a directory: those that end in `conflist` first, as libcni takes them. It fails if
/// one of them can't be read. A missing directory has no files.
pub(crate) fn in_directory(dir: &Path) -> Result<Vec<File>, Report> {
    let mut found = Vec::new();
    for ending in [&["conflist"][..], &["conf", "json"]] {
        found.extend(listed(dir, ending)?);
    }
    Ok(found)
}

/// Returns the files in a directory with one of these endings.
fn listed(dir: &Path, endings: &[&str]) -> Result<Vec<File>, Report> {
    let paths = ConfDir::new(dir).files(endings).map_err(|err| {
        let why = std::error::Error::source(&err).map_or_else(|| err.to_string(), ToString::to_string);
        unreadable(&dir.display().to_string(), &why)
    })?;
    paths.iter().map(|path| read(path)).collect()
}

/// Returns the files of plugins in the folder of a network, which is beside its file and has its name. It is empty for
/// a network that doesn't read a folder.
pub(super) fn folder(file: &File) -> Result<Vec<File>, Report> {
    let Ok(document) = Document::parse(file.clone()) else { return Ok(Vec::new()) };
    let path = Path::new(&file.path);
    let list = path.extension().is_some_and(|ending| ending == "conflist");
    let Some(name) = document.root.text_of("name").filter(|name| cnimble_cni::names::is_identifier(name))
    else {
        return Ok(Vec::new());
    };
    if list && !document.root.is_true("loadOnlyInlinedPlugins") {
        listed(&path.with_file_name(name), &["conf"])
    } else {
        Ok(Vec::new())
    }
}
