//! Leases; `judge` has the verdicts.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use cnimble_cni::Error;
use cnimble_leases::boot::{self, Boot};
use cnimble_leases::holder::Holder;
use cnimble_leases::store::{Directory, Found, Identity, StoreError};
use cnimble_leases::{INDEX, address, is_temporary};

use super::cache_entries::Known;
use super::{Evidence, Verdict};

#[derive(Debug)]
pub struct Network {
    pub name: String,
    pub path: PathBuf,
    /// Why none of its leases can be judged.
    pub(super) doubt: Option<String>,
}

impl Network {
    /// Whether the doubt about its leases lasts for good, because other machines may have the file system, too.
    pub fn is_shared(&self) -> bool {
        self.doubt.is_some()
    }
}

/// All leases as they were read, and once they are judged, what is thought of each.
#[derive(Debug, Default)]
pub struct JudgedLeases(Vec<(Network, Vec<JudgedLease>)>);

/// A lease; without address and holder, a file that isn't finished.
#[derive(Debug)]
pub struct JudgedLease {
    pub path: PathBuf,
    pub held: Option<(IpAddr, Holder)>,
    pub found: Identity,
    pub(super) before_boot: bool,
    pub verdict: Verdict,
}

impl JudgedLease {
    /// The ID of the container, if the lease names one.
    pub fn container(&self) -> Option<&str> {
        match self.held.as_ref()? {
            (_, Holder::Attachment(attachment)) => Some(&attachment.container_id),
            (_, Holder::Container(id)) => Some(id),
            _ => None,
        }
    }
}

impl JudgedLeases {
    pub(super) fn read(evidence: &Evidence, entries: &[Known]) -> Result<Self, Error> {
        let mut dirs: BTreeSet<PathBuf> = evidence.data_dirs.iter().cloned().collect();
        dirs.extend(entries.iter().flat_map(Known::data_dirs));
        let real = dirs.into_iter().filter_map(|dir| dir.canonicalize().ok());
        let (boot, mut leases) = (Boot::current(), JudgedLeases::default());
        for dir in real.collect::<BTreeSet<_>>() {
            for path in listed(&dir)?.into_iter().filter(|path| path.is_dir()) {
                let Some(name) = path.file_name().and_then(|name| name.to_str()) else { continue };
                let name = name.to_owned();
                let Some(dir) = Directory::open(&path)? else { continue };
                let doubt = boot::is_shared(dir.fd()).then(|| {
                    "other machines may have this file system, too, and pods with leases on it".to_owned()
                });
                let files = dir.names()?;
                let is_empty = !files.iter().any(|name| address(name).is_some());
                let found = files.iter().filter_map(|name| {
                    lease(&dir, name, is_empty, &boot).unwrap_or_else(|err| {
                        log::warn!("{err}");
                        None
                    })
                });
                leases.0.push((Network { name, path, doubt }, found.collect()));
            }
        }
        Ok(leases)
    }

    pub fn all(&self) -> impl Iterator<Item = (&Network, &JudgedLease)> {
        self.0.iter().flat_map(|(network, leases)| leases.iter().map(move |lease| (network, lease)))
    }

    pub fn stores(&self) -> impl Iterator<Item = &Network> {
        self.0.iter().map(|(network, _)| network)
    }

    pub(super) fn each(&mut self) -> impl Iterator<Item = (&Network, &mut JudgedLease)> {
        self.0.iter_mut().flat_map(|(network, leases)| {
            let network = &*network;
            leases.iter_mut().map(move |lease| (network, lease))
        })
    }
}

fn listed(dir: &Path) -> Result<Vec<PathBuf>, Error> {
    let entries = std::fs::read_dir(dir).map_err(|err| Error::io("list", dir, &err))?;
    let mut paths: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
    paths.sort();
    Ok(paths)
}

/// `None` if the file is no lease, or is gone.
fn lease(
    dir: &Directory,
    name: &str,
    is_empty: bool,
    boot: &Boot,
) -> Result<Option<JudgedLease>, StoreError> {
    let (path, verdict) = (dir.path().join(name), Verdict::Lives);
    // The index goes with the last lease, unless its DEL was killed between the two.
    if is_temporary(name) || is_empty && name == INDEX {
        let found = dir.identity(name)?;
        return Ok(found.map(|found| JudgedLease { path, held: None, found, before_boot: false, verdict }));
    }
    let Some(ip) = address(name) else { return Ok(None) };
    let lease = dir.inspect(name, boot)?.map(|Found { owner, identity, before_boot }| JudgedLease {
        path,
        held: Some((ip, owner)),
        found: identity,
        before_boot,
        verdict,
    });
    Ok(lease)
}
