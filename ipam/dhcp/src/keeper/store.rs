//! Leases as files, so that they survive the keeper: one for each interface, written whole, in the directory
//! beside the socket. After a reboot they are void: the namespaces they are of are gone.

use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use nix::fcntl::{Flock, FlockArg};
use serde::{Deserialize, Serialize};

use cnimble_files::Links;
use cnimble_leases::boot;

use crate::lease::Lease;
use crate::talk::Wanted;

/// The keeper holds its lock as long as it lives.
const LOCK: &str = "lock";
const TEMPORARY: &str = ".new-";
/// A lease has some hundred bytes, and a long search list.
const LONGEST: usize = 1 << 20;

/// What a new keeper needs to go on.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Record {
    boot: String,
    pub(crate) wanted: Wanted,
    pub(crate) mac: [u8; 6],
    /// `None` was lost, and another is looked for.
    pub(crate) lease: Option<Lease>,
}

/// Where a keeper of this socket has its leases.
pub(crate) fn directory(socket: &Path) -> PathBuf {
    socket.with_extension("leases")
}

/// The file of the lease with this tag.
pub(crate) fn file(socket: &Path, tag: &str) -> PathBuf {
    directory(socket).join(tag)
}

/// Whether there are leases of that network, or of any. That there is no directory says that there are none.
///
/// # Errors
/// The system's.
pub(crate) fn has_any(socket: &Path) -> io::Result<bool> {
    match fs::read_dir(directory(socket)) {
        Ok(mut entries) => Ok(entries.any(|entry| entry.is_ok_and(|entry| is_tag(&entry.path())))),
        Err(err) if cnimble_files::is_absent(&err) => Ok(false),
        Err(err) => Err(err),
    }
}

fn is_tag(path: &Path) -> bool {
    let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    cnimble_cni::owner::tag(name) == Some(name)
}

/// The directory, and its lock.
#[derive(Debug)]
pub(crate) struct Store {
    directory: PathBuf,
    boot: String,
    _lock: Flock<File>,
}

impl Store {
    /// Opens the directory of a socket, made if it is missing; `None` if another keeper has it.
    ///
    /// # Errors
    /// The system's.
    pub(crate) fn open(socket: &Path) -> io::Result<Option<Store>> {
        let directory = directory(socket);
        DirBuilder::new().recursive(true).mode(0o700).create(&directory)?;
        let path = directory.join(LOCK);
        let options = File::options()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .custom_flags(libc::O_NOFOLLOW)
            .open(path)?;
        match Flock::lock(options, FlockArg::LockExclusiveNonblock) {
            Ok(lock) => Ok(Some(Store { directory, boot: boot::boot_id()?, _lock: lock })),
            Err((_, nix::errno::Errno::EWOULDBLOCK)) => Ok(None),
            Err((_, errno)) => Err(errno.into()),
        }
    }

    /// All leases of this boot. What is no lease, and what was being written, is removed.
    ///
    /// # Errors
    /// The system's.
    pub(crate) fn load(&self) -> io::Result<Vec<Record>> {
        let mut records = Vec::new();
        for entry in fs::read_dir(&self.directory)? {
            let path = entry?.path();
            let ours = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
            if ours == LOCK {
                continue;
            }
            match self.read(&path)? {
                Some(record) if record.wanted.whose.owner().tag() == ours => records.push(record),
                _ if ours.starts_with(TEMPORARY) || is_tag(&path) => fs::remove_file(&path)?,
                // Not written by us.
                _ => {}
            }
        }
        Ok(records)
    }

    /// `None` if what is there is no lease of this boot. That it can't be read now (no descriptor is left)
    /// doesn't say so.
    fn read(&self, path: &Path) -> io::Result<Option<Record>> {
        let bytes = match cnimble_files::read(path, LONGEST, Links::Refuse) {
            Err(err) if cnimble_files::is_absent(&err) || cnimble_files::is_foreign(&err) => return Ok(None),
            bytes => bytes?,
        };
        let record = serde_json::from_slice::<Record>(&bytes).ok();
        Ok(record.filter(|record| record.boot == self.boot))
    }

    /// Writes a lease, whole or not at all.
    ///
    /// # Errors
    /// The system's.
    pub(crate) fn write(&self, wanted: &Wanted, mac: [u8; 6], lease: Option<&Lease>) -> io::Result<()> {
        let tag = wanted.whose.owner().tag();
        let record = Record { boot: self.boot.clone(), wanted: wanted.clone(), mac, lease: lease.cloned() };
        let bytes = serde_json::to_vec(&record)?;
        let temporary = self.directory.join(format!("{TEMPORARY}{tag}"));
        cnimble_files::replace(&self.directory.join(&tag), &temporary, &bytes)
    }

    /// Removes a lease.
    ///
    /// # Errors
    /// The system's.
    pub(crate) fn remove(&self, tag: &str) -> io::Result<()> {
        match fs::remove_file(self.directory.join(tag)) {
            Err(err) if !cnimble_files::is_absent(&err) => Err(err),
            _ => Ok(()),
        }
    }
}
