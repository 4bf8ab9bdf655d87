//! The configuration directory with its networks. Files are read in the order of their names, `.conflist` before
//! `.conf` and `.json`, which hold one plugin each and are turned into lists. A network may have more plugins in a
//! folder of its own, `<dir>/<network>/*.conf`, unless it says `loadOnlyInlinedPlugins`. A file that can't be used is
//! reported beside the others.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde_json::Value;

use cnimble_cni::list::{ListEntry, NetworkList};
use cnimble_cni::{Error, json};
use cnimble_os::files::{IfPresent, Links, read as read_file};

use super::error::ConfError;

/// The largest file that is read. A plugin takes no larger configuration on stdin.
const LIMIT: usize = 16 << 20;

/// A configuration directory, `/etc/cni/net.d` as a rule.
#[derive(Debug, Clone)]
pub struct ConfDir {
    dir: PathBuf,
}

/// A network and the file that it is from.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Network {
    /// The network, with the plugins of its folder.
    pub list: NetworkList,
    /// The file of the network.
    pub path: PathBuf,
}

/// The content of a configuration directory.
#[derive(Debug, Default)]
#[non_exhaustive]
pub struct Listing {
    /// The networks in order. Of two with the same name the first counts.
    pub networks: Vec<Network>,
    /// The files that can't be used.
    pub problems: Vec<ConfError>,
}

impl ConfDir {
    /// Uses the configuration directory `dir`, which may not exist.
    pub fn new(dir: impl Into<PathBuf>) -> Self {
        ConfDir { dir: dir.into() }
    }

    /// Returns the path of the directory.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Lists the files with one of these endings, sorted by name. The endings have no dot. A missing directory has
    /// none.
    ///
    /// # Errors
    /// Fails with [`ConfError::Dir`] if the directory exists and can't be listed.
    pub fn files(&self, endings: &[&str]) -> Result<Vec<PathBuf>, ConfError> {
        files(&self.dir, endings)
    }

    /// Reads all files, in the order of the module's text. A missing directory has no networks.
    ///
    /// # Errors
    /// Fails if the directory exists and can't be listed.
    pub fn list(&self) -> Result<Listing, ConfError> {
        let mut files = files(&self.dir, &["conflist"])?;
        files.extend(self::files(&self.dir, &["conf", "json"])?);
        Ok(load(files, load_file))
    }

    /// Does what [`ConfDir::list`] does, in the order of the files' names alone. The kubelet and the runtimes look for
    /// the default network in this order. They take a file for a list only if it ends in `.conflist`. In another file
    /// they look for one plugin, find no type, and skip the file.
    ///
    /// # Errors
    /// Fails as [`ConfDir::list`] does.
    pub fn list_by_name(&self) -> Result<Listing, ConfError> {
        Ok(load(files(&self.dir, &["conf", "conflist", "json"])?, load_by_ending))
    }

    /// Returns the first network called `name`, with the plugins of its folder.
    ///
    /// # Errors
    /// Fails with [`ConfError::NoNetwork`], which lists other networks and the unusable files, or with
    /// [`ConfError::Dir`].
    pub fn load(&self, name: &str) -> Result<NetworkList, ConfError> {
        let Listing { networks, problems } = self.list()?;
        let mut known = Vec::new();
        for network in networks {
            if network.list.name == name {
                for problem in problems {
                    log::debug!("skipped {problem}");
                }
                return Ok(network.list);
            }
            // Several files may have the same network.
            if !known.contains(&network.list.name) {
                known.push(network.list.name);
            }
        }
        Err(ConfError::NoNetwork { dir: self.dir.clone(), name: name.to_owned(), known, bad: problems })
    }
}

fn load(files: Vec<PathBuf>, load_file: fn(&Path) -> Result<NetworkList, ConfError>) -> Listing {
    let mut listing = Listing::default();
    for path in files {
        match load_file(&path) {
            Ok(list) => listing.networks.push(Network { list, path }),
            Err(problem) => listing.problems.push(problem),
        }
    }
    listing
}

/// Reads one file, and its network's folder beside it. A file that ends in `.conflist` is a list. Any other one is a
/// list if it has the key `plugins`.
///
/// # Errors
/// Fails if the file, or one of the folder, can't be read or is no valid configuration.
pub fn load_file(path: &Path) -> Result<NetworkList, ConfError> {
    let (bytes, value) = read(path)?;
    let is_list = path.extension().is_some_and(|ending| ending == "conflist");
    if !is_list && json::get(&value, "plugins").is_none() {
        return NetworkList::parse_single(&bytes).map_err(|reason| ConfError::invalid(path, reason));
    }
    let mut list = NetworkList::from_value(value).map_err(|reason| ConfError::invalid(path, reason))?;
    if !list.load_only_inlined_plugins {
        for file in files(&path.with_file_name(&list.name), &["conf"])? {
            let (bytes, _) = read(&file)?;
            list.push(ListEntry::parse(&bytes).map_err(|reason| ConfError::Invalid { path: file, reason })?);
        }
    }
    list.complete().map_err(|reason| ConfError::invalid(path, reason))
}

/// Reads a file as the kubelet does: one that doesn't end in `.conflist` is one plugin, and never a list.
fn load_by_ending(path: &Path) -> Result<NetworkList, ConfError> {
    if path.extension().is_some_and(|ending| ending == "conflist") {
        return load_file(path);
    }
    let (bytes, value) = read(path)?;
    if json::get(&value, "type").is_none() && json::get(&value, "plugins").is_some() {
        let reason = Error::config("it is a list, and skipped: the file of a list ends in .conflist");
        return Err(ConfError::invalid(path, reason));
    }
    NetworkList::parse_single(&bytes).map_err(|reason| ConfError::invalid(path, reason))
}

/// Returns the bytes of a file, and the JSON in them.
fn read(path: &Path) -> Result<(Vec<u8>, Value), ConfError> {
    let bytes = read_file(path, LIMIT, Links::Follow)
        .map_err(|source| ConfError::Read { path: path.to_owned(), source })?;
    let value = serde_json::from_slice(&bytes).map_err(|err| ConfError::Syntax {
        path: path.to_owned(),
        line: err.line(),
        column: err.column(),
        reason: without_position(&err) + &hint(&bytes, &err),
    })?;
    Ok((bytes, value))
}

/// Returns what JSON lacks at the error, in parentheses, or an empty string if that is not known.
fn hint(bytes: &[u8], err: &serde_json::Error) -> String {
    json::lacking(bytes, err).map(|what| format!(" ({what})")).unwrap_or_default()
}

/// Returns the text of an error of serde_json without the position at its end. Our message begins with the position.
fn without_position(err: &serde_json::Error) -> String {
    let text = err.to_string();
    match text.rsplit_once(" at line ") {
        Some((reason, _)) => reason.to_owned(),
        None => text,
    }
}

/// Returns the files in `dir` with one of these endings, sorted by path. A missing directory has none.
fn files(dir: &Path, endings: &[&str]) -> Result<Vec<PathBuf>, ConfError> {
    list_files(dir, endings).map_err(|source| ConfError::Dir { dir: dir.to_owned(), source })
}

fn list_files(dir: &Path, endings: &[&str]) -> io::Result<Vec<PathBuf>> {
    let Some(entries) = fs::read_dir(dir).if_present()? else { return Ok(Vec::new()) };
    let mut found = Vec::new();
    for entry in entries {
        let path = entry?.path();
        let fits = path.extension().is_some_and(|ending| endings.iter().any(|wanted| ending == *wanted));
        if fits && !path.is_dir() {
            found.push(path);
        }
    }
    found.sort();
    Ok(found)
}
