//! Which files are looked at, and beside which.

use std::io::Read;
use std::path::{Path, PathBuf};

use cnimble_files::Links;
use cnimble_lint::{Document, File};
use cnimble_runtime::{ConfDir, ConfError};

use crate::Session;
use crate::args::Validate;
use crate::report::{Exit, Report};

/// What a plugin takes on stdin.
const LIMIT: usize = 16 << 20;

/// A file to look at.
pub(super) struct Source {
    pub(super) file: File,
    /// Whether it is a plugin's entry in a network's folder.
    pub(super) own_entry: bool,
}

/// The files.
pub(super) struct Sources {
    pub(super) wanted: Vec<Source>,
    /// The networks that these must get on with, in the order of their files.
    pub(super) networks: Vec<Document>,
}

pub(super) fn sources(session: &Session, given: &Validate) -> Result<Sources, Report> {
    let wanted = match given.network.as_deref() {
        Some("-") => vec![stdin()?],
        Some(path) if path.contains('/') => vec![read(Path::new(path))?],
        Some(name) => vec![named(session, name)?],
        None => all(session)?,
    };
    let mut networks = Vec::new();
    if !given.offline {
        let file = |source: &File| std::fs::canonicalize(&source.path).ok();
        let given: Vec<Option<PathBuf>> = wanted.iter().map(file).collect();
        let names: Vec<String> = wanted.iter().filter_map(name_of).collect();
        networks.extend(all(session)?.into_iter().filter_map(|other| Document::parse(other).ok()));
        // A file from elsewhere stands behind those of the directory, in place of one of the same name.
        let installed = |of: &File| networks.iter().any(|other| file(&other.file) == file(of));
        if !wanted.iter().all(installed) {
            networks.retain(|other| {
                let name = other.root.text_of("name").unwrap_or_default();
                !given.contains(&file(&other.file)) && !names.iter().any(|of| of == name)
            });
        }
    } else {
        networks.extend(wanted.iter().filter_map(|file| Document::parse(file.clone()).ok()));
    }
    let mut folders = Vec::new();
    for file in &wanted {
        folders.extend(folder(file)?);
    }
    let own = |own_entry| move |file| Source { file, own_entry };
    let wanted = wanted.into_iter().map(own(false)).chain(folders.into_iter().map(own(true)));
    Ok(Sources { wanted: wanted.collect(), networks })
}

fn name_of(file: &File) -> Option<String> {
    Some(Document::parse(file.clone()).ok()?.root.text_of("name")?.to_owned())
}

fn stdin() -> Result<File, Report> {
    let mut text = String::new();
    let outcome = std::io::stdin().take(LIMIT as u64).read_to_string(&mut text);
    outcome.map_err(|err| unreadable("-", &err.to_string()))?;
    Ok(File { path: "-".to_owned(), text })
}

fn unreadable(path: &str, why: &str) -> Report {
    Report::new(Exit::Config, "the network can't be looked at").row("file", path).row("why", why)
}

fn read(path: &Path) -> Result<File, Report> {
    let shown = path.display().to_string();
    let bytes = cnimble_files::read(path, LIMIT, Links::Follow);
    let bytes = bytes.map_err(|err| unreadable(&shown, &err.to_string()))?;
    let text = String::from_utf8(bytes).map_err(|err| unreadable(&shown, &err.to_string()))?;
    Ok(File { path: shown, text })
}

/// The first network of this name, whatever else is wrong with it.
fn named(session: &Session, name: &str) -> Result<File, Report> {
    if let Some(file) = all(session)?.into_iter().find(|file| name_of(file).is_some_and(|of| of == name)) {
        return Ok(file);
    }
    let missing = |dir: &Path| ConfError::NoNetwork {
        dir: dir.to_owned(),
        name: name.to_owned(),
        known: Vec::new(),
        bad: Vec::new(),
    };
    let err = session.conf.load(name).err().unwrap_or_else(|| missing(session.conf.dir()));
    Err(Report::conf("the network can't be looked at", &err))
}

/// The files of the configuration directory, in the order that libcni reads them.
fn all(session: &Session) -> Result<Vec<File>, Report> {
    in_directory(session.conf.dir())
}

/// The files of a configuration directory. One that doesn't exist has none.
pub(crate) fn in_directory(dir: &Path) -> Result<Vec<File>, Report> {
    let mut found = Vec::new();
    for ending in [&["conflist"][..], &["conf", "json"]] {
        found.extend(listed(dir, ending)?);
    }
    Ok(found)
}

fn listed(dir: &Path, endings: &[&str]) -> Result<Vec<File>, Report> {
    let paths = ConfDir::new(dir).files(endings).map_err(|err| {
        let why = std::error::Error::source(&err).map_or_else(|| err.to_string(), ToString::to_string);
        unreadable(&dir.display().to_string(), &why)
    })?;
    paths.iter().map(|path| read(path)).collect()
}

/// The plugins in a network's folder.
fn folder(file: &File) -> Result<Vec<File>, Report> {
    let Ok(document) = Document::parse(file.clone()) else { return Ok(Vec::new()) };
    let path = Path::new(&file.path);
    let list = path.extension().is_some_and(|ending| ending == "conflist");
    let Some(name) = document.root.text_of("name").filter(|name| cnimble_cni::names::is_identifier(name))
    else {
        return Ok(Vec::new());
    };
    match list && !document.root.is_true("loadOnlyInlinedPlugins") {
        true => listed(&path.with_file_name(name), &["conf"]),
        false => Ok(Vec::new()),
    }
}
