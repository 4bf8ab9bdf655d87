//! Reads the leases of host-local. `judge` decides which of their holders live.

use std::collections::BTreeSet;
use std::io::ErrorKind;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use cnimble_cni::Error;
use cnimble_leases::boot::{self, Boot};
use cnimble_leases::holder::Holder;
use cnimble_leases::store::{Directory, Identity, LeaseFile, StoreError};
use cnimble_leases::{INDEX, address, is_temporary};

use super::cache_entries::JudgedEntry;
use super::{Evidence, Verdict};

/// The lease directory of one network.
#[derive(Debug)]
pub struct Network {
    pub name: String,
    /// The directory `DATA_DIR/NAME`.
    pub path: PathBuf,
    /// Why no lease of this network may be called an orphan: other hosts may share the file system. It is `None` on a
    /// local one.
    pub(super) doubt: Option<String>,
    /// The errors of the files in the directory that can't be read. They prove nothing about anybody.
    pub unread: Vec<String>,
}

impl Network {
    /// Returns whether other hosts may share the file system of the leases. Then no lease of it is ever an orphan.
    pub fn is_shared(&self) -> bool {
        self.doubt.is_some()
    }
}

/// All leases of the node, by network. Every verdict is [`Verdict::Lives`] until `judge` replaces it.
#[derive(Debug, Default)]
pub struct JudgedLeases(Vec<(Network, Vec<JudgedLease>)>);

/// A file in a lease directory that is judged: a lease, or a leftover of a killed process.
#[derive(Debug)]
pub struct JudgedLease {
    pub path: PathBuf,
    /// The address and its holder. It is `None` for an unfinished file, and for an index without leases.
    pub held: Option<(IpAddr, Holder)>,
    /// The identity of the file, so that only the very file that was judged is removed.
    pub found: Identity,
    /// Whether the lease is of an earlier boot, which no namespace has outlived.
    pub(super) before_boot: bool,
    pub verdict: Verdict,
}

impl JudgedLease {
    /// Returns the container's ID, or `None` for an unfinished, damaged or foreign file.
    pub fn container(&self) -> Option<&str> {
        match self.held.as_ref()? {
            (_, Holder::Attachment(attachment)) => Some(&attachment.container_id),
            (_, Holder::Container(id)) => Some(id),
            _ => None,
        }
    }
}

impl JudgedLeases {
    /// Reads the leases in the directories of `evidence` and of the recorded configurations. A missing directory is
    /// skipped. The error of an unreadable file is in [`Network::unread`].
    ///
    /// # Errors
    /// Fails if a directory exists and can't be found or listed, because its leases are evidence.
    pub(super) fn read(evidence: &Evidence, entries: &[JudgedEntry]) -> Result<Self, Error> {
        let mut dirs: BTreeSet<PathBuf> = evidence.data_dirs.iter().cloned().collect();
        dirs.extend(entries.iter().flat_map(JudgedEntry::data_dirs));
        let mut real = BTreeSet::new();
        for dir in dirs {
            match dir.canonicalize() {
                Ok(path) => drop(real.insert(path)),
                Err(err) if matches!(err.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {}
                Err(err) => return Err(Error::io("find", &dir, &err)),
            }
        }
        let (boot, mut leases) = (Boot::current(), JudgedLeases::default());
        for dir in real {
            for path in listed(&dir)?.into_iter().filter(|path| path.is_dir()) {
                let Some(name) = path.file_name().and_then(|name| name.to_str()) else { continue };
                let name = name.to_owned();
                let Some(dir) = Directory::open(&path)? else { continue };
                let doubt = boot::is_shared(dir.fd()).then(|| {
                    "other machines may have this file system, too, and pods with leases on it".to_owned()
                });
                let files = dir.names()?;
                let is_empty = !files.iter().any(|name| address(name).is_some());
                let (mut found, mut unread) = (Vec::new(), Vec::new());
                for file in &files {
                    match lease(&dir, file, is_empty, &boot) {
                        Ok(lease) => found.extend(lease),
                        Err(err) => unread.push(err.to_string()),
                    }
                }
                leases.0.push((Network { name, path, doubt, unread }, found));
            }
        }
        Ok(leases)
    }

    /// Returns every lease with its network.
    pub fn all(&self) -> impl Iterator<Item = (&Network, &JudgedLease)> {
        self.0.iter().flat_map(|(network, leases)| leases.iter().map(move |lease| (network, lease)))
    }

    /// Returns the networks with a lease directory, also those without leases.
    pub fn stores(&self) -> impl Iterator<Item = &Network> {
        self.0.iter().map(|(network, _)| network)
    }

    /// Returns every lease with its network, to write its verdict.
    pub(super) fn all_mut(&mut self) -> impl Iterator<Item = (&Network, &mut JudgedLease)> {
        self.0.iter_mut().flat_map(|(network, leases)| {
            let network = &*network;
            leases.iter_mut().map(move |lease| (network, lease))
        })
    }
}

/// Returns the paths in a directory, sorted.
fn listed(dir: &Path) -> Result<Vec<PathBuf>, Error> {
    let entries = std::fs::read_dir(dir).map_err(|err| Error::io("list", dir, &err))?;
    let mut paths = Vec::new();
    for entry in entries {
        paths.push(entry.map_err(|err| Error::io("list", dir, &err))?.path());
    }
    paths.sort();
    Ok(paths)
}

/// Reads one file of a lease directory. `is_empty` says that the directory has no lease. Returns `None` if the file is
/// neither a lease nor a leftover, or is gone.
fn lease(
    dir: &Directory,
    name: &str,
    is_empty: bool,
    boot: &Boot,
) -> Result<Option<JudgedLease>, StoreError> {
    let (path, verdict) = (dir.path().join(name), Verdict::Lives);
    // DEL removes the index after the last lease. An index without leases is a leftover of a DEL that was killed
    // between.
    if is_temporary(name) || is_empty && name == INDEX {
        let found = dir.identity(name)?;
        return Ok(found.map(|found| JudgedLease { path, held: None, found, before_boot: false, verdict }));
    }
    let Some(ip) = address(name) else { return Ok(None) };
    let lease = dir.inspect(name, boot)?.map(|LeaseFile { owner, identity, before_boot }| JudgedLease {
        path,
        held: Some((ip, owner)),
        found: identity,
        before_boot,
        verdict,
    });
    Ok(lease)
}
